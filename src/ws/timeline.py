"""The timeline of a workspace, as its users hold it: snapshot, look back, restore, undo, compare.

One half of `Workspace`; what runs in it is the other. Light to import: each method loads what it needs.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ws.containers import EngineFor
from ws.layout import Home, WorkspaceRecord

if TYPE_CHECKING:
    from ws.applying import ApplyResult
    from ws.bundles import ExportedBundle
    from ws.comparing import Diff
    from ws.exporting import ExportedDirectory, ExportedPatch
    from ws.history import Origin, Snapshot
    from ws.restores import Restored, RestorePlan
    from ws.undo_apply import UndoneApply

Progress = Callable[[str, int, int], None]


class Timeline(ABC):
    """What can be done with the states of a workspace."""

    id: str
    _home: Home
    _engine_for: EngineFor

    @abstractmethod
    def record(self) -> WorkspaceRecord:
        """What is recorded of the workspace now. Raises WorkspaceNotFound."""

    def snapshot(
        self,
        message: str = "",
        *,
        tag: str | None = None,
        force: bool = False,
        max_file: int | None = None,
        max_total: int | None = None,
    ) -> Snapshot:
        """Keep everything as it is now; no process is ended. On return it is on disk.

        `force` moves a tag from the snapshot that has it. Raises TagExists, LimitExceeded, SnapshotFailed, Busy. Commit
        point: the reference in the store.
        """
        from ws import snapshots

        caps = snapshots.Caps(max_file_bytes=max_file, max_total_bytes=max_total)
        return snapshots.take(self._home, self.id, message=message, tag=tag, force=force, caps=caps)

    def snapshots(self) -> list[Snapshot]:
        """Every snapshot, oldest first; the first is the base, once there is another."""
        from ws.history import read_history
        from ws.snapshots import settled_turn
        from ws.store.repository import Store

        if self.record().history.unsettled:
            with settled_turn(self._home, self.id, "snapshot"):
                pass
        with Store(self._home.store) as store:
            return read_history(self._home, store, self.id)

    def snapshot_id(self, number: int) -> str | None:
        """The id of the snapshot with this number, or None when there is none; reads one reference."""
        from ws.store import commits
        from ws.store.repository import Store

        with Store(self._home.store) as store:
            found = commits.snapshot_id(store, self.id, number)
        return found[:12] if found else None

    def origin(self) -> Origin | None:
        """Which workspace and which of its snapshots this one was forked from, if it was."""
        from ws.history import find_origin
        from ws.store.repository import Store

        forked_from = self.record().forked_from
        if forked_from is None:
            return None
        with Store(self._home.store) as store:
            return find_origin(self._home, store, forked_from)

    def restore(self, snapshot: Snapshot | str | None = None) -> Restored:
        """The whole workspace as it was at a snapshot, by default the newest; its processes are ended.

        What is there now is kept in a safety snapshot first, so `undo` takes the restore back.
        Raises SnapshotNotFound, RestoreFailed (nothing changed), Busy. Commit point: the record.
        """
        from ws import restores

        return restores.restore(self._home, self.id, self._own(snapshot), self._engine_for)

    def undo(self) -> Restored:
        """Take the last restore back; once more, and it is restored again."""
        from ws import restores

        return restores.undo(self._home, self.id, self._engine_for)

    def plan_restore(self, snapshot: str | None = None) -> RestorePlan:
        """What a restore would do."""
        from ws.history import find_target
        from ws.restores import plan_restore
        from ws.store.repository import Store

        record = self.record()
        with Store(self._home.store) as store:
            return plan_restore(self._home, record, find_target(store, record, snapshot))

    def plan_undo(self) -> RestorePlan:
        """What an undo would do. Raises SnapshotNotFound when nothing was restored."""
        from ws.restores import plan_undo
        from ws.store.repository import Store

        with Store(self._home.store) as store:
            return plan_undo(self._home, store, self.record())

    @contextlib.contextmanager
    def transaction(self, message: str = "transaction") -> Iterator[Snapshot]:
        """Snapshot first; an exception that leaves the block restores it, and goes on."""
        before = self.snapshot(message)
        try:
            yield before
        except BaseException:
            self.restore(before)
            raise

    def diff(self, before: Snapshot | str | None = None, after: Snapshot | str | None = None) -> Diff:
        """What changed from a snapshot, by default the newest, to another, by default the workspace as it is now.

        Raises SnapshotNotFound, SnapshotAmbiguous, Busy, StoreDamaged.
        """
        from ws.comparing import compare

        return compare(self._home, self.record(), self._own(before), self._own(after))

    def apply(
        self,
        to: str | os.PathLike[str] | None = None,
        *,
        with_git_config: bool = False,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> ApplyResult:
        """Bring the changes back to the source directory, or to another one, three-way, all of them or none.

        Of git directories only an allow list comes; hooks, configuration and all else there only `with_git_config`.
        `undo_apply` takes it back.
        Raises ApplyConflict (listing all), ApplyFailed, SourceChanged; then nothing there was changed. Commit point:
        the renames, one a path.
        """
        from ws.applying import apply

        where = os.fspath(to) if to is not None else None
        return apply(self._home, self.id, where, with_git_config=with_git_config, dry_run=dry_run, progress=progress)

    def undo_apply(
        self, to: str | os.PathLike[str] | None = None, *, dry_run: bool = False, progress: Progress | None = None
    ) -> UndoneApply:
        """Take back the newest apply that was not undone yet, or the newest one to a directory; all of it or nothing.

        Raises NotFound when there is none, ApplyConflict (listing all paths that changed since), ApplyFailed,
        SourceChanged; then nothing there was changed. Commit point: the renames, one a path; another undo finishes.
        """
        from ws.undo_apply import undo_apply

        where = os.fspath(to) if to is not None else None
        return undo_apply(self._home, self.id, where, dry_run=dry_run, progress=progress)

    def export_patch(self, *, with_git_config: bool = False) -> ExportedPatch:
        """What changed since the import, in words that `git apply` takes; names what is not in it."""
        from ws.exporting import export_patch

        return export_patch(self._home, self.id, with_git_config=with_git_config)

    def export_dir(
        self, path: str | os.PathLike[str], *, with_git_config: bool = False, progress: Progress | None = None
    ) -> ExportedDirectory:
        """Write everything into a new directory that belongs to the caller. Commit point: its rename.

        What the allow list for git directories does not have is as it was imported, unless `with_git_config`.
        """
        from ws.exporting import export_directory

        where = os.fspath(path)
        return export_directory(self._home, self.id, where, with_git_config=with_git_config, progress=progress)

    def export_bundle(self, path: str | os.PathLike[str], *, progress: Progress | None = None) -> ExportedBundle:
        """Write the workspace and all its snapshots into a new file, for `Manager.import_bundle` elsewhere."""
        from ws.bundles import export_bundle

        return export_bundle(self._home, self.id, os.fspath(path), progress=progress)

    def _own(self, snapshot: Snapshot | str | None) -> str | None:
        """What to look for. Raises SnapshotNotFound for a snapshot of another workspace."""
        from ws.errors import SnapshotNotFound

        if snapshot is None or isinstance(snapshot, str):
            return snapshot
        if snapshot.workspace != self.id:
            raise SnapshotNotFound(
                f"snapshot {snapshot.id} is of another workspace", hint="`ws fork` makes a workspace from a snapshot"
            )
        return snapshot.commit
