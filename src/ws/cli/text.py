"""Words for people: what a container or a record says, made harmless, and quantities as one says them.

A file name or an error text from a container may hold escape sequences that retitle a terminal, hide lines or forge
output (HARDENING D9). Nothing of it reaches a terminal before `escape` has made every such character visible.

Light to import: `ws exec` comes through here.
"""

from __future__ import annotations

import os
import sys
from typing import TextIO

_COLOURS = {"red": 31, "green": 32, "yellow": 33, "cyan": 36, "bold": 1, "dim": 2}


def escape(text: str) -> str:
    """The text on one line with everything unprintable spelled out: `\\x1b`, `\\n`, `\\u202e`, `\\xff`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else _spelled(letter) for letter in text)


def _spelled(letter: str) -> str:
    code = ord(letter)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a file name that is not UTF-8
        return f"\\x{code - 0xDC00:02x}"
    return letter.encode("unicode_escape").decode("ascii")


def decodable(text: str) -> str:
    """The text without lone surrogates, which no JSON reader need accept; odd bytes are spelled `\\xff`."""
    return "".join(_spelled(letter) if 0xD800 <= ord(letter) <= 0xDFFF else letter for letter in text)


def colours_wanted(stream: TextIO | None) -> bool:
    """Whether to colour what goes there: a terminal that knows how, and a user who has not said no."""
    return (
        stream is not None
        and stream.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") not in ("dumb", "", None)
    )


def paint(text: str, colour: str, stream: TextIO | None) -> str:
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m" if colours_wanted(stream) else text


def say(text: str) -> None:
    """A line for people."""
    print(text, file=sys.stderr)


def size(count: float) -> str:
    """512 B, 1.5 KiB, 2 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def age(seconds: float) -> str:
    """42s, 5m, 3h, 9d: the largest unit that fits."""
    seconds = max(0.0, seconds)
    for limit, unit, scale in ((120, "s", 1), (7200, "m", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{int(seconds // scale)}{unit}"
    return f"{int(seconds // 86400)}d"


def closest(word: str, known: list[str]) -> str | None:
    """The known word that a person who typed this one meant, if any is near."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, known, n=1, cutoff=0.6)), None)
