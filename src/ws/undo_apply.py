"""Undoing an apply: the host's files come back as they were before it.

Three-way like the apply itself: base is what the apply made of the directory, ours what was there before, theirs what
is there now. A path that is as the apply left it goes back; one that is as it was before is done already; one that
changed since is a conflict, and one conflict is enough for nothing to be touched.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from ws import apply_records, sealing
from ws.apply_records import ApplyRecord
from ws.applying import open_target, scan_target
from ws.bases import check_source
from ws.errors import InvalidRequest, NotFound
from ws.history import turn
from ws.landing import Landing
from ws.layout import Home, WorkspaceRecord
from ws.records import write_record
from ws.store import trees
from ws.store.diffs import Change, diff_trees
from ws.store.repository import Store
from ws.three_way import Contents, conflict_error, merge, plan_steps

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class UndoneApply:
    """What was taken back, or would be."""

    to: str
    changes: tuple[Change, ...]
    kept: tuple[str, ...]  # directories that the apply made, in which something else lies by now
    dry_run: bool


def undo_apply(
    home: Home, workspace_id: str, to: str | None = None, *, dry_run: bool = False, progress: Progress | None = None
) -> UndoneApply:
    """Take back the newest apply of a workspace that was not undone yet; with `to`, the newest one to that directory.

    Raises NotFound when there is none, ApplyConflict with all paths that changed since, ApplyFailed, InvalidRequest,
    SourceChanged, Busy, StoreDamaged, StateError; in each case the directory is as it was.
    Commit point: the renames, one a path (`landing`); then the workspace's record follows, and the record of the apply
    is removed last. Killed in between, each path is as it was before the apply or as the apply left it, and another
    undo finishes.
    """
    with turn(home, workspace_id, "snapshot") as (record, store):
        applied = _find(home, record, to)
        target = check_source(home, applied.target)
        if target != applied.target:
            raise InvalidRequest(
                f"{applied.target} is another directory now", hint="put the one back that was applied to"
            )
        with store.writing():  # the collector waits
            result = take_back(home, store, record, applied, target, dry_run=dry_run, progress=progress)
        if not dry_run:
            _finish(home, record, applied)
        return result


def _find(home: Home, record: WorkspaceRecord, to: str | None) -> ApplyRecord:
    wanted = os.path.realpath(to) if to is not None else None
    for number in reversed(apply_records.list_numbers(home, record.id)):
        applied = apply_records.read_apply(home, record.id, number)
        if wanted in (None, applied.target):
            return applied
    where = f" to {to}" if to is not None else ""
    raise NotFound(f"no apply of {record.name}{where} can be undone", hint="an apply is undone once, the newest first")


def take_back(
    home: Home,
    store: Store,
    record: WorkspaceRecord,
    applied: ApplyRecord,
    target: str,
    *,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> UndoneApply:
    """Write what was before an apply, for a caller who has the turn and the writers' lock of the store."""
    with open_target(target) as top:
        now, cache = scan_target(home, store, record, target, progress)
        ours = {change.path: change for change in diff_trees(store, applied.after, applied.before)}
        theirs = {change.path: change for change in diff_trees(store, applied.after, now)}
        plan, contradicted = merge(ours, theirs, Contents(store))
        conflicts = [(path, "it changed since the apply") for path, _ in contradicted]
        landing = Landing(top, plan_steps(plan), cache, applied.originals)
        conflicts += [(obstacle.path, obstacle.reason) for obstacle in landing.obstacles()]
        if conflicts:
            raise conflict_error(target, conflicts, "keep your changes elsewhere, and undo the apply again")
        if not dry_run:
            landing.land(store)
    kept = tuple(trees.os_path(path, b"") for path in landing.kept)
    return UndoneApply(target, tuple(plan), kept, dry_run)


def _finish(home: Home, record: WorkspaceRecord, applied: ApplyRecord) -> None:
    """What was applied is to be applied again: the base goes back too."""
    if applied.base_after:
        with sealing.exclusive(home, record) as current:
            if current.applied_tree == applied.base_after:
                write_record(home, replace(current, applied_tree=applied.base_before))
    apply_records.forget_apply(home, record.id, applied.number)
