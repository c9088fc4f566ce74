"""Verifying: read everything back and say what is damaged, and which snapshots it touches.

    records      every one can be read
    references   every snapshot that a record counts is there, and is one
    objects      each object of each snapshot's tree is read, hashed and compared with its name; what several
                 snapshots share is read once
    bases        every base is compared with the tree it was made from, byte by byte
    layers       every stack of layers that a restore would use, or a workspace stands on, is put over its base as a
                 restore would do it, and compared with its snapshot's tree

Nothing is locked: it may take minutes. What was removed meanwhile is not damage, so before something is reported, it is
looked for again. Nothing is changed but one: a stack that is not what git has is forgotten, so that the next restore
of that snapshot is built from git.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ws import apply_records, bases
from ws.errors import KernelRefused, StoreDamaged
from ws.layers import is_trusted
from ws.layout import Home, WorkspaceRecord
from ws.overlay import MountPlan, in_user_namespace
from ws.records import read_record, read_records
from ws.stacks import Stack, forget_stack, read_stack, stack_numbers
from ws.store import commits
from ws.store.proving import Below, Prover
from ws.store.repository import Store
from ws.store.verify import Damage, Verifier
from ws.syncing import ensure_synced

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something damaged: where, what, and the snapshots that need it, as NAME/TAG or NAME/ID."""

    path: str
    problem: str
    touches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    workspaces: int
    snapshots: int
    bases: int
    layers: int
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        return not self.findings


@dataclass(frozen=True, slots=True)
class _Tree:
    """A tree to be read, and what to call whoever needs it."""

    tree: str
    needed_by: str
    workspace_id: str
    number: int | None = None  # of the snapshot that it is of


