"""Contexts for the tests of tools: the same tool must do the same on memory and on a host directory."""

from __future__ import annotations

from pathlib import Path

from ws.fs.host import HostFilesystem
from ws.fs.memory import MemoryFilesystem
from ws.fs.protocol import WORKSPACE_LIMITS, Filesystem
from ws.tools.context import ToolContext
from ws.tools.trash import Backups, Retention

BACKENDS = ["memory", "host"]


def make_context(backend: str, directory: Path, *, retention: Retention | None = None) -> ToolContext:
    filesystem: Filesystem
    store: Filesystem
    if backend == "memory":
        filesystem, store = MemoryFilesystem(limits=WORKSPACE_LIMITS), MemoryFilesystem(limits=WORKSPACE_LIMITS)
    else:
        for name in ("tree", "kept"):
            (directory / name).mkdir()
        filesystem = HostFilesystem(str(directory / "tree"), limits=WORKSPACE_LIMITS, durable=False)
        store = HostFilesystem(str(directory / "kept"), limits=WORKSPACE_LIMITS, durable=False)
    return ToolContext(filesystem, Backups(filesystem, store, retention=retention))
