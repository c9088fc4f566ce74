"""Bases that no workspace uses any more: which may go, and what keeps the others.

used       a record or a stack names it, or it is what a workspace began as
kept       a workspace was made from it within the hour: another one of the same project may be next
in use     an operation under way may be about to name it (`claiming`), or it was set aside under a running container
unused     everything else; what a restore rebuilt from git is unused as soon as the workspace is elsewhere
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from ws import bases
from ws.base_directories import has_container, original_key
from ws.claiming import TOUCH_S, last_announced_at, last_import_at, using_bases
from ws.layout import Home, WorkspaceRecord
from ws.record_fields import is_component
from ws.records import read_records
from ws.removing import remove_tree
from ws.stacks import read_stack, stack_numbers
from ws.store.statcache import load_cache

Progress = Callable[[str, int, int], None]

GRACE_S = 3600.0


@dataclass(slots=True)
class Size:
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


@dataclass(slots=True)
class Found:
    """What is to become of the bases that no workspace uses."""

    unused: list[str] = field(default_factory=list)
    kept_until: list[float] = field(default_factory=list)
    in_use: int = 0


def collect_bases(home: Home, size: Size, progress: Progress | None, *, dry_run: bool) -> Found:
    """Take away the bases that nothing uses. Commit point of each: its rename out of `bases/`."""
    if dry_run:
        found = _judge_bases(home)
        for key in found.unused:
            size.add(home.base(key))
        return found
    staged = []
    with using_bases(home, alone=True):
        found = _judge_bases(home)
        for key in found.unused:
            staged.append(home.staging())
            os.rename(home.base(key), staged[-1])
    for number, path in enumerate(staged):
        if progress:
            progress("bases", number, len(staged))
        size.add(path)
        remove_tree(path)
    _forget_imports(home)
    return found


def _judge_bases(home: Home) -> Found:
    """Which bases may go. The intents first: an operation that has none any more has its record written."""
    oldest_intent = _oldest_intent_at(home)
    used = _used_bases(home)
    found = Found()
    for key in os.listdir(home.at("bases")):
        imported_at, announced_at = last_import_at(home.base(key)), last_announced_at(home.base(key))
        if key in used:
            continue
        if original_key(key) != key:
            if has_container(home, original_key(key)):
                found.in_use += 1
            else:
                found.unused.append(key)
        elif _is_recent(imported_at):
            found.kept_until.append(imported_at + GRACE_S)
        elif oldest_intent is not None and announced_at >= oldest_intent - TOUCH_S - 1:
            found.in_use += 1
        else:
            found.unused.append(key)
    return found


def _oldest_intent_at(home: Home) -> float | None:
    """Since when the oldest operation is under way that has announced its intent; None when there is none."""
    times = []
    for name in os.listdir(home.at("pending")):
        with contextlib.suppress(FileNotFoundError):
            times.append(os.lstat(home.at("pending", name)).st_mtime)
    return min(times, default=None)


def _is_recent(at: float) -> bool:
    return at >= time.time() - GRACE_S


def _used_bases(home: Home) -> set[str]:
    used: set[str] = set()
    for record in read_records(home)[0]:
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
        cache = load_cache(path)
        key = cache.facts.get("base") if cache else None
        if not is_component(key) or not os.path.exists(home.base(str(key))):
            remove_tree(path)


def costs_a_base(home: Home, record: WorkspaceRecord, number: int) -> bool:
    """Whether the stack of an older snapshot stands on a base that was rebuilt from git and serves nothing else."""
    at_hand = (record.history.head, record.history.undo)
    stack = read_stack(home, record.id, number) if number not in at_hand else None
    if stack is None:
        return False
    own = {record.base, bases.base_key(record.origin_tree, record.ids)}
    own.update(waiting.base for waiting in record.history.unsettled)
    own.update(other.base for each in at_hand if each is not None and (other := read_stack(home, record.id, each)))
    return stack.base not in own and last_import_at(home.base(stack.base)) == 0
