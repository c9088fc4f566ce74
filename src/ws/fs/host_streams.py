"""Streams over files of this machine: reading at offsets, writing beside and renaming.

A write goes to a temporary file in the directory of its name, which stays pinned until the rename: whatever
happens to the path meanwhile, the file lands in that directory or the write fails (CVE-2026-32977). It is
synced unless that was declined, and gets the mode, owner and attributes of the file it replaces. Hard links
to the old file keep the old bytes.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable

from ws.fs.confine import Made, Pinned, check_regular
from ws.fs.kernel import READ, exchange, rename_new
from ws.fs.metadata import birth_time, is_writable
from ws.fs.protocol import WriteMode
from ws.fs.streams import Reader, Writer
from ws.fs.trees import copy_bytes, copy_owner, copy_xattrs

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def write_all(fd: int, data: bytes | bytearray | memoryview) -> None:
    """Write the whole of it, however often the kernel must be asked."""
    done = os.write(fd, data)
    view = memoryview(data).cast("B")
    while done < len(view):
        done += os.write(fd, view[done:])


def temporary_name() -> str:
    """A name that no one else has, for what is not finished yet."""
    return f".ws-{os.urandom(8).hex()}.tmp"


class HostReader(Reader):
    """A regular file, read at offsets; the descriptor is this stream's own."""

    __slots__ = ("_fd",)

    def __init__(self, path: str, fd: int, size: int, chunk_size: int) -> None:
        super().__init__(path, size, chunk_size)
        self._fd = fd

    def fileno(self) -> int:
        self._check_open()
        return self._fd

    def _pread(self, size: int, offset: int) -> bytes:
        data = os.pread(self._fd, size, offset)
        if len(data) == size or not data:
            return data
        pieces = [data]  # a signal, or the kernel's 2 GiB at a time
        while (size := size - len(data)) and (data := os.pread(self._fd, size, offset := offset + len(data))):
            pieces.append(data)
        return b"".join(pieces)

    def _release(self) -> None:
        os.close(self._fd)


