"""The line of snapshots of a workspace: what a snapshot is, which one somebody means, and whose turn it is.

Snapshots are commits under `refs/workspaces/ID/N`; 0 is the base, and is published with the first snapshot. The
reference is what makes one true. The record follows: a crash between the two is caught up with when the next operation
takes its turn.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from ws import durable
from ws.containers import EngineFor
from ws.errors import (
    Busy,
    KernelRefused,
    NotFound,
    RestoreFailed,
    SnapshotNotFound,
    StateUnusable,
    StoreDamaged,
    WorkspaceError,
    WorkspaceNotFound,
)
from ws.layout import EngineName, Home, Intent, Operation, WorkspaceRecord
from ws.records import read_record, write_record
from ws.recovery import begin, ensure_whole
from ws.stacks import Stack
from ws.store import commits
from ws.store.references import numbers_of
from ws.store.repository import Store

if TYPE_CHECKING:
    from ws.engine.base import Engine

Kind = Literal["base", "snapshot", "safety"]

TURN_TIMEOUT_S = 60.0
_COUNTED = re.compile(r"(.*)[@~](\d{1,9})", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of a workspace that can be restored. `id` names it; the fields of the protocol follow from it."""

    id: str
    workspace: str
    number: int
    commit: str
    tree: str
    kind: Kind
    message: str
    tag: str | None
    created_at: datetime.datetime
    paths_changed: int
    size_bytes: int
    skipped: tuple[str, ...]  # sockets and devices, which are not kept
    parent: int | None  # the snapshot that the workspace stood on
    restored: int | None  # for a safety snapshot: what was restored right after it
    root_path: str
    git_dir: str

    @property
    def snapshot_id(self) -> str:
        return self.id

    @property
    def commit_ref(self) -> str:
        return self.commit

    @classmethod
    def of(cls, home: Home, stored: commits.Snapshot) -> Snapshot:
        facts = stored.facts
        return cls(
            id=stored.id[:12],
            workspace=stored.workspace,
            number=stored.number,
            commit=stored.id,
            tree=stored.tree,
            kind=facts["kind"],
            message=stored.message,
            tag=stored.tag,
            created_at=datetime.datetime.fromtimestamp(stored.created_ns / 1e9, datetime.UTC),
            paths_changed=facts["paths_changed"],
            size_bytes=facts["size_bytes"],
            skipped=tuple(facts["skipped"]),
            parent=facts["parent"],
            restored=facts["restored"],
            root_path=facts["root"],
            git_dir=home.store,
        )


@dataclass(frozen=True, slots=True)
class Target:
    """A tree that can be restored, diffed or forked from: a snapshot, or the base of a workspace without any."""

    number: int
    tree: str
    name: str
    commit: str | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a fork came from, by the names that are there now."""

    workspace: str  # its id, when it is gone
    snapshot: str  # its number, when it is gone

    def __str__(self) -> str:
        return f"{self.workspace} at {self.snapshot}"


def find_origin(home: Home, store: Store, forked_from: str) -> Origin:
    """Where a fork came from, of which its record says ID/N."""
    parent_id, _, number = forked_from.partition("/")
    parent = read_record(home, parent_id)
    if parent is None:
        return Origin(parent_id, number)
    try:
        return Origin(parent.name, find_number(store, parent, int(number)).name)
    except (SnapshotNotFound, StoreDamaged):
        return Origin(parent.name, number)


def read_history(home: Home, store: Store, workspace_id: str) -> list[Snapshot]:
    """Every snapshot of a workspace, oldest first, the base included once there is another. Raises StoreDamaged."""
    # Those that came in a bundle name the workspace they were taken of; whose they are now the references say.
    stored = commits.list_snapshots(store, workspace_id)
    return [replace(Snapshot.of(home, one), workspace=workspace_id) for one in stored]


def find_target(store: Store, record: WorkspaceRecord, wanted: str | None) -> Target:
    """The snapshot that the caller means: an id or a unique prefix, a tag, `base`; by default the newest.

    `@N` is the N-th before the newest, `ID@N` and `TAG@N` the N-th before that one; `~N` is an older spelling, which
    shells expand. Safety snapshots have ids like all others, but counting and the default pass over them: they mean
    what the user kept, also after a restore. Raises SnapshotNotFound, SnapshotAmbiguous.
    """
    if wanted == "base":
        return Target(0, record.origin_tree, "base")
    if wanted is None:
        return _kept_on_purpose(store, record, 0, wanted="@0")
    try:
        return _target(commits.find_snapshot(store, record.id, wanted))
    except SnapshotNotFound:
        counted = _COUNTED.fullmatch(wanted)
    if counted is None:
        raise _not_found(record, wanted)
    start = find_target(store, record, counted[1]).number if counted[1] else None
    return _kept_on_purpose(store, record, int(counted[2]), start=start, wanted=wanted)


def find_number(store: Store, record: WorkspaceRecord, number: int) -> Target:
    """A published snapshot by its number; 0 is the base. Raises SnapshotNotFound."""
    if number == 0:
        return Target(0, record.origin_tree, "base")
    commit = commits.snapshot_id(store, record.id, number)
    if commit is None:
        raise _not_found(record, str(number))
    return _target(commits.read_snapshot(store, commit))


def _kept_on_purpose(
    store: Store, record: WorkspaceRecord, back: int, *, start: int | None = None, wanted: str
) -> Target:
    """The `back`-th of the user's own snapshots before the newest, or before number `start`."""
    left = back
    for number, commit in _published_before(store, record, record.history.count if start is None else start):
        stored = commits.read_snapshot(store, commit)
        if stored.facts["kind"] != "safety" or number == start:
            if left == 0:
                return _target(stored)
            left -= 1
    if left == 0:
        return Target(0, record.origin_tree, "base")
    raise _not_found(record, wanted)


