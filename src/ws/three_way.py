"""The three-way merge of an apply and of its undo: what both sides changed since a base, path by path.

What counts as a change is type, bytes and permissions; times and owners alone do not. An index of git counts by what it
stages: `git status` writes it anew without changing that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from ws.errors import ApplyConflict
from ws.landing_stage import Step
from ws.store import trees
from ws.store.diffs import Change
from ws.store.git_index import staged_content
from ws.store.repository import Store

Changes = Mapping[bytes, Change]
State = tuple[str, int, bytes]  # type, permissions, content


def inherited(path: bytes, known: dict[bytes, bytes], judge: Callable[[bytes], bool]) -> bytes:
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


class Contents:
    """What counts of the content of files: their ids, and of an index of git what it stages."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[bytes, bytes] = {}

    def __call__(self, path: bytes, file: trees.File) -> bytes:
        if path.rpartition(b"/")[2] != b"index" or file.meta.kind != "f":
            return file.oid
        if file.oid not in self._known:
            data = b"".join(trees.read_chunks(self._store, file, path))
            self._known[file.oid] = staged_content(data) or file.oid
        return self._known[file.oid]


def merge(
    ours: Changes, theirs: Changes, contents: Callable[[bytes, trees.File], bytes] | None = None
) -> tuple[list[Change], list[tuple[bytes, str]]]:
    """What is to be done to theirs so that it has ours too, and where the two contradict each other."""
    plan: list[Change] = []
    conflicts: list[tuple[bytes, str]] = []
    known: dict[bytes, bytes] = {}

    def is_lost(directory: bytes) -> bool:
        other = theirs.get(directory)
        return other is not None and (other.new is None or other.new.meta.kind != "d")

    for path, change in sorted(ours.items()):
        base, wanted = _state(path, change.old, contents), _state(path, change.new, contents)
        other = theirs.get(path)
        there = _state(path, other.new, contents) if other else base
        both_directories = wanted is not None and there is not None and wanted[0] == there[0] == "d"
        if wanted in (base, there) or (both_directories and there != base):
            continue
        if there != base:
            conflicts.append((path, f"{_told(base, wanted)} in the workspace, {_told(base, there)} in the source"))
        elif wanted is not None and (lost := inherited(path.rpartition(b"/")[0], known, is_lost)):
            where = trees.os_path(lost, b"")
            conflicts.append((path, f"{_told(base, wanted)} in the workspace, but {where} is no directory any more"))
        else:
            plan.append(replace(change, old=other.new if other else change.old))
    return plan, conflicts


def _state(path: bytes, file: trees.File | None, contents: Callable[[bytes, trees.File], bytes] | None) -> State | None:
    """What counts: the kind, the permissions and the content."""
    if file is None:
        return None
    kind = file.meta.kind.replace("c", "f")
    content = contents(path, file) if contents else file.oid
    return kind, 0 if kind == "l" else file.meta.mode & 0o777, content


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
