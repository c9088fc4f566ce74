"""Disposable, rewindable workspaces for coding agents.

    import ws
    with ws.create("./project") as box:
        box.exec(["make", "test"])

Names are loaded when they are first used: `ws exec` starts through this package and has no time for the rest.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as typing has it, without the 5 ms that importing typing takes
if TYPE_CHECKING:
    import os
    from typing import Any

    from ws import errors, fs, toolbox
    from ws.directories import HostFilesystem, RewindableDirectory
    from ws.errors import WorkspaceError
    from ws.fs.memory import MemoryFilesystem
    from ws.fs.protocol import Filesystem, GrepQuery, Limits
    from ws.history import Snapshot
    from ws.listing import WorkspaceInfo
    from ws.manager import Manager
    from ws.remote.results import ExecResult
    from ws.toolbox.approval import Approval
    from ws.toolbox.policy import CommandPolicy
    from ws.toolbox.router import Router
    from ws.tools.context import Caps, ToolContext
    from ws.workspace import Workspace

__all__ = [
    "Approval",
    "Caps",
    "CommandPolicy",
    "ExecResult",
    "Filesystem",
    "GrepQuery",
    "HostFilesystem",
    "Limits",
    "Manager",
    "MemoryFilesystem",
    "RewindableDirectory",
    "Router",
    "Snapshot",
    "ToolContext",
    "Workspace",
    "WorkspaceError",
    "WorkspaceInfo",
    "create",
    "errors",
    "fs",
    "open",
    "toolbox",
]

_HOMES = {
    "Approval": "ws.toolbox.approval",
    "Caps": "ws.tools.context",
    "CommandPolicy": "ws.toolbox.policy",
    "ExecResult": "ws.remote.results",
    "Filesystem": "ws.fs.protocol",
    "GrepQuery": "ws.fs.protocol",
    "HostFilesystem": "ws.directories",
    "Limits": "ws.fs.protocol",
    "Manager": "ws.manager",
    "MemoryFilesystem": "ws.fs.memory",
    "RewindableDirectory": "ws.directories",
    "Router": "ws.toolbox.router",
    "Snapshot": "ws.history",
    "ToolContext": "ws.tools.context",
    "Workspace": "ws.workspace",
    "WorkspaceError": "ws.errors",
    "WorkspaceInfo": "ws.listing",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in ("errors", "fs", "toolbox"):
        return import_module(f"ws.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'ws' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def create(source: str | os.PathLike[str] | None = None, **options: Any) -> Workspace:
    """A new workspace that is removed at the end of a `with` block; options as in `ws.spec.WorkspaceSpec`.

    The end of the block, or `close()`, also closes the connections to the engine. Raises as `Manager.create`.
    """
    from ws.manager import Manager

    manager = Manager()
    try:
        return manager.create(source, remove_on_exit=True, owned=True, **options)
    except BaseException:
        manager.close()
        raise


def open(name: str) -> Workspace:  # noqa: A001  the word of the interface
    """The workspace of that name; the end of a `with` block, or `close()`, closes the handle and leaves it alone."""
    from ws.manager import Manager

    manager = Manager()
    try:
        return manager.open(name, owned=True)
    except BaseException:
        manager.close()
        raise