def _published_before(store: Store, record: WorkspaceRecord, newest: int) -> Iterator[tuple[int, str]]:
    """The snapshots that git has, by number and id, from number `newest` back.

    Numbers have no gaps, so each is one look. Where one is missing, a reference or the count of the record is damaged:
    from there on the references say which numbers there are.
    """
    waiting = {safety.number for safety in record.history.unsettled}  # that git does not have yet: nothing to look for
    number = newest
    while number >= 0:
        commit = None if number in waiting else commits.snapshot_id(store, record.id, number)
        if commit is not None:
            yield number, commit
        elif number not in waiting:
            break
        number -= 1
    for other in reversed(numbers_of(store, record.id)):
        if other < number and (commit := commits.snapshot_id(store, record.id, other)):
            yield other, commit


def _target(stored: commits.Snapshot) -> Target:
    return Target(stored.number, stored.tree, stored.tag or stored.id[:12], stored.id)


def _not_found(record: WorkspaceRecord, wanted: str) -> SnapshotNotFound:
    return SnapshotNotFound(f"{record.name} has no snapshot {wanted!r}", hint=f"`ws log {record.name}` lists them")


@contextlib.contextmanager
def no_cycles() -> Iterator[None]:
    """Python's search for cycles rests inside this block: a scan makes many small tuples and not one cycle.

    It takes an eighth of the time of a snapshot of 100 files, and more in a process that holds much else. It rests
    until all is done: it would begin with whatever of that is still there.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextlib.contextmanager
def turn(
    home: Home, workspace_id: str, operation: Operation, engine_for: EngineFor | None = None
) -> Iterator[tuple[WorkspaceRecord, Store]]:
    """One snapshot, restore, fork or look of a workspace at a time; the record, caught up with the references.

    Every operation that takes a turn begins with what a dead process left, in whichever operation that died: the lock
    of the turn is had first, so that no other snapshot or restore can die in between. `engine_for` is needed only to
    settle the start of a container; by default an engine is opened for that, and closed again.
    Raises Busy, WorkspaceNotFound, StateUnusable when the disk is full or broken.
    """
    with _typed(workspace_id), _turn_lock(home, workspace_id), _engines(home, engine_for) as engines:
        record = read_record(home, workspace_id)
        if record is None or record.state != "ready":
            raise WorkspaceNotFound(f"workspace {workspace_id} is gone")
        intent = Intent(workspace_id=workspace_id, operation=operation, engine=record.engine)
        with (
            begin(home, engines, intent, timeout_s=TURN_TIMEOUT_S) as announced,
            _typed(workspace_id, announced),
            Store(home.store, lasting=True) as store,
        ):
            record = read_record(home, workspace_id)  # what was settled may have changed it
            if record is None or record.state != "ready":
                raise WorkspaceNotFound(f"workspace {workspace_id} is gone")
            record = _catch_up(home, store, record)
            yield record if record.container and record.container.alive() else ensure_whole(home, record), store


@contextlib.contextmanager
def _engines(home: Home, given: EngineFor | None) -> Iterator[EngineFor]:
    """Engines by name, opened when they are first asked for; those that were opened here are closed at the end."""
    opened: list[Engine] = []

    def find(name: EngineName | None = None, runtime: str | None = None) -> Engine:
        from ws.engine.choose import choose_engine

        opened.append(choose_engine(name, home=home.root, runtime=runtime))
        return opened[-1]

    try:
        yield given or find
    finally:
        for engine in opened:
            engine.close()


@contextlib.contextmanager
def _turn_lock(home: Home, workspace_id: str) -> Iterator[None]:
    try:
        held = durable.acquire_lock(home.turn(workspace_id), timeout_s=TURN_TIMEOUT_S, what="its history")
    except Busy as error:
        record = read_record(home, workspace_id)
        name = record.name if record else workspace_id
        raise Busy(f"another snapshot or restore of {name} is under way", hint=error.hint) from None
    except NotFound as error:
        raise WorkspaceNotFound(error.message) from None
    try:
        yield
    finally:
        os.close(held)


@contextlib.contextmanager
def _typed(workspace_id: str, announced: durable.Announced | None = None) -> Iterator[None]:
    """A disk or kernel that refuses is an error of ours; and as it may refuse the putting right too, recovery looks."""
    try:
        yield
    except (KernelRefused, RestoreFailed, StateUnusable):
        if announced:
            announced.leave()
        raise
    except WorkspaceError:
        raise
    except OSError as error:
        if announced:
            announced.leave()
        raise StateUnusable(
            f"the state of {workspace_id} cannot be read or changed: {error.strerror or error}",
            hint=durable.advice_for(error) or "check that WS_HOME is writable and not full",
        ) from error


def _catch_up(home: Home, store: Store, record: WorkspaceRecord) -> WorkspaceRecord:
    """The record as it would be had the snapshot that was published last also been recorded."""
    record = _with_sound_count(store, record)
    newest = commits.newest_snapshot(store, record.id, after=record.history.count)
    if newest is None:
        return record
    layers = newest.facts["layers"]
    sealed = layers is not None and tuple(layers) == record.layers
    return recorded(home, record, newest.number, newest.tree, sealed=sealed)


def _with_sound_count(store: Store, record: WorkspaceRecord) -> WorkspaceRecord:
    """The record with the count of snapshots that git has, where git does not have the one it names as the newest.

    The next snapshot gets the next number: one that leaves a gap would be lost to all that count.
    """
    waiting = [safety.number for safety in record.history.unsettled]
    count = record.history.count
    if count == 0 or count in waiting or commits.snapshot_id(store, record.id, count):
        return record
    newest = max([*numbers_of(store, record.id), *waiting], default=0)
    return replace(record, history=replace(record.history, count=newest)) if newest < count else record


def recorded(home: Home, record: WorkspaceRecord, number: int, tree: str, *, sealed: bool) -> WorkspaceRecord:
    """Write down that a snapshot was published: the workspace stands on it.

    When it was sealed its layers are the workspace's own, and are remembered as its stack. Nothing here is synced, and
    a full disk is no failure: the snapshot counts already, and the next turn catches up with the reference.
    """
    history = replace(record.history, head=number, count=number)
    done = replace(record, history=history)
    if sealed:
        done = replace(record, tree=tree, history=replace(history, unhashed=0))
    with contextlib.suppress(OSError):
        if sealed:
            remember_stack(home, record.id, number, Stack(tree=tree, base=record.base, layers=record.layers))
        write_record(home, done, sync=False)
    return done


def remember_stack(home: Home, workspace_id: str, number: int, stack: Stack) -> None:
    """Keep the layers of a snapshot in mind. Not synced: a stack that is lost or torn is rebuilt from git."""
    path = home.stack(workspace_id, number)
    temporary = f"{path}.tmp"
    try:
        durable.put_file(temporary, stack.to_bytes())
    except FileNotFoundError:
        os.mkdir(os.path.dirname(path), 0o700)
        durable.put_file(temporary, stack.to_bytes())
    durable.rename_over(temporary, path)
