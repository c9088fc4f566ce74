"""Applying: the workspace's changes go back to the source, three-way, path by path.

    base    what was imported (`record.source_tree`); for the source itself, what was applied to it last
    ours    the workspace as it is now, captured at one instant
    theirs  the source as it is now, scanned until it holds still

What only the workspace changed is brought over; what only the source changed stays; what both changed alike is done
already. A path that both changed differently is a conflict, and one conflict is enough for nothing to be touched. What
counts as a change is type, bytes and permissions; times and owners alone do not. What the import left out
(`--exclude`) is left out here too. What git would run or obey (`store.obeyed`) is withheld unless it is asked for, and
has a base of its own, so that it can still be asked for later.

`landing` does the writing. Afterwards base is what was applied, so that the next apply starts from there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from ws import sealing
from ws.bases import check_source, scan_source
from ws.errors import ApplyConflict, InvalidRequest
from ws.landing import STAGING, Landing, Step
from ws.layout import Home, WorkspaceRecord
from ws.records import write_record
from ws.snapshots import look, settled_turn
from ws.store import obeyed, trees
from ws.store.diffs import Change, diff_trees
from ws.store.excludes import Excludes
from ws.store.repository import Store
from ws.store.statcache import StatCache

Progress = Callable[[str, int, int], None]
Changes = Mapping[bytes, Change]
State = tuple[str, int, bytes]  # type, permissions, content

_OWN_LEFTOVERS = f"/{STAGING}*/"


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """What was brought over, or would be."""

    to: str
    changes: tuple[Change, ...]
    left_out: tuple[str, ...]  # changed in the workspace, excluded when it was made
    withheld: tuple[str, ...]  # changed in the workspace, and git would run or obey it
    kept: tuple[str, ...]  # directories that were to go, in which something lies that was not imported
    dry_run: bool


def apply(
    home: Home,
    workspace_id: str,
    to: str | None = None,
    *,
    with_git_config: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ApplyResult:
    """Bring the workspace's changes back to its source, or to another directory.

    What git runs or obeys stays where it is, unless `with_git_config` asks for it.
    Raises ApplyConflict with all conflicts, ApplyFailed, InvalidRequest, SourceRefused, SourceChanged, SnapshotFailed,
    Busy; in each case the directory is as it was. Commit point: the renames, one a path (`landing`).
    """
    with settled_turn(home, workspace_id, "snapshot") as (record, store):
        target = check_source(home, _target(record, to))
        live = look(home, store, record)
        result = bring_over(
            home, store, record, live, target, with_git_config=with_git_config, dry_run=dry_run, progress=progress
        )
        if not dry_run and target == record.source:
            with sealing.exclusive(home, record) as current:
                git_tree = live if with_git_config else current.applied_git_tree
                write_record(home, replace(current, applied_tree=live, applied_git_tree=git_tree))
        return result


def _target(record: WorkspaceRecord, to: str | None) -> str:
    target = to or record.source
    if target is None:
        raise InvalidRequest(f"{record.name} was made from no directory of this machine", hint="name one with --to DIR")
    return os.path.abspath(target)


def bring_over(
    home: Home,
    store: Store,
    record: WorkspaceRecord,
    live: str,
    target: str,
    *,
    with_git_config: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> ApplyResult:
    """Bring what makes the tree `live` different from the record's source to the directory `target`."""
    theirs_tree, cache = _scan(home, store, record, target, progress)
    store.refresh()
    split = _split(store, record, target, live, theirs_tree)
    plan, conflicts = merge(split.wanted, split.theirs)
    withheld, refused = merge(split.withheld, split.theirs_git)
    for more in (split.gone, split.withheld if with_git_config else {}):
        planned, contradicted = merge(more, split.theirs_git)
        plan, conflicts = plan + planned, conflicts + contradicted
    plan.sort(key=lambda change: change.path)
    steps = [step for change in plan for step in _steps(change)]
    top = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        landing = Landing(top, steps, cache)
        conflicts += [(obstacle.path, obstacle.reason) for obstacle in landing.obstacles()]
        if conflicts:
            raise _conflict(target, conflicts)
        if not dry_run:
            landing.land(store)
    finally:
        os.close(top)
    left = set() if with_git_config else {change.path for change in withheld} | {path for path, _ in refused}
    kept = tuple(trees.os_path(path, b"") for path in landing.kept)
    return ApplyResult(target, tuple(plan), split.left_out, obeyed.uppermost(left), kept, dry_run)


@dataclass(frozen=True, slots=True)
class _Split:
    """What the workspace changed, by what becomes of it; and what the target changed, seen from either base."""

    wanted: Changes
    withheld: Changes  # git would run or obey it
    gone: Changes  # it did, and goes with the whole directory around it
    left_out: tuple[str, ...]
    theirs: Changes
    theirs_git: Changes


def _split(store: Store, record: WorkspaceRecord, target: str, live: str, theirs_tree: str) -> _Split:
    base = git_base = record.source_tree
    if target == record.source:
        base, git_base = record.applied_tree or base, record.applied_git_tree or git_base
    ours, theirs = _changes(store, base, live), _changes(store, base, theirs_tree)
    ours_git, theirs_git = ours, theirs
    if git_base != base:
        ours_git, theirs_git = _changes(store, git_base, live), _changes(store, git_base, theirs_tree)
    rules = obeyed.Obeyed(store, live, theirs_tree)
    roots = rules.roots(ours_git)
    passed_over = rules.roots(ours).keys() | roots.keys()
    plain = {path: change for path, change in ours.items() if path not in passed_over}
    wanted, left_out = _sift(plain | {path: ours_git[path] for path in roots}, record.exclude)
    held = obeyed.withheld(ours_git, {path: root for path, root in roots.items() if path in wanted})
    return _Split(
        {path: change for path, change in wanted.items() if path not in roots},
        held,
        {path: change for path, change in wanted.items() if path in roots and path not in held and path in ours},
        left_out,
        theirs,
        theirs_git,
    )


