"""FileStat from what the kernel says.

`statx` is asked, because it alone knows when a file was made; where it does not, the earlier of the change
and the modification time stands in. Whether a file may be read or written is asked of the kernel as well:
permission bits do not tell for a root without capabilities.
"""

from __future__ import annotations

import ctypes
import os
import stat
from datetime import UTC, datetime
from functools import cache
from struct import Struct

from ws.fs.protocol import FileStat

_AT_EMPTY_PATH = 0x1000
_AT_SYMLINK_NOFOLLOW = 0x100
_STATX_BTIME = 0x800
_BTIME = Struct("=I76xqI")  # struct statx: stx_mask, and at 80 stx_btime, seconds and nanoseconds

_libc = ctypes.CDLL(None, use_errno=True)
_statx = getattr(_libc, "statx", None)
_Answer = ctypes.c_char * 256


def describe(status: os.stat_result, path: str, target: str | None) -> FileStat:
    """A FileStat from a stat_result alone."""
    kind = status.st_mode
    return FileStat(
        path,
        stat.S_ISREG(kind),
        stat.S_ISDIR(kind),
        status.st_size,
        _moment(min(status.st_ctime, status.st_mtime)),
        _moment(status.st_mtime),
        _moment(status.st_atime),
        stat.S_IMODE(kind),
        stat.S_ISLNK(kind),
        target,
    )


def statx_of(fd: int, path: str, *, read_only: bool) -> FileStat:
    """A FileStat of a descriptor (O_PATH will do), with all that the kernel knows."""
    status = os.fstat(fd)
    kind = status.st_mode
    is_link = stat.S_ISLNK(kind)
    made = birth_time(fd)
    readable, writable = (True, True) if is_link else _access(fd, status)
    return FileStat(
        path,
        stat.S_ISREG(kind),
        stat.S_ISDIR(kind),
        status.st_size,
        _moment(made if made is not None else min(status.st_ctime, status.st_mtime)),
        _moment(status.st_mtime),
        _moment(status.st_atime),
        stat.S_IMODE(kind),
        is_link,
        os.readlink("", dir_fd=fd) if is_link else None,
        readable,
        writable and not read_only,
    )


def is_writable(name: str, directory: int) -> bool:
    """Whether a file in a directory may be written to by this process."""
    try:
        return os.access(name, os.W_OK, dir_fd=directory, effective_ids=True)
    except NotImplementedError:
        return True


def birth_time(fd: int, name: str = "") -> float | None:
    """When a file was made: that of a descriptor, or of a name in a directory. None where nobody knows."""
    if _statx is None:
        return None
    buffer = _Answer()
    flags = _AT_SYMLINK_NOFOLLOW if name else _AT_EMPTY_PATH
    if _statx(fd, name.encode("utf-8", "surrogateescape"), flags, _STATX_BTIME, buffer) != 0:
        return None
    mask, seconds, nanoseconds = _BTIME.unpack_from(buffer)
    return seconds + nanoseconds / 1e9 if mask & _STATX_BTIME else None


def _access(fd: int, status: os.stat_result) -> tuple[bool, bool]:
    magic = f"/proc/self/fd/{fd}"
    if _has_proc():
        return os.access(magic, os.R_OK), os.access(magic, os.W_OK)
    bits = status.st_mode >> (6 if status.st_uid == os.geteuid() else 0)
    return bool(bits & 4), bool(bits & 2)


@cache
def _has_proc() -> bool:
    return os.path.isdir("/proc/self/fd")


def _moment(seconds: float) -> datetime:
    try:
        return datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError):  # a time that no calendar has
        return datetime.fromtimestamp(0, UTC)