class HostWriter(Writer):
    """A file beside its place, in a directory that is held open, until it is renamed to its name.

    Unnamed, nothing of it is in the tree before that: for writers that live long, or may not live to see their end.
    """

    __slots__ = ("_facts", "_fd", "_made", "_mode", "_name", "_parent", "_swaps", "_sync", "_temporary")

    def __init__(
        self,
        path: str,
        pinned: Pinned,
        mode: WriteMode,
        *,
        sync: bool,
        unnamed: bool = False,
        root_born: Callable[[], float | None] | None = None,
    ) -> None:
        super().__init__(path)
        self._name = pinned.name
        self._mode = mode
        self._sync = sync
        self._facts: tuple[int, int] | None = None
        old = _check_replaceable(pinned, path, mode)
        self._swaps = old is not None and root_born is not None and _is_younger(pinned, root_born())
        self._parent = os.dup(pinned.parent)
        self._made = pinned.made and Made(os.dup(pinned.made.above), pinned.made.names)
        self._fd, self._temporary = -1, ""
        try:
            self._open(0o666 if old is None else _permissions_after_write(old), unnamed=unnamed)
            if old is not None:
                self._inherit(old)
        except BaseException:
            self._abandon()
            raise

    def _open(self, permissions: int, *, unnamed: bool) -> None:
        if unnamed:
            try:
                self._fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, permissions, dir_fd=self._parent)
                return
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL):
                    raise  # the others are how a kernel or a filesystem says that it has no such thing
        name = temporary_name()
        self._fd = os.open(name, NEW, permissions, dir_fd=self._parent)
        self._temporary = name

    def become(self, *, permissions: int, modified_ns: int) -> None:
        """Have the file these permissions and this time from the moment it is seen."""
        self._facts = permissions, modified_ns

    def _inherit(self, old: os.stat_result) -> None:
        made = copy_owner(old, self._fd)
        if stat.S_IMODE(made.st_mode) != _permissions_after_write(old):  # the umask took some away
            os.fchmod(self._fd, _permissions_after_write(old))
        source = os.open(self._name, READ | os.O_NOFOLLOW, dir_fd=self._parent)
        try:
            copy_xattrs(source, self._fd)
            if self._mode == "append":
                status = os.fstat(source)
                check_regular(status, self._path)
                copy_bytes(source, self._fd, status.st_size)
        finally:
            os.close(source)

    def _append(self, data: bytes | bytearray | memoryview) -> None:
        write_all(self._fd, data)

    def _commit(self) -> None:
        try:
            self._take_place()
        except OSError as error:
            error.filename, error.filename2 = self._path, None  # the temporary file means nothing to the caller
            raise
        self._close()

    def _take_place(self) -> None:
        if self._facts is not None:
            os.fchmod(self._fd, self._facts[0])
            os.utime(self._fd, ns=(time.time_ns(), self._facts[1]))
        if self._sync:
            os.fsync(self._fd)
        if not self._temporary:
            self._link(temporary_name())
        if self._mode == "create":
            rename_new(self._temporary, self._parent, self._name, self._parent)
        elif not self._swaps or not self._swap():
            os.rename(self._temporary, self._name, src_dir_fd=self._parent, dst_dir_fd=self._parent)
        if self._sync:
            sync_directory(self._parent)

    def _link(self, name: str) -> None:
        """Give an unnamed file its first name."""
        os.link(f"/proc/self/fd/{self._fd}", name, dst_dir_fd=self._parent, follow_symlinks=True)
        self._temporary = name

    def _swap(self) -> bool:
        """Take the place of the old file by exchanging names with it; False where that cannot be done.

        As atomic as a rename over it, and without what ext4 adds to that for programs which forget to sync: it
        writes the new file out first, 0.3 to 6 ms.
        """
        try:
            exchange(self._temporary, self._parent, self._name, self._parent)
        except OSError:
            return False  # no such call, or the old file is gone: a rename says which
        try:
            os.unlink(self._temporary, dir_fd=self._parent)
        except IsADirectoryError:  # somebody put a directory there in between
            exchange(self._temporary, self._parent, self._name, self._parent)
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), self._path) from None
        return True

    def _abandon(self) -> None:
        if self._temporary:
            try:
                os.unlink(self._temporary, dir_fd=self._parent)
            except FileNotFoundError:
                pass
        if self._made:
            self._made.remove()
        self._close()

    def _close(self) -> None:
        for fd in (self._fd, self._parent, self._made.above if self._made else -1):
            if fd >= 0:
                os.close(fd)
        self._fd = self._parent = -1
        self._made = None


def _is_younger(pinned: Pinned, root_born: float | None) -> bool:
    """Whether a file was made after the root was: in an overlay it lies in the upper then, like the new one.

    To exchange names with one of a lower layer, the kernel would copy that up, and sync it, only for it to be removed.
    """
    if root_born is None:
        return False
    born = birth_time(pinned.parent, pinned.name)
    return born is not None and born >= root_born


def _permissions_after_write(old: os.stat_result) -> int:
    """As after any write, a program does not stay setuid when its bytes change."""
    return stat.S_IMODE(old.st_mode) & ~(stat.S_ISUID | stat.S_ISGID)


def _check_replaceable(pinned: Pinned, path: str, mode: WriteMode) -> os.stat_result | None:
    """What stands under the name, if a write may replace it. Raises FileExistsError, PermissionError, …"""
    old = pinned.found
    if old is None:
        return None
    if mode == "create":
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
    check_regular(old, path)
    if not is_writable(pinned.name, pinned.parent):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return old


def sync_directory(path_fd: int) -> None:
    """Make the names in a directory durable; the descriptor may be O_PATH."""
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=path_fd)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
