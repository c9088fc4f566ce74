"""References that were damaged or lost, found again from the commits in the packs.

A commit says of which workspace it is a snapshot, and which number it has. Where several have the same number, the one
that a later snapshot names as its parent is the one that was published; else the newest: an attempt that died before
its reference was written has the number of the one that came after it. Commits that came in a bundle name the
workspace they were taken of: they are found as the parents of those that are known, or by naming one as theirs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

from ws.errors import StoreDamaged
from ws.store.commits import Snapshot, read_snapshot
from ws.store.packs import COMMIT
from ws.store.references import references_of, workspaces, write_ref
from ws.store.repository import Store


def find_lost(store: Store, counts: Mapping[str, int]) -> dict[str, list[int]]:
    """The snapshots whose references are damaged, lost or name no snapshot, by workspace.

    `counts` says of each workspace how many snapshots were published, where that is known. Numbers have no gaps.
    """
    lost = {}
    for workspace in workspaces(store) | counts.keys():
        known = references_of(store, workspace)
        last = max([counts.get(workspace, 0) - 1, *known])
        sound = {number for number, commit in known.items() if _is_snapshot(store, commit, number)}
        numbers = _missing_numbers(store, sound, last) if len(sound) <= last else []
        if numbers:
            lost[workspace] = numbers
    return lost


def _missing_numbers(store: Store, sound: set[int], last: int) -> list[int]:
    """The numbers up to `last` that are missing: those that a commit in the packs has, and the first that none has.

    Not all of them: a damaged count may be two thousand million.
    """
    stored = {snapshot.number for snapshot in _stored_snapshots(store).values() if snapshot.number <= last}
    missing = stored - sound
    first = next(number for number in itertools.count() if number not in sound and number not in missing)
    return sorted(missing | {first}) if first <= last else sorted(missing)


def _is_snapshot(store: Store, commit: str, number: int) -> bool:
    try:
        return bool(commit) and read_snapshot(store, commit).number == number
    except StoreDamaged:
        return False


def repair_references(store: Store, lost: Mapping[str, Iterable[int]]) -> list[str]:
    """Write the references that can be found again; the workspaces of which some cannot. The caller holds `ws.lock`.

    Commit point of each: the rename of its file.
    """
    damaged = []
    for workspace, numbers in lost.items():
        found = find_published(store, workspace, numbers)
        for number, commit in found.items():
            write_ref(store, f"refs/workspaces/{workspace}/{number}", commit)
        if found.keys() != set(numbers):
            damaged.append(workspace)
    return damaged


def find_published(store: Store, workspace: str, numbers: Iterable[int]) -> dict[int, str]:
    """The ids of snapshots by their numbers, of those that the packs have."""
    wanted = sorted(numbers, reverse=True)
    stored = _stored_snapshots(store)
    by_number: dict[int, list[Snapshot]] = {}
    for snapshot in stored.values():
        by_number.setdefault(snapshot.number, []).append(snapshot)
    known = {commit for commit in references_of(store, workspace).values() if commit in stored}
    found: dict[int, str] = {}
    for number in wanted:  # from the newest back: each one found names its parents
        parents = {parent for commit in known for parent in stored[commit].parents}
        candidates = by_number.get(number, [])
        fitting = (
            [one for one in candidates if one.id in parents]
            or [one for one in candidates if one.workspace == workspace]
            or [one for one in candidates if known.intersection(one.parents)]
        )
        if fitting:
            best = max(fitting, key=lambda one: one.created_ns)
            found[number] = best.id
            known.add(best.id)
    return found


def _stored_snapshots(store: Store) -> dict[str, Snapshot]:
    """Every commit in the packs that is a snapshot and can be read."""
    found = {}
    for pack in store.all_packs():
        for position, oid in enumerate(pack.index.ids()):
            if pack.kind_at(position) == COMMIT and oid.hex() not in found:
                try:
                    found[oid.hex()] = read_snapshot(store, oid.hex())
                except StoreDamaged:
                    continue
    return found
