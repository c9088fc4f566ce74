"""What a model is told when a call fails: a code, one sentence, and what to try next; never a traceback.

Errors of ws bring all three along. Builtins of the Filesystem protocol get theirs here; no hint names a tool or a
parameter, because each dialect has its own.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass

from ws.errors import WorkspaceError

_BUILTINS: tuple[tuple[type[BaseException], str, str], ...] = (
    (FileNotFoundError, "file_not_found", "list its directory to see what is there"),
    (FileExistsError, "file_exists", "take another path, or change what is there"),
    (IsADirectoryError, "is_a_directory", "name a file; this is a directory, which can be listed"),
    (NotADirectoryError, "not_a_directory", "name a directory; this is a file, which can be read"),
    (PermissionError, "permission", "look at the permissions of what the path names"),
    (TimeoutError, "timeout", "try again, or allow more time"),
    (ConnectionError, "unavailable", "try again; the workspace may have been restarted"),
    (UnicodeDecodeError, "unicode_decode", "the file is not UTF-8 text, and this reads nothing else"),
    (ValueError, "value", "correct the argument that the message names"),
    (RuntimeError, "runtime", "try again; the workspace may have been restarted"),
    (OSError, "os_error", "see what the message says"),
)
_ERRNO_HINTS = {
    errno.ENOTEMPTY: ("not_empty", "look at what the directory holds, and whether all of it may go"),
    errno.ENOSPC: ("no_space", "delete what is not needed; nothing was changed"),
    errno.EDQUOT: ("no_space", "delete what is not needed; nothing was changed"),
    errno.ELOOP: ("link_loop", "the path leads through links that lead back to it; name the file itself"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    code: str
    message: str
    hint: str


def explain(error: BaseException) -> Problem:
    """An exception in three parts."""
    if isinstance(error, WorkspaceError):
        return Problem(error.code, _one_sentence(error.message), error.hint or "see what the message says")
    if isinstance(error, OSError) and error.errno in _ERRNO_HINTS:
        code, hint = _ERRNO_HINTS[error.errno]
        return Problem(code, _os_message(error), hint)
    for kind, code, hint in _BUILTINS:
        if isinstance(error, kind):
            message = _os_message(error) if isinstance(error, OSError) else str(error)
            return Problem(code, _one_sentence(message), hint)
    return Problem("internal", f"the tool failed: {type(error).__name__}", "try another way, and report this")


def _os_message(error: OSError) -> str:
    said = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {said}" if isinstance(error.filename, str) and error.strerror else said


def _one_sentence(text: str) -> str:
    return " ".join(text.split())
