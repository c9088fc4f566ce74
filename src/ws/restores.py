"""Restoring: plan, verify, keep what is there, switch.

    plan      which layers make up the target; what of them has to be rebuilt from git
    verify    what is missing or in doubt is rebuilt from git into new directories, every object checked
    keep      a safety snapshot, unless nothing changed: a restore can be undone
    switch    end the workspace's processes, replace the record, cover the old overlay with the new one

The safety snapshot is the old upper itself: with nobody in it it is whole and still, one sync makes it durable, and
the record that names the target's layers names it too. Reading it into git can wait for whoever asks for the history
next (`snapshots.settle`).

The commit point is the record. Killed before it, the workspace is as it was; killed after it, it is as it should be,
and the next use attaches the overlay. Nothing is written over: the old upper stays as a layer of the safety snapshot.

Without a container (`--engine none`) the upper is the whole directory: a restore builds a new one and switches to it
in the same way, and the shim starts again in the new place.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ws import bases, containers, durable, layers, overlay, sealing
from ws.containers import EngineFor
from ws.engine.base import WORKSPACE
from ws.errors import ContainerDied, RestoreFailed, SnapshotNotFound, StoreDamaged, WorkspaceError
from ws.freezer import freezer_of
from ws.history import Target, find_number, find_target, turn
from ws.layout import (
    History,
    Home,
    Stack,
    Unsettled,
    WorkspaceRecord,
    new_id,
    read_record,
    read_stack,
)
from ws.snapshots import publish, settle
from ws.store.repository import Store

MAX_UNSETTLED = 16


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a restore would do."""

    target: Target
    stack: Stack | None  # None: it has to be rebuilt from git
    keeps: bool  # a safety snapshot comes first

    def describe(self) -> list[str]:
        lines = ["keep the workspace as it is now in a safety snapshot"] if self.keeps else []
        if self.stack is None:
            lines.append(f"rebuild {self.target.name} from git, checking every object")
        else:
            lines += [f"use the base {self.stack.base[:12]} and {len(self.stack.layers)} layers of {self.target.name}"]
        return [*lines, "end the processes of the workspace", f"switch /workspace to {self.target.name}"]


@dataclass(frozen=True, slots=True)
class Restored:
    """What a restore did."""

    target: Target
    safety: int | None  # the number of the safety snapshot; None: nothing had changed
    ended_processes: int


def plan_restore(home: Home, record: WorkspaceRecord, target: Target) -> RestorePlan:
    """Pure: looks, and changes nothing."""
    return RestorePlan(target, _usable_stack(home, record, target), keeps=not at_rest(home, record))


def restore(home: Home, workspace_id: str, wanted: str | None, engine_for: EngineFor) -> Restored:
    """The whole workspace as it was at a snapshot: every path, also what is ignored, also `.git`.

    Commit point: the record that names the target's layers. The safety snapshot is durable before it.
    Raises SnapshotNotFound, SnapshotAmbiguous, RestoreFailed (nothing changed), Busy, WorkspaceNotFound.
    """
    with turn(home, workspace_id, "restore") as (record, store):
        if wanted is not None and record.history.unsettled:
            record = settle(home, store, record)  # the id may be that of a safety snapshot
        target = find_target(store, record, wanted)
        return _restore(home, store, record, target, ensure_stack(home, record, target), engine_for)


def undo(home: Home, workspace_id: str, engine_for: EngineFor) -> Restored:
    """Take the last restore back; another undo takes that back. Raises SnapshotNotFound when there was none."""
    with turn(home, workspace_id, "restore") as (record, store):
        number = record.history.undo
        if number is None:
            raise SnapshotNotFound(f"nothing of {record.name} was restored yet", hint="`ws restore` comes first")
        for waiting in record.history.unsettled:
            if waiting.number == number and all(layers.is_trusted(home, layer) for layer in waiting.layers):
                target = Target(number, waiting.tree, "the state before the last restore")
                stack = Stack(tree=waiting.tree, base=waiting.base, layers=waiting.layers)
                return _restore(home, store, record, target, stack, engine_for, unhashed=waiting.unhashed)
        record = settle(home, store, record)
        target = find_number(store, record, number)
        return _restore(home, store, record, target, ensure_stack(home, record, target), engine_for)


def _restore(
    home: Home,
    store: Store,
    record: WorkspaceRecord,
    target: Target,
    stack: Stack,
    engine_for: EngineFor,
    *,
    unhashed: int = 0,
) -> Restored:
    if len(record.history.unsettled) >= MAX_UNSETTLED:
        record = settle(home, store, record)
    upper = new_id()
    containers.create_upper(home, replace(record, base=stack.base, layers=stack.layers), upper)
    try:
        with sealing.exclusive(home, record) as current:
            record = replace(record, container=current.container)
            # Ended before the workspace is kept: what they wrote until then is in the safety snapshot.
            ended = _end_processes(home, record, engine_for)
            with _stilled_and_free(home, record) as pid:
                kept = _keep(home, store, record, target)
                undo_to = kept.count if kept != record.history else kept.head
                switched = replace(
                    record,
                    base=stack.base,
                    layers=stack.layers,
                    tree=stack.tree,
                    upper=upper,
                    history=replace(kept, head=target.number, undo=undo_to, unhashed=unhashed),
                )
                _switch(home, record, switched, pid)
    except BaseException as error:
        # Whichever record is on disk by now: what it says holds.
        with contextlib.suppress(WorkspaceError, OSError):
            sealing.put_right(home, record.id)
        if isinstance(error, OSError) and not isinstance(error, WorkspaceError):
            raise RestoreFailed(f"nothing was restored: {error.strerror}", hint="is the disk full?") from error
        raise
    with contextlib.suppress(OSError):  # it is restored: what cannot be removed now goes with `ws prune`
        if not any(record.upper in waiting.layers for waiting in kept.unsettled):
            layers.release_layers(home, [record.upper], record.id)
        sealing.forget_old_scans(home, switched)
    return Restored(target, kept.count if kept != record.history else None, ended)


