"""Stacks: the layers of snapshots, remembered beside a workspace's record for as long as they are there."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from ws import durable
from ws.layout import Home, WorkspaceRecord


@dataclass(frozen=True, slots=True)
class Stack:
    """The directories that make up a snapshot. A cache: what is missing or doubtful is rebuilt from git."""

    tree: str
    base: str
    layers: tuple[str, ...]

    def to_bytes(self) -> bytes:
        return json.dumps({"tree": self.tree, "base": self.base, "layers": self.layers}).encode()


def read_stack(home: Home, workspace_id: str, number: int) -> Stack | None:
    """The stack of a snapshot, or None when there is none that can be read."""
    try:
        fields = json.loads(durable.read_file(home.stack(workspace_id, number)))
        return Stack(tree=fields["tree"], base=fields["base"], layers=tuple(fields["layers"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def stack_numbers(home: Home, workspace_id: str) -> list[int]:
    """The snapshots of which stacks are remembered, oldest first."""
    try:
        names = os.listdir(os.path.dirname(home.stack(workspace_id, 0)))
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if name.isdigit())


def needed_layers(home: Home, record: WorkspaceRecord) -> set[str]:
    """The layers a workspace cannot do without, and those that its snapshots are quick to restore with."""
    needed = {record.upper, *record.layers}
    for waiting in record.history.unsettled:
        needed.update(waiting.layers)
    for number in stack_numbers(home, record.id):
        stack = read_stack(home, record.id, number)
        needed.update(stack.layers if stack else ())
    return needed
