"""Workspaces as lists show them, from their records alone: no engine is asked.

Light to import: `ws ls` has no time for more.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from ws.layout import EngineName, Home, WorkspaceRecord
from ws.records import Damaged, read_records

Status = Literal["running", "stopped", "removing", "damaged"]


@dataclass(frozen=True, slots=True)
class WorkspaceInfo:
    """A workspace at one moment, for lists."""

    id: str
    name: str
    status: Status
    engine: EngineName | Literal["unknown"]
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
    skipped: tuple[str, ...]  # what of the source was left out, as PATH: REASON

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
            skipped=record.skipped,
        )

    @classmethod
    def of_damaged(cls, damaged: Damaged, *, created_at: float) -> WorkspaceInfo:
        return cls(
            id=damaged.id,
            name=damaged.name,
            status="damaged",
            engine="unknown",
            image="",
            source=None,
            base="",
            network="",
            memory_bytes=0,
            cpus=0.0,
            pids=0,
            user="",
            created_at=created_at,
            expires_at=None,
            container=None,
            warm=False,
            forked_from=None,
            skipped=(),
        )


def list_workspaces(home: Home) -> list[WorkspaceInfo]:
    """Every workspace, oldest first, those with a damaged record too."""
    records, damaged = read_records(home)
    found = [WorkspaceInfo.of(record) for record in records]
    for each in damaged:
        # The lock is made first, and never replaced.
        made = next(filter(os.path.exists, (home.lock(each.id), home.workspace(each.id))), home.root)
        found.append(WorkspaceInfo.of_damaged(each, created_at=os.stat(made).st_mtime))
    return sorted(found, key=lambda info: (info.created_at, info.id))
