"""Room on a full disk that only a removal may use: small files that are there already, with their blocks.

    WS_HOME/reserved/N    an empty file of FILE_BYTES allocated bytes

A removal writes a little before it frees anything, and a disk ends by its bytes or by its inodes. A reserved file has
both. It is renamed into its new place and written over, so neither its inode nor its blocks are free in between: a
container that takes whatever becomes free cannot take them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Iterator

FILES = 64
FILE_BYTES = 16 << 10
FULL = (errno.ENOSPC, errno.EDQUOT)

_thread = threading.local()


@contextlib.contextmanager
def using(directory: str) -> Iterator[None]:
    """In this block and thread, `new_file` takes reserved files where the disk is full."""
    before = getattr(_thread, "directory", None)
    _thread.directory = directory
    try:
        yield
    finally:
        _thread.directory = before


def new_file(path: str, data: bytes, flags: int, mode: int = 0o600) -> int:
    """The descriptor of a file that did not exist, with these bytes; not synced. On failure there is no file."""
    try:
        return _written(os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode), path, data)
    except OSError as error:
        if error.errno not in FULL or getattr(_thread, "directory", None) is None:
            raise
    return _written(_take(_thread.directory, path, flags), path, data)


def _written(fd: int, path: str, data: bytes) -> int:
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.ftruncate(fd, len(data))  # of a reserved file the rest goes
        return fd
    except BaseException:
        os.close(fd)
        os.unlink(path)
        raise


def _take(directory: str, path: str, flags: int) -> int:
    """A reserved file under a new name. Raises OSError (ENOSPC) when there is none left."""
    for name in _names(directory):
        with contextlib.suppress(FileNotFoundError):  # another process took it
            os.rename(os.path.join(directory, name), path)
            return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


def fill(directory: str) -> None:
    """Bring the reserve to its size, as far as the disk has room. Never fails; not synced."""
    with contextlib.suppress(OSError):
        os.mkdir(directory, 0o700)
    with contextlib.suppress(OSError):
        there = set(_names(directory))
        for number in range(FILES):
            if str(number) not in there:
                _make(os.path.join(directory, str(number)))


def _make(path: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(fd, 0, FILE_BYTES)
    except OSError:
        os.unlink(path)
        raise
    finally:
        os.close(fd)


def is_low(directory: str) -> bool:
    return len(_names(directory)) < FILES


def release(directory: str) -> bool:
    """Remove all reserved files, for what cannot be made of one; whether there were any."""
    names = _names(directory)
    for name in names:
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory, name))
    return bool(names)


def _names(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except OSError:
        return []
