"""The two tools that Anthropic's models are trained on: an editor with commands, and a shell that stays.

Both generations of the editor's parameters are accepted: `insert` takes its text as `new_str` or
`insert_text`, and `undo_edit` is there although newer definitions left it out; `redo_edit` is ours.
"""

from __future__ import annotations

from typing import Any

from ws.errors import ToolValidationError
from ws.toolbox.catalog import Tool
from ws.toolbox.dialects import NO_ENCODING, NO_PAGES, NO_SESSIONS, Dialect, DialectTool, Session
from ws.toolbox.dialects.persistent_shell import PersistentShell
from ws.toolbox.parameters import Parameter
from ws.tools.context import ToolResult

EDITOR = "str_replace_based_edit_tool"
EDITOR_COMMANDS = ("view", "create", "str_replace", "insert", "undo_edit", "redo_edit")
_VIEW_LINES = 10_000


def _editor(session: Session, arguments: dict[str, Any]) -> ToolResult:
    path = arguments["path"]
    match arguments["command"]:
        case "view":
            return _view(session, path, arguments["view_range"])
        case "create":
            return session.run("write_file", path=path, content=_needed(arguments, "file_text"), mode="overwrite")
        case "str_replace":
            new = arguments["new_str"] or ""
            return session.run("str_replace", path=path, old_str=_needed(arguments, "old_str"), new_str=new)
        case "insert":
            text = arguments["insert_text"]
            if text is None:
                text = _needed(arguments, "new_str", said="insert_text")
            return session.run("insert", path=path, line=_needed(arguments, "insert_line"), text=text)
        case "undo_edit":
            return session.run("undo", path=path)
        case _:
            return session.run("redo", path=path)


def _view(session: Session, path: str, view_range: list[int] | None) -> ToolResult:
    info = session.run("file_info", path=path).data
    if info.get("target_type", info["type"]) == "directory":
        if view_range is not None:
            raise ToolValidationError(f"{EDITOR}: view_range: {path} is a directory", hint="leave view_range out")
        return session.run("list_dir", path=path, depth=2, limit=1000)
    return session.run("read_file", path=path, view_range=view_range, line_numbers=True, limit=_VIEW_LINES)


def _needed(arguments: dict[str, Any], name: str, *, said: str | None = None) -> Any:
    if arguments[name] is None:
        raise ToolValidationError(
            f"{EDITOR}: {said or name}: missing",
            hint=f"the command {arguments['command']} needs {said or name}",
        )
    return arguments[name]


def _bash(session: Session, arguments: dict[str, Any]) -> ToolResult:
    shell = PersistentShell(session)
    if arguments["restart"]:
        shell.stop()
        if not arguments["command"]:
            return ToolResult(message="the shell was restarted", output="the shell was restarted")
    if not arguments["command"]:
        raise ToolValidationError("bash: command: missing", hint="give a command, or set restart to true")
    session.check("shell", command=arguments["command"])
    return shell.run(arguments["command"])


DIALECT = Dialect.of(
    "anthropic",
    DialectTool(
        Tool(
            EDITOR,
            "View, create and edit files. `view` shows a file with line numbers, or a directory two "
            "levels deep; `create` writes a whole file; `str_replace` replaces a text that occurs exactly "
            "once; `insert` puts lines after line `insert_line` (0: at the beginning); `undo_edit` takes "
            "back the last change to the file, and each further call the change before that; `redo_edit` does "
            "again what was taken back.",
            (
                Parameter("command", "string", "What to do.", choices=EDITOR_COMMANDS),
                Parameter("path", "string", "Path of the file or directory."),
                Parameter("file_text", "string", "For create: the content of the file.", None),
                Parameter(
                    "view_range", "integers", "For view: first and last line, counted from 1; -1 as the "
                    "last is the end of the file.", None, length=2,
                ),
                Parameter("old_str", "string", "For str_replace: the text to replace.", None),
                Parameter("new_str", "string", "For str_replace: what to put in its place.", None),
                Parameter("insert_line", "integer", "For insert: after which line.", None, minimum=-1),
                Parameter("insert_text", "string", "For insert: the text to insert.", None),
            ),
            "dangerous",
            native="text_editor_20250728",
        ),
        _editor,
    ),
    DialectTool(
        Tool(
            "bash",
            "Run a command in a shell that keeps its directory, variables and background jobs between calls.",
            (
                Parameter("command", "string", "The command line.", None),
                Parameter("restart", "boolean", "Start the shell anew.", False),
            ),
            "dangerous",
            native="bash_20250124",
        ),
        _bash,
    ),
    words=(*NO_ENCODING, *NO_PAGES, *NO_SESSIONS, (r"`line`", "`insert_line`")),
)  # fmt: skip
