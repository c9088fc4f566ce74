"""The bytes of files: small ones whole, large ones in chunks, holes not at all.

A file over 16 MiB is kept as a tree of chunks of 1 MiB: a small change to it costs one chunk, and no more
than one is held in memory. A hole of a sparse file is a chunk of zeros, the same one for all, that is
neither read nor written.
"""

from __future__ import annotations

import errno
import os

from ws.store import trees
from ws.store.packs import BLOB, TREE, PackWriter, object_id

_ZEROS = bytes(trees.CHUNK_BYTES)
_ZEROS_ID = object_id(BLOB, _ZEROS)


def read_up_to(fd: int, limit: int) -> bytes:
    """Up to `limit` bytes from here; a file that grows for ever does not hold us up."""
    data = os.read(fd, limit)
    if len(data) == limit or not data or len(data) == limit - 1:
        return data
    parts = [data]
    missing = limit - len(data)
    while missing and (data := os.read(fd, missing)):
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


class Unread(Exception):
    def __init__(self, cause: OSError) -> None:
        self.cause = cause


def add_chunks(writer: PackWriter, fd: int, size: int, out: int = -1) -> bytes:
    """Store a large file in chunks and copy it to `out`, without its holes; the id of the tree of chunks."""
    tree = bytearray()  # of a file of a terabyte there are a million chunks; their names sort as they come
    data_from, holes = 0, False
    for number, start in enumerate(range(0, size, trees.CHUNK_BYTES)):
        length = min(trees.CHUNK_BYTES, size - start)
        try:
            if data_from < start + length:
                data_from = max(data_from, _next_data(fd, start, size))
            hole = data_from >= start + length
            chunk = b"" if hole else _read_at(fd, length, start)
        except OSError as error:
            raise Unread(error) from None
        if hole and length == trees.CHUNK_BYTES:
            oid = _ZEROS_ID
            if not holes:
                holes = True
                writer.add(BLOB, _ZEROS)
        else:
            # A file that shrank meanwhile is padded; the check at the end sees that it changed.
            chunk = chunk.ljust(length, b"\0")
            oid = writer.add(BLOB, chunk)
            if out >= 0 and not hole:
                write_all(out, chunk, start)
        tree += trees.raw_entry(trees.FILE, b"%08d" % number, oid)
    return writer.add(TREE, bytes(tree))


def _read_at(fd: int, length: int, position: int) -> bytes:
    data = os.pread(fd, length, position)
    while len(data) < length and (more := os.pread(fd, length - len(data), position + len(data))):
        data += more
    return data


def write_all(fd: int, data: bytes, position: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, position)
        view = view[written:]
        position += written


def _next_data(fd: int, position: int, size: int) -> int:
    try:
        return os.lseek(fd, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size
        if error.errno == errno.EINVAL:
            return position  # a filesystem that does not tell holes
        raise
