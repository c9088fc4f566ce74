"""Workspaces at one moment, for lists: from the records alone, no engine is asked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from ws.layout import EngineName, Home, WorkspaceRecord, read_record

Status = Literal["running", "stopped", "removing"]


@dataclass(frozen=True, slots=True)
class WorkspaceInfo:
    """A workspace at one moment, for lists."""

    id: str
    name: str
    status: Status
    engine: EngineName
    image: str
    source: str | None
    base: str
    network: str
    memory_bytes: int
    cpus: float
    pids: int
    user: str
    created_at: float
    expires_at: float | None
    container: str | None
    warm: bool  # its container came from the pool
    forked_from: str | None  # the id of a workspace and the number of its snapshot, as ID/N

    @classmethod
    def of(cls, record: WorkspaceRecord) -> WorkspaceInfo:
        status: Status
        if record.state == "ready":
            status = "running" if record.container and record.container.alive() else "stopped"
        else:
            status = record.state
        return cls(
            id=record.id,
            name=record.name,
            status=status,
            engine=record.engine,
            image=record.options.image,
            source=record.source,
            base=record.base,
            network=record.options.network,
            memory_bytes=record.options.memory_bytes,
            cpus=record.options.cpus,
            pids=record.options.pids,
            user=f"{record.ids.uid}:{record.ids.gid}",
            created_at=record.created_at,
            expires_at=record.expires_at,
            container=record.container.id if record.container else None,
            warm=record.container is not None and record.container.warm,
            forked_from=record.forked_from,
        )


def list_workspaces(home: Home) -> list[WorkspaceInfo]:
    """Every workspace, oldest first."""
    found = []
    for workspace_id in os.listdir(home.at("workspaces")):
        record = read_record(home, workspace_id)
        if record is not None:
            found.append(WorkspaceInfo.of(record))
    return sorted(found, key=lambda info: (info.created_at, info.id))
