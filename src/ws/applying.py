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

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ws import apply_records, sealing
from ws.apply_records import ApplyRecord
from ws.bases import check_source, scan_source
from ws.errors import ApplyConflict, ApplyFailed, Busy, InvalidRequest
from ws.host_facts import read_originals
from ws.landing import STAGING, Landing
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
from ws.three_way import Changes, Contents, conflict_error, inherited, merge, plan_steps

Progress = Callable[[str, int, int], None]

_OWN_LEFTOVERS = f"/{STAGING}*/"
_LOCK_TIMEOUT_S = 30.0
_LOCK_PAUSE_S = 0.05


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
    with open_target(target) as top:
        theirs_tree, cache = scan_target(home, store, record, target, progress)
        contents = Contents(store)
        rules = None if with_git_config else ControlFiles(store, live, theirs_tree, top)
        split = _split(store, record, target, live, theirs_tree, rules)
        plan, conflicts = merge(split.wanted, split.theirs, contents)
        steps = plan_steps(plan)
        landing = Landing(top, steps, cache)
        conflicts += [(obstacle.path, obstacle.reason) for obstacle in landing.obstacles()]
        if conflicts:
            raise _conflict(target, conflicts)
        base = live
        if not dry_run:
            base = _next_base(store, live, split)
            _land(home, store, record, target, top, landing, plan, (theirs_tree, split.base, base))
    withheld, refused = merge({path: split.ours[path] for path in split.withheld}, split.theirs, contents)
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
            with contextlib.suppress(OSError):  # one that stays finds everything as it was
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


@contextlib.contextmanager
def open_target(target: str) -> Iterator[int]:
    """A directory of the host, open and locked: what two applies bring at once could make a git directory together.

    Raises Busy when another apply does not end.
    """
    top = os.open(target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    try:
        while True:
            try:
                fcntl.flock(top, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise Busy(f"another apply to {target} is under way", hint="wait for it to end") from None
                time.sleep(_LOCK_PAUSE_S)
        yield top
    finally:
        os.close(top)


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
        if inherited(path, known, is_excluded):
            left_out.append(trees.os_path(path, b""))
        elif path:  # the mode of the top is the host's own business
            wanted[path] = change
    return wanted, tuple(left_out)


def _conflict(target: str, conflicts: list[tuple[bytes, str]]) -> ApplyConflict:
    return conflict_error(
        target, conflicts, "undo the change on one side, or take the workspace's changes with `ws export --patch`"
    )
