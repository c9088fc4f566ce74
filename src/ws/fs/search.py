"""Searching the contents of files in Python: what `ripgrep` is held against, and what runs where it cannot.

A file is searched line by line; `\\n` or `\\r\\n` ends a line and is no part of it. A file with a NUL in its
first 64 KB is binary and is not searched (ripgrep sees as much at its first look); a NUL further down ends
the search of the file there. Bytes that are not UTF-8 read as U+FFFD. Files come in the order of their paths,
so that the first matches are the same every time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from sys import maxsize
from typing import TYPE_CHECKING

from ws.errors import InvalidRequest
from ws.fs.protocol import CHUNK_BYTES, ByteReader, GrepMatch, GrepQuery, GrepReport
from ws.fs.streams import byte_lines

if TYPE_CHECKING:
    from re import Pattern

MAX_LINE_BYTES = 1 << 20
"""Only so much of a line is searched: a file may be one line of many gigabytes."""

Opener = Callable[[str], ByteReader]


def is_binary(head: bytes) -> bool:
    """Whether the first bytes of a file say that it is no text."""
    return b"\0" in head[:CHUNK_BYTES]


def compile_pattern(query: GrepQuery) -> Pattern[str]:
    """Raises InvalidRequest for a pattern that is no regular expression, or one for ripgrep alone."""
    import re

    from ws.fs.patterns import python_pattern

    try:
        return re.compile(python_pattern(query.pattern), re.IGNORECASE if query.ignore_case else 0)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidRequest(
            f"{query.pattern!r} is not a regular expression: {error}",
            hint="escape the characters that are meant literally, such as ( [ { . * + ?",
        ) from None


def clean_line(raw: bytes) -> str:
    """The text of a line, without its ending."""
    return raw.removesuffix(b"\n").removesuffix(b"\r").decode("utf-8", "replace")


def check_query(query: GrepQuery, max_matches: int) -> int:
    """The number of matches that may be returned. Raises InvalidRequest."""
    if query.context_before < 0 or query.context_after < 0:
        raise InvalidRequest("context lines must not be negative")
    limit = max_matches if query.max_matches is None else query.max_matches
    if limit < 1:
        raise InvalidRequest(f"max_matches is {limit}; it must be at least 1")
    return min(limit, maxsize - 1)  # ripgrep takes no number that is larger, and does not search


def search_files(query: GrepQuery, paths: Iterable[str], open_read: Opener, limit: int) -> GrepReport:
    """Search files in the order given; those that are gone or cannot be read are passed over."""
    regex = compile_pattern(query)
    matches: list[GrepMatch] = []
    counts: list[tuple[str, int]] = []
    for path in paths:
        if len(matches) > limit or len(counts) > limit:
            break
        try:
            reader = open_read(path)
        except (OSError, ValueError):
            continue
        with reader:
            if is_binary(reader.read(CHUNK_BYTES)):
                continue
            found = search_one(query, regex, path, reader, limit + 1 - len(matches))
            if found and query.count_only:
                counts.append((path, len(found)))
            elif found:
                matches += with_context(query, reader, found)
    return report_of(matches, counts, limit)


def report_of(matches: list[GrepMatch], counts: list[tuple[str, int]], limit: int) -> GrepReport:
    """A report from one more than may be told, so that it is known whether there was more."""
    truncated = len(matches) > limit or len(counts) > limit
    return GrepReport(tuple(matches[:limit]), tuple(counts[:limit]), truncated=truncated)


def search_one(query: GrepQuery, regex: Pattern[str], path: str, reader: ByteReader, limit: int) -> list[GrepMatch]:
    """The matching lines of one file from its start, `limit` of them unless they are only counted."""
    reader.seek(0)
    found: list[GrepMatch] = []
    for number, raw in enumerate(text_lines(reader), 1):
        text = clean_line(raw)
        match = regex.search(text)
        if match is None:
            continue
        found.append(GrepMatch(path, number, "" if query.count_only else text, match.start(), match.end()))
        if len(found) >= limit and not query.count_only:
            break
    return found


def text_lines(reader: ByteReader) -> Iterator[bytes]:
    """The lines of a file up to its first NUL; of a very long one only the beginning."""
    return byte_lines(_before_nul(reader), max_line_bytes=MAX_LINE_BYTES)


def _before_nul(chunks: Iterable[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        end = chunk.find(b"\0")
        if end < 0:
            yield chunk
            continue
        if end:
            yield chunk[:end]
        return


def with_context(query: GrepQuery, reader: ByteReader, matches: list[GrepMatch]) -> list[GrepMatch]:
    """The same matches with the lines around them, read from the same file."""
    if not (query.context_before or query.context_after):
        return matches
    wanted: set[int] = set()
    for match in matches:
        first = max(1, match.line_number - query.context_before)
        wanted.update(range(first, match.line_number + query.context_after + 1))
    last = max(wanted)
    lines: dict[int, str] = {}
    reader.seek(0)
    for number, raw in enumerate(text_lines(reader), 1):
        if number in wanted:
            lines[number] = clean_line(raw)
        if number >= last:
            break

    def around(start: int, stop: int) -> tuple[str, ...]:
        return tuple(lines[number] for number in range(start, stop) if number in lines)

    return [
        replace(
            match,
            before=around(match.line_number - query.context_before, match.line_number),
            after=around(match.line_number + 1, match.line_number + 1 + query.context_after),
        )
        for match in matches
    ]
