"""Taking a snapshot: seal or scan, store, publish.

    seal      nobody works in the workspace: the upper becomes a layer, which holds still by itself
    scan      somebody does: everything is frozen, the upper is read where it is, everything runs on
    store     what changed since the last snapshot goes into one pack, which is synced
    publish   the reference is written: the commit point
    record    the workspace stands on the new snapshot; its layers are remembered for a restore

Both ways give the same tree for the same files. Taking a snapshot ends no process.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import replace

from ws import containers
from ws.capturing import Caps, Capture, capture, keep_cache, scan_layers
from ws.errors import Busy
from ws.fs.tags import check_tag
from ws.history import Kind, Snapshot, no_cycles, recorded, remember_stack, turn
from ws.last_look import LastLook, read_last_look, write_last_look
from ws.layout import Home, Operation, WorkspaceRecord
from ws.records import write_record
from ws.stacks import Stack
from ws.store import commits, gc
from ws.store.packs import PackWriter
from ws.store.references import pack_if_many
from ws.store.repository import Store

__all__ = ["Caps", "look", "publish", "settle", "settled_turn", "take"]


@no_cycles()
def take(
    home: Home,
    workspace_id: str,
    *,
    message: str = "",
    tag: str | None = None,
    force: bool = False,
    caps: Caps | None = None,
) -> Snapshot:
    """Keep the workspace as it is now; `force` moves a tag from the snapshot that has it.

    Commit point: the reference of the snapshot. Killed before it there is none, and the workspace is as it was;
    killed after it there is one, and the record catches up.
    Raises InvalidName, TagExists, LimitExceeded, SnapshotFailed, Busy, WorkspaceNotFound, StateUnusable.
    """
    if tag is not None:
        check_tag(tag)
    with settled_turn(home, workspace_id, "snapshot") as (record, store):
        taken = publish(home, store, record, message=message, tag=tag, force=force, kind="snapshot", caps=caps)[0]
        with contextlib.suppress(Busy, OSError):  # small packs, or references, have become many; the next one may do it
            gc.consolidate(store)
            pack_if_many(store, record.id, taken.number)
        return taken


def publish(
    home: Home,
    store: Store,
    record: WorkspaceRecord,
    *,
    message: str,
    kind: Kind,
    tag: str | None = None,
    force: bool = False,
    caps: Caps | None = None,
    restored: int | None = None,
    locked: bool = False,
) -> tuple[Snapshot, WorkspaceRecord]:
    """Capture, store and publish, for a caller who has the settled turn, and with `locked` the workspace's lock too."""
    with store.writing(quick=True) as writer:
        captured = capture(home, store, writer, record, caps or Caps(), locked=locked)
        snapshot = _publish_commit(
            home, store, writer, captured, number=record.history.count + 1, parent=record.history.head, message=message,
            kind=kind, restored=restored, created_ns=time.time_ns(), tag=tag, force=force,
        )  # fmt: skip
    keep_cache(home, captured)
    record = recorded(home, captured.record, snapshot.number, captured.tree, sealed=captured.sealed)
    return Snapshot.of(home, snapshot), record


def _publish_commit(
    home: Home,
    store: Store,
    writer: PackWriter,
    captured: Capture,
    *,
    number: int,
    parent: int,
    message: str,
    kind: Kind,
    restored: int | None,
    created_ns: int,
    tag: str | None,
    force: bool = False,
) -> commits.Snapshot:
    """Finish the pack of a capture with its commit, and publish that. The base goes before the first."""
    record = captured.record
    known = number > 1 or commits.snapshot_id(store, record.id, 0) is not None
    base = None if known else _add_base(home, writer, record)
    before = base.id if base else commits.snapshot_id(store, record.id, parent)
    snapshot = commits.add_snapshot(
        writer,
        workspace=record.id,
        number=number,
        tree=captured.tree,
        parents=[before] if before else [],
        message=message,
        created_ns=created_ns,
        tag=tag,
        facts={
            "kind": kind,
            "root": containers.root_of(home, record),
            "paths_changed": captured.paths_changed,
            "size_bytes": captured.size_bytes,
            "skipped": [str(skipped) for skipped in captured.skipped],
            "parent": parent,
            "restored": restored,
            "layers": list(record.layers) if captured.sealed else None,
        },
    )
    names = [*(commits.references(store, base) if base else ()), *commits.references(store, snapshot, force=force)]
    writer.finish(names)
    return snapshot