class _Findings:
    """What was found, once for each place and problem, and all that it touches."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str], list[str]] = {}

    def add(self, path: str, problem: str, *touches: str) -> None:
        self._found.setdefault((path, problem), []).extend(touches)

    def all(self) -> tuple[Finding, ...]:
        return tuple(Finding(path, problem, tuple(dict.fromkeys(by))) for (path, problem), by in self._found.items())


def verify(home: Home, workspace_id: str | None = None, *, progress: Progress | None = None) -> VerifyReport:
    """Read back one workspace, or all of them and every base. Damage is a finding, not an exception.

    Commit point of each stack that is forgotten: the unlink of its file.
    """
    ensure_synced(home)  # before it is read: what the disk has is what is looked at
    known, damaged = read_records(home)
    records = [record for record in known if record.state == "ready" and workspace_id in (None, record.id)]
    found = _Findings()
    for unreadable in damaged:
        if workspace_id in (None, unreadable.id):
            found.add(home.record(unreadable.id), unreadable.problem, unreadable.name)
    with Store(home.store) as store:
        needed: list[_Tree] = []
        for record in sorted(records, key=lambda record: record.id):
            trees, problems = _trees_of(home, store, record)
            needed += trees
            for problem in problems:
                found.add("", problem, record.name)
        verifier = Verifier(store)
        for number, one in enumerate(needed):
            for damage in _damage(home, verifier, one, number, len(needed), progress):
                found.add(damage.path, damage.problem, one.needed_by)
        prover = Prover(store, progress=progress)
        keys = _base_keys(home, records if workspace_id else None)
        for key in keys:
            for damage in _damage_of_base(home, prover, key):
                where = os.path.join(home.base(key), "data", damage.path)
                found.add(where, damage.problem, *(record.name for record in records if record.base == key))
        layers = _verify_layers(home, prover, records, needed, found)
    snapshots = sum(one.number is not None for one in needed)
    return VerifyReport(len(records), snapshots, len(keys), layers, found.all())


def _trees_of(home: Home, store: Store, record: WorkspaceRecord) -> tuple[list[_Tree], list[str]]:
    """The trees that a workspace needs, and what is wrong with its references."""
    trees: list[_Tree] = []
    problems: list[str] = []
    try:
        ids = dict(enumerate(commits.snapshot_ids(store, record.id)))
    except StoreDamaged as error:
        return [], [error.message]
    for number, commit in ids.items():
        try:
            snapshot = commits.read_snapshot(store, commit)
            if snapshot.number != number:
                problems.append(f"snapshot {number} is missing")
                break
            trees.append(_Tree(snapshot.tree, f"{record.name}/{snapshot.tag or commit[:12]}", record.id, number))
        except StoreDamaged as error:
            problems.append(error.message)
    latest = read_record(home, record.id)
    published = record.history.count - len(record.history.unsettled)
    if latest is not None and published and len(ids) <= published:
        problems.append(f"{published + 1 - len(ids)} snapshots are missing")
    known = {tree.tree for tree in trees}
    waiting = [one.tree for one in record.history.unsettled]
    applied = (record.applied_tree, *apply_records.needed_trees(home, record.id))
    for tree in (record.tree, record.origin_tree, record.source_tree, *applied, *waiting):
        if tree and tree not in known:
            trees.append(_Tree(tree, record.name, record.id))
            known.add(tree)
    return trees, problems


def _damage(
    home: Home, verifier: Verifier, one: _Tree, number: int, count: int, progress: Progress | None
) -> list[Damage]:
    if progress:
        progress(f"verify {one.needed_by}", number, count)
    damage = verifier.check(one.tree)
    # Removed, and its objects collected, while we read.
    return damage if not damage or read_record(home, one.workspace_id) else []


def _base_keys(home: Home, records: list[WorkspaceRecord] | None) -> list[str]:
    """The bases of some workspaces, or all there are."""
    if records is not None:
        return sorted({record.base for record in records if os.path.isdir(home.base(record.base))})
    return sorted(os.listdir(home.at("bases")))


def _damage_of_base(home: Home, prover: Prover, key: str) -> Iterator[Damage]:
    base = bases.find_base(home, key)
    if base is None:
        return  # not whole since a crash of the machine: it is rebuilt before it is used
    try:
        damage = prover.compare(base.tree, base.path)
    except (StoreDamaged, OSError) as error:
        damage = [Damage("", str(error))]
    if bases.find_base(home, key) is not None:
        yield from damage


# -- layers ------------------------------------------------------------------------------------------------------


def _verify_layers(
    home: Home, prover: Prover, records: list[WorkspaceRecord], needed: list[_Tree], found: _Findings
) -> int:
    """Compare the stacks of workspaces with git; how many layers there were in them."""
    named = {(one.workspace_id, one.number): one.needed_by for one in needed}
    seen: set[str] = set()
    for record in records:
        for number, stack in _stacks_of(home, record):
            seen.update(stack.layers)
            damage = _damage_of_stack(home, prover, stack)
            if not damage or not _still_stands(home, record.id, number, stack):
                continue
            for one in damage:
                found.add(_place(home, stack, one.path), one.problem, named.get((record.id, number), record.name))
            if number is not None:
                forget_stack(home, record.id, number)
    return len(seen)


def _stacks_of(home: Home, record: WorkspaceRecord) -> Iterator[tuple[int | None, Stack]]:
    """The layers of its snapshots by their numbers, and first, without one, those that it stands on now."""
    yield None, _own_stack(record)
    for number in stack_numbers(home, record.id):
        stack = read_stack(home, record.id, number)
        if stack is not None:
            yield number, stack


def _own_stack(record: WorkspaceRecord) -> Stack:
    """What of its layers git has; those above were sealed and not hashed yet."""
    return Stack(tree=record.tree, base=record.base, layers=record.layers[record.history.unhashed :])


def _still_stands(home: Home, workspace_id: str, number: int | None, stack: Stack) -> bool:
    if number is not None:
        return read_stack(home, workspace_id, number) == stack
    record = read_record(home, workspace_id)
    return record is not None and _own_stack(record) == stack


def _damage_of_stack(home: Home, prover: Prover, stack: Stack) -> list[Damage]:
    """Where layers do not show what git has. None where there are no layers, or where git cannot say."""
    base = bases.find_base(home, stack.base)
    if not stack.layers or base is None or not all(is_trusted(home, layer) for layer in stack.layers):
        return []  # only a base, or in doubt since a crash of the machine: rebuilt before it is used
    data = tuple(os.path.join(home.layer(layer), "data") for layer in stack.layers)
    plan = MountPlan(lowers=(*data, base.path), upper=None, userxattr=in_user_namespace())
    try:
        mount = plan.execute()
    except KernelRefused as error:
        return [Damage("", error.message)]
    try:
        # As a directory: what `fsmount` gives is a path alone.
        return prover.compare(stack.tree, f"/proc/self/fd/{mount}/.", over=Below(base.tree, data))
    except StoreDamaged:
        return []  # told already, with the snapshots that it touches
    except OSError as error:
        return [Damage("", str(error))]
    finally:
        os.close(mount)


def _place(home: Home, stack: Stack, path: str) -> str:
    """Where on disk something lies that an overlay shows: in the topmost layer that has it."""
    places = [*map(home.layer, stack.layers), home.base(stack.base)]
    candidates = [os.path.join(place, "data", path) for place in places]
    return next(filter(os.path.lexists, candidates), candidates[0])
