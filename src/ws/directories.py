"""A directory of this machine as a Filesystem with snapshots: `ws.HostFilesystem(root, git_dir=…)`.

For callers without a container and a workspace: any directory, and a git dir of its own outside it. A snapshot reads
the directory whole, against a stat cache; a restore builds the tree beside it and takes its place in one exchange, so
that at no instant is it missing or mixed. A snapshot keeps what a workspace's snapshots keep, `.git` and ignored files
too.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import time
from typing import Any

from ws import durable
from ws.errors import InvalidRequest, OperationNotSupportedError
from ws.fs import host
from ws.fs.protocol import FilesystemSnapshot
from ws.fs.tags import check_tag
from ws.layout import Ids
from ws.removing import remove_tree
from ws.store import commits
from ws.store.checkout import materialise
from ws.store.repository import Store
from ws.store.scan import scan_directory
from ws.store.statcache import load_cache

_AS_IT_IS = Ids(0, 0, 0, 0)  # owners are kept as the host has them


class HostFilesystem(host.HostFilesystem):
    """A directory of this machine; a SnapshotableFilesystem when it has a `git_dir`, which is made if it is not there.

    `git_dir` lies outside of the directory, and the directory's parent must be writable: a restore stages there.
    Without `git_dir`, `snapshot` and `restore` raise OperationNotSupportedError. The other options are those of
    `ws.fs.HostFilesystem`. Raises InvalidRequest when `git_dir` and the directory lie in one another.
    """

    def __init__(
        self, root: str | os.PathLike[str], *, git_dir: str | os.PathLike[str] | None = None, **rules: Any
    ) -> None:
        super().__init__(os.fspath(root), **rules)
        self._history = None if git_dir is None else _History(self.root, os.path.realpath(os.fspath(git_dir)))

    @property
    def git_dir(self) -> str | None:
        """Where the snapshots are kept; None without snapshots."""
        return None if self._history is None else self._history.git_dir

    def snapshot(self, tag: str | None = None, *, force: bool = False) -> FilesystemSnapshot:
        """Capture the directory as it is now; durable on return. Commit point: the reference in the git dir.

        `force` moves a tag from the snapshot that has it.

        Raises OperationNotSupportedError without a git_dir, InvalidName, TagExists, SourceChanged when the directory
        changes while it is read, StateUnusable.
        """
        return self._snapshots().snapshot(tag, force=force)

    def restore(self, snapshot: FilesystemSnapshot) -> None:
        """Make the directory what it was: every path, nothing else. Commit point: the exchange of two directories.

        Raises PermissionError when it is read-only, OperationNotSupportedError without a git_dir, InvalidRequest for a
        snapshot of another directory, StoreDamaged before anything is changed. Killed before the exchange, a directory
        `.NAME.ws-…` is left beside it; the next restore removes it.
        """
        self._check_writable(self.root)
        self._snapshots().restore(snapshot)

    def _snapshots(self) -> _History:
        if self._history is None:
            raise OperationNotSupportedError(
                f"{self.root} has no git_dir, so it has no snapshots",
                hint="open it with HostFilesystem(root, git_dir=…), a directory outside of the root",
            )
        return self._history


RewindableDirectory = HostFilesystem
"""The earlier name of `HostFilesystem` with a `git_dir`."""


class _History:
    """The snapshots of one directory in one git dir."""

    def __init__(self, directory: str, git_dir: str) -> None:
        self._directory = directory
        self.git_dir = git_dir
        for inner, outer in ((git_dir, directory), (directory, git_dir)):
            if inner == outer or inner.startswith(outer + "/"):
                raise InvalidRequest(
                    f"{directory} and its git dir {git_dir} lie in one another",
                    hint="a snapshot that holds its own store would grow without bound",
                )
        durable.ensure_directory(git_dir)
        self._line = "dir-" + hashlib.sha256(os.fsencode(directory)).hexdigest()[:24]
        self._cache = os.path.join(git_dir, f"{self._line}.cache")
        self._turn = os.path.join(git_dir, f"{self._line}.lock")
        durable.create_lock_file(self._turn)

    def snapshot(self, tag: str | None, *, force: bool) -> FilesystemSnapshot:
        """See `HostFilesystem.snapshot`."""
        if tag is not None:
            check_tag(tag)
        with durable.locked(self._turn, what=self._directory), Store(self.git_dir) as store, store.writing() as writer:
            found = scan_directory(store, writer, self._directory, cache=load_cache(self._cache))
            ids = commits.snapshot_ids(store, self._line)
            taken = commits.add_snapshot(
                writer,
                workspace=self._line,
                number=commits.next_number(store, self._line),
                tree=found.tree.hex(),
                parents=ids[-1:],
                created_ns=time.time_ns(),
                tag=tag,
            )
            writer.finish(commits.references(store, taken, force=force))
        with contextlib.suppress(OSError):
            durable.write_file(self._cache, found.cache.to_bytes(), sync=False)
        return FilesystemSnapshot(
            snapshot_id=taken.id[:12],
            created_at=datetime.datetime.fromtimestamp(taken.created_ns / 1e9, datetime.UTC),
            commit_ref=taken.id,
            root_path=self._directory,
            git_dir=self.git_dir,
            tag=tag,
        )

    def restore(self, snapshot: FilesystemSnapshot) -> None:
        """See `HostFilesystem.restore`."""
        parent, name = os.path.split(self._directory)
        with durable.locked(self._turn, what=self._directory), Store(self.git_dir) as store:
            if snapshot.commit_ref not in commits.snapshot_ids(store, self._line):
                raise InvalidRequest(f"snapshot {snapshot.snapshot_id} is not one of {self._directory}")
            prefix = f".{name}.ws-{self._line[-8:]}-"
            for left in os.listdir(parent):
                if left.startswith(prefix):
                    remove_tree(os.path.join(parent, left))
            staged = os.path.join(parent, prefix + os.urandom(4).hex())
            try:
                materialise(store, commits.read_snapshot(store, snapshot.commit_ref).tree, staged, ids=_AS_IT_IS)
                durable.sync_filesystem(staged)
                durable.exchange(staged, self._directory)
            finally:
                remove_tree(staged)
