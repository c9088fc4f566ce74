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
from ws.claiming import touch
from ws.containers import EngineFor
from ws.engine.base import WORKSPACE
from ws.errors import ContainerDied, RestoreFailed, SnapshotNotFound, StoreDamaged, WorkspaceError
from ws.freezer import FrozenAlready
from ws.history import Target, find_number, find_target, no_cycles, turn
from ws.layout import History, Home, Mark, Unsettled, WorkspaceRecord, new_id
from ws.records import read_record
from ws.snapshots import publish, settle
from ws.stacks import Stack, read_stack
from ws.store.repository import Store
from ws.syncing import note_synced

MAX_UNSETTLED = 16
SETTLED_AT_ONCE = 2  # of those that are too many: no restore pays for all that others put off


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


def plan_undo(home: Home, store: Store, record: WorkspaceRecord) -> RestorePlan:
    """What an undo would do; changes nothing. Raises SnapshotNotFound when nothing was restored."""
    waiting = _find_undone(record)
    if waiting is None:
        return plan_restore(home, record, find_number(store, record, _undone(record)))
    return RestorePlan(_before_last(waiting), _trusted_stack(home, waiting), keeps=not at_rest(home, record))


def plan_restore(home: Home, record: WorkspaceRecord, target: Target) -> RestorePlan:
    """Pure: looks, and changes nothing."""
    return RestorePlan(target, _usable_stack(home, record, target), keeps=not at_rest(home, record))


@no_cycles()
def restore(home: Home, workspace_id: str, wanted: str | None, engine_for: EngineFor) -> Restored:
    """The whole workspace as it was at a snapshot: every path, also what is ignored, also `.git`.

    Commit point: the record that names the target's layers. The safety snapshot is durable before it.
    Raises SnapshotNotFound, SnapshotAmbiguous, RestoreFailed (nothing changed), Busy, WorkspaceNotFound.
    """
    with durable.syncing_ahead(home.root), turn(home, workspace_id, "restore") as (record, store):
        # The id may be that of a safety snapshot.
        record = _relieve(home, store, record) if wanted is None else settle(home, store, record)
        target = find_target(store, record, wanted)
        return _restore(home, store, record, target, ensure_stack(home, record, target), engine_for)


@no_cycles()
def undo(home: Home, workspace_id: str, engine_for: EngineFor) -> Restored:
    """Take the last restore back; another undo takes that back. Raises SnapshotNotFound when there was none."""
    with durable.syncing_ahead(home.root), turn(home, workspace_id, "restore") as (record, store):
        record = _relieve(home, store, record)
        number, waiting = _undone(record), _find_undone(record)
        if waiting is not None:
            if stack := _trusted_stack(home, waiting):
                target = _before_last(waiting)
                return _restore(home, store, record, target, stack, engine_for, unhashed=waiting.unhashed)
            record = settle(home, store, record)
        target = find_number(store, record, number)
        return _restore(home, store, record, target, ensure_stack(home, record, target), engine_for)


def _undone(record: WorkspaceRecord) -> int:
    number = record.history.undo
    if number is None:
        raise SnapshotNotFound(f"nothing of {record.name} was restored yet", hint="`ws restore` comes first")
    return number


def _find_undone(record: WorkspaceRecord) -> Unsettled | None:
    """What an undo restores, if git does not have it yet."""
    return next((waiting for waiting in record.history.unsettled if waiting.number == record.history.undo), None)


def _before_last(waiting: Unsettled) -> Target:
    return Target(waiting.number, waiting.tree, "the state before the last restore")


def _trusted_stack(home: Home, waiting: Unsettled) -> Stack | None:
    if not all(layers.is_trusted(home, layer) for layer in waiting.layers):
        return None
    return Stack(tree=waiting.tree, base=waiting.base, layers=waiting.layers)


