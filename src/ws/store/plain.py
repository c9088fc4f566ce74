"""Opening the files of the store: regular files only, whatever has taken their place."""

from __future__ import annotations

import os
import stat

from ws.errors import StoreDamaged

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_HINT = "move it away; `ws gc` and `ws verify` then say what is missing"


def open_plain(path: str) -> int:
    """A descriptor of a regular file. Raises FileNotFoundError; StoreDamaged for a directory, link, FIFO or device."""
    try:
        fd = os.open(path, _FLAGS)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreDamaged(f"cannot open {path}: {error.strerror}", hint=_HINT) from error
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise StoreDamaged(f"{path} is not a regular file", hint=_HINT)


def is_plain(path: str) -> bool:
    """Whether there is a regular file."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
