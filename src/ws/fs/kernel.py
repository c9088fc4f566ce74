"""The kernel's calls that the standard library does not have, and opening a directory by a path without links."""

from __future__ import annotations

import ctypes
import errno
import os

from ws.fs.paths import MAX_PATH_BYTES

_SYS_OPENAT2 = 437
RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_BENEATH = 0x08
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
_MAX_RETRIES = 128

DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t)


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_hows: dict[tuple[int, int], tuple[_OpenHow, object]] = {}


def openat2(directory: int, path: str, flags: int, resolve: int) -> int:
    """The system call, retried while a rename elsewhere made the kernel unsure. Raises OSError."""
    how = _hows.get((flags, resolve))
    if how is None:
        value = _OpenHow(flags, 0, resolve)
        how = _hows[flags, resolve] = (value, ctypes.byref(value))
    name = path.encode("utf-8", "surrogateescape")
    for _ in range(_MAX_RETRIES):
        fd: int = _syscall(_SYS_OPENAT2, directory, name, how[1], 24)
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(code, os.strerror(code), path)


_kernel_has_openat2: bool | None = None


def has_openat2() -> bool:
    """Whether the kernel has the call and no seccomp filter hides it (old filters answer EPERM)."""
    global _kernel_has_openat2
    if _kernel_has_openat2 is None:
        try:
            os.close(openat2(-100, ".", DIRECTORY, RESOLVE_BENEATH))
            _kernel_has_openat2 = True
        except OSError as error:
            _kernel_has_openat2 = error.errno not in (errno.ENOSYS, errno.EPERM)
    return _kernel_has_openat2


def open_directory(top: int, below: str) -> int:
    """A directory below another by a path that may hold no link at all; for walks. Raises OSError."""
    if not below:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=top)
    if len(below) * 4 > MAX_PATH_BYTES and len(os.fsencode(below)) > MAX_PATH_BYTES:
        middle = below.rindex("/", 0, len(below) // 2)
        half = open_directory(top, below[:middle])
        try:
            return open_directory(half, below[middle + 1 :])
        finally:
            os.close(half)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
    if has_openat2():
        return openat2(top, below, flags, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)
    fd = os.dup(top)
    for segment in below.split("/"):
        try:
            fd, last = os.open(segment, flags, dir_fd=fd), fd
        except BaseException:
            os.close(fd)
            raise
        os.close(last)
    return fd


def rename_new(source: str, source_fd: int, destination: str, destination_fd: int) -> None:
    """Rename to a name that must be free. Raises FileExistsError."""
    _rename(source, source_fd, destination, destination_fd, _RENAME_NOREPLACE)


def exchange(source: str, source_fd: int, destination: str, destination_fd: int) -> None:
    """Swap what stands under two names, in one step. Raises FileNotFoundError when either is missing."""
    _rename(source, source_fd, destination, destination_fd, _RENAME_EXCHANGE)


def _rename(source: str, source_fd: int, destination: str, destination_fd: int, flags: int) -> None:
    names = source.encode("utf-8", "surrogateescape"), destination.encode("utf-8", "surrogateescape")
    if _libc.renameat2(source_fd, names[0], destination_fd, names[1], flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), source, None, destination)
