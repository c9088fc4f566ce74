"""How a text file is written, so that a change to it can be written the same way.

Files are edited as bytes: what an edit does not touch comes back bit for bit, whatever its encoding. Lines
end at `\\n` alone; a `\\r` before it belongs to the line's ending. A model never sees either of them, nor a
byte order mark, so text that it sends without them takes the form of the place where it lands.
"""

from __future__ import annotations

import re

BOM = b"\xef\xbb\xbf"

_PROBE_BYTES = 8192


def is_binary(data: bytes) -> bool:
    """Whether a NUL stands near the beginning: the test that git and ripgrep use."""
    return b"\0" in data[:_PROBE_BYTES]


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


def encode_like(text: str, data: bytes) -> bytes:
    """Text in the encoding of a file: UTF-8, or latin-1 where the file is plainly that.

    A file with bytes that are no UTF-8 and none that are is taken for latin-1. Where both occur it is UTF-8
    with some damage, and the damage is left as it is.
    """
    encoded = text.encode("utf-8", "surrogateescape")
    if text.isascii() or data.isascii() or not data.decode("utf-8", "ignore").isascii():
        return encoded
    try:
        return text.encode("latin-1")
    except UnicodeEncodeError:
        return encoded


def find_text(data: bytes, text: bytes) -> list[tuple[int, int]]:
    """Every place where text stands, overlapping ones too, as (start, end).

    A `\\n` in the text matches a `\\r\\n` of the file, unless the text has a `\\r` of its own.
    """
    if b"\r" in data and b"\n" in text and b"\r" not in text:
        pattern = rb"\r?\n".join(re.escape(part) for part in text.split(b"\n"))
        return [match.span(1) for match in re.finditer(rb"(?=(" + pattern + rb"))", data)]
    found = []
    start = data.find(text)
    while start >= 0:
        found.append((start, start + len(text)))
        start = data.find(text, start + 1)
    return found


def line_number(data: bytes, position: int) -> int:
    """The 1-based line in which a position lies."""
    return data.count(b"\n", 0, position) + 1
