"""The preferences of a dialect as a text for a system prompt: which tool to take instead of a shell command.

A dialect whose contract has such a text carries it itself (`Dialect.instructions`); for the others one is made from the
names of their tools.
"""

from __future__ import annotations

from typing import NamedTuple

from ws.toolbox.dialects import Dialect

_SHELLS = ("shell", "shell_exec", "bash")


class _Purpose(NamedTuple):
    action: str
    command: str
    tools: tuple[str, ...]
    """The tools that do it under any dialect, the best first."""


_PURPOSES = (
    _Purpose("read a file", "cat", ("read_file", "view_file", "file_read", "str_replace_based_edit_tool")),
    _Purpose("list a directory", "ls", ("list_dir", "list_directory", "file_list")),
    _Purpose("find files by name", "find", ("glob", "search_files")),
    _Purpose("search the content of files", "grep", ("grep", "grep_files")),
    _Purpose(
        "change part of a file",
        "sed",
        ("str_replace", "edit", "apply_patch_freeform", "str_replace_based_edit_tool"),
    ),
    _Purpose("move or rename", "mv", ("move", "move_file")),
    _Purpose("delete", "rm", ("delete", "delete_file", "file_delete")),
)


def instructions_for(dialect: Dialect) -> str:
    """What to put into the system prompt of a model that uses the dialect; lines of Markdown, names in backquotes."""
    if dialect.instructions:
        return dialect.instructions
    shell = next((name for name in _SHELLS if name in dialect.tools), None)
    lines = []
    for purpose in _PURPOSES:
        tool = next((name for name in purpose.tools if name in dialect.tools), None)
        if tool is not None and shell is not None:
            lines.append(f"- Prefer `{tool}` over `{purpose.command}` in `{shell}` to {purpose.action}.")
        elif tool is not None:
            lines.append(f"- Use `{tool}` to {purpose.action}.")
    if "undo" in dialect.tools:
        lines.append("- `undo` takes back the last change to a path, also a deletion.")
    return "\n".join(lines)