def _relieve(home: Home, store: Store, record: WorkspaceRecord) -> WorkspaceRecord:
    """Settle a few of the safety snapshots that restores put off, where they are many."""
    many = len(record.history.unsettled) >= MAX_UNSETTLED
    return settle(home, store, record, limit=SETTLED_AT_ONCE) if many else record


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
    sealing.check_not_paused(record)
    upper = new_id()
    containers.create_upper(home, replace(record, base=stack.base, layers=stack.layers), upper)
    try:
        with sealing.exclusive(home, record) as current:
            record = replace(record, container=current.container)
            # Emptied before the workspace is kept: what was written until then is in the safety snapshot.
            with _emptied(home, record, engine_for) as (pid, ended):
                kept = _keep(home, store, record, target)
                undo_to = kept.count if kept != record.history else kept.head
                switched = replace(
                    record,
                    base=stack.base,
                    layers=stack.layers,
                    tree=stack.tree,
                    upper=upper,
                    history=replace(kept, head=target.number, undo=undo_to, unhashed=unhashed).marked(
                        Mark("restore", target.number, time.time_ns())
                    ),
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
        _note_synced(home, switched)
    return Restored(target, kept.count if kept != record.history else None, ended)


def _note_synced(home: Home, switched: WorkspaceRecord) -> None:
    """The sync before the switch has covered what the workspace stands on now, and what was kept."""
    kept = switched.history.unsettled[-1:]
    sealed = {*switched.layers, *(layer for waiting in kept for layer in waiting.layers)}
    note_synced([home.base(switched.base), *map(home.layer, sealed)])


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
    if stack is not None and touch(home, stack.base, announced=True):
        return stack
    try:
        base = bases.ensure_base(home, bases.base_key(target.tree, record.ids), ids=record.ids, announced=True)
    except (StoreDamaged, OSError) as error:
        raise RestoreFailed(f"{target.name} cannot be brought back: {error}", hint="`ws verify` says more") from error
    return Stack(tree=target.tree, base=base.key, layers=())


def at_rest(home: Home, record: WorkspaceRecord) -> bool:
    """Whether the workspace is exactly what its head is, which may be a safety snapshot that is not settled."""
    if record.engine == "none" or not sealing.untouched(home, record):
        return False
    return record.history.unhashed == 0 or any(map(record.stands_on, record.history.unsettled))


def _usable_stack(home: Home, record: WorkspaceRecord, target: Target) -> Stack | None:
    """The directories of a snapshot, if all are there and none is in doubt after a crash of the machine."""
    remembered = read_stack(home, record.id, target.number)
    # The base that the workspace began with, or one that an earlier restore built from git.
    whole = Stack(tree=target.tree, base=bases.base_key(target.tree, record.ids), layers=())
    return next((stack for stack in (remembered, whole) if stack and _is_usable(home, target, stack)), None)


def _is_usable(home: Home, target: Target, stack: Stack) -> bool:
    if stack.tree != target.tree or bases.find_base(home, stack.base) is None:
        return False
    return all(layers.is_trusted(home, layer) for layer in stack.layers)


@contextlib.contextmanager
def _emptied(home: Home, record: WorkspaceRecord, engine_for: EngineFor) -> Iterator[tuple[int, int]]:
    """Of the container only the shim is left, it stands still inside this block, and nobody holds the overlay.

    Gives its pid, 0 where none runs, and how many processes were ended. Where there are none to end, and no stream is
    open, all is frozen once; else somebody may come through the engine meanwhile, so it is asked again.
    Raises RestoreFailed, Busy when somebody paused the container.
    """
    container = record.container
    if record.engine == "none":
        containers.end_container(home, engine_for, record)
    with contextlib.ExitStack() as still:
        freezer = still.enter_context(sealing.stilled(record))
        if freezer is None or container is None:
            yield 0, 0
            return
        ended = 0
        if freezer.processes() != [container.pid]:
            still.close()
            with contextlib.suppress(ContainerDied):
                try:
                    ended = freezer.kill_others(keep=container.pid)
                except FrozenAlready:  # paused by hand since the first look
                    raise containers.paused(record) from None
            still.enter_context(sealing.stilled(record))
        if not containers.may_cover(container):
            still.close()
            if not containers.make_way(home, container):
                raise _still_held()
            still.enter_context(sealing.stilled(record))
            if not containers.may_cover(container):
                raise _still_held()
        yield container.pid, ended


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
            mount, device = containers.build_overlay(home, switched, record.container)
            switched = replace(switched, container=containers.covering(record.container, device))
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
