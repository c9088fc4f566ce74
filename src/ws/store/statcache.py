"""What a tree looked like when it was read, so that the next look costs one lstat a file.

The ctime of an inode cannot be set by anybody and moves with every change of content, mode, owner, name or
xattr; a directory's moves with every entry made or removed. So a tree in which every directory and file
still has its inode, ctime and size is the tree that was read. A file that was younger than a timestamp is
fine when it was read (*racy*) is hashed again before it is believed.

Kept in columns, because 50,000 rows must be loaded and compared in a few milliseconds: names joined by NUL,
numbers in arrays, which are filled and compared without a loop in Python.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from array import array
from collections.abc import Iterable
from operator import attrgetter, ne
from typing import Any

from ws.record_files import parse_json, read_cached_bytes
from ws.store import chunks
from ws.store.descent import Descent
from ws.store.gathering import RACY, Row
from ws.store.packs import BLOB, PackWriter, object_id
from ws.store.reading import OPEN_FLAGS
from ws.store.trees import CHUNKED_FROM_BYTES

_MAGIC = b"ws stat cache 1\n"
_MAX_BYTES = 2 << 30  # of a cache that is read at all: about 20 million files
_PATH_MAX = 4000  # longer paths are looked at from their directory
_INODE, _SIZE, _CTIME = attrgetter("st_ino"), attrgetter("st_size"), attrgetter("st_ctime_ns")
_DEVICE = attrgetter("st_dev")


class StatCache:
    """Directories, each after its parent, and the rows of each as `reading` made them."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}  # what the owner of the cache wants to remember beside it
        self._parents, self._names = array("q"), list[bytes]()
        self._devices, self._inodes, self._ctimes = array("Q"), array("Q"), array("q")
        self._starts = array("q", [0])
        self._file_names = list[bytes]()
        self._file_inodes, self._file_sizes, self._file_ctimes = array("Q"), array("q"), array("q")
        self._flags, self._oids = bytearray(), bytearray()
        self._index: dict[tuple[int, bytes], int] | None = None

    @property
    def files(self) -> int:
        return len(self._file_names)

    def add(
        self,
        parent: int,
        name: bytes,
        identity: tuple[int, int, int],
        rows: Iterable[Row],
    ) -> int:
        """The next directory, and its number; the first one is the root, its own parent."""
        self._parents.append(parent)
        self._names.append(name)
        for column, value in zip((self._devices, self._inodes, self._ctimes), identity, strict=True):
            column.append(value)
        for name, inode, size, ctime_ns, flags, oid in rows:
            self._file_names.append(name)
            self._file_inodes.append(inode)
            self._file_sizes.append(size)
            self._file_ctimes.append(ctime_ns)
            self._flags.append(flags)
            self._oids += oid or bytes(20)
        self._starts.append(len(self._file_names))
        return len(self._names) - 1

    def find(self, parent: int, name: bytes) -> int:
        """The number of a directory by its parent's and its name, −1 when there is none; the root is 0."""
        if self._index is None:
            self._index = {
                (up, name): i for i, (up, name) in enumerate(zip(self._parents, self._names, strict=True)) if i
            }
        return self._index.get((parent, name), -1)

    def rows(self, directory: int) -> list[Row]:
        return [
            (
                self._file_names[i],
                self._file_inodes[i],
                self._file_sizes[i],
                self._file_ctimes[i],
                self._flags[i],
                bytes(self._oids[20 * i : 20 * i + 20]),
            )
            for i in range(self._starts[directory], self._starts[directory + 1])
        ]

    def first_change(self, root: str) -> bytes | None:
        """A path in the tree at `root` that is not as it was read, or None when all is."""
        directories = self._directory_paths(os.fsencode(root))
        paths = [
            directories[d] + b"/" + name
            for d in range(len(directories))
            for name in self._file_names[self._starts[d] : self._starts[d + 1]]
        ]
        try:
            with _Looking(root) as looking:
                found = looking.at_all(directories)
                changed = _first_difference(
                    (found, _DEVICE, self._devices),
                    (found, _INODE, self._inodes),
                    (found, _CTIME, self._ctimes),
                )
                if changed >= 0:
                    return directories[changed]
                found = looking.at_all(paths)
                changed = _first_difference(
                    (found, _INODE, self._file_inodes),
                    (found, _CTIME, self._file_ctimes),
                    (found, _SIZE, self._file_sizes),
                )
                if changed >= 0:
                    return paths[changed]
                return self._first_racy_change(paths, looking)
        except OSError as error:
            return os.fsencode(error.filename or root)

    def _first_racy_change(self, paths: list[bytes], looking: _Looking) -> bytes | None:
        for i, flags in enumerate(self._flags):
            if flags & RACY and looking.hash_of(paths[i]) != self._oids[20 * i : 20 * i + 20]:
                return paths[i]
        return None

    def _directory_paths(self, root: bytes) -> list[bytes]:
        paths = [root]
        for parent, name in zip(self._parents[1:], self._names[1:], strict=True):
            paths.append(paths[parent] + b"/" + name)
        return paths

    def to_bytes(self) -> bytes:
        parts = [b"\0".join(self._names), b"\0".join(self._file_names), bytes(self._flags), bytes(self._oids)]
        parts += [column.tobytes() for column in self._columns()]
        head = json.dumps({"facts": self.facts, "sizes": [len(part) for part in parts]}).encode() + b"\n"
        body = b"".join((head, *parts))
        return b"".join((_MAGIC, hashlib.sha1(body, usedforsecurity=False).digest(), body))

    @classmethod
    def from_bytes(cls, data: bytes) -> StatCache | None:
        """None when the bytes are not a whole cache of this version: then everything is read again."""
        body = memoryview(data)[len(_MAGIC) + 20 :]
        digest = hashlib.sha1(body, usedforsecurity=False).digest()
        if not data.startswith(_MAGIC) or data[len(_MAGIC) : len(_MAGIC) + 20] != digest:
            return None
        try:
            return cls._parse(data)
        except (ValueError, KeyError, TypeError):
            return None  # it has its checksum, and was written by another version

    @classmethod
    def _parse(cls, data: bytes) -> StatCache:
        cache = cls()
        at = data.index(b"\n", len(_MAGIC) + 20) + 1
        head = parse_json(data[len(_MAGIC) + 20 : at])
        cache.facts = dict(head["facts"])
        parts = []
        for size in head["sizes"]:
            parts.append(data[at : at + size])
            at += size
        cache._names = parts[0].split(b"\0")
        cache._file_names = parts[1].split(b"\0") if parts[1] else []
        cache._flags, cache._oids = bytearray(parts[2]), bytearray(parts[3])
        cache._starts = array("q")
        for column, part in zip(cache._columns(), parts[4:], strict=True):
            column.frombytes(part)
        return cache

    def _columns(self) -> tuple[array[int], ...]:
        return (
            self._parents,
            self._devices,
            self._inodes,
            self._ctimes,
            self._starts,
            self._file_inodes,
            self._file_sizes,
            self._file_ctimes,
        )


