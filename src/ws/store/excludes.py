"""What `--exclude` leaves out.

A pattern without a slash (other than at its end) is matched against the name of each file and directory,
anywhere; one with a slash against the whole path from the source's top. `*` and `?` match within one name,
`**` across directories, `[…]` one of some characters, `\\` takes the next character as it is; a slash at
the end means directories only. A directory that matches is left out with all it holds. There is no
negation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ws.errors import InvalidRequest


class Excludes:
    """A compiled set of patterns; false when it is empty."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._rules = [_compile(pattern) for pattern in patterns]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def match(self, directory_path: bytes, name: bytes, *, directory: bool) -> bool:
        path = directory_path + b"/" + name if directory_path else name
        return any(
            rule.fullmatch(path if whole else name) is not None
            for rule, whole, directories_only in self._rules
            if directory or not directories_only
        )


def _compile(pattern: str) -> tuple[re.Pattern[bytes], bool, bool]:
    """The rule, whether it is for the whole path, and whether for directories only. Raises InvalidRequest."""
    body = pattern.rstrip("/")
    if not body or "\0" in body:
        raise InvalidRequest(f"{pattern!r} cannot be excluded", hint="name files or directories, as in '*.log'")
    whole = "/" in body
    text = body.lstrip("/").encode(errors="surrogateescape")
    try:
        return re.compile(_translate(text), re.DOTALL), whole, pattern.endswith("/")
    except re.error:
        raise InvalidRequest(f"the pattern {pattern!r} cannot be read") from None


def _translate(text: bytes) -> bytes:
    out, at = [], 0
    while at < len(text):
        rest = text[at:]
        if rest.startswith(b"**/"):
            out.append(rb"(?:.*/)?")
            at += 3
        elif rest.startswith(b"**"):
            out.append(rb".*")
            at += 2
        elif rest.startswith(b"*"):
            out.append(rb"[^/]*")
            at += 1
        elif rest.startswith(b"?"):
            out.append(rb"[^/]")
            at += 1
        elif rest.startswith(b"\\") and len(rest) > 1:
            out.append(re.escape(rest[1:2]))
            at += 2
        elif group := re.match(rb"\[([!^]?)(\]?[^\]]*)\]", rest):
            inside = group[2].replace(b"\\", rb"\\").replace(b"[", rb"\[").replace(b"]", rb"\]")
            out.append(b"[%s%s]" % (b"^/" if group[1] else b"", inside))
            at += group.end()
        else:
            out.append(re.escape(rest[:1]))
            at += 1
    return b"".join(out)
