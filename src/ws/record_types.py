"""The types of the fields of records, and the rule that each must keep when a record is read from disk.

An alias says what a value means: a `Component` becomes a part of a path, a `TreeId` names an object of the store. The
rules are found by the alias's name (`record_fields`).
"""

from __future__ import annotations

from typing import Literal

from ws.record_fields import (
    PLAIN_RULES,
    Rule,
    is_component,
    is_moment,
    is_optional_tree,
    is_origin,
    is_small_count,
    is_tree,
    is_user_id,
    list_of,
    one_of,
    optional,
)

State = Literal["ready", "removing"]
EngineName = Literal["podman", "docker", "none"]
NetworkName = Literal["none", "bridge"]
Component = str  # one component of a path: an id, a key, a name
OptionalComponent = str  # or ""
TreeId = str
OptionalTreeId = str  # or ""
UserId = int
Count = int
Moment = float  # seconds since 1970
OriginName = str  # ID/N
Operation = Literal["create", "remove", "start", "snapshot", "restore", "fill"]
MarkKind = Literal["restore", "fork"]

RULES: dict[str, Rule] = {
    **PLAIN_RULES,
    "Component": is_component,
    "OptionalComponent": lambda value: value == "" or is_component(value),
    "tuple[Component, ...]": list_of(is_component),
    "TreeId": is_tree,
    "OptionalTreeId": is_optional_tree,
    "UserId": is_user_id,
    "Count": is_small_count,
    "Count | None": optional(is_small_count),
    "Moment": is_moment,
    "Moment | None": optional(is_moment),
    "OriginName | None": optional(is_origin),
    "State": one_of(State),
    "EngineName": one_of(EngineName),
    "NetworkName": one_of(NetworkName),
    "Operation": one_of(Operation),
    "MarkKind": one_of(MarkKind),
}
