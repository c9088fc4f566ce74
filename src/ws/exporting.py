"""Exporting a workspace as it is now: as a patch that git applies, or as a plain directory.

A patch goes from what was imported to what is there, in words that git has; what git has no words for (directories
alone, FIFOs, owners, times, anything inside a `.git`) is named, so that nobody takes the patch for more than it is.

A directory belongs to whoever asked for it, all of it, without setuid bits: a file that a container owned by root has
no such owner out here.

What git would run or obey (`store.obeyed`) is in neither unless it is asked for; a directory has it as it was imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ws import durable
from ws.errors import AlreadyExists, InvalidRequest
from ws.layout import Home, Ids, WorkspaceRecord
from ws.removing import remove_tree
from ws.snapshots import look, settled_turn
from ws.store import obeyed, patches, trees
from ws.store.checkout import Statistics, materialise
from ws.store.diffs import Change, diff_trees
from ws.store.repository import Store

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class ExportedPatch:
    """What changed since the import, for `git apply`."""

    changes: tuple[Change, ...]
    left_out: tuple[str, ...]  # changes that git has no words for
    withheld: tuple[str, ...]  # changes of what git runs or obeys
    git_dir: str

    def __str__(self) -> str:
        return self.data().decode(errors="replace")

    def parts(self) -> Iterator[bytes]:
        """The patch, in parts; binary files whole. Raises StoreDamaged."""
        with Store(self.git_dir) as store:
            for change in self.changes:
                yield from patches.write_patch(store, change, for_git=True)

    def data(self) -> bytes:
        return b"".join(self.parts())


@dataclass(frozen=True, slots=True)
class ExportedDirectory:
    path: str
    files: int
    size_bytes: int
    withheld: tuple[str, ...]  # what git runs or obeys, and was not imported so


def export_patch(home: Home, workspace_id: str, *, with_git_config: bool = False) -> ExportedPatch:
    """What the workspace changed of its source. Raises SnapshotFailed, Busy, StoreDamaged."""
    with settled_turn(home, workspace_id, "snapshot") as (record, store):
        live = look(home, store, record)
        store.refresh()
        changes = diff_trees(store, record.source_tree, live)
        held = {} if with_git_config else _withheld(store, changes, live, record.source_tree)
    changes = [change for change in changes if change.path not in held]
    sayable = tuple(change for change in changes if patches.is_expressible(change))
    told = {path for path, change in held.items() if change.kind != "metadata"}
    return ExportedPatch(sayable, tuple(_left_out(changes, sayable)), obeyed.uppermost(told), home.store)


def _withheld(store: Store, changes: list[Change], live: str, before: str | None) -> dict[bytes, Change]:
    found = {change.path: change for change in changes}
    return obeyed.withheld(found, obeyed.Obeyed(store, live, before).roots(found))


def _left_out(changes: list[Change], sayable: tuple[Change, ...]) -> Iterator[str]:
    """What git has no words for. Directories go without saying when they go, or when something in them is said."""
    said = {path for change in sayable for path in (change.path, *_above(change.path))}
    for change in changes:
        gone = change.is_directory and change.new is None
        if change.path and change.path not in said and change.kind != "metadata" and not gone:
            yield trees.os_path(change.path, b"")


def _above(path: bytes) -> Iterator[bytes]:
    while b"/" in path:
        path = path.rpartition(b"/")[0]
        yield path


def export_directory(
    home: Home,
    workspace_id: str,
    directory: str,
    *,
    with_git_config: bool = False,
    progress: Progress | None = None,
) -> ExportedDirectory:
    """Write the workspace as it is now into a new directory of the host.

    Raises AlreadyExists, InvalidRequest when it cannot be made there, SnapshotFailed, Busy, StoreDamaged.
    Commit point: the rename to its name; what is built before that lies beside it and is removed on an error.
    """
    target = os.path.abspath(directory)
    if os.path.lexists(target):
        raise AlreadyExists(f"{directory} exists already", hint="name a directory that does not")
    with settled_turn(home, workspace_id, "snapshot") as (record, store):
        live = look(home, store, record)
        store.refresh()
        instead = {} if with_git_config else _instead(store, record, live)
        found = _write(store, record, live, target, instead, progress)
    return ExportedDirectory(target, found.files, found.size_bytes, obeyed.uppermost(set(instead)))


def _instead(store: Store, record: WorkspaceRecord, live: str) -> dict[bytes, trees.File | None]:
    """For the files that git would run or obey and that are not as they were imported: what was there then, if a file.

    Where nothing was imported from this machine, which is so after `ws import`, all of them are of others' making.
    """
    before = record.source_tree if record.source else None
    held = _withheld(store, diff_trees(store, before, live), live, before)
    return {
        path: change.old if change.old and change.old.meta.kind != "d" else None
        for path, change in held.items()
        if change.kind != "metadata" and change.new and change.new.meta.kind != "d"
    }


def _write(
    store: Store,
    record: WorkspaceRecord,
    tree: str,
    target: str,
    instead: dict[bytes, trees.File | None],
    progress: Progress | None,
) -> Statistics:
    parent, name = os.path.split(target)
    building = os.path.join(parent, f".{name[:200]}.{os.urandom(4).hex()}.tmp")
    ids = Ids(record.ids.uid, record.ids.gid, os.geteuid(), os.getegid())
    try:
        found = materialise(store, tree, building, ids=ids, plain=True, instead=instead, progress=progress)
        durable.sync_filesystem(building)
        durable.rename_new(building, target)
        return found
    except OSError as error:
        if isinstance(error, FileExistsError):
            raise AlreadyExists(f"{target} exists already", hint="name a directory that does not") from None
        raise InvalidRequest(f"cannot write {target}: {error.strerror}", hint="is there room, and may you?") from error
    finally:
        remove_tree(building)
