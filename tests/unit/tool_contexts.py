"""Contexts for the tests of tools: the same tool must do the same on memory and on a host directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ws.fs.host import HostFilesystem
from ws.fs.memory import MemoryFilesystem
from ws.fs.protocol import WORKSPACE_LIMITS, Filesystem
from ws.tools.context import ToolContext
from ws.tools.trash import Backups, Retention

BACKENDS = ["memory", "host"]


def make_context(
    backend: str,
    directory: Path,
    *,
    retention: Retention | None = None,
    restricted_paths: Sequence[str] = (),
) -> ToolContext:
    """A context; on the host, one more over the same tree and the same backups when it is made again."""
    filesystem: Filesystem
    store: Filesystem
    if backend == "memory":
        filesystem = MemoryFilesystem(limits=WORKSPACE_LIMITS, restricted_paths=restricted_paths)
        store = MemoryFilesystem(limits=WORKSPACE_LIMITS)
    else:
        for name in ("tree", "kept"):
            (directory / name).mkdir(exist_ok=True)
        filesystem = HostFilesystem(
            str(directory / "tree"), limits=WORKSPACE_LIMITS, durable=False, restricted_paths=restricted_paths
        )
        store = HostFilesystem(str(directory / "kept"), limits=WORKSPACE_LIMITS, durable=False)
    return ToolContext(filesystem, Backups(filesystem, store, retention=retention))
