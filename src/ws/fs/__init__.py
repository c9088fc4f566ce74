"""The Filesystem protocol and its backends in this process: memory, and a directory of the host."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ws.fs.host import HostFilesystem
    from ws.fs.memory import MemoryFilesystem
    from ws.fs.protocol import (
        FileEntry,
        FileStat,
        Filesystem,
        FilesystemSnapshot,
        GlobMatch,
        GrepMatch,
        GrepQuery,
        GrepReport,
        Limits,
        SnapshotableFilesystem,
    )

__all__ = [
    "FileEntry",
    "FileStat",
    "Filesystem",
    "FilesystemSnapshot",
    "GlobMatch",
    "GrepMatch",
    "GrepQuery",
    "GrepReport",
    "HostFilesystem",
    "Limits",
    "MemoryFilesystem",
    "SnapshotableFilesystem",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'ws.fs' has no attribute {name!r}")
    from importlib import import_module

    module = {"HostFilesystem": "host", "MemoryFilesystem": "memory"}.get(name, "protocol")
    return getattr(import_module(f"ws.fs.{module}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