def load_cache(path: str) -> StatCache | None:
    """The cache in a file; None when it is missing or damaged."""
    data = read_cached_bytes(path, max_bytes=_MAX_BYTES)
    return None if data is None else StatCache.from_bytes(data)


def _first_difference(*columns: tuple[list[os.stat_result], attrgetter[int], array[int]]) -> int:
    for found, attribute, expected in columns:
        if array(expected.typecode, map(attribute, found)) != expected:
            return next(i for i, differs in enumerate(map(ne, map(attribute, found), expected)) if differs)
    return -1


class _Looking:
    """lstat and hash by path, also where the path is longer than the kernel takes in one call."""

    def __init__(self, root: str) -> None:
        self._root = os.fsencode(root)

    def __enter__(self) -> _Looking:
        self._top = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._descent = Descent(self._top)
        return self

    def __exit__(self, *_: object) -> None:
        self._descent.close()
        os.close(self._top)

    def at_all(self, paths: list[bytes]) -> list[os.stat_result]:
        if not paths or len(max(paths, key=len)) <= _PATH_MAX:
            return list(map(os.lstat, paths))
        return [os.lstat(path) if len(path) <= _PATH_MAX else self._from_directory(path) for path in paths]

    def _from_directory(self, path: bytes) -> os.stat_result:
        directory, name = self._split(path)
        return os.stat(name, dir_fd=directory, follow_symlinks=False)

    def _split(self, path: bytes) -> tuple[int, bytes]:
        parent, _, name = path[len(self._root) + 1 :].rpartition(b"/")
        return self._descent.open(parent), name

    def hash_of(self, path: bytes) -> bytes:
        """The id that a file or link would have in the store; zeros for what has no content."""
        directory, name = self._split(path)
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            return object_id(BLOB, os.readlink(name, dir_fd=directory))
        if not stat.S_ISREG(mode):
            return bytes(20)
        fd = os.open(name, OPEN_FLAGS, dir_fd=directory)
        try:
            size = os.fstat(fd).st_size
            if size <= CHUNKED_FROM_BYTES:
                return object_id(BLOB, chunks.read_up_to(fd, size + 1))
            hasher = PackWriter("", lambda _: True)  # knows every object, so it writes none
            return chunks.add_chunks(hasher, fd, size)
        finally:
            os.close(fd)
