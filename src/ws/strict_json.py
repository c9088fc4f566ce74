"""A strict JSON reader for bytes that another machine, process or person wrote.

`json.loads` alone accepts duplicate keys, NaN, integers of any length and half a surrogate pair, and raises
RecursionError on deep nesting. This reader refuses all of them with one exception, ValueError, and looks at size and
depth before it builds anything. `Fields` then takes an object apart, field by field, each with its type and range.
"""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

MAX_DEPTH = 32
MAX_INTEGER_DIGITS = 20

_STRING_OR_BRACKET = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def read_json(data: bytes, *, max_bytes: int, max_depth: int = MAX_DEPTH, surrogates: bool = False) -> Any:
    """The value in `data`. Raises ValueError for anything that is not strict JSON within the limits.

    With `surrogates`, half a surrogate pair is accepted: so Python spells a byte of a file name that is not UTF-8.
    """
    if len(data) > max_bytes:
        raise ValueError(f"{len(data):,} bytes of JSON; the limit is {max_bytes:,}")
    _check_depth(data, max_depth)
    try:
        text = data.decode()
        value = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_int=_short_integer,
            parse_float=_finite,
            parse_constant=_no_constant,
        )
    except RecursionError:  # the depth is capped, but the caller's own stack may be deep already
        raise ValueError("JSON is nested too deeply") from None
    if not surrogates and "\\u" in text:  # the one way to write half a surrogate pair, which no later encode() accepts
        _check_surrogates(value)
    return value


def _check_depth(data: bytes, limit: int) -> None:
    if data.count(b"[") + data.count(b"{") <= limit:
        return
    depth = 0
    for token in _STRING_OR_BRACKET.finditer(data):
        first = data[token.start()]
        if first in b"[{":
            depth += 1
            if depth > limit:
                raise ValueError(f"JSON is nested deeper than {limit} levels")
        elif first in b"]}":
            depth -= 1


def _check_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("a string holds half a surrogate pair") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _short_integer(text: str) -> int:
    if len(text) > MAX_INTEGER_DIGITS:
        raise ValueError("an integer has too many digits")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError("a number is not finite")
    return value


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON")


class Fields:
    """The fields of a JSON object. Each method takes one out, and raises ValueError when it is not what it must be."""

    def __init__(self, value: Any, what: str) -> None:
        if type(value) is not dict:
            raise ValueError(f"{what} is not an object")
        self._left: dict[str, Any] = dict(value)
        self._what = what

    def _take(self, name: str, kinds: tuple[type, ...]) -> Any:
        if name not in self._left:
            raise ValueError(f"{self._what}: the field {name!r} is missing")
        value = self._left.pop(name)
        if type(value) not in kinds:  # not isinstance: True is an int
            raise ValueError(f"{self._what}: the field {name!r} has the wrong type")
        return value

    def _wrong(self, name: str) -> ValueError:
        return ValueError(f"{self._what}: the field {name!r} is out of range")

    def integer(self, name: str, low: int, high: int) -> int:
        value: int = self._take(name, (int,))
        if not low <= value <= high:
            raise self._wrong(name)
        return value

    def optional_integer(self, name: str, low: int, high: int) -> int | None:
        return None if self._is_null(name) else self.integer(name, low, high)

    def number(self, name: str) -> float:
        return float(self._take(name, (int, float)))

    def flag(self, name: str) -> bool:
        value: bool = self._take(name, (bool,))
        return value

    def text(self, name: str, max_length: int) -> str:
        value: str = self._take(name, (str,))
        if len(value) > max_length or "\0" in value:
            raise self._wrong(name)
        return value

    def optional_text(self, name: str, max_length: int) -> str | None:
        return None if self._is_null(name) else self.text(name, max_length)

    def optional_texts(self, name: str, max_count: int, max_length: int) -> tuple[str, ...] | None:
        return None if self._is_null(name) else self.texts(name, max_count, max_length)

    def texts(self, name: str, max_count: int, max_length: int) -> tuple[str, ...]:
        value: list[Any] = self._take(name, (list,))
        if len(value) > max_count or any(type(one) is not str or len(one) > max_length or "\0" in one for one in value):
            raise self._wrong(name)
        return tuple(value)

    def mapping(self, name: str, max_count: int, max_length: int) -> dict[str, str]:
        value: dict[str, Any] = self._take(name, (dict,))
        if len(value) > max_count or any(
            type(one) is not str or len(key) + len(one) > max_length or "\0" in key + one for key, one in value.items()
        ):
            raise self._wrong(name)
        return value

    def fields(self, name: str) -> Fields:
        return Fields(self._take(name, (dict,)), name)

    def rest(self) -> dict[str, Any]:
        """What no method has taken."""
        return self._left

    def end(self) -> None:
        """Raises ValueError when something is left."""
        if self._left:
            raise ValueError(f"{self._what}: the field {min(self._left)!r:.80} is not known")

    def _is_null(self, name: str) -> bool:
        """Whether the field is there and null; then it is taken."""
        if name not in self._left or self._left[name] is not None:
            return False
        del self._left[name]
        return True
