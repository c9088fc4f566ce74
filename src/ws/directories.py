"""A directory of this machine that can come back to an earlier state: the Filesystem protocol with snapshots.

For whoever has no container and no workspace: any directory, and a git dir of its own outside it. A snapshot reads the
directory whole, against a stat cache; a restore builds the tree beside it and takes its place in one exchange, so that
at no instant is it missing or mixed. All is kept that a workspace's snapshots keep, `.git` and ignored files too.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import os
import time
from typing import Any

from ws import durable
from ws.errors import InvalidRequest
from ws.fs.host import HostFilesystem
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


class RewindableDirectory(HostFilesystem):
    """A SnapshotableFilesystem over a host directory; `git_dir` is made if it is not there.

    Raises InvalidRequest when one lies in the other. The directory's parent must be writable: a restore stages there.
    """

    def __init__(self, root: str | os.PathLike[str], *, git_dir: str | os.PathLike[str], **rules: Any) -> None:
        super().__init__(os.fspath(root), **rules)
        self._directory = os.path.realpath(os.fspath(root))
        self._git_dir = os.path.realpath(os.fspath(git_dir))
        for inner, outer in ((self._git_dir, self._directory), (self._directory, self._git_dir)):
            if inner == outer or inner.startswith(outer + "/"):
                raise InvalidRequest(
                    f"{self._directory} and its git dir {self._git_dir} lie in one another",
                    hint="a snapshot that holds its own store would grow without bound",
                )
        durable.ensure_directory(self._git_dir)
        self._line = "dir-" + hashlib.sha256(os.fsencode(self._directory)).hexdigest()[:24]
        self._cache = os.path.join(self._git_dir, f"{self._line}.cache")
        self._turn = os.path.join(self._git_dir, f"{self._line}.lock")
        durable.create_lock_file(self._turn)

    def snapshot(self, tag: str | None = None, *, force: bool = False) -> FilesystemSnapshot:
        """Capture the directory as it is now; durable on return. Commit point: the reference in the git dir.

        `force` moves a tag from the snapshot that has it.

        Raises InvalidName, TagExists, SourceChanged when it does not hold still, StateUnusable.
        """
        if tag is not None:
            check_tag(tag)
        with durable.locked(self._turn, what=self._directory), Store(self._git_dir) as store, store.writing() as writer:
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
            git_dir=self._git_dir,
            tag=tag,
        )

    def restore(self, snapshot: FilesystemSnapshot) -> None:
        """Make the directory what it was: every path, nothing else. Commit point: the exchange of two directories.

        Raises PermissionError when it is read-only, InvalidRequest for a snapshot of another directory, StoreDamaged
        before anything is changed. Killed before the exchange, a directory `.NAME.ws-…` is left beside it; the next
        restore removes it.
        """
        self._check_writable(self._directory)
        parent, name = os.path.split(self._directory)
        with durable.locked(self._turn, what=self._directory), Store(self._git_dir) as store:
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
