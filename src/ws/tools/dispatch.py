"""From the name of a standard tool to the function that does its work, in this process.

The same in the shim, inside the container, and for memory and host filesystems on the host. Parameters are
validated by then; modules are imported when a tool of theirs is first called.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from ws.errors import OperationNotSupportedError
from ws.tools.context import ToolContext, ToolResult

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ws.tools.shells import Commands

HOMES: dict[str, str] = {
    "read_file": "reading",
    "read_bytes": "raw",
    "read_text": "raw",
    "list_dir": "reading",
    "tree": "reading",
    "file_info": "reading",
    "glob": "searching",
    "grep": "searching",
    "str_replace": "editing",
    "insert": "editing",
    "write_file": "writing",
    "apply_patch": "patching",
    "move": "managing",
    "delete": "managing",
    "mkdir": "managing",
    "undo": "managing",
    "redo": "managing",
    "trash_list": "managing",
    "trash_restore": "managing",
    "trash_purge": "managing",
}
COMMANDS = frozenset({"shell", "exec_command", "write_stdin"})


def run_tool(
    context: ToolContext, tool: str, params: Mapping[str, Any], *, commands: Commands | None = None
) -> ToolResult:
    """Run a tool. Raises what it raises; OperationNotSupportedError where there are no commands to be run."""
    if tool in COMMANDS:
        if commands is None:
            raise OperationNotSupportedError(
                f"{tool}: no commands run here", hint="use the file tools; this filesystem has no machine"
            )
        command: Callable[..., ToolResult] = getattr(commands, tool)
        return command(**params)
    module = import_module(f"ws.tools.{HOMES[tool]}")
    function: Callable[..., ToolResult] = getattr(module, tool)
    result = function(context, **params)
    removed, unkept = context.backups.take_removed(), context.backups.take_unkept()
    if unkept:
        result = _with_unkept(result, [context.shown(place) for place in unkept])
    return _with_removed(result, removed) if removed else result


def _with_unkept(result: ToolResult, paths: list[str]) -> ToolResult:
    """Say that a change was made without a backup: a refusal would keep a large file from being edited at all."""
    from dataclasses import replace

    note = f"no backup of {', '.join(paths)} was kept, too large: undo cannot bring it back, a snapshot from before can"
    return replace(result, message=f"{result.message}; {note}", data={**result.data, "not_kept": paths})


def _with_removed(result: ToolResult, removed: int) -> ToolResult:
    """Say that backups went to make room; `undo` cannot bring them back."""
    from dataclasses import replace

    note = f"{removed} of the oldest backups were removed to make room"
    return replace(result, message=f"{result.message}; {note}", data={**result.data, "backups_removed": removed})
