"""Verifying: read everything back and say what is damaged, and which snapshots it touches.

    references   every snapshot that a record counts is there, and is one
    objects      each object of each snapshot's tree is read, hashed and compared with its name; what several
                 snapshots share is read once
    bases        every base is compared with the tree it was made from, byte by byte

Nothing is locked and nothing is changed: it may take minutes. What was removed meanwhile is not damage, so before
something is reported, it is looked for again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ws import bases
from ws.errors import StoreDamaged
from ws.layout import Home, WorkspaceRecord, read_record
from ws.store import commits
from ws.store.proving import compare_directory
from ws.store.repository import Store
from ws.store.verify import Damage, Verifier

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


def verify(home: Home, workspace_id: str | None = None, *, progress: Progress | None = None) -> VerifyReport:
    """Read back one workspace, or all of them and every base. Damage is a finding, not an exception."""
    ids = [workspace_id] if workspace_id else sorted(os.listdir(home.at("workspaces")))
    records = [record for record in (read_record(home, one) for one in ids) if record and record.state == "ready"]
    found: dict[tuple[str, str], list[str]] = {}
    snapshots = 0
    with Store(home.store) as store:
        needed: list[_Tree] = []
        for record in records:
            trees, problems = _trees_of(home, store, record)
            needed += trees
            snapshots += sum(tree.needed_by.startswith(f"{record.name}/") for tree in trees)
            for problem in problems:
                found.setdefault(("", problem), []).append(record.name)
        verifier = Verifier(store)
        for number, one in enumerate(needed):
            for damage in _damage(home, verifier, one, number, len(needed), progress):
                found.setdefault((damage.path, damage.problem), []).append(one.needed_by)
        keys = _base_keys(home, records if workspace_id else None)
        for number, key in enumerate(keys):
            if progress:
                progress("bases", number, len(keys))
            for damage in _damage_of_base(home, store, key):
                users = [record.name for record in records if record.base == key]
                where = os.path.join(home.base(key), "data", damage.path)
                found.setdefault((where, damage.problem), []).extend(users)
    findings = tuple(Finding(path, problem, tuple(dict.fromkeys(by))) for (path, problem), by in found.items())
    return VerifyReport(len(records), snapshots, len(keys), findings)


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
            trees.append(_Tree(snapshot.tree, f"{record.name}/{snapshot.tag or commit[:12]}", record.id))
        except StoreDamaged as error:
            problems.append(error.message)
    latest = read_record(home, record.id)
    published = record.history.count - len(record.history.unsettled)
    if latest is not None and published and len(ids) <= published:
        problems.append(f"{published + 1 - len(ids)} snapshots are missing")
    known = {tree.tree for tree in trees}
    waiting = [one.tree for one in record.history.unsettled]
    applied = (record.applied_tree, record.applied_git_tree)
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


def _damage_of_base(home: Home, store: Store, key: str) -> Iterator[Damage]:
    base = bases.find_base(home, key)
    if base is None:
        return  # not whole since a crash of the machine: it is rebuilt before it is used
    try:
        damage = compare_directory(store, base.tree, base.path)
    except (StoreDamaged, OSError) as error:
        damage = [Damage("", str(error))]
    if bases.find_base(home, key) is not None:
        yield from damage
