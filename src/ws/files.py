"""The files of a workspace that can come back to an earlier state: the Filesystem protocol with its snapshots.

A snapshot here is a snapshot of the whole workspace, and a restore ends its processes, as `ws restore` does.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING, Any

from ws.errors import InvalidRequest, SnapshotNotFound
from ws.fs.protocol import FilesystemSnapshot
from ws.remote.filesystem import RemoteFilesystem

if TYPE_CHECKING:
    from ws.workspace import Workspace


class WorkspaceFilesystem(RemoteFilesystem):
    """A SnapshotableFilesystem over a workspace."""

    def __init__(self, workspace: Workspace, **rules: Any) -> None:
        super().__init__(workspace, **rules)
        self._workspace = workspace

    def snapshot(self, tag: str | None = None, *, force: bool = False) -> FilesystemSnapshot:
        """Raises as `Workspace.snapshot`. Commit point: the reference in the store."""
        taken = self._workspace.snapshot(tag=tag, force=force)
        return FilesystemSnapshot(
            snapshot_id=taken.id,
            created_at=taken.created_at,
            commit_ref=taken.commit,
            root_path=self.root,
            git_dir=taken.git_dir,
            tag=taken.tag,
        )

    def restore(self, snapshot: FilesystemSnapshot) -> None:
        """Raises PermissionError when it is read-only, InvalidRequest for a snapshot of another workspace, and as
        `Workspace.restore`.
        """
        if self.read_only:
            raise PermissionError(errno.EROFS, "the filesystem is read-only", self.root)
        try:
            self._workspace.restore(snapshot.commit_ref)
        except SnapshotNotFound as error:
            raise InvalidRequest(
                f"snapshot {snapshot.snapshot_id} is not one of this workspace", hint=error.hint
            ) from None
