"""What models see: catalogue, dialects, approval, events, router.

The names below are the public ones. They are loaded when they are first used: `ws tool` imports modules of this package
on its way and has no time for the rest.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ws.toolbox.approval import ALLOW, ALLOW_SESSION, Approval, ApprovalRequest, Decision, deny
    from ws.toolbox.dialects import DIALECTS
    from ws.toolbox.events import Event, EventLog, Events
    from ws.toolbox.lincona import FsBoundary, PtyManager, approval_guard
    from ws.toolbox.local import LocalBackend, open_local
    from ws.toolbox.policy import CommandPolicy
    from ws.toolbox.roots import FsMode, find_root
    from ws.toolbox.router import Backend, Router
    from ws.tools.context import Caps, Summary, ToolContext, ToolResult

__all__ = [
    "ALLOW",
    "ALLOW_SESSION",
    "DIALECTS",
    "Approval",
    "ApprovalRequest",
    "Backend",
    "Caps",
    "CommandPolicy",
    "Decision",
    "Event",
    "EventLog",
    "Events",
    "FsBoundary",
    "FsMode",
    "LocalBackend",
    "PtyManager",
    "Router",
    "Summary",
    "ToolContext",
    "ToolResult",
    "approval_guard",
    "deny",
    "find_root",
    "open_local",
]

_MODULES = {
    "ws.toolbox.approval": ("ALLOW", "ALLOW_SESSION", "Approval", "ApprovalRequest", "Decision", "deny"),
    "ws.toolbox.dialects": ("DIALECTS",),
    "ws.toolbox.events": ("Event", "EventLog", "Events"),
    "ws.toolbox.lincona": ("FsBoundary", "PtyManager", "approval_guard"),
    "ws.toolbox.local": ("LocalBackend", "open_local"),
    "ws.toolbox.policy": ("CommandPolicy",),
    "ws.toolbox.roots": ("FsMode", "find_root"),
    "ws.toolbox.router": ("Backend", "Router"),
    "ws.tools.context": ("Caps", "Summary", "ToolContext", "ToolResult"),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'ws.toolbox' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
