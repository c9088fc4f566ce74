"""Write files into a directory tree with all their metadata: base copies, rebuilt layers.

The tree is made in one go and belongs to nobody else yet. Each object is created with `O_EXCL` below a
pinned directory, then given owner, mode and times in that order: a change of owner clears setuid bits, and
everything else moves the mtime. Directories get theirs when nothing more will be made in them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence

from ws.store.descent import Descent
from ws.store.meta import Xattrs
from ws.store.xattrs import Namespace, write_xattrs

_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Owner = tuple[int, int]  # uid and gid on this host


def current_umask() -> int:
    """The umask, without changing it for an instant as `os.umask` would, under other threads too."""
    with open("/proc/self/status", encoding="ascii", errors="replace") as file:
        for line in file:
            if line.startswith("Umask:"):
                return int(line.split()[1], 8)
    return 0o777  # not told: set every mode explicitly


class Copier:
    """A copy of a tree under construction below `top`; unchanged files come from `earlier` by hard link."""

    def __init__(self, top: int, *, owner: Owner = (-1, -1), layer: Namespace = "", earlier: int | None = None) -> None:
        self._top = Descent(top)
        self._earlier = Descent(earlier) if earlier is not None else None
        self._owner = owner  # −1: whoever makes it
        self._root = os.geteuid() == 0  # nobody else may give files away
        self._layer = layer
        self._umask = current_umask()
        self._directory = -1
        self._from = -1

    def close(self) -> None:
        self._top.close()
        if self._earlier:
            self._earlier.close()

    def enter(self, path: bytes) -> None:
        """Go to a directory, which `leave` of the one above has made."""
        self._directory = self._top.open(path)
        self._from = -1
        if self._earlier:
            try:
                self._from = self._earlier.open(path)
            except OSError:
                pass  # a new directory: nothing to share

    def share(self, name: str) -> bool:
        """Link a file from the earlier tree. False when it is not there or has too many links already."""
        if self._from < 0:
            return False
        try:
            os.link(name, name, src_dir_fd=self._from, dst_dir_fd=self._directory, follow_symlinks=False)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EMLINK, errno.EXDEV, errno.EPERM):
                return False
            raise
        return True

    def begin(self, name: bytes | str, mode: int) -> int:
        return os.open(name, _CREATE, mode & 0o777, dir_fd=self._directory)

    def file(
        self,
        name: bytes | str,
        data: bytes,
        mode: int,
        mtime_ns: int,
        xattrs: Xattrs,
        owner: Owner | None = None,
    ) -> None:
        fd = self.begin(name, mode)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            self.end(fd, mode, mtime_ns, xattrs, owner)
        finally:
            os.close(fd)

    def end(self, fd: int, mode: int, mtime_ns: int, xattrs: Xattrs, owner: Owner | None = None) -> None:
        """Finish a file that was begun and written."""
        if xattrs:
            os.fchmod(fd, 0o600)  # also its owner needs the right to write for that
            write_xattrs(fd, xattrs, namespace=self._layer)
        if self._root:
            os.fchown(fd, *(owner or self._owner))
        if xattrs or mode & (self._umask | 0o7000):
            os.fchmod(fd, mode)
        os.utime(fd, ns=(mtime_ns, mtime_ns))

    def link(self, name: bytes | str, target: bytes, mtime_ns: int, owner: Owner | None = None) -> None:
        os.symlink(target, name, dir_fd=self._directory)
        self._end_unopened(name, mtime_ns, owner)

    def fifo(self, name: bytes | str, mode: int, mtime_ns: int, owner: Owner | None = None) -> None:
        os.mkfifo(name, 0o600, dir_fd=self._directory)
        self._end_unopened(name, mtime_ns, owner)
        os.chmod(name, mode, dir_fd=self._directory)

    def whiteout(self, name: bytes) -> None:
        """What the kernel takes for a removed name in a layer."""
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=self._directory)

    def note(self, key: str, value: bytes) -> None:
        """Set a note of overlayfs on this directory."""
        os.setxattr(self._directory, key, value)

    def _end_unopened(self, name: bytes | str, mtime_ns: int, owner: Owner | None) -> None:
        if self._root:
            os.chown(name, *(owner or self._owner), dir_fd=self._directory, follow_symlinks=False)
        os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=self._directory, follow_symlinks=False)

    def leave(
        self,
        directories: Iterable[bytes],
        mode: int,
        mtime_ns: int,
        xattrs: Xattrs,
        owner: Owner | None = None,
    ) -> bool:
        """Make the subdirectories, then finish this one. False: its mode would shut us out; set it last."""
        for name in directories:
            os.mkdir(name, 0o700, dir_fd=self._directory)
        write_xattrs(self._directory, xattrs, namespace=self._layer)
        if self._root:
            os.fchown(self._directory, *(owner or self._owner))
        is_open = mode & 0o700 == 0o700
        if is_open:
            os.fchmod(self._directory, mode)
        os.utime(self._directory, ns=(mtime_ns, mtime_ns))
        return is_open


def finish_copy(
    top: int, links: Iterable[Sequence[bytes]], closed: Iterable[tuple[bytes, int]], *, replace: bool
) -> None:
    """Join hard links (`replace`: the later names of a group are there as files), then set the modes left
    open.

    `closed` goes from the leaves up, since behind a mode of 0 only root could still reach.
    """
    first, second = Descent(top), Descent(top)
    try:
        for group in links:
            parent, name = os.path.split(group[0])
            kept = first.open(parent)
            for path in group[1:]:
                parent, other = os.path.split(path)
                directory = second.open(parent)
                mtime_ns = os.fstat(directory).st_mtime_ns
                if replace:
                    os.unlink(other, dir_fd=directory)
                os.link(name, other, src_dir_fd=kept, dst_dir_fd=directory, follow_symlinks=False)
                os.utime(directory, ns=(mtime_ns, mtime_ns))
        for path, mode in closed:
            os.fchmod(first.open(path), mode)
    finally:
        first.close()
        second.close()
