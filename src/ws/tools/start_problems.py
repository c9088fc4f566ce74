"""Why a command was not started: what the kernel's errno does not say, found by looking at the file.

execve(2) gives ENOENT for a missing file, for a script whose interpreter is missing, and for a program whose loader is;
EACCES for a file without the executable bit, and for a link that leads where the user may not go. A virtual environment
that was made on the host is the usual case: its `bin/python` is a link to an interpreter that the container lacks.
"""

from __future__ import annotations

import errno
import os
import stat

from ws.errors import CommandNotStarted, LimitExceeded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Final

_HEAD_BYTES: Final = 4096
_PT_INTERP: Final = 3
_MAKE_ANEW: Final = "make the environment anew inside the workspace, or use an image that has it"


def not_started(number: int, word: bytes, candidates: Iterable[bytes], workdir: bytes) -> Exception:
    """The error for a command that execve refused with an errno."""
    name = os.fsdecode(word)
    if number == errno.E2BIG:
        return LimitExceeded(
            f"{name!r} was not started: its words and variables are longer than the kernel takes, 2 MiB in all and "
            "128 KiB in one",
            hint="pass the rest on standard input or in a file",
        )
    path = _first_there(candidates, workdir)
    if path is None:
        hint = "is it installed, and is its directory in PATH?"
        return CommandNotStarted(f"there is no command {name!r}", errno=number, hint=hint)
    message, advice = _reason(path, name, number)
    return CommandNotStarted(message, errno=number, hint=advice)


def _first_there(candidates: Iterable[bytes], workdir: bytes) -> bytes | None:
    """The first of the places that were tried at which something stands, a broken link too."""
    for candidate in candidates:
        path = os.path.join(workdir, candidate)
        if os.path.lexists(path):
            return path
    return None


def _reason(path: bytes, name: str, number: int) -> tuple[str, str | None]:
    link = _broken_link(path)
    if link is not None:
        return f"{name!r} is a link to {os.fsdecode(link)!r}, which is not in the container", _MAKE_ANEW
    try:
        status = os.stat(path)
    except OSError:
        return f"{name!r} was not started: {os.strerror(number)}", None
    if stat.S_ISDIR(status.st_mode):
        return f"{name!r} is a directory", "name a program"
    if not os.access(path, os.X_OK):
        return f"{name!r} is not executable", "chmod +x, or run it with sh"
    needed = _needed(path)
    if needed is not None and not os.access(needed, os.X_OK):
        return f"{name!r} needs {os.fsdecode(needed)!r}, which is not in the container", _MAKE_ANEW
    if number == errno.ENOEXEC:
        hint = "it is not a program for this machine, or a script without a #! line"
        return f"{name!r} cannot be executed: {os.strerror(number)}", hint
    return f"{name!r} was not started: {os.strerror(number)}", None


def _broken_link(path: bytes) -> bytes | None:
    """Where the last link of a chain leads that cannot be followed; None when the path leads to a file."""
    for _ in range(40):
        try:
            target = os.readlink(path)
        except OSError:
            return None if os.path.exists(path) else path
        path = os.path.join(os.path.dirname(path), target)
        if not os.path.lexists(path):
            return path
    return path


def _needed(path: bytes) -> bytes | None:
    """The interpreter of a script, or the loader of a program."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    if head.startswith(b"#!"):
        words = head[2:].split(b"\n", 1)[0].split()
        return words[0] if words else None
    if head.startswith(b"\x7fELF\x02\x01"):
        return _loader(head)
    return None


def _loader(head: bytes) -> bytes | None:
    """What PT_INTERP names, as far as it lies in the head of a 64-bit program, where linkers put it."""
    table, size, count = (int.from_bytes(head[a:b], "little") for a, b in ((32, 40), (54, 56), (56, 58)))
    for number in range(min(count, 64)):
        entry = head[table + number * size : table + (number + 1) * size]
        if len(entry) >= 40 and int.from_bytes(entry[:4], "little") == _PT_INTERP:
            at, length = int.from_bytes(entry[8:16], "little"), int.from_bytes(entry[32:40], "little")
            return head[at : at + length].rstrip(b"\0") or None
    return None
