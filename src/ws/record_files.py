"""Read small files of the state: one reader for all of them, which trusts nothing it finds.

A state file may be damaged in any way: truncated, replaced by a directory, a link or a FIFO, filled with brackets. The
reader opens without following links and without waiting, checks that the file is a regular one, and caps its size.
JSON is checked for its nesting depth before it is parsed: `json.loads` ends in RecursionError on deep input.

Damage is a StateError that names the file. A file that is missing is not damage: each caller knows what that means.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from typing import Any

from ws.errors import StateError, StateUnusable

MAX_RECORD_BYTES = 16 << 20
MAX_DEPTH = 32

MISSING = (FileNotFoundError, NotADirectoryError)

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
_TYPES = {
    stat.S_IFDIR: "a directory",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}
_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_BRACKETS = re.compile(rb"[][{}]")


def damaged(path: str, problem: str) -> StateError:
    return StateError(f"{path} is damaged: {problem}")


def read_state_file(path: str, *, max_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """The bytes of a regular file. Never follows a link and never blocks.

    Raises FileNotFoundError or NotADirectoryError when it is missing, StateError when it is not a regular file or is
    too large, StateUnusable when the kernel refuses to read it.
    """
    return _read(path, max_bytes)[0]


def read_with_status(path: str, *, max_bytes: int = MAX_RECORD_BYTES) -> tuple[bytes, os.stat_result]:
    """As `read_state_file`, with what `fstat` said of the file before it was read."""
    return _read(path, max_bytes)


def _read(path: str, max_bytes: int) -> tuple[bytes, os.stat_result]:
    try:
        fd = os.open(path, _FLAGS)
    except MISSING:
        raise
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise damaged(path, f"it is {type_of(path)}, not a file") from None
        raise _unreadable(path, error) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise damaged(path, f"it is {_TYPES.get(stat.S_IFMT(status.st_mode), 'something else')}, not a file")
        if status.st_size > max_bytes:
            raise damaged(path, f"it has {status.st_size} bytes, more than {max_bytes}")
        data = os.read(fd, status.st_size + 1)
        while part := os.read(fd, 1 << 20) if len(data) < max_bytes else b"":
            data += part
        return data, status
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(fd)


def type_of(path: str) -> str:
    """What is at a path, in words."""
    try:
        return _TYPES.get(stat.S_IFMT(os.lstat(path).st_mode), "a file")
    except OSError:
        return "missing"


def _unreadable(path: str, error: OSError) -> StateUnusable:
    return StateUnusable(f"cannot read {path}: {error.strerror}", hint="check the owner and the mode of the file")


def parse_json(data: bytes) -> Any:
    """Parse JSON whose nesting is bounded. Raises ValueError, never RecursionError."""
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH:
        _check_depth(data)
    return json.loads(data)


def _check_depth(data: bytes) -> None:
    depth = 0
    for match in _BRACKETS.finditer(_STRINGS.sub(b"", data)):
        depth += 1 if match.group() in b"[{" else -1
        if depth > MAX_DEPTH:
            raise ValueError(f"more than {MAX_DEPTH} levels of brackets")


def read_json(path: str, *, max_bytes: int = MAX_RECORD_BYTES) -> dict[str, Any] | None:
    """The JSON object in a file; None when the file is missing. Raises StateError when it is damaged."""
    try:
        data = read_state_file(path, max_bytes=max_bytes)
    except MISSING:
        return None
    return parse_object(data, path)


def parse_object(data: bytes, path: str) -> dict[str, Any]:
    """The JSON object in the bytes of a file. Raises StateError that names the file."""
    try:
        found = parse_json(data)
    except ValueError as error:
        raise damaged(path, str(error) if data else "it is empty") from None
    if not isinstance(found, dict):
        raise damaged(path, "it does not hold a JSON object")
    return found


def read_cached_json(path: str, *, max_bytes: int = MAX_RECORD_BYTES) -> dict[str, Any] | None:
    """As `read_json`, for a cache that is made again when it is damaged: None then too."""
    try:
        return read_json(path, max_bytes=max_bytes)
    except StateError:
        return None


def read_cached_bytes(path: str, *, max_bytes: int = MAX_RECORD_BYTES) -> bytes | None:
    """The bytes of a cache; None when it is missing or cannot be read."""
    try:
        return read_state_file(path, max_bytes=max_bytes)
    except (StateError, *MISSING):
        return None