def _keep(home: Home, store: Store, record: WorkspaceRecord, target: Target) -> History:
    """The history with one more safety snapshot, or as it is when nothing changed.

    The caller makes what it names durable, and then its record makes it true.
    """
    if at_rest(home, record):
        return record.history
    message = f"before restoring {target.name}"
    if record.engine == "none":
        return publish(home, store, record, message=message, kind="safety", restored=target.number)[1].history
    number = record.history.count + 1
    waiting = Unsettled(
        number=number,
        base=record.base,
        layers=(record.upper, *record.layers),
        tree=record.tree,
        unhashed=record.history.unhashed + 1,
        parent=record.history.head,
        restored=target.number,
        message=message,
        created_ns=time.time_ns(),
    )
    return replace(record.history, count=number, unsettled=(*record.history.unsettled, waiting))


def ensure_stack(home: Home, record: WorkspaceRecord, target: Target) -> Stack:
    """The directories of the target; what is missing or in doubt is rebuilt from git. Raises RestoreFailed."""
    stack = _usable_stack(home, record, target)
    if stack is not None and bases.touch(home, stack.base):
        return stack
    try:
        base = bases.ensure_base(home, bases.base_key(target.tree, record.ids), ids=record.ids)
    except (StoreDamaged, OSError) as error:
        raise RestoreFailed(f"{target.name} cannot be brought back: {error}", hint="`ws verify` says more") from error
    return Stack(tree=target.tree, base=base.key, layers=())


def at_rest(home: Home, record: WorkspaceRecord) -> bool:
    """Whether the workspace is exactly what its head is."""
    return record.engine != "none" and record.history.unhashed == 0 and sealing.untouched(home, record)


def _usable_stack(home: Home, record: WorkspaceRecord, target: Target) -> Stack | None:
    """The directories of a snapshot, if all are there and none is in doubt after a crash of the machine."""
    stack = read_stack(home, record.id, target.number)
    if stack is None and target.number == 0:
        stack = Stack(tree=target.tree, base=bases.base_key(target.tree, record.ids), layers=())
    if stack is None or stack.tree != target.tree or bases.find_base(home, stack.base) is None:
        return None
    trusted = all(layers.is_trusted(home, layer) for layer in stack.layers)
    return stack if trusted else None


def _end_processes(home: Home, record: WorkspaceRecord, engine_for: EngineFor) -> int:
    """End what runs in the workspace, all but the shim; returns how many there were."""
    container = record.container
    if container is None or not container.alive():
        return 0
    if record.engine == "none":
        containers.end_container(home, engine_for, record)
        return 0
    try:
        return freezer_of(container.pid).kill_others(keep=container.pid)
    except ContainerDied:
        return 0


@contextlib.contextmanager
def _stilled_and_free(home: Home, record: WorkspaceRecord) -> Iterator[int]:
    """Nothing runs inside this block, and nobody holds the overlay: the pid of the container, 0 where none runs.

    Open streams are ended only where there are any; then somebody may come through the engine meanwhile, so it is asked
    again. Raises RestoreFailed.
    """
    container = record.container
    pid = container.pid if record.engine != "none" and container and container.alive() else 0
    with contextlib.ExitStack() as still:
        still.enter_context(sealing.stilled(record))
        if pid and not overlay.may_cover(pid, WORKSPACE):
            still.close()
            if not containers.make_way(home, record, pid):
                raise _still_held()
            still.enter_context(sealing.stilled(record))
            if not overlay.may_cover(pid, WORKSPACE):
                raise _still_held()
        yield pid


def _still_held() -> RestoreFailed:
    return RestoreFailed(
        "the workspace is still held after its processes were ended",
        hint="`ws show` tells its container; try again, or restart it",
    )


def _switch(home: Home, record: WorkspaceRecord, switched: WorkspaceRecord, pid: int) -> None:
    """Commit point: the rename of the record. One sync before it covers the record and the upper that is kept.

    After it nothing fails any more: an overlay that cannot be put on now is put on by the next use.
    """
    mount = -1
    try:
        if record.container and pid:
            mount, device = containers.build_overlay(home, switched)
            switched = replace(switched, container=replace(record.container, device=device))
        path = home.record(record.id)
        staged = durable.stage_file(path, switched.to_bytes())
        try:
            durable.sync_filesystem(home.root)
            durable.commit_staged(staged, path)
        except OSError:
            if read_record(home, record.id) != switched:  # else only the directory could not be synced
                raise
        if mount >= 0:
            with contextlib.suppress(WorkspaceError):
                overlay.attach(mount, pid, WORKSPACE)
    finally:
        if mount >= 0:
            os.close(mount)
