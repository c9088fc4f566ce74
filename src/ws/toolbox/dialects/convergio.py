"""The tools of Convergio's advanced filesystem tools (ADR-014): four file tools with backups and a trash
behind them, and the four older ones beside which they stand. The document's future enhancements are here too: undo and
redo, the trash, and dry runs.
"""

from __future__ import annotations

from typing import Any

from ws.toolbox.catalog import DRY_RUN, GREP_MODES, TOOLS, WOULD, Tool, directory_parameter, path_parameter
from ws.toolbox.dialects import (
    NO_ENCODING,
    NO_PAGES,
    NO_RECURSION,
    NO_SESSIONS,
    Dialect,
    DialectTool,
    Session,
    as_is,
)
from ws.toolbox.parameters import Parameter
from ws.tools.context import ToolResult


def _file_read(session: Session, arguments: dict[str, Any]) -> ToolResult:
    return session.run("read_file", path=arguments["path"], view_range=[arguments["start_line"], arguments["end_line"]])


def _file_write(session: Session, arguments: dict[str, Any]) -> ToolResult:
    return session.run("write_file", **arguments)


def _file_list(session: Session, arguments: dict[str, Any]) -> ToolResult:
    depth = 256 if arguments["recursive"] else 1
    return session.run("list_dir", path=arguments["path"], depth=depth)


def _shell_exec(session: Session, arguments: dict[str, Any]) -> ToolResult:
    return session.run(
        "shell",
        command=arguments["command"],
        workdir=arguments["working_dir"],
        timeout_ms=arguments["timeout"] * 1000,
    )


def _glob(session: Session, arguments: dict[str, Any]) -> ToolResult:
    return session.run("glob", **arguments)


def _edit(session: Session, arguments: dict[str, Any]) -> ToolResult:
    return session.run(
        "str_replace",
        path=arguments["path"],
        old_str=arguments["old_string"],
        new_str=arguments["new_string"],
        dry_run=arguments["dry_run"],
    )


def _file_delete(session: Session, arguments: dict[str, Any]) -> ToolResult:
    return session.run("delete", **arguments)


INSTRUCTIONS = """\
- Prefer `glob` over shell `find`.
- Prefer `grep` over shell `grep`.
- Prefer `edit` over `file_write` for modifications.
- Prefer `file_delete` over shell `rm`.
- `undo` takes back the last change to a path, also a deletion; `redo` does it again.
- `trash_list` shows what was deleted, `trash_restore` brings it back.
- With `dry_run`, `edit`, `file_write`, `file_delete`, `undo` and `redo` say what they would do and change nothing."""
"""The document's additions to the system prompt, and a line on each thing that it lists as future."""

DIALECT = Dialect.of(
    "convergio",
    DialectTool(
        Tool(
            "file_read",
            "Read a text file, or some lines of it.",
            (
                path_parameter("File to read"),
                Parameter("start_line", "integer", "First line, counted from 1.", 1, minimum=1),
                Parameter("end_line", "integer", "Last line; -1 is the end of the file.", -1, minimum=-1),
            ),
            "safe",
        ),
        _file_read,
    ),
    DialectTool(
        Tool(
            "file_write",
            "Write a whole file. To change part of one, use edit.",
            (
                path_parameter("File to write"),
                Parameter("content", "string", "The text to write."),
                Parameter(
                    "mode",
                    "string",
                    "What to do with a file that exists.",
                    "overwrite",
                    choices=("create", "overwrite", "append"),
                ),
                DRY_RUN,
            ),
            "dangerous",
        ),
        _file_write,
    ),
    DialectTool(
        Tool(
            "file_list",
            "List a directory.",
            (
                directory_parameter("Directory to list"),
                Parameter("recursive", "boolean", "Go down into its directories.", False),
            ),
            "safe",
        ),
        _file_list,
    ),
    DialectTool(
        Tool(
            "shell_exec",
            "Run a command in a shell. Prefer glob, grep, edit and file_delete for what they do.",
            (
                Parameter("command", "string", "The command line."),
                Parameter("working_dir", "string", "Directory to run in (default: workspace).", None),
                Parameter("timeout", "integer", "Seconds after which it is ended.", 60, minimum=1, maximum=86_400),
            ),
            "dangerous",
        ),
        _shell_exec,
    ),
    DialectTool(
        Tool(
            "glob",
            "Find files matching a glob pattern (e.g. **/*.c), newest first. Prefer it over shell find.",
            (
                Parameter("pattern", "string", "Glob pattern with ** for recursive."),
                Parameter("path", "string", "Starting directory (default: workspace).", "."),
                Parameter("max_results", "integer", "Max files to return.", 100, minimum=1),
            ),
            "safe",
        ),
        _glob,
    ),
    as_is(
        Tool(
            "grep",
            "Search file contents with a regular expression. Prefer it over shell grep.",
            (
                Parameter("pattern", "string", "Regular expression to search for."),
                Parameter("path", "string", "File or directory to search.", "."),
                Parameter("glob", "string", "Optional glob filter (e.g. *.c).", None),
                Parameter("context_before", "integer", "Lines before match.", 0, minimum=0, maximum=1000),
                Parameter("context_after", "integer", "Lines after match.", 0, minimum=0, maximum=1000),
                Parameter("ignore_case", "boolean", "Case insensitive.", False),
                Parameter("output_mode", "string", "What to return.", "content", choices=GREP_MODES),
                Parameter("max_matches", "integer", "Max results.", 50, minimum=1),
            ),
            TOOLS["grep"].tier,
        )
    ),
    DialectTool(
        Tool(
            "edit",
            "Edit a file by replacing an exact string, which must be unique. A backup is kept. Prefer it "
            "over file_write for changes.",
            (
                path_parameter("File to edit"),
                Parameter("old_string", "string", "Exact string to find (must be unique)."),
                Parameter("new_string", "string", "Replacement string."),
                DRY_RUN,
            ),
            "cautious",
        ),
        _edit,
    ),
    DialectTool(
        Tool(
            "file_delete",
            "Safely delete a file: it goes to the trash, and undo or trash_restore bring it back. Prefer it over "
            "shell rm.",
            (
                path_parameter("File to delete"),
                Parameter("permanent", "boolean", "Skip the trash. NOT RECOMMENDED.", False),
                WOULD,
            ),
            "dangerous",
        ),
        _file_delete,
    ),
    *(as_is(TOOLS[name]) for name in ("undo", "redo", "trash_list", "trash_restore")),
    instructions=INSTRUCTIONS,
    words=(
        *NO_ENCODING,
        *NO_PAGES,
        *NO_RECURSION,
        *NO_SESSIONS,
        (r"`view_range` is \[(-?\d+), (-?\d+)\]", r"`start_line` is \1 and `end_line` \2"),
        (r"`old_str`", "`old_string`"),
        (r"`new_str`", "`new_string`"),
        (r"`str_replace`", "`edit`"),
        (r"^shell: ", "shell_exec: "),
    ),
)
