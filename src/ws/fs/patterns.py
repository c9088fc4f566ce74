r"""Regular expressions as ripgrep reads them, written for Python's `re`, so that both find the same.

Written anew are POSIX classes (`[[:alpha:]]`, of ASCII, as there), `\z`, `\<`, `\>` and `\x{…}`. No dot and no class
matches a `\r`, which to ripgrep belongs to the ends of lines. What Python cannot say (`\p{…}`, classes within classes
and what is reckoned with them) is refused: it would be taken for something else without a word. All the rest means the
same in both, or is an error in Python too.
"""

from __future__ import annotations

import re

from ws.errors import InvalidRequest

_ESCAPE = re.compile(r"\\(?:[xuU]\{(?P<hex>[0-9A-Fa-f]{1,6})\}|(?P<char>.))", re.DOTALL)
_POSIX = re.compile(r"\[:(\^?)(\w+):\]")
_OPERATORS = ("&&", "--", "~~")
_ANEW = {
    "z": r"\Z",
    "<": r"\b(?=\w)",
    ">": r"\b(?<=\w)",
    "s": r"[^\S\r]",
    "D": r"[^\d\r]",
    "W": r"[^\w\r]",
}
_RANGES = {
    "alnum": "09AZaz",
    "alpha": "AZaz",
    "ascii": "\x00\x7f",
    "blank": "\t\t  ",
    "cntrl": "\x00\x1f\x7f\x7f",
    "digit": "09",
    "graph": "!~",
    "lower": "az",
    "print": " ~",
    "punct": "!/:@[`{~",
    "space": "\t\r  ",
    "upper": "AZ",
    "word": "09AZ__az",
    "xdigit": "09AFaf",
}
"""The first and the last character of each range, in their order."""


def python_pattern(pattern: str) -> str:
    """The same expression for Python. Raises InvalidRequest for one that only ripgrep knows, re.error for none."""
    out: list[str] = []
    at = 0
    while at < len(pattern):
        escape = _ESCAPE.match(pattern, at)
        if pattern[at] == "[":
            text, at = _class(pattern, at)
        elif escape:
            text, at = _ANEW.get(escape["char"]) or _escape(pattern, escape), escape.end()
        else:
            text, at = r"[^\r\n]" if pattern[at] == "." else pattern[at], at + 1
        out.append(text)
    return "".join(out)


def ripgrep_pattern(pattern: str) -> str:
    r"""The same expression for ripgrep, which looks at one line at a time but takes `\A` and `\z` for more than that.

    With `--crlf` it finds `\z` at the end of some lines only.
    """
    return _ESCAPE.sub(lambda escape: {"A": "^", "z": "$"}.get(escape["char"], escape[0]), pattern)


def _escape(pattern: str, escape: re.Match[str]) -> str:
    """What stands behind a backslash, in a class or outside."""
    if escape["hex"]:
        number = int(escape["hex"], 16)
        return re.escape(chr(number)) if number <= 0x10FFFF else escape[0]
    if escape["char"] in "pP":
        raise _refused(pattern, f"`\\{escape['char']}`")
    return escape[0]


def _class(pattern: str, start: int) -> tuple[str, int]:
    """A class in brackets, and where it ends. Raises re.error when it does not."""
    negated = pattern.startswith("^", start + 1)
    first = at = start + 1 + negated
    body: list[str] = []
    while at < len(pattern) and (pattern[at] != "]" or at == first):
        posix, escape = _POSIX.match(pattern, at), _ESCAPE.match(pattern, at)
        if posix and posix[2] in _RANGES:
            text, at = _ranges(_RANGES[posix[2]], negated=bool(posix[1])), posix.end()
        elif pattern[at] == "[":
            raise _refused(pattern, "a class within a class (a `[` that is meant literally is written `\\[`)")
        elif pattern[at : at + 2] in _OPERATORS:
            raise _refused(pattern, f"`{pattern[at : at + 2]}` in a class")
        elif escape:
            text, at = _escape(pattern, escape), escape.end()
        else:
            text, at = "\\|" if pattern[at] == "|" else pattern[at], at + 1  # `||` makes Python warn
        body.append(text)
    if at == len(pattern):
        raise re.error("unterminated character set", pattern, start)
    return _without_return("".join(body), negated=negated), at + 1


def _without_return(body: str, *, negated: bool) -> str:
    """A class that matches no `\\r`, unless it has nothing else: that is meant, and ripgrep leaves it to Python."""
    if negated:
        return f"[^{body}\\r]"
    if body.replace("\\n", "") == "\\r" or not _matches_return(body):
        return f"[{body}]"
    return f"(?:(?!\\r)[{body}])"


def _matches_return(body: str) -> bool:
    try:
        return re.match(f"[{body}]", "\r") is not None
    except re.error:
        return False  # Python says what is wrong with it when it has the whole


def _ranges(ends: str, *, negated: bool) -> str:
    """The ranges of a POSIX class for the inside of a Python class, or those of all other characters."""
    pairs = [(ord(ends[n]), ord(ends[n + 1])) for n in range(0, len(ends), 2)]
    if negated:
        starts = [0, *(last + 1 for _, last in pairs)]
        pairs = list(zip(starts, [*(first - 1 for first, _ in pairs), 0x10FFFF], strict=True))
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in pairs if first <= last)


def _refused(pattern: str, what: str) -> InvalidRequest:
    return InvalidRequest(
        f"{pattern!r} cannot be searched for here: only ripgrep knows {what}",
        hint="write out the characters that are meant, such as [a-z] or \\w",
    )
