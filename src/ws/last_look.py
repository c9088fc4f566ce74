"""What a diff, an apply or an export saw of a workspace last: the collector spares it, and the next look builds on it.

    workspaces/ID/looked    LastLook, as JSON

A cache: one that is missing or damaged is made again by the next look.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from ws import durable
from ws.errors import StateError
from ws.layout import Home, WorkspaceRecord
from ws.record_fields import construct
from ws.record_files import read_cached_json
from ws.record_types import RULES, Component, TreeId


@dataclass(frozen=True, slots=True)
class LastLook:
    """A tree that was seen, and the part of it that is the workspace's sealed layers."""

    tree: TreeId
    before: TreeId  # of the base and the layers that snapshots have
    layers: tuple[Component, ...]  # above those, that no snapshot has
    layers_tree: TreeId  # of all of them

    def covers(self, record: WorkspaceRecord) -> bool:
        """Whether the lowest of the layers that no snapshot has are those that were seen."""
        fresh = record.layers[: record.history.unhashed]
        return self.before == record.tree and fresh[len(fresh) - len(self.layers) :] == self.layers

    def merged(self, record: WorkspaceRecord, shorter: WorkspaceRecord) -> LastLook:
        """The same look, where some of its layers were merged into one."""
        if self.covers(record) and len(self.layers) == record.history.unhashed:
            return replace(self, layers=shorter.layers[: shorter.history.unhashed])
        return self


def read_last_look(home: Home, workspace_id: str) -> LastLook | None:
    """What was seen last; None when nothing was, or the file is damaged."""
    fields = read_cached_json(home.looked(workspace_id))
    try:
        return None if fields is None else construct(LastLook, fields, RULES)
    except StateError:
        return None


def write_last_look(home: Home, workspace_id: str, look: LastLook) -> None:
    """Replace what was seen. Commit point: the rename."""
    fields = {name: getattr(look, name) for name in LastLook.__slots__}
    durable.write_file(home.looked(workspace_id), json.dumps(fields).encode())


def looked_trees(home: Home, workspace_id: str) -> set[str]:
    """The trees that the collector spares for the sake of the last look."""
    look = read_last_look(home, workspace_id)
    return set() if look is None else {look.tree, look.layers_tree}
