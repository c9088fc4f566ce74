"""Applying: the workspace's changes go back to the source, three-way, path by path.

    base    what was imported (`record.source_tree`); for the source itself, what was applied to it last
    ours    the workspace as it is now, captured at one instant
    theirs  the source as it is now, scanned until it holds still

What only the workspace changed is brought over; what only the source changed stays; what both changed alike is done
already. A path that both changed differently is a conflict, and one conflict is enough for nothing to be touched. What
counts as a change is type, bytes and permissions; times and owners alone do not. What the import left out
(`--exclude`) is left out here too. Of git directories only an allow list comes unless the rest is asked for
(`store.git_control_files`).

What the apply will replace or delete is recorded first (`apply_records`), then `landing` does the writing. Afterwards
base is what was applied, so that the next apply starts from there; for withheld paths it stays what it was, so that
they can still be asked for later.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ws import apply_records, sealing
from ws.apply_records import ApplyRecord
from ws.bases import check_source, scan_source
from ws.errors import ApplyConflict, ApplyFailed, InvalidRequest
from ws.host_facts import read_originals
from ws.landing import STAGING, Landing
from ws.landing_stage import Step
from ws.layout import Home, WorkspaceRecord
from ws.records import write_record
from ws.snapshots import look, settled_turn
from ws.store import git_control_files, trees
from ws.store.diffs import Change, diff_trees
from ws.store.excludes import Excludes
from ws.store.git_control_files import ControlFiles, Withheld
from ws.store.repository import Store
from ws.store.statcache import StatCache
from ws.store.tree_files import edit_tree

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
    withheld: tuple[str, ...]  # changed in the workspace, part of a git directory, and not in the allow list
    kept: tuple[str, ...]  # directories that were to go, in which something lies that was not imported
    dry_run: bool
    reasons: Mapping[str, str] = field(default_factory=dict)  # why a path is withheld


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

    Of git directories only an allow list comes, unless `with_git_config` asks for the rest. What is replaced or deleted
    is recorded first, so that `undo_apply` brings it back.
    Raises ApplyConflict with all conflicts, ApplyFailed, InvalidRequest, SourceRefused, SourceChanged, SnapshotFailed,
    Busy; in each case the directory is as it was. Commit point: the renames, one a path (`landing`); killed between
    them, some paths are new and some old, another apply finishes and an undo takes back.
    """
    with settled_turn(home, workspace_id, "snapshot") as (record, store):
        target = check_source(home, _target(record, to))
        live = look(home, store, record)
        with store.writing():  # the collector waits until a record refers to what is written
            result, base = bring_over(
                home, store, record, live, target, with_git_config=with_git_config, dry_run=dry_run, progress=progress
            )
            if not dry_run and target == record.source:
                with sealing.exclusive(home, record) as current:
                    write_record(home, replace(current, applied_tree=base))
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
) -> tuple[ApplyResult, str]:
    """Bring what makes the tree `live` different from the record's source to the directory `target`.

    Returns also the tree that is the base of the next apply.
    """
    theirs_tree, cache = scan_target(home, store, record, target, progress)
    top = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        rules = None if with_git_config else ControlFiles(store, live, theirs_tree, top)
        split = _split(store, record, target, live, theirs_tree, rules)
        plan, conflicts = merge(split.wanted, split.theirs)
        steps = plan_steps(plan)
        landing = Landing(top, steps, cache)
        conflicts += [(obstacle.path, obstacle.reason) for obstacle in landing.obstacles()]
        if conflicts:
            raise _conflict(target, conflicts)
        base = live
        if not dry_run:
            base = _next_base(store, live, split)
            _land(home, store, record, target, top, landing, plan, (theirs_tree, split.base, base))
    finally:
        os.close(top)
    withheld, refused = merge({path: split.ours[path] for path in split.withheld}, split.theirs)
    left = {change.path for change in withheld} | {path for path, _ in refused}
    shown = git_control_files.uppermost({path: split.withheld[path] for path in left})
    kept = tuple(trees.os_path(path, b"") for path in landing.kept)
    return ApplyResult(target, tuple(plan), split.left_out, tuple(shown), kept, dry_run, shown), base


