"""Comparing two states of a workspace: snapshots, its base, or the workspace as it is now.

The live side is captured as a snapshot would be, at one instant: the upper is sealed where that is possible. Nothing
is published (docs/decisions/0022).
Differences are found by descending only where ids differ, so the cost is that of the differences.

Status letters: A added, D deleted, M other bytes, T another type, P other permissions or owner, X only times or
extended attributes. A directory whose time alone changed is not listed: what happened in it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ws.history import Target, find_target
from ws.layout import Home, WorkspaceRecord
from ws.snapshots import look, settled_turn
from ws.store import patches
from ws.store.diffs import Change, diff_trees
from ws.store.patches import Lines
from ws.store.repository import Store

LETTERS = {"added": "A", "deleted": "D", "modified": "M", "type": "T", "mode": "P", "metadata": "X"}
LIVE = "live"

_STAT_WIDTH = 80
_STAT_BAR = 40


@dataclass(frozen=True, slots=True)
class FileStat:
    """One line of a statistic."""

    change: Change
    lines: Lines


@dataclass(frozen=True, slots=True)
class Diff:
    """What differs between two states; false when nothing does.

    Content is read from the store when it is asked for. The live side stays there until the workspace is next
    compared, applied or exported.
    """

    before: str  # the name of a snapshot, `base` or `live`
    after: str
    changes: tuple[Change, ...]
    git_dir: str

    def __bool__(self) -> bool:
        return bool(self.listed())

    def __str__(self) -> str:
        return self.text()

    def listed(self) -> list[Change]:
        """The changes that a person wants to see: all but times of directories."""
        return [change for change in self.changes if not _is_only_time_of_directory(change)]

    def patches(self) -> Iterator[bytes]:
        """The unified diff, in parts. Raises StoreDamaged."""
        with Store(self.git_dir) as store:
            for change in self.changes:
                yield from patches.write_patch(store, change)

    def text(self) -> str:
        """The unified diff; bytes that are not UTF-8 are shown as U+FFFD."""
        return b"".join(self.patches()).decode(errors="replace")

    def stats(self) -> list[FileStat]:
        """How much of each file changed; directories and changes of metadata alone are left out."""
        with Store(self.git_dir) as store:
            return [
                FileStat(change, patches.count_lines(store, change))
                for change in self.changes
                if not change.is_directory and change.kind != "metadata"
            ]

    def stat(self) -> str:
        """The statistic as text, a line a file and a sum."""
        return _stat_text(self.stats())

    def name_status(self) -> str:
        """A letter and a path for each change, a line each; directories end in a slash."""
        return "".join(f"{LETTERS[change.kind]}\t{shown_path(change)}\n" for change in self.listed())


def shown_path(change: Change) -> str:
    """The path on one line, quoted as git does where that is needed."""
    path = change.path or b"."
    side = change.new or change.old
    if side is not None and side.meta.kind == "d":
        path += b"/"
    return patches.quote_path(path).decode()


def _is_only_time_of_directory(change: Change) -> bool:
    if change.kind != "metadata" or change.old is None or change.new is None:
        return False
    return change.old.meta.kind == "d" and change.old.meta.xattrs == change.new.meta.xattrs


def _stat_text(stats: list[FileStat]) -> str:
    rows = [(shown_path(stat.change), _amount(stat)) for stat in stats]
    width = min(max((len(path) for path, _ in rows), default=0), _STAT_WIDTH - 20)
    most = max((stat.lines.added + stat.lines.removed for stat in stats), default=0)
    scale = min(1.0, _STAT_BAR / most) if most else 1.0
    text = []
    for (path, amount), stat in zip(rows, stats, strict=True):
        shown = path if len(path) <= width else "…" + path[len(path) - width + 1 :]
        bar = "+" * round(stat.lines.added * scale) + "-" * round(stat.lines.removed * scale)
        text.append(f" {shown.ljust(width)} | {amount} {bar}".rstrip() + "\n")
    added, removed = sum(stat.lines.added for stat in stats), sum(stat.lines.removed for stat in stats)
    if stats:
        text.append(
            f" {_counted(len(stats), 'file')} changed, {_counted(added, 'insertion')}(+), "
            f"{_counted(removed, 'deletion')}(-)\n"
        )
    return "".join(text)


def _amount(stat: FileStat) -> str:
    if stat.lines.binary:
        sizes = [side.meta.size if side else 0 for side in (stat.change.old, stat.change.new)]
        return f"Bin {sizes[0]} -> {sizes[1]} bytes"
    return str(stat.lines.added + stat.lines.removed)


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def compare(home: Home, record: WorkspaceRecord, before: str | None, after: str | None) -> Diff:
    """The differences from a snapshot, by default the newest, to another one, by default the live workspace.

    Raises SnapshotNotFound, SnapshotAmbiguous, SnapshotFailed, Busy, WorkspaceNotFound, StoreDamaged.
    """
    if after is not None:
        with Store(home.store) as store:
            return _diff(store, find_target(store, record, before), find_target(store, record, after))
    with settled_turn(home, record.id, "snapshot") as (record, store):
        old = find_target(store, record, before)
        return _diff(store, old, Target(-1, look(home, store, record), LIVE))


def _diff(store: Store, old: Target, new: Target) -> Diff:
    store.refresh()
    return Diff(old.name, new.name, tuple(diff_trees(store, old.tree, new.tree)), store.path)
