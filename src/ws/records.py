"""Every record there is. One that cannot be read is told by its name, and hides no other.

What a damaged record needs nobody knows, so all that it may need stays until the workspace is removed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ws.errors import StateError
from ws.layout import Home, WorkspaceRecord, read_record


@dataclass(frozen=True, slots=True)
class Damaged:
    """A workspace whose record cannot be read."""

    id: str
    name: str  # of the link that leads to it, else its id
    problem: str


def read_records(home: Home) -> tuple[list[WorkspaceRecord], list[Damaged]]:
    """The records of all workspaces, in whatever state, and those that cannot be read."""
    found: list[WorkspaceRecord] = []
    damaged: list[Damaged] = []
    for workspace_id in os.listdir(home.at("workspaces")):
        try:
            record = read_record(home, workspace_id)
        except (StateError, OSError) as error:
            damaged.append(Damaged(workspace_id, name_of(home, workspace_id) or workspace_id, str(error)))
            continue
        if record is not None:
            found.append(record)
    return found, damaged


def name_of(home: Home, workspace_id: str) -> str | None:
    """The name that leads to a workspace, where its record does not say. Looks at all names there are."""
    names = os.listdir(home.at("names"))
    return next((name for name in names if os.readlink(home.name(name)) == workspace_id), None)
