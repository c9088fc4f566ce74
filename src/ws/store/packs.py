"""Git packs: one file of objects, one index beside it (`indexes`); written in one pass, read by offset.

Why not libgit2: it holds the interpreter's lock while it compresses, never syncs, writes one file an
object, and takes 125 ms to import. The format is small. A pack is a header, entries (type and size, then a
zlib stream) and the SHA-1 of all that.
Compression is ISA-L's where it is installed: 6 times faster than zlib at level 1 and as small (190 MB of an
installed Python: 0.54 s against 3.59 s). Trees and records are not compressed: they are small, mostly
hashes, and read again and again; the collector compresses them and keeps old versions as differences.

Deltas are written only by the collector, always as REF_DELTA, so that an entry can be moved to another pack
byte by byte.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import struct
import zlib
from array import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, cast

from ws import durable
from ws.errors import StoreDamaged
from ws.store.blobs import Blobs, Part
from ws.store.indexes import Index, encode_index
from ws.store.plain import open_plain

try:
    from isal import isal_zlib as _deflate

    _BAD_ENTRY: tuple[type[Exception], ...] = (IndexError, zlib.error, cast(type[Exception], _deflate.error))
except ImportError:  # no wheel for this platform: the same streams, slower
    import zlib as _deflate  # type: ignore[no-redef]

    _BAD_ENTRY = (IndexError, zlib.error)

# ISA-L's take a tenth and a fifth of the time of zlib's.
_crc32: Callable[[Part, int], int] = _deflate.crc32
_adler32: Callable[[Part], int] = _deflate.adler32

COMMIT, TREE, BLOB, REF_DELTA = 1, 2, 3, 7
KINDS = {COMMIT: b"commit", TREE: b"tree", BLOB: b"blob"}

_FLUSH_BYTES = 4 << 20
_COMPRESS_BYTES = 128  # below that a stream is hardly smaller than its content
_PLAIN_BYTES = 128 << 10
_FIRST_READ = 4096
_STORED = b"\x78\x01\x01"  # a zlib stream of one block, not compressed
_BLOCK_BYTES = 0xFFFF  # of content that is not compressed, at most
_COPIED_BYTES = 4096  # a copy of less costs less than a part more
_AHEAD_BYTES = 128 << 10  # less is hashed at once
_PARTS = os.sysconf("SC_IOV_MAX")


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


def wrap(data: bytes) -> list[Part]:
    """A zlib stream that holds the bytes as they are; 1 µs where compressing 100 bytes takes 8."""
    size, tail = len(data), struct.pack(">I", _adler32(data))
    if size <= _BLOCK_BYTES:
        return [_STORED + struct.pack("<HH", size, size ^ 0xFFFF), data, tail]
    parts: list[Part] = [_STORED[:2]]
    view = memoryview(data)
    for at in range(0, size, _BLOCK_BYTES):
        block = view[at : at + _BLOCK_BYTES]
        last = at + len(block) == size
        parts += [struct.pack("<BHH", last, len(block), len(block) ^ 0xFFFF), block]
    return [*parts, tail]


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


class Judge(Protocol):
    """Says of objects that the store has whether the stored copy may be relied on."""

    def vouches(self, oid: bytes, kind: int, data: bytes) -> bool: ...

    def doubts(self, oid: bytes, *, in_chunks: bool = False) -> bool: ...


def _decode_header(data: bytes) -> tuple[int, int, int]:
    """Kind, size, and where the header ends. Raises IndexError when it is cut short."""
    byte = data[0]
    kind, size, shift, at = byte >> 4 & 7, byte & 15, 4, 1
    while byte & 0x80:
        byte = data[at]
        size |= (byte & 0x7F) << shift
        shift += 7
        at += 1
    return kind, size, at


def new_pack_path(directory: str) -> str:
    """Where a pack is written before it is part of the repository; recovery removes what has such a name."""
    return os.path.join(directory, f"tmp_pack_{secrets.token_hex(8)}")


class PackWriter:
    """A new pack in `directory`. Nothing of it is seen before `finish`; a crash leaves a `tmp_` file.

    A `quick` one compresses only what is much; then entries lie in another order than they were added in.
    """

    def __init__(
        self,
        directory: str,
        known: Callable[[bytes], bool],
        *,
        judge: Judge | None = None,
        quick: bool = False,
        path: str | None = None,
    ) -> None:
        self._directory = directory
        self._known = known
        self._judge = judge
        self.path = path or new_pack_path(directory)
        self._fd = -1  # made by the first flush: a snapshot without changes makes no file
        self._buffer: list[Part] = [struct.pack(">4sII", b"PACK", 2, 0)]
        self._buffered = 12
        self._end = 12
        self._blobs = Blobs(wrap, deflate) if quick else None
        self.finished: tuple[str, Index] | None = None  # the name of its index, once it is part of the repository
        self.ids: dict[bytes, int] = {}  # id → position in the two arrays
        self.crcs = array("I")
        self.offsets = array("Q")

    @property
    def size_bytes(self) -> int:
        return self._end

    def add(self, kind: int, data: bytes, *, plain: bool = False) -> bytes:
        """Store an object unless a sound copy is stored; its id. `plain`: it is small and often read."""
        oid = object_id(kind, data)
        if oid not in self.ids and not self._is_stored(oid, kind, data):
            self.add_new(oid, kind, data, plain=plain)
        return oid

    def _is_stored(self, oid: bytes, kind: int, data: bytes) -> bool:
        return self._judge.vouches(oid, kind, data) if self._judge else self._known(oid)

    def doubts(self, oid: bytes, *, in_chunks: bool = False) -> bool:
        """Whether the store may have an object in damaged packs only: then it is read and added again."""
        return self._judge is not None and self._judge.doubts(oid, in_chunks=in_chunks)

    def add_new(self, oid: bytes, kind: int, data: bytes, *, plain: bool = False) -> None:
        """Store an object whose id the caller computed and knows to be new to the store."""
        if oid in self.ids:
            return
        if len(data) < (_PLAIN_BYTES if plain else _COMPRESS_BYTES):
            self.add_entry(oid, [entry_header(kind, len(data)), *wrap(data)])
        elif self._blobs and kind == BLOB:
            self._place(self._blobs.put(self._reserve(oid), data))
        else:
            self.add_entry(oid, [entry_header(kind, len(data)), deflate(data)])

    def add_delta(self, oid: bytes, base: bytes, delta: bytes) -> None:
        """Store an object as its difference from another one of this pack."""
        self.add_entry(oid, [entry_header(REF_DELTA, len(delta)), base, deflate(delta)])

    def add_entry(self, oid: bytes, parts: list[Part]) -> None:
        self._fill(self._reserve(oid), parts)

    def _reserve(self, oid: bytes) -> int:
        """The position of an entry that is on its way."""
        position = self.ids[oid] = len(self.offsets)
        self.offsets.append(0)
        self.crcs.append(0)
        return position

    def _fill(self, position: int, parts: list[Part]) -> None:
        size = sum(map(len, parts))
        if size < _COPIED_BYTES:
            parts = [b"".join(parts)]
        crc = 0
        for part in parts:
            crc = _crc32(part, crc)
        self.offsets[position] = self._end
        self.crcs[position] = crc
        self._append(parts, size)

    def _place(self, blobs: Iterable[tuple[int, bytes, list[Part]]]) -> None:
        for position, data, body in blobs:
            self._fill(position, [entry_header(BLOB, len(data)), *body])

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
            self._append([data], len(data))

    def _append(self, parts: list[Part], size: int) -> None:
        self._buffer += parts
        self._end += size
        self._buffered += size
        if self._buffered > _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._fd < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self.path, flags, 0o600)
        for at in range(0, len(self._buffer), _PARTS):
            parts = self._buffer[at : at + _PARTS]
            written = os.writev(self._fd, parts)
            if written < sum(map(len, parts)):  # the disk is nearly full: the next call says so
                view = memoryview(b"".join(parts))[written:]
                while view:
                    view = view[os.write(self._fd, view) :]
        if self._buffered >= _FLUSH_BYTES:
            durable.start_writing(self._fd, self._end - self._buffered, self._buffered)
        self._buffer.clear()
        self._buffered = 0

    def read_back(self, oid: bytes) -> tuple[int, bytes] | None:
        """Kind and bytes of an object that was added here; None when it was not, or is part of the repository by now.

        For a capture in several steps: each builds on the tree of the one before, which is in no finished pack.
        """
        position = self.ids.get(oid)
        if position is None or self.finished:
            return None
        if self._blobs:
            self._place(self._blobs.finish())
        self.flush()
        kind, data, _ = _read_entry(self._fd, self.offsets[position])
        return kind, data

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
        checksum = hashlib.sha1(usedforsecurity=False)
        if self._end == self._buffered:
            parts = [head, *self._buffer[1:]]
            self._buffer = [*parts]
            self.flush()
            if self._end > _AHEAD_BYTES:
                durable.start_writing(self._fd)  # the disk is at work while we hash
            for part in parts:
                checksum.update(part)
        else:
            self.flush()
            os.pwrite(self._fd, head, 0)
            position = 0
            while data := os.pread(self._fd, _FLUSH_BYTES, position):
                checksum.update(data)
                position += len(data)
        trailer = checksum.digest()
        self._buffer.append(trailer)
        self.flush()
        index = encode_index(list(self.ids), self.crcs, self.offsets, trailer)
        place = os.path.join(self._directory, f"pack-{trailer.hex()}")
        durable.write_files(
            [(place + ".idx", index), *references],
            also=[self._fd],
            then=lambda: os.rename(self.path, place + ".pack"),
        )
        self._close()
        self.path = ""
        name = os.path.basename(place) + ".idx"
        self.finished = name, Index(name, index, pack_bytes=self._end + len(trailer))
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
        if self.path:  # else it was sealed, or is part of the repository
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Pack:
    """A finished pack: its index, and its file once an object is read."""

    def __init__(self, name: str, index: Index) -> None:
        self.name = name  # its path, without an ending
        self.index = index
        self.find = index.find
        self._fd = -1

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def entries(self) -> tuple[list[bytes], list[int], list[int], int]:
        """ids, offsets, CRCs in the order of the pack, and where its last entry ends."""
        index = self.index
        rows = sorted(
            (index.offset(i), oid, crc) for i, (oid, crc) in enumerate(zip(index.ids(), index.crcs(), strict=True))
        )
        end = os.fstat(self.descriptor()).st_size - 20
        return [row[1] for row in rows], [row[0] for row in rows], [row[2] for row in rows], end

    def size_bytes(self) -> int:
        """Of the pack file, which never changes. Raises FileNotFoundError when it was collected meanwhile."""
        if self.index.pack_bytes < 0:
            self.index.pack_bytes = os.stat(self.name + ".pack").st_size
        return self.index.pack_bytes

    def descriptor(self) -> int:
        """The pack file, opened at first need.

        Raises FileNotFoundError when it was collected meanwhile, StoreDamaged when it is not a regular file.
        """
        if self._fd < 0:
            self._fd = open_plain(self.name + ".pack")
        return self._fd

    def kind_at(self, position: int) -> int:
        """The kind of an entry, by its first byte alone; 0 when it cannot be read."""
        try:
            first = os.pread(self.descriptor(), 1, self.index.offset(position))
        except (OSError, StoreDamaged):
            return 0
        return first[0] >> 4 & 7 if first else 0

    def describe(self, position: int) -> tuple[int, int]:
        """Kind and size of an entry, without its bytes; of a delta, its own. Raises ValueError, OSError."""
        data = os.pread(self.descriptor(), 16, self.index.offset(position))
        try:
            kind, size, _ = _decode_header(data)
        except IndexError:
            raise ValueError("the entry is cut short") from None
        return kind, size

    def read(self, position: int) -> tuple[int, bytes, bytes]:
        """Kind, bytes, and for a delta the id of its base. Raises ValueError when the entry is no entry."""
        return _read_entry(self.descriptor(), self.index.offset(position))


def _read_entry(fd: int, offset: int) -> tuple[int, bytes, bytes]:
    """Kind, bytes, and for a delta the id of its base. Raises ValueError when the entry is no entry."""
    data = os.pread(fd, _FIRST_READ, offset)
    try:
        kind, size, at = _decode_header(data)
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
