"""Errors on the wire: a code from a closed set, a message, a hint.

The set is the tree of `ws.errors` plus the builtins that the Filesystem protocol raises. Which class a code
becomes is decided here, on the receiving side; a peer cannot name one. Texts are cut to a length, and file
names that are no UTF-8 are escaped: in an error they are for people to read.
"""

from __future__ import annotations

import os

from ws.errors import ProtocolError, WorkspaceError, all_errors
from ws.shim.wire import field, optional

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

_MAX_TEXT: Final = 3000  # three texts of control characters, each escaped to six bytes, still fit a header

# The builtins of the Filesystem protocol, the special before the general.
_BUILTINS: Final[tuple[tuple[str, type[Exception]], ...]] = (
    ("file_not_found", FileNotFoundError),
    ("file_exists", FileExistsError),
    ("is_a_directory", IsADirectoryError),
    ("not_a_directory", NotADirectoryError),
    ("permission", PermissionError),
    ("timeout", TimeoutError),
    ("os_error", OSError),
    ("unicode_decode", UnicodeDecodeError),
    ("value", ValueError),
    ("runtime", RuntimeError),
)


def describe_error(error: BaseException) -> dict[str, Any]:
    """The fields of an error frame. What is not in the closed set crosses as the plain `error`."""
    fields: dict[str, Any] = {"code": "error", "message": f"the shim failed: {type(error).__name__}: {error}"}
    if isinstance(error, WorkspaceError):
        fields = {"code": error.code, "message": error.message, "hint": error.hint}
    elif isinstance(error, MemoryError):
        fields = {"code": "limit_exceeded", "message": "the shim has no memory left"}
    else:
        for code, kind in _BUILTINS:
            if isinstance(error, kind):
                fields = {"code": code, "message": str(error)}
                break
    if isinstance(error, OSError) and type(error.errno) is int:
        fields["errno"] = error.errno
        paths = [("path", error.filename)]
        if not isinstance(error, WorkspaceError):
            fields["message"] = error.strerror or fields["message"]
            paths.append(("path2", error.filename2))
        for name, path in paths:
            if isinstance(path, str | bytes):
                fields[name] = os.fsdecode(path)
    if isinstance(error, UnicodeDecodeError):
        fields.update(message=error.reason, encoding=error.encoding, start=error.start, end=error.end)
    return {name: _clean(value) if isinstance(value, str) else value for name, value in fields.items()}


def _clean(text: str) -> str:
    return text[:_MAX_TEXT].encode("utf-8", "backslashreplace").decode()


def rebuild_error(fields: dict[str, Any]) -> Exception:
    """The exception that an error frame stands for. Raises ProtocolError when the frame is malformed."""
    code = field(fields, "code", str)
    message = field(fields, "message", str)[:_MAX_TEXT]
    hint = (optional(fields, "hint", str) or "")[:_MAX_TEXT] or None
    number = optional(fields, "errno", int)
    if number is not None and not 0 <= number < 4096:
        raise ProtocolError("the peer sent an error number that no kernel has")
    known = all_errors().get(code)
    if known is not None:
        error = known(message, hint=hint)
        if number is not None and isinstance(error, OSError):
            error.errno = number
            error.filename = (optional(fields, "path", str) or "")[:_MAX_TEXT] or None
        return error
    kind = dict(_BUILTINS).get(code)
    if kind is None:
        raise ProtocolError(f"the peer sent an unknown error code {code[:40]!r}")
    if kind is UnicodeDecodeError:
        start, end = field(fields, "start", int), field(fields, "end", int)
        if not 0 <= start <= end < 1 << 62:
            raise ProtocolError("the peer sent an impossible position")
        return UnicodeDecodeError(field(fields, "encoding", str)[:40], b"", start, end, message)
    if issubclass(kind, OSError):
        if number is None:
            return kind(message)
        paths = [(optional(fields, name, str) or "")[:_MAX_TEXT] for name in ("path", "path2")]
        made = OSError(number, message, paths[0], None, paths[1] or None) if paths[0] else OSError(number, message)
        # OSError picks its subclass by the number; the code must say the same.
        return made if isinstance(made, kind) else kind(message)
    return kind(message)
