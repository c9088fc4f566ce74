"""File names as git stores them: raw bytes, with a reversible escape for those that git refuses.

Linux allows names that git will not have in a tree, or whose blobs `git fsck` parses as configuration:
`.git`, what HFS+ and NTFS take for `.git` (`.GIT`, `git~1`, `.g\\u200cit`, `.git .`, `.git::$DATA`), and
`.gitmodules` and `.gitattributes` in the same spellings. Such a name carries a `=` in front; so does one
that begins with `=` itself, and therefore dropping one `=` always gives the name back. fsck reads a
backslash as a path separator, so all this holds for each part between backslashes. `.gitignore`, `.github`
and the like stay readable.

The rule errs on the side of escaping: a git that learns a new spelling of an old name finds it escaped.
A part `=x` where `x` needs no escape is never produced; `RECORD` and `LINKS` are such names, reserved for the
store's own entries in `meta/`.
"""

from __future__ import annotations

import re

from ws.errors import StoreDamaged

RECORD = b"=dir"  # a directory's record, in its tree under meta/
LINKS = b"=links"  # the hard links of the whole tree, in the root of meta/

_PLAIN = re.compile(rb"[A-Za-z0-9_+,@-][A-Za-z0-9_.+,@ -]*")
IGNORED_BY_HFS = re.compile(
    b"|".join(chr(code).encode() for code in (*range(0x200C, 0x2010), *range(0x202A, 0x202F),
                                              *range(0x206A, 0x2070), 0xFEFF))
)  # fmt: skip
_REFUSED = re.compile(rb"\.git(?:modules|attributes)?(?![a-z0-9_-])|[a-z0-9]{0,6}~[0-9]")
_REFUSED_LINK = re.compile(rb"\.(?:git|mailmap)")  # fsck wants .gitignore, .mailmap … not to be symlinks


def escape(name: bytes, *, link: bool = False) -> bytes:
    """The name git gets for a file; `link` when it is a symlink, of which git refuses more."""
    if _PLAIN.fullmatch(name):
        return name
    if b"\\" in name:
        return b"\\".join([_escape_part(part, link) for part in name.split(b"\\")])
    return _escape_part(name, link)


def unescape(name: bytes) -> bytes:
    """The file's own name. Raises StoreDamaged for one that no file can have."""
    if b"\\" in name:
        own = b"\\".join([part.removeprefix(b"=") for part in name.split(b"\\")])
    else:
        own = name.removeprefix(b"=")
    if own in (b"", b".", b"..") or b"/" in own or b"\0" in own:
        raise StoreDamaged(f"a tree holds the name {name!r}, which no file can have")
    return own


def _escape_part(part: bytes, link: bool) -> bytes:
    folded = IGNORED_BY_HFS.sub(b"", part).lower()
    if part.startswith(b"=") or _REFUSED.match(folded) or (link and _REFUSED_LINK.match(folded)):
        return b"=" + part
    return part
