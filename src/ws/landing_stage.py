"""The first half of writing to the host: every new file is made in a staging directory, complete, before any rename.

Files that replace others have their owner; new ones belong to the owner of the top directory, never to the
container's ids, and have no setuid bits. What an undo brings back has what was recorded of it (`host_facts`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Literal

from ws.errors import ApplyFailed
from ws.fs.kernel import open_directory
from ws.host_facts import Original, give_back, known_owner
from ws.store import trees
from ws.store.chunks import write_all
from ws.store.copying import Copier
from ws.store.repository import Store

Action = Literal["delete", "mkdir", "write", "mode"]


@dataclass(frozen=True, slots=True)
class Step:
    """One path: what is to be there, and what is there now. Deletions come before anything of the same path."""

    action: Action
    path: bytes
    old: trees.File | None
    new: trees.File | None


class Stage:
    """The staging directory, open as `staging`, of changes to the directory that is open as `top`.

    What the n-th step brings is made under the name n.
    """

    def __init__(self, top: int, staging: int, originals: Mapping[bytes, Original], deleted: Set[bytes]) -> None:
        self._top = top
        self._found = os.fstat(top)
        self._staging = staging
        self._originals = originals
        self._deleted = deleted
        self._xattrs = _takes_xattrs(staging)
        self._copier = Copier(staging, owner=(self._found.st_uid, self._found.st_gid))

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self._copier.close()

    def make_all(self, store: Store, steps: Sequence[Step]) -> None:
        """Raises ApplyFailed, StoreDamaged."""
        self._copier.enter(b"")
        for number, step in enumerate(steps):
            if step.new is None or step.action not in ("mkdir", "write"):
                continue
            try:
                if step.action == "mkdir":
                    self._make_directory(b"%d" % number, step.new)
                else:
                    self._make_file(store, b"%d" % number, step, step.new)
                original = self._originals.get(step.path)
                if original:
                    give_back(self._staging, b"%d" % number, original, with_mode=step.new.meta.kind not in "dl")
            except OSError as error:
                raise failed(step.path, error) from error

    def _make_directory(self, name: bytes, new: trees.File) -> None:
        """With its mode already, as far as we can still fill it: a crash before the end must not leave it closed."""
        os.mkdir(name, 0o700, dir_fd=self._staging)
        os.chmod(name, new.meta.mode & 0o777 | 0o700, dir_fd=self._staging)
        if os.geteuid() == 0:
            os.chown(name, self._found.st_uid, self._found.st_gid, dir_fd=self._staging)

    def _make_file(self, store: Store, name: bytes, step: Step, file: trees.File) -> None:
        meta, owner, copier = file.meta, self._owner(step), self._copier
        mode = meta.mode & 0o777  # a setuid bit that a container set means nothing good on the host
        if meta.kind == "l":
            target = b"".join(trees.read_chunks(store, file, step.path))
            copier.link(name, target, meta.mtime_ns, owner)
        elif meta.kind == "p":
            copier.fifo(name, mode, meta.mtime_ns, owner)
        else:
            fd = copier.begin(name, 0o600)
            try:
                position = 0
                for chunk in trees.read_chunks(store, file, step.path):
                    if meta.kind == "f" or chunk.count(0) != len(chunk):  # else a hole
                        write_all(fd, chunk, position)
                    position += len(chunk)
                os.ftruncate(fd, position)
                os.fchmod(fd, mode)
                copier.end(fd, mode, meta.mtime_ns, meta.xattrs if self._xattrs else (), owner)
            finally:
                os.close(fd)

    def _owner(self, step: Step) -> tuple[int, int]:
        """The owner of the file that is replaced; else of the top directory. Never the container's ids."""
        if step.old is not None and step.path not in self._deleted:
            parent, name = os.path.split(step.path)
            directory = open_directory(self._top, parent.decode("utf-8", "surrogateescape"))
            try:
                look = os.stat(name, dir_fd=directory, follow_symlinks=False)
            finally:
                os.close(directory)
            return known_owner(look, self._found)
        return self._found.st_uid, self._found.st_gid


def _takes_xattrs(directory: int) -> bool:
    try:
        os.setxattr(directory, "user.ws", b"")
    except OSError:
        return False
    return True


def failed(path: bytes, error: OSError) -> ApplyFailed:
    where = trees.os_path(path, b"") or "the directory"
    return ApplyFailed(
        f"{where} cannot be written: {error.strerror}; what had been written was taken back",
        hint="see to it that you may write there, and that the disk is not full",
    )