def _changes(store: Store, base: str, tree: str) -> dict[bytes, Change]:
    return {change.path: change for change in diff_trees(store, base, tree)}


def _scan(
    home: Home, store: Store, record: WorkspaceRecord, target: str, progress: Progress | None
) -> tuple[str, StatCache]:
    with store.writing() as writer:
        found = scan_source(
            home,
            store,
            writer,
            target,
            ids=record.ids,
            exclude=record.exclude,
            passing_over=(_OWN_LEFTOVERS,),
            progress=progress,
        )
        writer.finish()  # nothing refers to it: the collector takes it away
    return found


def _sift(ours: Changes, exclude: tuple[str, ...]) -> tuple[dict[bytes, Change], tuple[str, ...]]:
    """The changes that may leave the workspace, and the paths of those that may not."""
    excludes = Excludes((*exclude, _OWN_LEFTOVERS))
    wanted: dict[bytes, Change] = {}
    left_out: list[str] = []
    known: dict[bytes, bytes] = {}

    def is_excluded(path: bytes) -> bool:
        parent, _, name = path.rpartition(b"/")
        change = ours.get(path)
        return excludes.match(parent, name, directory=change is None or change.is_directory)

    for path, change in ours.items():
        if _inherited(path, known, is_excluded):
            left_out.append(trees.os_path(path, b""))
        elif path:  # the mode of the top is the host's own business
            wanted[path] = change
    return wanted, tuple(left_out)


def _inherited(path: bytes, known: dict[bytes, bytes], judge: Callable[[bytes], bool]) -> bytes:
    """The uppermost of a path and the directories above it of which `judge` is true, or nothing; each asked once."""
    pending = []
    while path and path not in known:
        pending.append(path)
        path = path.rpartition(b"/")[0]
    found = known.get(path, b"")
    while pending:
        path = pending.pop()
        found = known[path] = found or (path if judge(path) else b"")
    return found


def merge(ours: Changes, theirs: Changes) -> tuple[list[Change], list[tuple[bytes, str]]]:
    """What is to be done to theirs so that it has ours too, and where the two contradict each other. Pure."""
    plan: list[Change] = []
    conflicts: list[tuple[bytes, str]] = []
    known: dict[bytes, bytes] = {}

    def is_lost(directory: bytes) -> bool:
        other = theirs.get(directory)
        return other is not None and (other.new is None or other.new.meta.kind != "d")

    for path, change in sorted(ours.items()):
        base, wanted = _state(change.old), _state(change.new)
        other = theirs.get(path)
        there = _state(other.new) if other else base
        both_directories = wanted is not None and there is not None and wanted[0] == there[0] == "d"
        if wanted in (base, there) or (both_directories and there != base):
            continue
        if there != base:
            conflicts.append((path, f"{_told(base, wanted)} in the workspace, {_told(base, there)} in the source"))
        elif wanted is not None and (lost := _inherited(path.rpartition(b"/")[0], known, is_lost)):
            where = trees.os_path(lost, b"")
            conflicts.append((path, f"{_told(base, wanted)} in the workspace, but {where} is no directory any more"))
        else:
            plan.append(replace(change, old=other.new if other else change.old))
    return plan, conflicts


def _state(file: trees.File | None) -> State | None:
    """What counts: the kind, the permissions and the content."""
    if file is None:
        return None
    kind = file.meta.kind.replace("c", "f")
    return kind, 0 if kind == "l" else file.meta.mode & 0o777, file.oid


def _told(base: State | None, now: State | None) -> str:
    if now is None:
        return "deleted"
    if base is None:
        return "added"
    return "changed" if base[0] == now[0] else "replaced"


def _steps(change: Change) -> Iterator[Step]:
    old, new, path = change.old, change.new, change.path
    directories = [side is not None and side.meta.kind == "d" for side in (old, new)]
    if new is None or (old is not None and directories[0] != directories[1]):
        yield Step("delete", path, old, new)
    if new is None:
        return
    if directories == [True, True] or (old is not None and old.oid == new.oid and _same_kind(old, new)):
        yield Step("mode", path, old, new)
    else:
        yield Step("mkdir" if directories[1] else "write", path, old, new)


def _same_kind(old: trees.File, new: trees.File) -> bool:
    return old.meta.kind == new.meta.kind


def _conflict(target: str, conflicts: list[tuple[bytes, str]]) -> ApplyConflict:
    told = tuple((trees.os_path(path, b""), reason) for path, reason in sorted(dict(conflicts).items()))
    count = "1 conflict" if len(told) == 1 else f"{len(told)} conflicts"
    lines = [f"{count} with {target}; nothing there was touched", *(f"{path}: {reason}" for path, reason in told)]
    return ApplyConflict(
        "\n".join(lines),
        hint="undo the change on one side, or take the workspace's changes with `ws export --patch`",
        conflicts=told,
    )
