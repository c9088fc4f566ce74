"""What there is of a workspace goes: its container, name, references and files, whatever is damaged.

A removal that has passed its commit point is finished by recovery, or by the next `ws rm`.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ws import durable
from ws.containers import EngineFor, end_container
from ws.engine import RUN
from ws.errors import Busy, NotFound, StoreDamaged, WorkspaceError
from ws.layers import layers_of, release_layers
from ws.layout import EngineName, Home, WorkspaceRecord, read_name
from ws.records import name_of, write_record
from ws.removing import remove_tree
from ws.sealing import LOCK_TIMEOUT_S
from ws.staged import remove_staged

if TYPE_CHECKING:
    from ws.engine.base import ContainerState, Engine

ENGINES: tuple[EngineName, ...] = ("podman", "docker", "none")


def discard(
    home: Home, engine_for: EngineFor, workspace_id: str, record: WorkspaceRecord | None
) -> WorkspaceError | None:
    """Take a workspace away: container, name, files. Idempotent; returns the engine's trouble, if it had any.

    Commit point: the record that says `removing`. From there on it is gone for everybody but recovery.
    """
    trouble: WorkspaceError | None = None
    if record is not None:
        if record.state != "removing":
            write_record(home, replace(record, state="removing"))
        trouble = end_container(home, engine_for, record)
        _sync_base(home, record.base)
        # A snapshot that died may have left references that the record does not count.
        if record.history.count or os.path.lexists(os.path.join(home.store, "refs", "workspaces", workspace_id)):
            trouble = _drop_refs(home, workspace_id) or trouble
    discard_unborn(home, workspace_id, record.name if record else "")
    return trouble


def _sync_base(home: Home, key: str) -> None:
    """The base stays for the workspaces to come, also after a reboot. It is synced once: the first removal waits."""
    from ws.syncing import ensure_synced

    ensure_synced(home, only_base=key)


def remove_damaged(home: Home, engine_for: EngineFor, workspace_id: str) -> WorkspaceError | None:
    """Take a workspace away whose record cannot be read: the containers that have it are found by label and by mount.

    Idempotent; returns the trouble of an engine that may have one. Raises Busy.
    Commit point: the rename of its directory; before it, another `ws rm` begins again.
    """
    name = name_of(home, workspace_id) or ""
    with contextlib.ExitStack() as held:
        for lock in (home.turn(workspace_id), home.lock(workspace_id)):
            with contextlib.suppress(NotFound):  # more is damaged than the record
                held.enter_context(durable.locked(lock, timeout_s=LOCK_TIMEOUT_S, what=f"workspace {workspace_id}"))
        if durable.is_locked(home.pending(workspace_id)):
            raise Busy(f"workspace {workspace_id} is being created", hint="wait for it to end and try again")
        trouble = _end_containers_of(home, engine_for, workspace_id)
        trouble = _drop_refs(home, workspace_id) or trouble
        discard_unborn(home, workspace_id, name)
        remove_tree(home.pending(workspace_id))  # of an operation that died: what it was about is gone
    return trouble


def _end_containers_of(home: Home, engine_for: EngineFor, workspace_id: str) -> WorkspaceError | None:
    ended = 0
    trouble: WorkspaceError | None = None
    for engine_name in ENGINES:
        try:
            engine = engine_for(engine_name)
            for listed in engine.list(home.root):
                if _has_workspace(engine, listed, workspace_id):
                    engine.remove(listed.id)
                    remove_tree(home.run(listed.key))
                    ended += 1
        except WorkspaceError as error:
            trouble = error
    return None if ended else trouble


def _has_workspace(engine: Engine, listed: ContainerState, workspace_id: str) -> bool:
    """Whether a container is a workspace's; one that came from the pool says so only by what is mounted in it."""
    if listed.workspace_id:
        return listed.workspace_id == workspace_id
    state = engine.find(listed.id)
    return state is not None and mounted_from(state.pid, f"{RUN}/kept").endswith(f"/workspaces/{workspace_id}/kept")


def _drop_refs(home: Home, workspace_id: str) -> WorkspaceError | None:
    """Forget the snapshots of a workspace; the trouble, if the store is too damaged for that.

    A removal does not wait for the store to be repaired: the collector drops references that no workspace has.
    """
    from ws.store.references import drop_refs
    from ws.store.repository import Store

    try:
        with Store(home.store) as store:
            drop_refs(store, workspace_id)
    except (WorkspaceError, OSError, ValueError) as error:
        return StoreDamaged(
            f"the snapshots of {workspace_id} are still in the store: {error}",
            hint="`ws gc` removes them once the store is repaired",
        )
    return None


def discard_unborn(home: Home, workspace_id: str, name: str) -> None:
    """Take away what is on disk of a workspace besides its container, whether a record names it or not."""
    if name:
        with contextlib.suppress(OSError):
            if read_name(home, name) == workspace_id:
                durable.unlink(home.name(name))
    # Also those that an operation cut short had not come to name: users are the truth, records follow.
    release_layers(home, layers_of(home, workspace_id), workspace_id)
    directory = home.workspace(workspace_id)
    if os.path.lexists(directory):
        staged = home.staging()
        durable.rename(directory, staged)
        remove_staged(staged)


def mounted_from(pid: int, mounted_at: str) -> str:
    """The directory of its filesystem that a process has mounted somewhere; "" when none, or the process is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            fields = line.split(" ")
            if fields[4] == mounted_at:
                return fields[3]
    return ""
