"""Read a pack that another machine made: one pass, every object hashed, nothing trusted.

Only what ws itself writes into bundles is accepted: whole commits, trees and blobs, no deltas. The number of objects is
counted against the budget when the pack announces it, the size of each object before it is unpacked. Each stream must
end where it says, each tree must be in git's order with the modes we use, and the checksum at the end must fit. What
the objects mean is for `tree_check` to judge.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Callable
from typing import BinaryIO

from ws.errors import BundleRefused, LimitExceeded
from ws.store import trees
from ws.store.import_limits import MAX_COMMIT_BYTES, MAX_OBJECT_BYTES, Budget
from ws.store.packs import COMMIT, KINDS, TREE, PackWriter

Progress = Callable[[str, int, int], None]  # phase, done, total (0: unknown)

MAX_ENTRY_NAME_BYTES = 512  # a name of 255 bytes, escaped

_READ_BYTES = 1 << 16
_MODES = {trees.DIRECTORY, trees.FILE, trees.EXECUTABLE, trees.LINK}


def take_in(file: BinaryIO, writer: PackWriter, budget: Budget, progress: Progress | None = None) -> None:
    """Put every object of the pack that begins here into another one. Raises BundleRefused, LimitExceeded."""
    stream = _Stream(file)
    magic, version, count = struct.unpack(">4sII", stream.take(12))
    if (magic, version) != (b"PACK", 2):
        raise BundleRefused("the bundle holds no pack that ws knows")
    budget.count_objects(count)
    for number in range(count):
        kind, size = _entry_header(stream)
        if kind not in KINDS:
            raise BundleRefused("the bundle holds objects in a form that ws does not write")
        limit = MAX_COMMIT_BYTES if kind == COMMIT else MAX_OBJECT_BYTES
        if size > limit:
            raise LimitExceeded(f"the bundle holds an object of {size:,} bytes; the limit is {limit:,}")
        budget.count_bytes(size)
        data = stream.inflate(size)
        if kind == TREE:
            _check_tree(data, budget)
        writer.add(kind, data)
        if number % 256 == 0:
            budget.check_time()
            if progress:
                progress("read", number, count)
    digest = stream.digest()
    if stream.take(20) != digest:
        raise BundleRefused("the bundle is damaged: its checksum does not fit")
    if not stream.ended():
        raise BundleRefused("something follows the end of the bundle")


def _entry_header(stream: _Stream) -> tuple[int, int]:
    byte = stream.take(1)[0]
    kind, size, shift = byte >> 4 & 7, byte & 15, 4
    while byte & 0x80:
        byte = stream.take(1)[0]
        size |= (byte & 0x7F) << shift
        shift += 7
        if shift > 64:
            raise BundleRefused("the bundle is damaged: an object has no end")
    return kind, size


def _check_tree(data: bytes, budget: Budget) -> None:
    """One entry at a time: a list of all of them takes twenty times the memory of the tree."""
    names: set[bytes] = set()
    last, end = b"", 0
    for mode, name, entry_end in trees.scan_tree(data):
        key = name + b"/" if mode == trees.DIRECTORY else name
        if mode not in _MODES or key <= last or name in names or not _is_entry_name(name):
            raise BundleRefused("the bundle holds a tree that git would refuse")
        names.add(name)  # a file and a directory of one name need not be neighbours
        budget.check_entries(len(names))
        last, end = key, entry_end
    if end != len(data):
        raise BundleRefused("the bundle is damaged: a tree cannot be read")


def _is_entry_name(name: bytes) -> bool:
    return name not in (b".", b"..") and b"/" not in name and len(name) <= MAX_ENTRY_NAME_BYTES


class _Stream:
    """A file read forwards, with the hash of what was taken from it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._buffer = b""
        self._hash = hashlib.sha1(usedforsecurity=False)

    def _fill(self) -> None:
        more = self._file.read(_READ_BYTES)
        if not more:
            raise BundleRefused("the bundle is cut short")
        self._buffer += more

    def take(self, count: int) -> bytes:
        while len(self._buffer) < count:
            self._fill()
        data, self._buffer = self._buffer[:count], self._buffer[count:]
        self._hash.update(data)
        return data

    def inflate(self, size: int) -> bytes:
        """The bytes of a zlib stream that must give exactly so many; one more is never made."""
        inflate = zlib.decompressobj()
        parts: list[bytes] = []
        missing = size + 1
        while not inflate.eof:
            if not self._buffer:
                self._fill()
            data = self._buffer
            try:
                part = inflate.decompress(data, missing)
            except zlib.error as error:
                raise BundleRefused(f"the bundle is damaged: {error}") from None
            self._buffer = inflate.unused_data if inflate.eof else inflate.unconsumed_tail
            self._hash.update(data[: len(data) - len(self._buffer)])
            parts.append(part)
            missing -= len(part)
            if missing <= 0:
                break
        if missing != 1:
            raise BundleRefused("the bundle is damaged: an object does not have the size it says")
        return b"".join(parts)

    def digest(self) -> bytes:
        return self._hash.digest()

    def ended(self) -> bool:
        return not self._buffer and not self._file.read(1)
