"""Collecting: what nothing needs goes, beside running workspaces, and how much that freed is told.

    stacks    beyond the newest of each workspace: restoring such a snapshot rebuilds its directory from git
    layers    that no record and no stack names, and those whose last user died before it could let go
    bases     that no workspace, stack or recent import uses, and the stat caches that spoke of them
    runtimes  of other versions of ws, unless a container may still have one mounted
    objects   of the store that no reference, record, base or recent look needs; the rest is packed anew

A layer that is mounted is named by its workspace's record, and layers are only taken from a workspace while nobody else
has its turn, so what an operation under way is about to name is never touched. Whoever begins to use a base says so by
touching it (`bases.touch`), and a base that was touched within the hour stays, or comes back. A user of a layer whom
nobody knows, because it is about to be made, has an hour too.

What a workspace with a damaged record needs cannot be told. As long as there is one, no base and no object goes, and
the layers that name it as a user stay.

Every step is safe to be killed in: what is left over is left over for the next time.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from ws import apply_records, bases, durable, layers
from ws.errors import Busy, NotFound
from ws.layout import Home, WorkspaceRecord
from ws.pool import waiting_containers
from ws.records import read_record, read_records
from ws.remote.runtime import current_key
from ws.removing import remove_tree
from ws.snapshots import looked_tree
from ws.stacks import read_stack, stack_numbers
from ws.store import commits, gc
from ws.store.reach import reach
from ws.store.repository import Store
from ws.store.statcache import StatCache
from ws.syncing import ensure_synced

Progress = Callable[[str, int, int], None]

KEPT_STACKS = 32
GRACE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Collected:
    """What was removed, or would be."""

    layers: int
    bases: int
    runtimes: int
    objects: int
    bytes_freed: int
    spared: tuple[str, ...]  # workspaces with a damaged record, for whose sake bases and objects were left
    dry_run: bool


@dataclass(slots=True)
class _Size:
    """What disappears from the disk with some trees: an inode counts when all its names go."""

    bytes: int = 0
    _linked: dict[tuple[int, int], int] = field(default_factory=dict)

    def add(self, path: str) -> None:
        pending = [path]
        while pending:
            directory = pending.pop()
            with contextlib.suppress(OSError), os.scandir(directory) as entries:
                for entry in entries:
                    look = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(look.st_mode):
                        pending.append(entry.path)
                    elif look.st_nlink > 1:
                        names = self._linked.get((look.st_dev, look.st_ino), look.st_nlink) - 1
                        self._linked[look.st_dev, look.st_ino] = names
                        if names:
                            continue
                    self.bytes += look.st_blocks * 512


def collect(home: Home, *, dry_run: bool = False, progress: Progress | None = None) -> Collected:
    """Remove what nothing needs. Raises Busy when another collection runs, StoreDamaged when the store is not whole.

    Commit point: none for all of it; each layer, base and pack goes by itself.
    """
    size = _Size()
    damaged = read_records(home)[1]
    if not dry_run:
        ensure_synced(home)
    removed = _collect_layers(home, size, progress, dry_run=dry_run)
    runtimes = _collect_runtimes(home, size, dry_run=dry_run)
    gone = objects = freed = 0
    if not damaged:
        gone = _collect_bases(home, size, progress, dry_run=dry_run)
        objects, freed = _collect_objects(home, progress, dry_run=dry_run)
    spared = tuple(each.name for each in damaged)
    return Collected(removed, gone, runtimes, objects, size.bytes + freed, spared, dry_run)


def _records(home: Home) -> list[WorkspaceRecord]:
    """Every record that can be read, in whatever state."""
    return read_records(home)[0]


def _known(home: Home) -> set[str]:
    """The ids of all workspaces, with a record that can be read or one that cannot."""
    records, damaged = read_records(home)
    return {record.id for record in records} | {each.id for each in damaged}


# -- layers ------------------------------------------------------------------------------------------------------


def _collect_layers(home: Home, size: _Size, progress: Progress | None, *, dry_run: bool) -> int:
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


def _collect_layers_of(home: Home, workspace_id: str, size: _Size, *, dry_run: bool) -> int:
    """Take from a workspace the layers that only its old snapshots have. The caller has its turn."""
    record = read_record(home, workspace_id)
    if record is None or record.state != "ready":
        return 0
    numbers = stack_numbers(home, record.id)
    spared = {record.history.head, record.history.undo, *numbers[-KEPT_STACKS:]}
    dropped = [number for number in numbers if number not in spared]
    needed = {record.upper, *record.layers}
    for waiting in record.history.unsettled:
        needed.update(waiting.layers)
    for number in numbers:
        stack = read_stack(home, record.id, number) if number not in dropped else None
        needed.update(stack.layers if stack else ())
    for number in () if dry_run else dropped:
        os.unlink(home.stack(record.id, number))  # a cache: not worth a sync
    unneeded = layers.layers_of(home, record.id) - needed
    return _release(home, unneeded, record.id, _marks(home, unneeded), size, dry_run=dry_run)


def _release(
    home: Home,
    unneeded: Iterable[str],
    user: str,
    marks: dict[str, dict[str, float]],
    size: _Size,
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


# -- bases and runtimes ------------------------------------------------------------------------------------------


def _collect_bases(home: Home, size: _Size, progress: Progress | None, *, dry_run: bool) -> int:
    used = _used_bases(home)
    unused = [
        key for key in os.listdir(home.at("bases")) if key not in used and _is_old(bases.last_use_at(home.base(key)))
    ]
    count = 0
    for number, key in enumerate(unused):
        if progress:
            progress("bases", number, len(unused))
        if dry_run or _remove_base(home, key, size):
            count += 1
    if dry_run:
        for key in unused:
            size.add(home.base(key))
    else:
        _forget_imports(home)
    return count


def _remove_base(home: Home, key: str, size: _Size) -> bool:
    """Take a base away, unless somebody came to use it in this instant."""
    staged = home.staging()
    try:
        os.rename(home.base(key), staged)
    except FileNotFoundError:
        return False
    if not _is_old(bases.last_use_at(staged)):
        durable.rename_new(staged, home.base(key))
        return False
    size.add(staged)
    remove_tree(staged)
    return True


def _used_bases(home: Home) -> set[str]:
    used: set[str] = set()
    for record in _records(home):
        used.update((record.base, bases.base_key(record.origin_tree, record.ids)))
        used.update(waiting.base for waiting in record.history.unsettled)
        for number in stack_numbers(home, record.id):
            stack = read_stack(home, record.id, number)
            if stack:
                used.add(stack.base)
    return used


def _forget_imports(home: Home) -> None:
    """Stat caches are for linking from a base; without it they say nothing."""
    for name in os.listdir(home.at("imports")):
        path = home.at("imports", name)
        with contextlib.suppress(FileNotFoundError):
            with open(path, "rb") as file:
                cache = StatCache.from_bytes(file.read())
            if cache is None or not os.path.exists(home.base(str(cache.facts.get("base")))):
                durable.unlink(path)


def _collect_runtimes(home: Home, size: _Size, *, dry_run: bool) -> int:
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


def _collect_objects(home: Home, progress: Progress | None, *, dry_run: bool) -> tuple[int, int]:
    """How many objects went, and what they took."""
    with Store(home.store) as store:
        if dry_run:
            return _count_unneeded(home, store)
        _drop_orphaned_refs(home, store)
        collected = gc.collect(store, lambda: _needed_trees(home), progress=progress)
        return collected.objects_removed, max(0, collected.bytes_freed)


def _needed_trees(home: Home) -> set[str]:
    """The trees that no reference names, and that must stay."""
    needed: set[str] = set()
    for record in _records(home):
        needed.update((record.tree, record.origin_tree, record.source_tree, looked_tree(home, record.id) or ""))
        needed.add(record.applied_tree)
        needed |= apply_records.needed_trees(home, record.id)
        needed.update(waiting.tree for waiting in record.history.unsettled)
    for key in os.listdir(home.at("bases")):
        needed.add(key.split("-")[0])
    return needed - {""}


def _drop_orphaned_refs(home: Home, store: Store) -> None:
    """References of workspaces that a crash kept from coming into being; while nobody writes, who might be one."""
    if commits.workspaces(store) <= _known(home):
        return
    with durable.locked(store.lock, timeout_s=60, what="the store"):
        for workspace_id in commits.workspaces(store):
            if not os.path.exists(home.record(workspace_id)) and not os.path.exists(home.pending(workspace_id)):
                commits.drop_refs(store, workspace_id)


def _count_unneeded(home: Home, store: Store) -> tuple[int, int]:
    """How many objects nothing needs, and what they take in their packs."""
    live: dict[bytes, int] = {}
    known = _known(home)
    refs = [commit for name, commit in commits.all_refs(store).items() if name.split("/")[2] in known]
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
