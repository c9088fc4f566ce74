"""How a text file is written, so that a change to it can be written the same way.

Files are edited as UTF-8 bytes (`encodings` converts others): what an edit does not touch stays bit for bit. Lines
end at `\\n` alone; a `\\r` before it belongs to the line's ending. A model never sees either of them, nor a
byte order mark, so text that it sends without them takes the form of the place where it lands.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate

BOM = b"\xef\xbb\xbf"


def split_lines(data: bytes) -> list[bytes]:
    """The lines, each with its ending; only the last may have none."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    last = lines.pop()[:-1]
    return [*lines, last] if last else lines


def bare(line: bytes) -> bytes:
    """A line without its ending."""
    return line.removesuffix(b"\n").removesuffix(b"\r")


def ending_of(line: bytes) -> bytes:
    """`\\r\\n`, `\\n`, or nothing."""
    return line[len(bare(line)) :] if line.endswith(b"\n") else b""


def ending_at(data: bytes, position: int) -> bytes:
    """The line ending in use at a position: of its own line, else of the line before, else `\\n`."""
    end = data.find(b"\n", position)
    if end < 0:
        end = data.rfind(b"\n", 0, position)
    return b"\r\n" if end > 0 and data[end - 1 : end] == b"\r" else b"\n"


def with_endings(text: bytes, ending: bytes) -> bytes:
    """Text as a model writes it, with the file's line endings; text that has its own keeps them."""
    if ending == b"\n" or b"\r" in text:
        return text
    return text.replace(b"\n", ending)


def find_text(data: bytes, text: bytes, limit: int) -> list[tuple[int, int]]:
    """The first places where text stands, at most `limit`, overlapping ones too, as (start, end).

    A `\\n` in the text matches a `\\r\\n` of the file, unless the text has a `\\r` of its own. The time is linear in
    the size of the file for each place: text that overlaps itself is not searched for at every byte.
    """
    if b"\r\n" in data and b"\n" in text and b"\r" not in text:
        parts = data.split(b"\r\n")
        whole = _Joined(parts)
        return [whole.span(start, end) for start, end in find_text(b"\n".join(parts), text, limit)]
    found: list[tuple[int, int]] = []
    start = data.find(text)
    while start >= 0 and len(found) < limit:
        found.append((start, start + len(text)))
        start = data.find(text, start + 1)
    return found


class _Joined:
    """Positions in lines joined by `\\n`, as positions in the same lines joined by `\\r\\n`."""

    def __init__(self, parts: list[bytes]) -> None:
        self._ends = list(accumulate(len(part) + 1 for part in parts))  # behind each `\\n`

    def span(self, start: int, end: int) -> tuple[int, int]:
        # A line feed at `start` or before `end` takes its carriage return along.
        return start + bisect_right(self._ends, start), end + bisect_right(self._ends, end)


def line_number(data: bytes, position: int) -> int:
    """The 1-based line in which a position lies."""
    return data.count(b"\n", 0, position) + 1
