"""The index of a pack, built anew from the pack alone.

A pack holds all that its index says: where each entry begins, its CRC and, by hashing, its id. So an index that is
damaged or gone costs a pass over the pack and no object. Entries are read in their order. Behind an entry that cannot
be read the next one cannot be found: the index then has what lies before it.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from array import array
from dataclasses import dataclass, field

from ws.errors import StoreDamaged
from ws.store.deltas import apply_delta
from ws.store.indexes import encode_index
from ws.store.packs import KINDS, REF_DELTA, object_id
from ws.store.plain import open_plain

_HEADER_BYTES = 12
_TRAILER_BYTES = 20
_READ_BYTES = 1 << 20
_LONGEST_HEAD = 64  # of an entry: type, size and the id of a delta's base
_ENTRY_ERRORS = (zlib.error, IndexError, ValueError, StoreDamaged)


@dataclass(slots=True)
class _Entry:
    offset: int
    crc: int
    oid: bytes = b""  # of a delta: not known before its base is


@dataclass(slots=True)
class _Delta:
    entry: _Entry
    body_at: int
    size: int


@dataclass(slots=True)
class _Found:
    entries: list[_Entry] = field(default_factory=list)
    kinds: dict[bytes, tuple[int, int, int]] = field(default_factory=dict)  # whole objects: kind, body_at, size
    deltas: dict[bytes, list[_Delta]] = field(default_factory=dict)  # by the id of their base


def holds_nothing(path: str) -> bool:
    """Whether not even the first entry of a pack can be read, so that there is nothing in it to keep."""
    try:
        fd = open_plain(path)
    except FileNotFoundError:
        return False
    except StoreDamaged:
        return True
    try:
        end = os.fstat(fd).st_size - _TRAILER_BYTES
        return not (_is_pack(fd, end) and _read_entries(fd, end, 1).entries)
    finally:
        os.close(fd)


def _is_pack(fd: int, end: int) -> bool:
    return end >= _HEADER_BYTES and os.pread(fd, 8, 0) == struct.pack(">4sI", b"PACK", 2)


def build_index(path: str) -> bytes | None:
    """The bytes of an index of all that can be read in a pack; None when that is nothing.

    Raises FileNotFoundError, StoreDamaged when it is not a regular file.
    """
    fd = open_plain(path)
    try:
        end = os.fstat(fd).st_size - _TRAILER_BYTES
        if not _is_pack(fd, end):
            return None
        found = _read_entries(fd, end, int.from_bytes(os.pread(fd, 4, 8), "big"))
        _name_deltas(fd, end, found)
        named = {entry.oid: entry for entry in found.entries if entry.oid}
        if not named:
            return None
        crcs = array("I", [entry.crc for entry in named.values()])
        offsets = array("Q", [entry.offset for entry in named.values()])
        return encode_index(list(named), crcs, offsets, os.pread(fd, _TRAILER_BYTES, end))
    finally:
        os.close(fd)


def _read_entries(fd: int, end: int, count: int) -> _Found:
    found = _Found()
    at = _HEADER_BYTES
    for _ in range(count):
        try:
            kind, size, base, body_at = _read_head(fd, at, end)
            content = hashlib.sha1(usedforsecurity=False)
            if kind in KINDS:
                content.update(b"%s %d\0" % (KINDS[kind], size))
            following = _inflate(fd, body_at, end, size, content)
        except _ENTRY_ERRORS:
            break
        entry = _Entry(at, _crc_of(fd, at, following))
        found.entries.append(entry)
        if kind == REF_DELTA:
            found.deltas.setdefault(base, []).append(_Delta(entry, body_at, size))
        else:
            entry.oid = content.digest()
            found.kinds[entry.oid] = kind, body_at, size
        at = following
    return found


def _read_head(fd: int, at: int, end: int) -> tuple[int, int, bytes, int]:
    """Kind, size, the id of a delta's base, and where the zlib stream begins. Raises ValueError, IndexError."""
    data = os.pread(fd, min(_LONGEST_HEAD, end - at), at)
    byte = data[0]
    kind, size, shift, length = byte >> 4 & 7, byte & 15, 4, 1
    while byte & 0x80:
        byte = data[length]
        size |= (byte & 0x7F) << shift
        shift += 7
        length += 1
    if kind == REF_DELTA:
        return kind, size, data[length : length + 20], at + length + 20
    if kind not in KINDS:
        raise ValueError("no such type of entry")
    return kind, size, b"", at + length


def _inflate(fd: int, at: int, end: int, size: int, into: hashlib._Hash) -> int:
    """Hash a zlib stream of `size` bytes; where it ends. Raises ValueError, zlib.error."""
    inflate = zlib.decompressobj()
    left = size
    pending = b""
    while not inflate.eof:
        if not pending:
            pending = os.pread(fd, min(_READ_BYTES, end - at), at)
            if not pending:
                raise ValueError("a stream is cut short")
            at += len(pending)
        part = inflate.decompress(pending, _READ_BYTES)
        into.update(part)
        left -= len(part)
        if left < 0:
            raise ValueError("a stream is longer than it says")
        pending = inflate.unconsumed_tail
    if left:
        raise ValueError("a stream is shorter than it says")
    return at - len(inflate.unused_data)


def _crc_of(fd: int, start: int, stop: int) -> int:
    crc = 0
    while start < stop:
        data = os.pread(fd, min(_READ_BYTES, stop - start), start)
        crc = zlib.crc32(data, crc)
        start += len(data)
    return crc


def _name_deltas(fd: int, end: int, found: _Found) -> None:
    """Give each delta its id: from a whole object down its chains, with one chain in memory at a time."""
    for oid in found.kinds.keys() & found.deltas.keys():
        kind, body_at, size = found.kinds[oid]
        pending = [(oid, _content(fd, body_at, end, size))]
        while pending:
            base, data = pending.pop()
            for delta in found.deltas.get(base, ()):
                try:
                    made = apply_delta(data, _content(fd, delta.body_at, end, delta.size))
                except _ENTRY_ERRORS:
                    continue
                delta.entry.oid = object_id(kind, made)
                if delta.entry.oid in found.deltas:
                    pending.append((delta.entry.oid, made))


def _content(fd: int, at: int, end: int, size: int) -> bytes:
    inflate = zlib.decompressobj()
    parts = []
    left = size + 1
    while not inflate.eof and left > 0 and (data := os.pread(fd, min(_READ_BYTES, end - at), at)):
        at += len(data)
        parts.append(inflate.decompress(data, left))
        left -= len(parts[-1])
    return b"".join(parts)
