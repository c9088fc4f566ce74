"""Forking: a new workspace over the same layers.

Nothing is copied: the fork names the layers of a snapshot, becomes one more user of them, and has an upper of its own.
Without a snapshot named, the workspace is snapshotted first, so that both stand on the same state.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

from ws import sealing
from ws.containers import EngineFor
from ws.creation import create_workspace, name_taken
from ws.errors import WorkspaceError
from ws.history import find_target
from ws.layout import History, Home, Mark, WorkspaceRecord, new_id, resolve_name
from ws.records import write_record
from ws.restores import ensure_stack
from ws.snapshots import publish, settled_turn
from ws.spec import check_name, told_apart


def fork(
    home: Home,
    workspace_id: str,
    wanted: str | None,
    engine_for: EngineFor,
    *,
    fork_id: str,
    name: str | None,
    pool_size: int | None = None,
) -> None:
    """Make the workspace `fork_id`, which begins as a snapshot of another one is.

    The parent's turn is held throughout: its layers cannot go away before the fork is one of their users.
    The caller wraps this in `whole_or_gone`: an interruption while the turn is given back leaves no fork either.
    Commit point: the fork's record that says `ready`.
    Raises WorkspaceExists, SnapshotNotFound, SnapshotAmbiguous, RestoreFailed, Busy, and what the engine raises.
    """
    if name is not None and resolve_name(home, check_name(name)):
        raise name_taken(name)
    with settled_turn(home, workspace_id, "snapshot") as (parent, store):
        if wanted is None:
            message = f"before forking {name}" if name else "before a fork"
            kept, parent = publish(home, store, parent, message=message, kind="snapshot")
            wanted = kept.commit
        target = find_target(store, parent, wanted)
        stack = ensure_stack(home, parent, target)
        record = replace(
            parent,
            id=fork_id,
            name=name or told_apart(parent.name[:50], fork_id, lambda wanted: resolve_name(home, wanted)),
            state="ready",
            created_at=time.time(),
            expires_at=None,
            base=stack.base,
            layers=stack.layers,
            tree=stack.tree,
            origin_tree=stack.tree,
            upper=new_id(),
            container=None,
            history=History(),
            forked_from=f"{parent.id}/{target.number}",
        )
        create_workspace(home, record, engine_for, pool_size=pool_size)
        _mark(home, parent, Mark("fork", target.number, time.time_ns(), record.name))


def _mark(home: Home, parent: WorkspaceRecord, mark: Mark) -> None:
    """Note the fork in its parent's history, for when it will be gone. It is made: nothing here can fail it."""
    with contextlib.suppress(WorkspaceError, OSError), sealing.exclusive(home, parent, timeout_s=1) as current:
        write_record(home, replace(current, history=current.history.marked(mark)), sync=False)
