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
    allowed_paths: Sequence[str] = (),
    restricted_paths: Sequence[str] = (),
    caps: Caps | None = None,
) -> Router:
    """The tools of a workspace in a dialect, with the workspace's log and memory. Raises InvalidRequest."""
    from ws.remote.tooling import RemoteBackend
    from ws.toolbox.events import EventLog, Events
    from ws.toolbox.memory import FileMemory
    from ws.toolbox.router import Router
    from ws.toolbox.turns import Turns

    turns = Turns()
    return Router(
        RemoteBackend(
            door, allowed_paths=allowed_paths, restricted_paths=restricted_paths, caps=caps, waiting=turns.outside
        ),
        caps=caps,
        dialect=dialect,
        approval=approval,
        events=Events(EventLog(home.events(workspace_id))),
        commands=commands,
        snapshot=lambda: _newest_snapshot(home, workspace_id),
        memory=FileMemory(home.memory(workspace_id)),
        turns=turns,
    )


def _newest_snapshot(home: Home, workspace_id: str) -> str | None:
    """The number of the snapshot that the workspace stands on, as `ws log` counts them; None before the first."""
    record = read_record(home, workspace_id)
    return str(record.history.head) if record is not None and record.history.count else None
