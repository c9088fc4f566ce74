"""Workspaces that tests share: made once a session, emptied in between, for tests that need one and not a new one."""

from __future__ import annotations

import contextlib
import itertools
import os
import pathlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ws.fs.protocol import Filesystem, Limits
from ws.idmaps import container_ids
from ws.layout import EngineName
from ws.manager import Manager
from ws.subordinate_ids import FIRST
from ws.workspace import Workspace

EMPTY = "chmod -R u+rwX . 2>/dev/null; find . -mindepth 1 -delete"


class SharedWorkspaces:
    """Two of an engine, in turns: what a test compares lives in both at once."""

    def __init__(self, manager: Manager) -> None:
        self._made: list[Workspace] = []
        self._manager = manager
        self.home = manager.home.root
        self._turns = itertools.cycle((0, 1))

    def take(self) -> Workspace:
        """An empty one; the one before the last is used again."""
        number = next(self._turns)
        if number == len(self._made):
            self._made.append(self._manager.create())
        box = self._made[number]
        result = box.exec(["sh", "-c", EMPTY])
        assert result.exit_code == 0, result.stderr
        return box

    def make_filesystem(self, *, limits: Limits | None = None, read_only: bool = False) -> Filesystem:
        """A filesystem with the contract's limits, as the conformance suite asks for it."""
        return self.take().filesystem(limits=limits or Limits(), read_only=read_only)

    def close(self) -> None:
        for box in self._made:
            box.remove()


@contextlib.contextmanager
def shared_workspaces(home: str, engine: EngineName) -> Iterator[SharedWorkspaces]:
    with Manager(home=home, engine=engine) as manager:
        shared = SharedWorkspaces(manager)
        try:
            yield shared
        finally:
            shared.close()


def ids_inside(box: Workspace) -> tuple[int, int]:
    """The workspace's user as its own processes see it: docker maps no ids, and shows those of the host."""
    record = box.record()
    assert record.container is not None
    there = container_ids(record.container.pid, record.ids)
    if record.engine != "docker":
        return there.uid, there.gid
    assert there.host_uid - there.uid == there.host_gid - there.gid >= FIRST
    return there.host_uid, there.host_gid


def paths_inside(pid: int) -> Callable[[str], Path]:
    """Paths that read as the container has them, and lead there from outside."""

    class PathInside(pathlib.PosixPath):
        def __fspath__(self) -> str:
            return f"/proc/{pid}/root{self}"

        def symlink_to(self, target: Any, target_is_directory: bool = False) -> None:
            os.symlink(str(target), self)

    return PathInside