def _land(
    home: Home,
    store: Store,
    record: WorkspaceRecord,
    target: str,
    top: int,
    landing: Landing,
    plan: Sequence[Change],
    found: tuple[str, str, str],
) -> None:
    """Record what will be replaced, then write. `found`: the target's tree, the base of this apply and the next one."""
    theirs_tree, base, next_base = found
    if not plan:
        landing.land(store)  # removes what a killed one left
        return
    with store.writing() as writer:
        after = edit_tree(store, writer, theirs_tree, {change.path: change.new for change in plan})
        writer.finish()
    is_source = target == record.source
    try:
        originals = read_originals(top, [change.path for change in plan if change.old])
    except OSError as error:
        raise ApplyFailed(
            f"{target} cannot be read: {error.strerror}; nothing was changed", hint="try again"
        ) from error
    made = ApplyRecord(
        number=apply_records.next_number(home, record.id),
        target=target,
        before=theirs_tree,
        after=after,
        base_before=base if is_source else "",
        base_after=next_base if is_source else "",
        made_at=time.time(),
        originals=originals,
    )
    apply_records.write_apply(home, record.id, made)
    try:
        landing.land(store)
    except BaseException:
        if not landing.is_torn:
            apply_records.forget_apply(home, record.id, made.number)
        raise
    apply_records.forget_oldest(home, record.id)


@dataclass(frozen=True, slots=True)
class _Split:
    """What the workspace changed since the base, by what becomes of it; and what the target changed."""

    base: str
    ours: Changes
    wanted: Changes
    withheld: Mapping[bytes, Withheld]
    left_out: tuple[str, ...]
    theirs: Changes


def _split(
    store: Store, record: WorkspaceRecord, target: str, live: str, theirs_tree: str, rules: ControlFiles | None
) -> _Split:
    base = record.source_tree
    if target == record.source:
        base = record.applied_tree or base
    ours, theirs = _changes(store, base, live), _changes(store, base, theirs_tree)
    sifted, left_out = _sift(ours, record.exclude)
    withheld = rules.withheld(sifted) if rules else {}
    wanted = {path: change for path, change in sifted.items() if path not in withheld}
    return _Split(base, ours, wanted, withheld, left_out, theirs)


def _next_base(store: Store, live: str, split: _Split) -> str:
    """What the workspace has, but for withheld paths, which are as they were."""
    if not split.withheld:
        return live
    with store.writing() as writer:
        tree = edit_tree(store, writer, live, {path: split.ours[path].old for path in split.withheld})
        writer.finish()
    store.refresh()
    return tree


def _changes(store: Store, base: str, tree: str) -> dict[bytes, Change]:
    return {change.path: change for change in diff_trees(store, base, tree)}


def scan_target(
    home: Home, store: Store, record: WorkspaceRecord, target: str, progress: Progress | None
) -> tuple[str, StatCache]:
    """The tree of a directory of the host as it is now, with its objects in the store, and what was seen there."""
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
        writer.finish()
    store.refresh()
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


def plan_steps(plan: list[Change]) -> list[Step]:
    """The steps to take for these changes, which are sorted by path first."""
    plan.sort(key=lambda change: change.path)
    return [step for change in plan for step in _steps(change)]


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
    return conflict_error(
        target, conflicts, "undo the change on one side, or take the workspace's changes with `ws export --patch`"
    )


def conflict_error(target: str, conflicts: list[tuple[bytes, str]], hint: str) -> ApplyConflict:
    """The error that lists all conflicts with a directory, of which nothing was touched."""
    told = tuple((trees.os_path(path, b""), reason) for path, reason in sorted(dict(conflicts).items()))
    count = "1 conflict" if len(told) == 1 else f"{len(told)} conflicts"
    lines = [f"{count} with {target}; nothing there was touched", *(f"{path}: {reason}" for path, reason in told)]
    return ApplyConflict(
        "\n".join(lines),
        hint=hint,
        conflicts=told,
    )
