"""Stacks: the layers of snapshots, remembered beside a workspace's record for as long as they are there."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from ws.errors import StateError
from ws.layout import Home, WorkspaceRecord
from ws.record_fields import construct
from ws.record_files import MISSING, read_cached_json
from ws.record_types import RULES, Component, TreeId
from ws.removing import remove_tree


@dataclass(frozen=True, slots=True)
class Stack:
    """The directories that make up a snapshot. A cache: what is missing or doubtful is rebuilt from git."""

    tree: TreeId
    base: Component
    layers: tuple[Component, ...]

    def to_bytes(self) -> bytes:
        return json.dumps({"tree": self.tree, "base": self.base, "layers": self.layers}).encode()


def read_stack(home: Home, workspace_id: str, number: int) -> Stack | None:
    """The stack of a snapshot, or None when there is none that can be read."""
    fields = read_cached_json(home.stack(workspace_id, number))
    try:
        return None if fields is None else construct(Stack, fields, RULES)
    except StateError:
        return None


def forget_stack(home: Home, workspace_id: str, number: int) -> None:
    """Remove what is remembered of a snapshot's layers, also a directory that damage has put there."""
    remove_tree(home.stack(workspace_id, number))


def stack_numbers(home: Home, workspace_id: str) -> list[int]:
    """The snapshots of which stacks are remembered, oldest first."""
    try:
        names = os.listdir(os.path.dirname(home.stack(workspace_id, 0)))
    except MISSING:
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 10)


def needed_layers(home: Home, record: WorkspaceRecord) -> set[str]:
    """The layers a workspace cannot do without, and those that its snapshots are quick to restore with."""
    needed = {record.upper, *record.layers}
    for waiting in record.history.unsettled:
        needed.update(waiting.layers)
    for number in stack_numbers(home, record.id):
        stack = read_stack(home, record.id, number)
        needed.update(stack.layers if stack else ())
    return needed
