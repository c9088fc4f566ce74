"""What has been seen of one directory, while it is read: the lines of its record, the items of its tree,
the rows of the stat cache."""

from __future__ import annotations

import os
from typing import NamedTuple

from ws.layout import Ids
from ws.store import meta, names, trees

RACY_NS = 20_000_000  # before 6.13 a ctime is as fine as a jiffy: a younger file may change without showing it
RACY, XATTRS = 1, 2  # flags of a row: hash again before trusting the ctime; xattrs are not in the row

_OVERFLOW_ID = 65534  # what the kernel shows for an id that has no place in a user namespace
_MODES = {"c": trees.DIRECTORY, "l": trees.LINK}


# A file, link or FIFO as it was seen before it was read: name, inode, size, ctime_ns, flags, id.
# A plain tuple, because there are many and they cross a pipe.
Row = tuple[bytes, int, int, int, int, bytes]


class Owners(NamedTuple):
    """What records say of owners: always the same, or what is on disk as the container sees it."""

    fixed: tuple[int, int] | None = None
    uid_shift: int = 0
    gid_shift: int = 0

    @classmethod
    def seen_by(cls, ids: Ids) -> Owners:
        """As the container of a workspace sees them."""
        return cls(None, ids.uid - ids.host_uid, ids.gid - ids.host_gid)

    def of(self, found: os.stat_result) -> tuple[int, int]:
        if self.fixed:
            return self.fixed
        uid, gid = found.st_uid + self.uid_shift, found.st_gid + self.gid_shift
        return (uid if uid >= 0 else _OVERFLOW_ID, gid if gid >= 0 else _OVERFLOW_ID)


class Contents(NamedTuple):
    """What a directory of a layer holds; plain values, for it may cross a pipe."""

    path: bytes
    head: bytes  # its own line
    identity: tuple[int, int, int]  # device, inode, ctime_ns
    opaque: bool  # hides what lies below it in other layers
    directories: list[bytes]
    whiteouts: list[bytes]
    rows: list[Row]
    items: list[trees.Item]
    lines: list[bytes]
    linked: list[tuple[bytes, int, int]]  # name, device, inode where the link count is over one
    skipped: list[tuple[bytes, str]]
    torn: bytes  # a name that changed under our eyes


class Gathered:
    """One directory while it is read. Plain lists and bytes inside, for much of it crosses a pipe."""

    def __init__(
        self,
        path: bytes,
        found: os.stat_result,
        xattrs: meta.Xattrs,
        owners: Owners,
        now_ns: int,
        *,
        opaque: bool,
    ) -> None:
        self.path = path
        self.found = found
        self.xattrs = xattrs
        self.opaque = opaque
        self.owner = owners.of(found)
        self.directories: list[bytes] = []
        self.whiteouts: list[bytes] = []
        self.rows: list[Row] = []
        self.items: list[trees.Item] = []
        self.lines: list[bytes] = []
        self.linked: list[tuple[bytes, int, int]] = []
        self.skipped: list[tuple[bytes, str]] = []
        self.size_bytes = 0
        self.torn = b""
        self._owners = owners
        self._racy_from_ns = now_ns - RACY_NS

    @property
    def head(self) -> bytes:
        """The directory's own line."""
        found = self.found
        line = b". d%o %d:%d %d -" % (found.st_mode & 0o7777, *self.owner, found.st_mtime_ns)
        return line + meta.quote_xattrs(self.xattrs) if self.xattrs else line

    @property
    def identity(self) -> tuple[int, int, int]:
        return self.found.st_dev, self.found.st_ino, self.found.st_ctime_ns

    def contents(self) -> Contents:
        return Contents(
            self.path,
            self.head,
            self.identity,
            self.opaque,
            self.directories,
            self.whiteouts,
            self.rows,
            self.items,
            self.lines,
            self.linked,
            self.skipped,
            self.torn,
        )

    def add(
        self, kind: str, name: bytes, found: os.stat_result, size: int, oid: bytes, xattrs: meta.Xattrs = ()
    ) -> None:
        """An entry that is no directory."""
        ctime_ns, mode = found.st_ctime_ns, found.st_mode
        flags = 0
        if ctime_ns >= self._racy_from_ns or size != found.st_size:
            flags = RACY
            if size != found.st_size:
                self.torn = name
        tail = b""
        if xattrs:
            flags |= XATTRS
            tail = meta.quote_xattrs(xattrs)
        owner = b"."
        if not self._owners.fixed and (found.st_uid, found.st_gid) != (self.found.st_uid, self.found.st_gid):
            owner = b"%d:%d" % self._owners.of(found)
        # The same bytes as `meta.encode_line`, at a quarter of its cost; a test compares them.
        self.lines.append(
            b"%s %s%o %s %d %s%s"
            % (
                meta.quote(name),
                kind.encode(),
                mode & 0o7777,
                owner,
                found.st_mtime_ns,
                b"-" if kind == "p" else b"%d" % size,
                tail,
            )
        )
        self.rows.append((name, found.st_ino, found.st_size, ctime_ns, flags, oid))
        if kind == "f":
            self.items.append((trees.EXECUTABLE if mode & 0o100 else trees.FILE, names.escape(name), oid))
        elif kind != "p":
            self.items.append((_MODES[kind], names.escape(name, link=kind == "l"), oid))
        if found.st_nlink > 1:
            self.linked.append((name, found.st_dev, found.st_ino))
        self.size_bytes += size
