"""Glob patterns: `*`, `**` and `?`, and nothing else.

`*` and `?` stay within a segment; `**` crosses segments; as a whole segment it also stands for none, so
`**/x` matches `x` and `a/**/b` matches `a/b`. `[`, `{`, `!` and `\\` are ordinary characters. A pattern is
held against the whole path below the directory that was asked about, and hidden names are names like any
other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from ws.errors import InvalidRequest

Matcher = Callable[[str], bool]


@lru_cache(maxsize=128)
def translate(pattern: str) -> str:
    """The regular expression (for `fullmatch`) that says what the pattern says."""
    from re import escape

    parts: list[str] = []
    segments = pattern.split("/")
    for index, segment in enumerate(segments):
        last = index == len(segments) - 1
        if segment == "**":
            # Alone at the end it stands for at least one name: `a/**` is what is below `a`, not `a` itself.
            parts.append(".+" if last else "(?:.+/)?")
            continue
        for piece in _pieces(segment):
            parts.append({"**": ".*", "*": "[^/]*", "?": "[^/]"}.get(piece) or escape(piece))
        if not last:
            parts.append("/")
    return "(?s:" + "".join(parts) + ")"


def _pieces(segment: str) -> list[str]:
    """A segment cut into `**`, `*`, `?` and the literal runs between them."""
    pieces: list[str] = []
    literal = ""
    position = 0
    while position < len(segment):
        wild = "**" if segment.startswith("**", position) else segment[position]
        if wild in ("**", "*", "?"):
            if literal:
                pieces.append(literal)
                literal = ""
            # More stars say no more than two.
            if not (pieces and pieces[-1] == "**" and wild in ("*", "**")):
                pieces.append(wild)
        else:
            literal += wild
        position += len(wild)
    if literal:
        pieces.append(literal)
    return pieces


@lru_cache(maxsize=128)
def compile_glob(pattern: str) -> Matcher:
    """Whether a path below the start matches.

    Raises InvalidRequest for an empty pattern, or one that leads out.
    """
    from re import compile as compile_regex

    fullmatch = compile_regex(translate(check_pattern(pattern))).fullmatch
    return lambda path: fullmatch(path) is not None


@lru_cache(maxsize=128)
def compile_for_names(pattern: str) -> Matcher | None:
    """Whether a basename matches, for the patterns that ask about nothing else; None for all others.

    `**/*.py` is the commonest pattern of all: one comparison of a suffix, and no path is put together in
    vain.
    """
    pattern = check_pattern(pattern)
    name = pattern.removeprefix("**/")
    if name == pattern or "/" in name or "**" in name:
        return None
    suffix = name[1:]
    if name.startswith("*") and "*" not in suffix and "?" not in suffix:
        return lambda candidate: candidate.endswith(suffix)
    return compile_glob(name)


def check_pattern(pattern: str) -> str:
    """The pattern without an idle `./` in front. Raises InvalidRequest."""
    while pattern.startswith("./"):
        pattern = pattern[2:]
    if not pattern or "\0" in pattern:
        raise InvalidRequest("the glob pattern is empty" if not pattern else "the glob pattern holds a NUL")
    if pattern.startswith("/") or ".." in pattern.split("/"):
        raise InvalidRequest(
            f"the glob pattern {pattern!r} leads out of the directory it is held against",
            hint="name the directory in `path` and keep the pattern relative",
        )
    return pattern


def filter_for(glob: str | None) -> Matcher | None:
    """How grep filters files: without a `/` the basename is what must match, anywhere below."""
    if glob is None:
        return None
    return compile_glob(glob if "/" in glob else f"**/{glob}")


def basename_filter(patterns: Sequence[str]) -> Matcher | None:
    """Whether a basename matches one of several patterns (exclusions); None when there are none."""
    if not patterns:
        return None
    from re import compile as compile_regex

    either = compile_regex("|".join(f"(?:{translate(check_pattern(pattern))})" for pattern in patterns))
    return lambda name: either.fullmatch(name) is not None


def literal_prefix(pattern: str) -> str:
    """The leading segments of a pattern that hold no wildcard: nothing outside of them can match."""
    kept = []
    for segment in pattern.split("/")[:-1]:
        if "*" in segment or "?" in segment:
            break
        kept.append(segment)
    return "/".join(kept)


def max_depth(pattern: str) -> int | None:
    """How many segments a match can have at most; None when `**` leaves it open."""
    return None if "**" in pattern else pattern.count("/") + 1
