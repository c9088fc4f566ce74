"""Exporting a workspace as it is now: as a patch that git applies, or as a plain directory.

A patch goes from what was imported to what is there, in words that git has; what git has no words for (directories
alone, FIFOs, owners, times, anything inside a `.git`) is named, so that nobody takes the patch for more than it is.

A directory belongs to whoever asked for it, all of it, without setuid bits: a file that a container owned by root has
no such owner out here.

Of git directories only an allow list (`store.git_control_files`) is in either, unless the rest is asked for; in a
directory the rest is as it was imported.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from ws import durable
from ws.errors import AlreadyExists, InvalidRequest
from ws.layout import Home, Ids, WorkspaceRecord
from ws.snapshots import look, settled_turn
from ws.staged import removed_at_end
from ws.store import git_control_files, patches, trees
from ws.store.checkout import Statistics, materialise
from ws.store.diffs import Change, diff_trees
from ws.store.git_control_files import ControlFiles, Withheld
from ws.store.repository import Store
from ws.store.tree_files import edit_tree

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class ExportedPatch:
    """What changed since the import, for `git apply`."""

    changes: tuple[Change, ...]
    left_out: tuple[str, ...]  # changes that git has no words for
    withheld: tuple[str, ...]  # changes of git directories that are not in the allow list
    git_dir: str
    reasons: Mapping[str, str] = field(default_factory=dict)  # why a path is withheld

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
    withheld: tuple[str, ...]  # parts of git directories that are as they were imported, or missing
    reasons: Mapping[str, str] = field(default_factory=dict)  # why a path is withheld


def export_patch(home: Home, workspace_id: str, *, with_git_config: bool = False) -> ExportedPatch:
    """What the workspace changed of its source. Raises SnapshotFailed, Busy, StoreDamaged."""
    with settled_turn(home, workspace_id, "snapshot") as (record, store):
        live = look(home, store, record)
        store.refresh()
        changes = diff_trees(store, record.source_tree, live)
        held = {} if with_git_config else _withheld(store, changes, live, record.source_tree)
    shown = git_control_files.uppermost(held)
    changes = [change for change in changes if change.path not in held]
    sayable = tuple(change for change in changes if patches.is_expressible(change))
    return ExportedPatch(sayable, tuple(_left_out(changes, sayable)), tuple(shown), home.store, shown)


def _withheld(store: Store, changes: list[Change], live: str, before: str | None) -> dict[bytes, Withheld]:
    return ControlFiles(store, live, before).withheld({change.path: change for change in changes})


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
        with store.writing():  # the collector waits until the tree is written out
            held = {} if with_git_config else _find_withheld(store, record, live)
            tree = _as_imported(store, live, held)
            found = _write(store, record, tree, target, progress)
    shown = git_control_files.uppermost({path: why for path, (_, why) in held.items()})
    return ExportedDirectory(target, found.files, found.size_bytes, tuple(shown), shown)


def _find_withheld(store: Store, record: WorkspaceRecord, live: str) -> dict[bytes, tuple[Change, Withheld]]:
    """What is not as it was imported, and does not come unasked.

    Where nothing was imported from this machine, which is so after `ws import`, all of it is of others' making.
    """
    before = record.source_tree if record.source else None
    changes = diff_trees(store, before, live)
    held = _withheld(store, changes, live, before)
    return {change.path: (change, held[change.path]) for change in changes if change.path in held}


def _as_imported(store: Store, live: str, held: dict[bytes, tuple[Change, Withheld]]) -> str:
    """The tree `live`, but with withheld paths as they were imported, or without them."""
    with store.writing() as writer:
        tree = edit_tree(store, writer, live, {path: change.old for path, (change, _) in held.items()})
        writer.finish()
    store.refresh()
    return tree


def _write(
    store: Store,
    record: WorkspaceRecord,
    tree: str,
    target: str,
    progress: Progress | None,
) -> Statistics:
    parent, name = os.path.split(target)
    building = os.path.join(parent, f".{name[:200]}.{os.urandom(4).hex()}.tmp")
    ids = Ids(record.ids.uid, record.ids.gid, os.geteuid(), os.getegid())
    try:
        with removed_at_end(building):
            found = materialise(store, tree, building, ids=ids, plain=True, progress=progress)
            durable.sync_filesystem(building)
            durable.rename_new(building, target)
            return found
    except OSError as error:
        if isinstance(error, FileExistsError):
            raise AlreadyExists(f"{target} exists already", hint="name a directory that does not") from None
        raise InvalidRequest(f"cannot write {target}: {error.strerror}", hint="is there room, and may you?") from error
