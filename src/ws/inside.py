"""Inside a workspace: what its file operations and tools find there, and the router that models call them through.

Light to import: `ws tool` comes through here, and has 60 ms.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ws.layout import Home, WorkspaceRecord
from ws.records import read_record

if TYPE_CHECKING:
    from types import TracebackType

    from ws.remote.channel import Channel
    from ws.remote.entering import Door
    from ws.toolbox.approval import Approval, ApprovalPolicy
    from ws.toolbox.policy import CommandPolicy
    from ws.toolbox.roots import FsMode
    from ws.toolbox.router import Router
    from ws.tools.context import Caps


class Held:
    """A lock's descriptor that may be let go of more than once: early when all goes well, at the latest at the end."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Inside:
    """A running shim and the workspace's shared lock, for a `with` block (`remote.entering.Inside`)."""

    __slots__ = ("_lock", "_record", "calls")

    def __init__(self, channel: Channel, record: WorkspaceRecord, lock: Held) -> None:
        self.calls = channel
        self._record = record
        self._lock = lock

    @property
    def env(self) -> dict[str, str]:
        return environment(self._record)

    def leave(self) -> None:
        self._lock.release()

    def __enter__(self) -> Inside:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()


def environment(record: WorkspaceRecord, given: Mapping[str, str] | None = None) -> dict[str, str]:
    """What a command finds: the image's variables, those of `create`, those of the call; the later wins."""
    return {**record.image_env, **record.options.env, **(given or {})}


def open_router(
    home: Home,
    workspace_id: str,
    door: Door,
    *,
    dialect: str = "standard",
    approval: Approval | ApprovalPolicy | None = None,
    commands: CommandPolicy | None = None,
    fs_mode: FsMode | None = None,
    allowed_paths: Sequence[str] = (),
    restricted_paths: Sequence[str] = (),
    caps: Caps | None = None,
) -> Router:
    """The tools of a workspace in a dialect, with the workspace's log and memory. Raises InvalidRequest."""
    from ws.remote.tooling import RemoteBackend
    from ws.toolbox.events import EventLog, Events
    from ws.toolbox.memory import FileMemory
    from ws.toolbox.roots import reachable_paths
    from ws.toolbox.router import Router
    from ws.toolbox.turns import Turns

    turns = Turns()
    return Router(
        RemoteBackend(
            door,
            allowed_paths=reachable_paths(fs_mode, allowed_paths),
            restricted_paths=restricted_paths,
            caps=caps,
            waiting=turns.outside,
        ),
        caps=caps,
        dialect=dialect,
        approval=approval,
        events=Events(EventLog(home.events(workspace_id))),
        commands=commands,
        snapshot=SnapshotId(home, workspace_id).find,
        memory=FileMemory(home.memory(workspace_id)),
        turns=turns,
    )


class SnapshotId:
    """The id of the snapshot that a workspace stands on, for its events.

    The record has the number. The reference of that number is read once: it never changes.
    """

    __slots__ = ("_found", "_home", "_workspace_id")

    def __init__(self, home: Home, workspace_id: str) -> None:
        self._home = home
        self._workspace_id = workspace_id
        self._found: tuple[int, str] | None = None

    def find(self) -> str | None:
        """Its id, as `ws log` shows it. None before the first snapshot, and while git does not have it yet: a restore
        leaves hashing the state before it to the next snapshot, and `ws undo` may come before that.
        """
        record = read_record(self._home, self._workspace_id)
        if record is None or not record.history.count:
            return None
        number, found = record.history.head, self._found
        if found is None or found[0] != number:
            from ws.store.reference_files import read_reference

            commit = read_reference(self._home.store, f"refs/workspaces/{self._workspace_id}/{number}")
            if commit is None:
                return None
            self._found = found = (number, commit[:12])
        return found[1]