@contextlib.contextmanager
def settled_turn(home: Home, workspace_id: str, operation: Operation) -> Iterator[tuple[WorkspaceRecord, Store]]:
    """A turn in which git knows every snapshot: what restores have put off is done first."""
    with turn(home, workspace_id, operation) as (record, store):
        yield settle(home, store, record), store


def settle(home: Home, store: Store, record: WorkspaceRecord, *, limit: int | None = None) -> WorkspaceRecord:
    """Bring the safety snapshots that restores left as layers into git, in order; the oldest ones, with a `limit`.

    Commit point of each: its reference; the record follows, and a crash in between publishes the same commit again.
    """
    for waiting in record.history.unsettled[:limit]:
        then = replace(
            record,
            base=waiting.base,
            layers=waiting.layers,
            tree=waiting.tree,
            history=replace(record.history, unhashed=waiting.unhashed),
        )
        with store.writing(quick=True) as writer:
            captured = scan_layers(home, store, writer, then, Caps())
            _publish_commit(
                home, store, writer, captured, number=waiting.number, parent=waiting.parent, message=waiting.message,
                kind="safety", restored=waiting.restored, created_ns=waiting.created_ns, tag=None,
            )  # fmt: skip
        stack = Stack(tree=captured.tree, base=waiting.base, layers=waiting.layers)
        remember_stack(home, record.id, waiting.number, stack)
        history = replace(record.history, unsettled=record.history.unsettled[1:])
        if record.stands_on(waiting):  # its layers are hashed now, and they are the workspace's own
            record, history = replace(record, tree=captured.tree), replace(history, unhashed=0)
        record = replace(record, history=history)
        write_record(home, record, sync=False)
        with contextlib.suppress(Busy, OSError):
            pack_if_many(store, record.id, waiting.number)
    return record


def look(home: Home, store: Store, record: WorkspaceRecord) -> str:
    """The tree of the workspace as it is now, for a caller who has the turn and only wants to see.

    It is captured exactly as a snapshot would be: the upper is sealed when no process works in it, so that a look
    freezes no longer than a snapshot does. Nothing is published; the sealed layer waits for the next snapshot. The
    tree's objects are spared by the collector until the next look.
    Raises SnapshotFailed, Busy, StateUnusable. Commit point of the seal: the record that names the new upper.
    """
    seen = read_last_look(home, record.id)
    with store.writing(quick=True) as writer:
        captured = capture(home, store, writer, record, Caps(), seen=seen)
        now = LastLook(
            tree=captured.tree,
            before=record.tree,
            layers=_fresh_layers(captured, record),
            layers_tree=captured.layers_tree or captured.tree,
        )
        if now != seen and (now.layers or now.tree != record.tree):
            writer.finish()
            write_last_look(home, record.id, now)
            keep_cache(home, captured)
    return captured.tree


def _fresh_layers(captured: Capture, record: WorkspaceRecord) -> tuple[str, ...]:
    """The layers of a capture that no snapshot has."""
    if record.engine == "none":
        return ()
    unhashed = captured.record.history.unhashed if captured.sealed else record.history.unhashed
    return captured.record.layers[:unhashed]


def _add_base(home: Home, writer: PackWriter, record: WorkspaceRecord) -> commits.Snapshot:
    """What the workspace began as, published with its first snapshot: most workspaces never take one."""
    return commits.add_snapshot(
        writer,
        workspace=record.id,
        number=0,
        tree=record.origin_tree,
        message=f"base: {record.source or 'empty'}",
        created_ns=int(record.created_at * 1e9),
        facts={
            "kind": "base",
            "root": containers.root_of(home, record),
            "paths_changed": 0,
            "size_bytes": 0,
            "skipped": list(record.skipped),
            "parent": None,
            "restored": None,
            "layers": [],
        },
    )
