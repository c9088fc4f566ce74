"""Collecting: what nothing needs goes, beside running workspaces, and how much that freed is told.

    stacks    beyond the newest of each workspace: restoring such a snapshot rebuilds its directory from git
    layers    that no record and no stack names, and those whose last user died before it could let go
    bases     that no workspace, stack, operation or recent import uses, and the stat caches that spoke of them
    runtimes  of other versions of ws, unless a container may still have one mounted
    objects   of the store that no reference, record, base or recent look needs; the rest is packed anew

A layer that is mounted is named by its workspace's record, and layers are only taken from a workspace while nobody else
has its turn, so what an operation under way is about to name is never touched. Who is about to use a base says so
(`claiming`). A base that a restore rebuilt from git holds a whole tree for the sake of a few snapshots: of an older one
that stands on it the stack goes, too, unless it is the one that the workspace is at, or would undo to. A user of a
layer that has no record, because it is about to be made, has an hour.

What a workspace with a damaged record needs cannot be told. As long as there is one, no base and no object goes, and
the layers that name it as a user stay. A damaged reference is found again from the packs; where that is not possible,
no object goes either.

Every step is safe to be killed in: what is left over is left over for the next time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ws import apply_records, durable, layers, unused_bases
from ws.errors import Busy, NotFound
from ws.last_look import looked_trees
from ws.layout import Home, WorkspaceRecord
from ws.pool import waiting_containers
from ws.records import read_record, read_records
from ws.remote.runtime import current_key
from ws.removing import remove_tree
from ws.stacks import forget_stack, read_stack, stack_numbers
from ws.store import gc, locking, references
from ws.store.reach import reach
from ws.store.repository import Store
from ws.syncing import ensure_synced
from ws.unused_bases import GRACE_S, Size

Progress = Callable[[str, int, int], None]

KEPT_STACKS = 32


@dataclass(frozen=True, slots=True)
class Collected:
    """What was removed, or would be."""

    layers: int
    bases: int
    runtimes: int
    objects: int
    bytes_freed: int
    spared: tuple[str, ...]  # workspaces with a damaged record or reference, for whose sake bases or objects were left
    dry_run: bool
    bases_kept: int = 0  # that no workspace uses, but that one was made from within the hour
    bases_kept_until: float | None = None  # when the last of them may go, in seconds since the epoch
    bases_in_use: int = 0  # that an operation under way may be about to use


def collect(home: Home, *, dry_run: bool = False, progress: Progress | None = None) -> Collected:
    """Remove what nothing needs. Raises Busy when another collection runs, StoreDamaged when the store is not whole.

    Commit point: none for all of it; each layer, base and pack goes by itself.
    """
    size = Size()
    damaged = read_records(home)[1]
    if not dry_run:
        ensure_synced(home)
    removed = _collect_layers(home, size, progress, dry_run=dry_run)
    runtimes = _collect_runtimes(home, size, dry_run=dry_run)
    objects = freed = 0
    found = unused_bases.Found()
    spared = [each.name for each in damaged]
    if not damaged:
        found = unused_bases.collect_bases(home, size, progress, dry_run=dry_run)
        objects, freed, lost = _collect_objects(home, progress, dry_run=dry_run)
        spared += [record.name for record in _records(home) if record.id in lost]
    return Collected(
        removed,
        len(found.unused),
        runtimes,
        objects,
        size.bytes + freed,
        tuple(spared),
        dry_run,
        bases_kept=len(found.kept_until),
        bases_kept_until=max(found.kept_until, default=None),
        bases_in_use=found.in_use,
    )


def _records(home: Home) -> list[WorkspaceRecord]:
    """Every record that can be read, in whatever state."""
    return read_records(home)[0]


def _known(home: Home) -> set[str]:
    """The ids of all workspaces, with a record that can be read or one that cannot."""
    records, damaged = read_records(home)
    return {record.id for record in records} | {each.id for each in damaged}


# -- layers ------------------------------------------------------------------------------------------------------


def _collect_layers(home: Home, size: Size, progress: Progress | None, *, dry_run: bool) -> int:
    records = [record for record in _records(home) if record.state == "ready"]
    count = 0
    for number, record in enumerate(records):
        if progress:
            progress("layers", number, len(records))
        with contextlib.suppress(Busy, NotFound), durable.locked(home.turn(record.id), timeout_s=0):
            count += _collect_layers_of(home, record.id, size, dry_run=dry_run)
    marks = _marks(home)
    known = _known(home)
    for user in {user for users in marks.values() for user in users} - known:
        if not os.path.exists(home.pending(user)):
            old = [layer for layer, users in marks.items() if _is_old(users.get(user))]
            count += _release(home, old, user, marks, size, dry_run=dry_run)
    for layer in layers.unused_layers(home):
        size.add(home.layer(layer))
        count += 1
    if not dry_run:
        layers.remove_unused_layers(home)
    return count


def _collect_layers_of(home: Home, workspace_id: str, size: Size, *, dry_run: bool) -> int:
    """Take from a workspace the layers that only its old snapshots have. The caller has its turn."""
    record = read_record(home, workspace_id)
    if record is None or record.state != "ready":
        return 0
    numbers = stack_numbers(home, record.id)
    spared = {record.history.head, record.history.undo, *numbers[-KEPT_STACKS:]}
    dropped = [number for number in numbers if number not in spared or unused_bases.costs_a_base(home, record, number)]
    needed = {record.upper, *record.layers}
    for waiting in record.history.unsettled:
        needed.update(waiting.layers)
    for number in numbers:
        stack = read_stack(home, record.id, number) if number not in dropped else None
        needed.update(stack.layers if stack else ())
    for number in () if dry_run else dropped:
        forget_stack(home, record.id, number)  # a cache: not worth a sync
    unneeded = layers.layers_of(home, record.id) - needed
    return _release(home, unneeded, record.id, _marks(home, unneeded), size, dry_run=dry_run)


def _release(
    home: Home,
    unneeded: Iterable[str],
    user: str,
    marks: dict[str, dict[str, float]],
    size: Size,
    *,
    dry_run: bool,
) -> int:
    """Let go of layers for a user; how many of them nobody else has."""
    unneeded = list(unneeded)
    last = [layer for layer in unneeded if marks.get(layer, {}).keys() <= {user}]
    for layer in last:
        size.add(home.layer(layer))
    if not dry_run:
        layers.release_layers(home, unneeded, user)
    return len(last)


def _marks(home: Home, only: Iterable[str] | None = None) -> dict[str, dict[str, float]]:
    """The users of each layer, and since when."""
    found: dict[str, dict[str, float]] = {}
    for layer in os.listdir(home.at("layers")) if only is None else only:
        users = os.path.join(home.layer(layer), "users")
        found[layer] = {}
        for user in _listed(users):
            with contextlib.suppress(FileNotFoundError):
                found[layer][user] = os.stat(os.path.join(users, user)).st_mtime
    return found


def _is_old(since: float | None) -> bool:
    return since is not None and since < time.time() - GRACE_S


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


# -- runtimes ------------------------------------------------------------------------------------------


def _collect_runtimes(home: Home, size: Size, *, dry_run: bool) -> int:
    """Runtimes of other versions; none of them while a container is not seen into."""
    used = _mounted_runtimes(home)
    if used is None:
        return 0
    names = os.listdir(home.at("runtimes"))
    old = [
        name
        for name in names
        if not name.endswith(".stamp")
        and name not in {*used, current_key()}
        and _is_old(os.stat(home.at("runtimes", name)).st_mtime)
    ]
    for name in old:
        path = home.at("runtimes", name)
        size.add(path)
        if not dry_run:
            staged = home.staging()
            os.chmod(path, 0o755)  # a directory that is moved must be writable: its ".." changes
            durable.rename(path, staged)
            remove_tree(staged)
            durable.unlink(path + ".stamp")
    return len(old)


def _mounted_runtimes(home: Home) -> set[str] | None:
    """The runtimes that containers have; None when one cannot be asked: it does not run, or no record knows it."""
    containers = [record.container for record in _records(home) if record.container]
    containers += waiting_containers(home).values()
    if not all(container.alive() for container in containers):
        return None
    if set(os.listdir(home.at("run"))) - {container.key for container in containers}:
        return None
    used: set[str] = set()
    for container in containers:
        text = ""
        for facts in ("mountinfo", "cmdline"):  # without a container, the shim itself is started from there
            try:
                with open(f"/proc/{container.pid}/{facts}", encoding="utf-8", errors="replace") as file:
                    text += file.read()
            except OSError:
                return None
        used.update(name for name in os.listdir(home.at("runtimes")) if name in text)
    return used


# -- objects -----------------------------------------------------------------------------------------------------


def _collect_objects(home: Home, progress: Progress | None, *, dry_run: bool) -> tuple[int, int, tuple[str, ...]]:
    """How many objects went, what they took, and the workspaces with lost references, for whose sake none went."""
    with Store(home.store) as store:
        if dry_run:
            return (*_count_unneeded(home, store), ())
        _drop_orphaned_refs(home, store)
        collected = gc.collect(store, lambda: _needed_trees(home), counts=lambda: _published(home), progress=progress)
        return collected.objects_removed, max(0, collected.bytes_freed), collected.lost


def _published(home: Home) -> dict[str, int]:
    """How many snapshots of each workspace git has, the base among them."""
    published = {}
    for record in _records(home):
        newest = record.history.count - len(record.history.unsettled)
        if record.state == "ready" and newest > 0:
            published[record.id] = newest + 1
    return published


def _needed_trees(home: Home) -> set[str]:
    """The trees that no reference names, and that must stay."""
    needed: set[str] = set()
    for record in _records(home):
        needed.update((record.tree, record.origin_tree, record.source_tree, record.applied_tree))
        needed |= looked_trees(home, record.id)
        needed |= apply_records.needed_trees(home, record.id)
        needed.update(waiting.tree for waiting in record.history.unsettled)
    for key in os.listdir(home.at("bases")):
        needed.add(key.split("-")[0])
    return needed - {""}


def _drop_orphaned_refs(home: Home, store: Store) -> None:
    """References of workspaces that a crash kept from coming into being; while nobody writes, who might be one."""
    if references.workspaces(store) <= _known(home):
        return
    with locking.removing(store):
        for workspace_id in references.workspaces(store):
            if not os.path.exists(home.record(workspace_id)) and not os.path.exists(home.pending(workspace_id)):
                references.drop_refs(store, workspace_id)


def _count_unneeded(home: Home, store: Store) -> tuple[int, int]:
    """How many objects nothing needs, and what they take in their packs."""
    live: dict[bytes, int] = {}
    known = _known(home)
    refs = [commit for name, commit in references.all_refs(store).items() if name.split("/")[2] in known]
    reach(store, map(bytes.fromhex, refs), map(bytes.fromhex, _needed_trees(home)), live)
    unneeded: set[bytes] = set()
    size_bytes = 0
    for pack in store.all_packs():
        with contextlib.suppress(FileNotFoundError):
            ids, offsets, _, end = pack.entries()
            for oid, start, stop in zip(ids, offsets, [*offsets[1:], end], strict=True):
                if oid not in live:
                    unneeded.add(oid)
                    size_bytes += stop - start
    return len(unneeded), size_bytes
