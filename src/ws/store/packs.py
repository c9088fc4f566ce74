"""Git packs: one file of objects, one index beside it; written in one pass, read by offset.

Why not libgit2: it holds the interpreter's lock while it compresses, never syncs, writes one file an
object, and takes 125 ms to import. The format is small. A pack is a header, entries (type and size, then a
zlib stream) and the SHA-1 of all that; an index v2 is a fan-out table, sorted ids, CRCs and offsets.
Compression is ISA-L's where it is installed: 6 times faster than zlib at level 1 and as small (190 MB of an
installed Python: 0.54 s against 3.59 s). Trees and records are not compressed: they are small, mostly
hashes, and read again and again; the collector compresses them and keeps old versions as differences.

Deltas are written only by the collector, always as REF_DELTA, so that an entry can be moved to another pack
byte by byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import secrets
import struct
import sys
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, cast

from ws import durable
from ws.errors import StoreDamaged
from ws.store.blobs import Blobs

try:
    from isal import isal_zlib as _deflate

    _BAD_ENTRY: tuple[type[Exception], ...] = (IndexError, zlib.error, cast(type[Exception], _deflate.error))
except ImportError:  # no wheel for this platform: the same streams, slower
    import zlib as _deflate  # type: ignore[no-redef]

    _BAD_ENTRY = (IndexError, zlib.error)

_crc32: Callable[[bytes], int] = _deflate.crc32  # ISA-L's takes a third of the time of zlib's

COMMIT, TREE, BLOB, REF_DELTA = 1, 2, 3, 7
KINDS = {COMMIT: b"commit", TREE: b"tree", BLOB: b"blob"}

_FLUSH_BYTES = 4 << 20
_COMPRESS_BYTES = 128  # below that a stream is hardly smaller than its content
_PLAIN_BYTES = 32 << 10
_FIRST_READ = 4096
_IDX_HEAD = b"\xfftOc\x00\x00\x00\x02"
_IDX_IDS = 8 + 256 * 4
_BIG_OFFSET = 1 << 31
_STORED = b"\x78\x01\x01"  # a zlib stream of one block, not compressed


def object_id(kind: int, data: bytes) -> bytes:
    head = b"%s %d\0" % (KINDS[kind], len(data))
    if len(data) < 4096:
        return hashlib.sha1(head + data, usedforsecurity=False).digest()
    digest = hashlib.sha1(head, usedforsecurity=False)
    digest.update(data)
    return digest.digest()


def deflate(data: bytes) -> bytes:
    """A zlib stream, at the speed of level 1."""
    return _deflate.compress(data, 1)


def wrap(data: bytes) -> bytes:
    """A zlib stream that holds the bytes as they are; 1 µs where compressing 100 bytes takes 8."""
    size = len(data)
    if size > 0xFFFF:
        return zlib.compress(data, 0)
    return b"".join((_STORED, struct.pack("<HH", size, size ^ 0xFFFF), data, struct.pack(">I", zlib.adler32(data))))


def entry_header(kind: int, size: int) -> bytes:
    byte = kind << 4 | size & 15
    size >>= 4
    head = bytearray()
    while size:
        head.append(byte | 0x80)
        byte = size & 0x7F
        size >>= 7
    head.append(byte)
    return bytes(head)


class PackWriter:
    """A new pack in `directory`. Nothing of it is seen before `finish`; a crash leaves a `tmp_` file.

    A `quick` one compresses only what is much; then entries lie in another order than they were added in.
    """

    def __init__(self, directory: str, known: Callable[[bytes], bool], *, quick: bool = False) -> None:
        self._directory = directory
        self._known = known
        self.path = os.path.join(directory, f"tmp_pack_{secrets.token_hex(8)}")
        self._fd = -1  # made by the first flush: a snapshot without changes makes no file
        self._buffer: list[bytes] = [struct.pack(">4sII", b"PACK", 2, 0)]
        self._buffered = 12
        self._end = 12
        self._blobs = Blobs(wrap, deflate) if quick else None
        self.ids: dict[bytes, int] = {}  # id → position in the two arrays
        self.crcs = array("I")
        self.offsets = array("Q")

    @property
    def size_bytes(self) -> int:
        return self._end

    def add(self, kind: int, data: bytes, *, plain: bool = False) -> bytes:
        """Store an object unless it is known; its id. `plain`: it is small and often read."""
        oid = object_id(kind, data)
        if oid not in self.ids and not self._known(oid):
            self.add_new(oid, kind, data, plain=plain)
        return oid

    def add_new(self, oid: bytes, kind: int, data: bytes, *, plain: bool = False) -> None:
        """Store an object whose id the caller computed and knows to be new to the store."""
        if oid in self.ids:
            return
        if len(data) < (_PLAIN_BYTES if plain else _COMPRESS_BYTES):
            self.add_entry(oid, entry_header(kind, len(data)) + wrap(data))
        elif self._blobs and kind == BLOB:
            self._place(self._blobs.put(self._reserve(oid), data))
        else:
            self.add_entry(oid, entry_header(kind, len(data)) + deflate(data))

    def add_delta(self, oid: bytes, base: bytes, delta: bytes) -> None:
        """Store an object as its difference from another one of this pack."""
        self.add_entry(oid, entry_header(REF_DELTA, len(delta)) + base + deflate(delta))

    def add_entry(self, oid: bytes, entry: bytes) -> None:
        self._fill(self._reserve(oid), entry)

    def _reserve(self, oid: bytes) -> int:
        """The position of an entry that is on its way."""
        position = self.ids[oid] = len(self.offsets)
        self.offsets.append(0)
        self.crcs.append(0)
        return position

    def _fill(self, position: int, entry: bytes) -> None:
        self.offsets[position] = self._end
        self.crcs[position] = _crc32(entry)
        self._append(entry)

    def _place(self, blobs: Iterable[tuple[int, bytes, bytes]]) -> None:
        for position, data, body in blobs:
            self._fill(position, entry_header(BLOB, len(data)) + body)

    def absorb(self, fd: int, ids: Sequence[bytes], offsets: Sequence[int], crcs: Sequence[int], end: int) -> None:
        """Take over entries of another pack as they are, without those that are here already.

        `offsets` ascend and `end` is where the last entry ends. Neighbours are copied together.
        """
        start = stop = offsets[0] if ids else 0
        for oid, offset, crc, following in zip(ids, offsets, crcs, [*offsets[1:], end], strict=True):
            if oid in self.ids:
                continue
            if offset != stop or stop - start > _FLUSH_BYTES:
                self._copy(fd, start, stop)
                start = offset
            self.ids[oid] = len(self.offsets)
            self.offsets.append(self._end + offset - start)
            self.crcs.append(crc)
            stop = following
        self._copy(fd, start, stop)

    def _copy(self, fd: int, start: int, stop: int) -> None:
        while start < stop:
            data = os.pread(fd, min(stop - start, _FLUSH_BYTES), start)
            if not data:
                raise StoreDamaged("a pack is shorter than its index says")
            start += len(data)
            self._append(data)

    def _append(self, data: bytes) -> None:
        self._buffer.append(data)
        self._end += len(data)
        self._buffered += len(data)
        if self._buffered > _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._fd < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self.path, flags, 0o600)
        view = memoryview(b"".join(self._buffer))
        while view:
            view = view[os.write(self._fd, view) :]
        if self._buffered >= _FLUSH_BYTES:
            durable.start_writing(self._fd, self._end - self._buffered, self._buffered)
        self._buffer.clear()
        self._buffered = 0

    def finish(self, references: Sequence[tuple[str, bytes]] = ()) -> str | None:
        """Make the pack part of the repository, durably; its path, or None when it would be empty.

        `references` are files that make what is in it count: synced together with it, and in place after it.
        Commit point: the rename of the index, before which nothing reads the pack; then that of each reference.
        """
        if not self.ids:
            self.abort()
            return None
        if self._blobs:
            self._place(self._blobs.finish())
        head = struct.pack(">4sII", b"PACK", 2, len(self.offsets))
        if self._end == self._buffered:
            self._buffer[0] = head
            checksum = hashlib.sha1(b"".join(self._buffer), usedforsecurity=False)
        else:
            self.flush()
            os.pwrite(self._fd, head, 0)
            checksum = hashlib.sha1(usedforsecurity=False)
            position = 0
            while data := os.pread(self._fd, _FLUSH_BYTES, position):
                checksum.update(data)
                position += len(data)
        trailer = checksum.digest()
        self._buffer.append(trailer)
        self.flush()
        index = _encode_index(list(self.ids), self.crcs, self.offsets, trailer)
        place = os.path.join(self._directory, f"pack-{trailer.hex()}")
        durable.write_files(
            [(place + ".idx", index), *references],
            also=[self._fd],
            then=lambda: os.rename(self.path, place + ".pack"),
        )
        self._close()
        return place + ".pack"

    def seal(self) -> str:
        """Write out what is buffered and leave the file for another process to absorb; its path."""
        self.flush()
        self._close()
        path, self.path = self.path, ""
        return path

    def abort(self) -> None:
        """Forget the pack; harmless after `finish`."""
        self._close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)  # "" once it was sealed

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _encode_index(ids: list[bytes], crcs: array[int], offsets: array[int], trailer: bytes) -> bytes:
    order = sorted(range(len(ids)), key=ids.__getitem__)
    fanout = array("I", bytes(1024))
    for oid in ids:
        fanout[oid[0]] += 1
    for i in range(1, 256):
        fanout[i] += fanout[i - 1]
    small, big = array("I"), array("Q")
    for i in order:
        offset = offsets[i]
        if offset < _BIG_OFFSET:
            small.append(offset)
        else:
            small.append(_BIG_OFFSET | len(big))
            big.append(offset)
    body = b"".join(
        (
            _IDX_HEAD,
            _big_endian(fanout),
            *[ids[i] for i in order],
            _big_endian(array("I", [crcs[i] for i in order])),
            _big_endian(small),
            _big_endian(big),
            trailer,
        )
    )
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def _big_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


class Pack:
    """A finished pack, opened by the path of its index."""

    def __init__(self, index: str) -> None:
        self.name = index.removesuffix(".idx")
        fd = os.open(index, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if size < _IDX_IDS + 40:
                raise StoreDamaged(f"the index {os.path.basename(index)} is cut short")
            self._index = mmap.mmap(fd, size, prot=mmap.PROT_READ)
        finally:
            os.close(fd)
        fanout = array("I", self._index[8:_IDX_IDS])
        if sys.byteorder == "little":
            fanout.byteswap()
        # Positions of ids in the file, so that a lookup is a search of some bytes between two of them.
        self._fanout = [_IDX_IDS, *[_IDX_IDS + 20 * count for count in fanout]]
        self.count = fanout[255]
        if self._index[:8] != _IDX_HEAD or size < _IDX_IDS + self.count * 28 + 40:
            raise StoreDamaged(f"the index {os.path.basename(index)} is not one, or is cut short")
        self._fd = -1

    def close(self) -> None:
        self._index.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def find(self, oid: bytes) -> int:
        """The position of an id, or −1."""
        first = oid[0]
        start, stop = self._fanout[first], self._fanout[first + 1]
        while start < stop:
            at = self._index.find(oid, start, stop)
            if at < 0:
                return -1
            if (at - _IDX_IDS) % 20 == 0:
                return (at - _IDX_IDS) // 20
            start = at + 1
        return -1

    def offset(self, position: int) -> int:
        table = _IDX_IDS + self.count * 24
        at = table + 4 * position
        offset = int.from_bytes(self._index[at : at + 4], "big")
        if offset & _BIG_OFFSET:
            at = table + 4 * self.count + 8 * (offset ^ _BIG_OFFSET)
            offset = int.from_bytes(self._index[at : at + 8], "big")
        return offset

    def ids(self) -> list[bytes]:
        """Every id, in the order of the index."""
        data = self._index[_IDX_IDS : _IDX_IDS + 20 * self.count]
        return [data[at : at + 20] for at in range(0, len(data), 20)]

    def entries(self) -> tuple[list[bytes], list[int], list[int], int]:
        """ids, offsets, CRCs in the order of the pack, and where its last entry ends."""
        crcs = array("I", self._index[_IDX_IDS + 20 * self.count : _IDX_IDS + 24 * self.count])
        if sys.byteorder == "little":
            crcs.byteswap()
        rows = sorted((self.offset(i), oid, crc) for i, (oid, crc) in enumerate(zip(self.ids(), crcs, strict=True)))
        end = os.fstat(self.descriptor()).st_size - 20
        return [row[1] for row in rows], [row[0] for row in rows], [row[2] for row in rows], end

    def descriptor(self) -> int:
        """The pack file, opened at first need. Raises FileNotFoundError when it was collected meanwhile."""
        if self._fd < 0:
            self._fd = os.open(self.name + ".pack", os.O_RDONLY | os.O_CLOEXEC)
        return self._fd

    def read(self, offset: int) -> tuple[int, bytes, bytes]:
        """Kind, bytes, and for a delta the id of its base. Raises ValueError when the entry is no entry."""
        fd = self.descriptor()
        data = os.pread(fd, _FIRST_READ, offset)
        try:
            byte = data[0]
            kind, size, shift, at = byte >> 4 & 7, byte & 15, 4, 1
            while byte & 0x80:
                byte = data[at]
                size |= (byte & 0x7F) << shift
                shift += 7
                at += 1
            base = b""
            if kind == REF_DELTA:
                base = data[at : at + 20]
                at += 20
            elif kind not in KINDS:
                raise ValueError("no such type of entry")
            if size <= len(data) - at - 7 and data[at : at + 3] == _STORED:
                return kind, data[at + 7 : at + 7 + size], base  # as `wrap` wrote it; the id vouches for it
            inflate = _deflate.decompressobj()
            # One byte more than promised is asked for: a stream that holds more is damaged, or a bomb.
            content = inflate.decompress(data[at:], size + 1)
            if not inflate.eof and len(content) <= size:
                content = _read_on(fd, inflate, content, size, offset + len(data))
        except _BAD_ENTRY as error:
            raise ValueError(str(error)) from None
        if len(content) != size or not inflate.eof:
            raise ValueError("the entry does not have the size it says")
        return kind, content, base


def _read_on(fd: int, inflate: Any, content: bytes, size: int, position: int) -> bytes:
    parts = [content]
    missing = size + 1 - len(content)
    while not inflate.eof and missing > 0:
        data = os.pread(fd, min(missing + 1024, 1 << 20), position)
        if not data:
            break
        position += len(data)
        part = inflate.decompress(data, missing)
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)
