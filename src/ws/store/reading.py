"""Read one directory of a host tree: hash and store its files, and copy them where a copy is wanted.

This is the unit of work of a scan, and runs in either of its processes. Everything is opened by one
component with `O_NOFOLLOW|O_NONBLOCK|O_NOCTTY` and looked at with fstat afterwards, read raw, and never
more than 16 MiB of it is held. Nothing here decides whether a file changed while it was read: each row
carries the inode and ctime seen *before* reading, and whoever asked compares them with the tree once
everything is read.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ws.errors import InvalidRequest, LimitExceeded, StateUnusable
from ws.store import chunks, meta, trees
from ws.store.copying import Copier
from ws.store.descent import Descent
from ws.store.excludes import Excludes
from ws.store.gathering import Gathered, Owners, Row
from ws.store.packs import BLOB, TREE, PackWriter
from ws.store.xattrs import Namespace, read_layer_xattrs

MOUNT_POINT = "a mount point"  # why a directory was left out
OPEN_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_GONE = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.ENOTDIR, errno.EINVAL)  # replaced since it was listed


@dataclass(frozen=True, slots=True)
class Rules:
    """How a tree is read. Plain values, sent to the second process."""

    device: int  # stop where another filesystem begins
    owners: Owners
    exclude: tuple[str, ...] = ()
    copy_owner: tuple[int, int] = (-1, -1)  # whom the copy belongs to; −1: whoever makes it
    max_file_bytes: int | None = None
    layer: Namespace = ""  # the tree is a layer of an overlay, with notes in this namespace
    copy_layer: Namespace = ""  # the copy will be one


class Result(NamedTuple):
    """One directory that was read and stored; plain values, for it may cross a pipe."""

    path: bytes
    identity: tuple[int, int, int]  # device, inode, ctime_ns
    rows: list[Row]
    items: list[trees.Item]
    record: bytes  # the id of the record
    node: tuple[bytes, bytes] | None  # of a directory without subdirectories: stored already
    directories: list[bytes]
    linked: list[tuple[bytes, int, int]]
    skipped: list[tuple[bytes, str]]
    closed_mode: int  # a mode to set on the copy last of all, or −1
    size_bytes: int


class DirectoryReader:
    """Reads directories below `source`; copies them below `copy`, with links to `earlier` if unchanged."""

    def __init__(
        self,
        writer: PackWriter,
        rules: Rules,
        source: int,
        copy: int | None = None,
        earlier: int | None = None,
    ) -> None:
        self._writer = writer
        self._rules = rules
        self._owners = Owners(*rules.owners)  # a plain tuple, if it came through a pipe
        self._excludes = Excludes(rules.exclude)
        self._source = Descent(source)
        self._directory = -1
        self._cached: Mapping[bytes, Row] = {}
        self._copier: Copier | None = None
        if copy is not None:
            self._copier = Copier(copy, owner=rules.copy_owner, layer=rules.copy_layer, earlier=earlier)

    def close(self) -> None:
        self._source.close()
        if self._copier:
            self._copier.close()

    def read(self, path: bytes, cached: Mapping[bytes, Row]) -> Result | None:
        """Gather a directory and store its record, and its tree if nothing lies below; None: it is gone."""
        here = self.gather(path, cached)
        if here is None:
            return None
        mode, closed_mode = stat.S_IMODE(here.found.st_mode), -1
        node = None
        try:
            if self._copier and not self._copier.leave(here.directories, mode, here.found.st_mtime_ns, here.xattrs):
                closed_mode = mode
            record = self._writer.add(BLOB, meta.join_record(here.head, here.lines), plain=True)
            if not here.directories and path:
                node = (self._writer.add(TREE, trees.encode_tree(here.items), plain=True), record)
        except OSError as error:
            raise _unwritable(path, b"", error) from error
        return Result(
            path,
            here.identity,
            here.rows,
            [] if node else here.items,
            record,
            node,
            here.directories,
            here.linked,
            here.skipped,
            closed_mode,
            here.size_bytes,
        )

    def gather(self, path: bytes, cached: Mapping[bytes, Row]) -> Gathered | None:
        """Read the files of a directory into the store; None when it is gone.

        Raises InvalidRequest for what cannot be read, LimitExceeded, StateUnusable when the store or the copy
        cannot be written, SnapshotFailed for notes in a layer that we do not know.
        """
        try:
            directory = self._source.open(path)
            found = os.fstat(directory)
            xattrs, opaque = read_layer_xattrs(directory, self._rules.layer)
        except OSError as error:
            if error.errno in _GONE:
                return None
            raise _unreadable(path, b"", error) from None
        here = Gathered(path, found, xattrs, self._owners, time.time_ns(), opaque=opaque)
        self._directory, self._cached = directory, cached
        if self._copier:
            self._copier.enter(path)
        with os.scandir(directory) as entries:
            for entry in entries:
                name = os.fsencode(entry.name)
                is_directory = entry.is_dir(follow_symlinks=False)
                if self._excludes and self._excludes.match(path, name, directory=is_directory):
                    continue
                if is_directory:
                    self._subdirectory(here, entry.name, name)
                elif entry.is_file(follow_symlinks=False):
                    self._file(here, entry.name, name)
                elif entry.is_symlink():
                    self._link(here, entry.name, name)
                else:
                    self._special(here, entry.name, name)
        return here

    def _look(self, here: Gathered, name: str, raw: bytes) -> os.stat_result | None:
        try:
            return os.stat(name, dir_fd=self._directory, follow_symlinks=False)
        except OSError as error:
            if error.errno in _GONE:
                here.torn = raw
                return None
            raise _unreadable(here.path, raw, error) from None

    def _subdirectory(self, here: Gathered, name: str, raw: bytes) -> None:
        if self._rules.layer:  # nothing can be mounted in there
            here.directories.append(raw)
            return
        found = self._look(here, name, raw)
        if found is None:
            return
        if found.st_dev == self._rules.device:
            here.directories.append(raw)
        else:
            here.skipped.append((raw, MOUNT_POINT))

    def _file(self, here: Gathered, name: str, raw: bytes) -> None:
        known = self._cached.get(raw)
        if known and not known[4] and self._unchanged(here, name, known):
            return
        try:
            fd = _open(name, self._directory)
        except OSError as error:
            if error.errno in _GONE:
                here.torn = raw
                return
            raise _unreadable(here.path, raw, error) from None
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode):
                here.torn = raw
                return
            self._check_size(here, raw, found.st_size)
            if found.st_size > trees.CHUNKED_FROM_BYTES:
                self._chunked(here, name, raw, fd, found)
            else:
                self._whole(here, name, raw, fd, found)
        finally:
            os.close(fd)

    def _whole(self, here: Gathered, name: str, raw: bytes, fd: int, found: os.stat_result) -> None:
        try:
            data = chunks.read_up_to(fd, found.st_size + 1)
            xattrs, _ = read_layer_xattrs(fd, self._rules.layer)
        except OSError as error:
            raise _unreadable(here.path, raw, error) from None
        try:
            oid = self._writer.add(BLOB, data)
            if self._copier:
                self._copier.file(name, data, found.st_mode & 0o7777, found.st_mtime_ns, xattrs)
        except OSError as error:
            raise _unwritable(here.path, raw, error) from error
        here.add("f", raw, found, len(data), oid, xattrs)

    def _chunked(self, here: Gathered, name: str, raw: bytes, fd: int, found: os.stat_result) -> None:
        out = -1
        try:
            if self._copier:
                out = self._copier.begin(name, found.st_mode)
            oid = chunks.add_chunks(self._writer, fd, found.st_size, out)
            xattrs, _ = read_layer_xattrs(fd, self._rules.layer)
            if self._copier:
                os.ftruncate(out, found.st_size)
                self._copier.end(out, found.st_mode & 0o7777, found.st_mtime_ns, xattrs)
        except chunks.Unread as error:
            raise _unreadable(here.path, raw, error.cause) from None
        except OSError as error:
            raise _unwritable(here.path, raw, error) from error
        finally:
            if out >= 0:
                os.close(out)
        here.add("c", raw, found, found.st_size, oid, xattrs)

    def _link(self, here: Gathered, name: str, raw: bytes) -> None:
        found = self._look(here, name, raw)
        if found is None:
            return
        try:
            target = os.fsencode(os.readlink(name, dir_fd=self._directory))
        except OSError as error:
            if error.errno in _GONE:
                here.torn = raw
                return
            raise _unreadable(here.path, raw, error) from None
        try:
            oid = self._writer.add(BLOB, target)
            if self._copier:
                self._copier.link(name, target, found.st_mtime_ns)
        except OSError as error:
            raise _unwritable(here.path, raw, error) from error
        here.add("l", raw, found, len(target), oid)

    def _special(self, here: Gathered, name: str, raw: bytes) -> None:
        found = self._look(here, name, raw)
        if found is None:
            return
        if stat.S_ISFIFO(found.st_mode):
            if self._copier:
                self._copier.fifo(name, found.st_mode & 0o7777, found.st_mtime_ns)
            here.add("p", raw, found, 0, b"")
        elif stat.S_ISSOCK(found.st_mode):
            here.skipped.append((raw, "a socket"))
        elif self._rules.layer and stat.S_ISCHR(found.st_mode) and found.st_rdev == 0:
            here.whiteouts.append(raw)
        else:
            here.skipped.append((raw, "a device"))

    def _unchanged(self, here: Gathered, name: str, known: Row) -> bool:
        """Take a file over from the earlier reading, if it is the same and (for a copy) can be linked."""
        found = self._look(here, name, known[0])
        if found is None or (found.st_ino, found.st_size, found.st_ctime_ns) != known[1:4]:
            return False
        kind = "c" if found.st_size > trees.CHUNKED_FROM_BYTES else "f"
        if not stat.S_ISREG(found.st_mode) or self._writer.doubts(known[5], in_chunks=kind == "c"):
            return False
        if self._copier and not self._copier.share(name):
            return False
        here.add(kind, known[0], found, found.st_size, known[5])
        return True

    def _check_size(self, here: Gathered, raw: bytes, size: int) -> None:
        limit = self._rules.max_file_bytes
        if limit is not None and size > limit:
            raise LimitExceeded(
                f"{trees.os_path(here.path, raw)} has {size} bytes, more than the limit of {limit}",
                hint="raise the limit, or leave the file out",
            )


def _open(name: str, directory: int) -> int:
    try:
        # Reading must not dirty the source's inodes; only their owner and root may ask for that.
        return os.open(name, OPEN_FLAGS | os.O_NOATIME, dir_fd=directory)
    except PermissionError:
        return os.open(name, OPEN_FLAGS, dir_fd=directory)


def _unreadable(path: bytes, name: bytes, error: OSError) -> InvalidRequest:
    return InvalidRequest(
        f"cannot read {trees.os_path(path, name) or 'the top directory'}: {error.strerror}",
        hint="make it readable, or leave it out with --exclude",
    )


def _unwritable(path: bytes, name: bytes, error: OSError) -> StateUnusable:
    return StateUnusable(
        f"cannot store {trees.os_path(path, name) or 'the top directory'}: {error.strerror}",
        hint="check that the filesystem of WS_HOME is not full",
    )
