"""Build a record from parsed JSON, each field checked against its annotation.

A dataclass accepts any value for any field, so a damaged record would fail far away from where it was read. The rules
are looked up by the text of the annotation: no evaluation of type hints, which `ws exec` would pay for on every call.
Values that become parts of paths have annotations of their own, so that no record can name a place outside of its
directory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, get_args

from ws.errors import StateError

Rule = Callable[[Any], bool]
T = TypeVar("T")

_COMPONENT = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,254}")
_TREE = re.compile(r"[0-9a-f]{40}")
_ORIGIN = re.compile(r"[0-9A-Za-z_][0-9A-Za-z_.-]{0,254}/[0-9]{1,9}")
_MAX_SECONDS = 1e11  # the year 5138; `time.localtime` fails for much larger ones
_MAX_ID = (1 << 32) - 2


def is_integer(value: Any) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 64


def is_small_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 31


def is_text(value: Any) -> bool:
    return isinstance(value, str) and "\0" not in value


def is_component(value: Any) -> bool:
    """One component of a path that is no `.`, no `..` and no hidden name."""
    return isinstance(value, str) and _COMPONENT.fullmatch(value) is not None


def is_optional_tree(value: Any) -> bool:
    return value == "" or (isinstance(value, str) and _TREE.fullmatch(value) is not None)


def is_tree(value: Any) -> bool:
    return isinstance(value, str) and _TREE.fullmatch(value) is not None


def is_user_id(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _MAX_ID


def is_origin(value: Any) -> bool:
    """ID/N: a workspace and the number of one of its snapshots."""
    return isinstance(value, str) and _ORIGIN.fullmatch(value) is not None


def is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < 1 << 63


def is_moment(value: Any) -> bool:
    """Seconds since 1970 that a clock can show."""
    return is_number(value) and abs(value) < _MAX_SECONDS


def one_of(alias: Any) -> Rule:
    """Whether a value is one of those of a Literal."""
    allowed = frozenset(get_args(alias))
    return lambda value: isinstance(value, str) and value in allowed


def optional(rule: Rule) -> Rule:
    return lambda value: value is None or rule(value)


def list_of(rule: Rule) -> Rule:
    return lambda value: isinstance(value, list | tuple) and all(map(rule, value))


def mapping_of(rule: Rule) -> Rule:
    return lambda value: isinstance(value, dict) and all(map(rule, value.values()))  # the keys of JSON are text


PLAIN_RULES: dict[str, Rule] = {
    "str": is_text,
    "int": is_integer,
    "float": is_number,
    "bool": lambda value: isinstance(value, bool),
    "str | None": optional(is_text),
    "int | None": optional(is_integer),
    "float | None": optional(is_number),
    "tuple[str, ...]": list_of(is_text),
    "dict[str, str]": mapping_of(is_text),
}


def construct(cls: type[T], fields: Any, rules: Mapping[str, Rule], **made: Any) -> T:
    """A record of class `cls`; `made` are fields that the caller has built already.

    Raises StateError that names the field.
    """
    if not isinstance(fields, dict):
        raise StateError(f"{cls.__name__} is not a JSON object")
    declared = cls.__dataclass_fields__  # type: ignore[attr-defined]
    values = dict(made)
    for name, value in fields.items():
        field = declared.get(name)
        if field is None or name in made:
            raise StateError(f"unknown field {name[:40]!r}")
        if not rules[field.type](value):
            raise StateError(f"the field {name!r} does not hold {_article(field.type)}")
        values[name] = tuple(value) if isinstance(value, list) else value
    try:
        return cls(**values)
    except TypeError as error:
        raise StateError(f"a field is missing: {error}") from None


def _article(annotation: str) -> str:
    return f"{'an' if annotation[:1] in 'aeiouAEIOU' else 'a'} {annotation}"
