"""Names that git gives a meaning to: `.git` in every spelling, reference names, paths that git checks out.

The rules are those of git's `check_refname_format` and `verify_path` with `core.protectHFS` and `core.protectNTFS`
on, and stricter where that costs nothing: a name that git accepts and this module refuses is only withheld.
"""

from __future__ import annotations

import re
import unicodedata

from ws.store import names

_DOT_GIT = re.compile(r"(?:\.git|git~\d)[ .]*(?::.*)?", re.DOTALL)
_REF_PART = re.compile(rb"[^\x00-\x20\x7f~^:?*\[\\./-][^\x00-\x20\x7f~^:?*\[\\/]*")
_MAX_REF_BYTES = 1024


def folded(name: bytes) -> str:
    """The name as a filesystem compares it that ignores case, composition and invisible characters."""
    if name.isascii():
        return name.decode("ascii").lower()
    text = unicodedata.normalize("NFKD", name.decode(errors="replace")).casefold()
    return "".join(char for char in text if unicodedata.category(char) not in ("Cf", "Mn"))


def is_dot_git(name: bytes) -> bool:
    """Whether some filesystem takes this name for `.git`."""
    return _DOT_GIT.fullmatch(folded(name)) is not None


def is_ref_path(path: bytes) -> bool:
    """Whether this is `refs/…` with a name that git accepts, or a directory of such names."""
    first, *parts = path.split(b"/")
    return first == b"refs" and len(path) <= _MAX_REF_BYTES and all(map(_is_ref_part, parts))


def is_refname(path: bytes) -> bool:
    """Whether a reference may have this name: at least `refs/x`."""
    return path != b"refs" and is_ref_path(path)


def _is_ref_part(part: bytes) -> bool:
    return (
        _REF_PART.fullmatch(part) is not None
        and b".." not in part
        and b"@{" not in part
        and not part.endswith((b".", b".lock"))
    )


def is_checkout_path(path: bytes, *, link: bool) -> bool:
    """Whether git checks out a file with this path from an index, and nothing outside of the work tree is written.

    A backslash separates names on some systems, so its parts are checked too. A `link` may have fewer names.
    """
    parts = re.split(rb"[/\\]", path)
    if any(part in (b"", b".", b"..") or is_dot_git(part) for part in parts) or b"\0" in path:
        return False
    return not link or names.escape(parts[-1], link=True) == parts[-1] or parts[-1].startswith(b"=")
