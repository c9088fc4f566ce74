"""The standard set: every tool by name, with what a model must know to call it.

A tool here is a description; what it does lies in `ws.tools` and runs where the files are. Dialects give the
same tools other names and parameters (`dialects`), `specs` writes them down for OpenAI, Anthropic and MCP,
the router calls them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ws.toolbox.parameters import Parameter, Parameters, json_schema, pydantic_model

if TYPE_CHECKING:
    from pydantic import BaseModel

Tier = Literal["safe", "cautious", "dangerous"]


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool as models see it.

    `freeform` names the parameter that is the whole input where a model may send plain text instead of JSON;
    `native` is the type under which Anthropic's models know the tool without being told.
    """

    name: str
    description: str
    parameters: Parameters
    tier: Tier
    freeform: str = ""
    native: str = ""

    @property
    def model(self) -> type[BaseModel]:
        """Its parameters as a pydantic model."""
        return pydantic_model(self.name, self.parameters)

    @property
    def schema(self) -> dict[str, Any]:
        """Its parameters as JSON Schema."""
        return json_schema(self.parameters)

    @property
    def previews(self) -> bool:
        """Whether it can tell what it would do without doing it."""
        return any(parameter.name == "dry_run" for parameter in self.parameters)

    @property
    def runs_commands(self) -> bool:
        return self.name in COMMANDS


COMMANDS = {"shell": "command", "exec_command": "cmd", "write_stdin": "chars"}
"""The tools that run what the model says, and the parameter that says it."""

PATCH_GRAMMAR = r"""start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line*
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
"""The envelope as a Lark grammar, for models that take freeform tools."""


def path_parameter(what: str = "Path of the file") -> Parameter:
    return Parameter("path", "string", f"{what}, relative to the workspace or absolute inside it.")


def directory_parameter(what: str = "Directory to look in") -> Parameter:
    return Parameter("path", "string", f"{what}; the workspace's root by default.", ".")


DRY_RUN = Parameter("dry_run", "boolean", "Show the diff and change nothing.", False)
ENCODING = Parameter(
    "encoding", "string", "Encoding of a file that is neither UTF-8 nor marked, such as cp1251 or shift_jis.", None
)
WOULD = Parameter("dry_run", "boolean", "Say what would be done and do nothing.", False)
WORKDIR = Parameter("workdir", "string", "Directory to run in; the workspace's root by default.", None)
EXCLUDE = Parameter("exclude", "strings", "Globs; what has a basename that matches one is left out.", ())
YIELD_TIME = Parameter(
    "yield_time_ms", "integer", "How long to wait for output before returning, in milliseconds.", 250,
    minimum=0, maximum=600_000,
)  # fmt: skip
MAX_TOKENS = Parameter(
    "max_output_tokens", "integer", "How much output to return, in tokens of about four bytes.", 8000,
    minimum=1, maximum=100_000,
)  # fmt: skip
TIMEOUT = Parameter(
    "timeout_ms", "integer", "The command is ended after so many milliseconds.", 60_000, minimum=1,
    maximum=86_400_000,
)  # fmt: skip
OFFSET = Parameter("offset", "integer", "How many to skip from the beginning.", 0, minimum=0)
MODES = ("create", "overwrite", "append")
GREP_MODES = ("content", "files_with_matches", "count")

STANDARD: tuple[Tool, ...] = (
    Tool(
        "read_file",
        "Read a text file. Returns at most `limit` lines from line `offset` + 1 on, and says when more is "
        "left. Lines over 400 characters are cut. Binary files are refused.",
        (
            path_parameter(),
            Parameter("offset", "integer", "How many lines to skip.", 0, minimum=0),
            Parameter("limit", "integer", "How many lines to return.", 400, minimum=1),
            Parameter(
                "mode", "string", "`slice`: the lines as they are; `indentation`: each set in by four "
                "spaces.", "slice", choices=("slice", "indentation"),
            ),
            Parameter(
                "view_range", "integers", "First and last line, counted from 1; -1 as the last is the end of "
                "the file. Takes the place of offset and limit.", None, length=2,
            ),
            Parameter("line_numbers", "boolean", "Put its number in front of every line.", False),
            ENCODING,
        ),
        "safe",
    ),
    Tool(
        "list_dir",
        "List a directory, breadth first and sorted, one entry a line: `/` marks a directory, `*` an "
        "executable file, `@` a symbolic link.",
        (
            directory_parameter("Directory to list"),
            Parameter("depth", "integer", "How many levels to go down.", 2, minimum=1, maximum=256),
            OFFSET,
            Parameter("limit", "integer", "How many entries to return.", 200, minimum=1),
        ),
        "safe",
    ),
    Tool(
        "tree",
        "Show a directory with everything below it, nested: name, type, size, children.",
        (
            directory_parameter("Directory to begin at"),
            Parameter("depth", "integer", "How many levels to go down; all by default.", None, minimum=1),
            EXCLUDE,
        ),
        "safe",
    ),
    Tool(
        "file_info",
        "Tell what is known of a path: type, size, times, permissions, whether it can be read and written, "
        "and where a symbolic link leads.",
        (path_parameter("Path of a file or directory"),),
        "safe",
    ),
    Tool(
        "glob",
        "Find files by name, newest first. `*` and `?` stay within one segment of the path, `**` crosses "
        "them; every other character stands for itself.",
        (
            Parameter("pattern", "string", "Such as `**/*.py`."),
            directory_parameter("Directory to begin at"),
            Parameter("max_results", "integer", "How many paths to return.", 100, minimum=1),
            EXCLUDE,
        ),
        "safe",
    ),
    Tool(
        "grep",
        "Search the contents of files with a regular expression (ripgrep). Returns `file:line:text`, or the "
        "files alone, or counts.",
        (
            Parameter("pattern", "string", "Regular expression."),
            directory_parameter("File or directory to search"),
            Parameter("glob", "string", "Search only files whose name matches, such as `*.py`.", None),
            Parameter("context_before", "integer", "Lines before a match.", 0, minimum=0, maximum=1000),
            Parameter("context_after", "integer", "Lines after a match.", 0, minimum=0, maximum=1000),
            Parameter("ignore_case", "boolean", "Take capital and small letters for the same.", False),
            Parameter("output_mode", "string", "What to return.", "content", choices=GREP_MODES),
            Parameter("max_matches", "integer", "How many matches to return.", 50, minimum=1),
        ),
        "safe",
    ),
    Tool(
        "str_replace",
        "Replace a piece of text that occurs exactly once in a file. The text must match to the "
        "character, with its indentation; give more of the surrounding lines when it occurs several times.",
        (
            path_parameter(),
            Parameter("old_str", "string", "The text to replace, exactly as it stands in the file."),
            Parameter("new_str", "string", "What to put in its place; empty removes it."),
            ENCODING,
            DRY_RUN,
        ),
        "cautious",
    ),
    Tool(
        "insert",
        "Insert whole lines into a file.",
        (
            path_parameter(),
            Parameter(
                "line", "integer", "0 inserts at the beginning, N after line N, -1 at the end.", minimum=-1
            ),
            Parameter("text", "string", "The lines to insert."),
            ENCODING,
            DRY_RUN,
        ),
        "cautious",
    ),
    Tool(
        "write_file",
        "Write a whole file. `create` refuses a file that exists, `overwrite` replaces it, `append` adds "
        "to its end. To change part of a file use str_replace or apply_patch.",
        (
            path_parameter(),
            Parameter("content", "string", "The text to write."),
            Parameter("mode", "string", "What to do with a file that exists.", "create", choices=MODES),
            Parameter("create_parents", "boolean", "Make the directories that are missing.", True),
            ENCODING,
            DRY_RUN,
        ),
        "dangerous",
    ),
    Tool(
        "apply_patch",
        "Change several files at once, all or none. The patch is a unified diff, which must fit exactly, "
        "or an envelope: `*** Begin Patch`, then for each file `*** Add File: PATH` with `+` lines, `*** "
        "Delete File: PATH`, or `*** Update File: PATH` (and `*** Move to: PATH` to rename it) with "
        "chunks that `@@` opens, of lines beginning with a space, `-` or `+`; then `*** End Patch`.",
        (Parameter("patch", "string", "The patch."), ENCODING, DRY_RUN),
        "dangerous",
        freeform="patch",
    ),
    Tool(
        "move",
        "Move or rename a file or a directory.",
        (
            Parameter("source", "string", "Path to move."),
            Parameter("destination", "string", "Its new path."),
            Parameter("overwrite", "boolean", "Replace what is there.", False),
            WOULD,
        ),
        "dangerous",
    ),
    Tool(
        "delete",
        "Delete a file or a directory. It goes to the trash, from where undo or trash_restore bring it "
        "back. Of a symbolic link only the link is deleted.",
        (
            path_parameter("Path to delete"),
            Parameter("recursive", "boolean", "Needed for a directory that is not empty.", False),
            Parameter("permanent", "boolean", "Do not keep it in the trash. Not recommended.", False),
            WOULD,
        ),
        "dangerous",
    ),
    Tool(
        "mkdir",
        "Make a directory.",
        (
            path_parameter("Path of the directory"),
            Parameter("parents", "boolean", "Make the directories above it that are missing.", True),
            Parameter("exist_ok", "boolean", "Do not mind when it exists.", True),
        ),
        "dangerous",
    ),
    Tool(
        "undo",
        "Bring back what a path was before the last change that a tool made to it. Each call goes back one "
        "change further; redo goes forward again.",
        (path_parameter("Path of the file"), WOULD),
        "dangerous",
    ),
    Tool(
        "redo",
        "Do again the change to a path that the last undo took back. Another change to the path ends that.",
        (path_parameter("Path of the file"), WOULD),
        "dangerous",
    ),
    Tool(
        "trash_list",
        "List what was deleted and can be restored, newest first.",
        (
            Parameter("path", "string", "Only what was deleted at this path or below it.", None),
            Parameter("limit", "integer", "How many entries to return.", 50, minimum=1),
        ),
        "safe",
    ),
    Tool(
        "trash_restore",
        "Bring something back from the trash.",
        (
            Parameter("name", "string", "Name of the entry, as trash_list has it."),
            Parameter("destination", "string", "Where to; where it was by default.", None),
            Parameter("overwrite", "boolean", "Replace what is there.", False),
        ),
        "dangerous",
    ),
    Tool(
        "trash_purge",
        "Remove entries from the trash for good.",
        (
            Parameter("name", "string", "Name of the entry; all that are old enough by default.", None),
            Parameter(
                "older_than_days", "integer", "Only what was deleted so long ago.", None, minimum=0, maximum=36_500
            ),
        ),
        "dangerous",
    ),
    Tool(
        "shell",
        "Run a command in a shell and wait for it. Returns its exit status, stdout and stderr, each capped.",
        (Parameter("command", "string", "The command line."), WORKDIR, TIMEOUT),
        "dangerous",
    ),
    Tool(
        "exec_command",
        "Start a command in a terminal. Returns what it wrote within the yield time and, while it still "
        "runs, a session id for write_stdin.",
        (Parameter("cmd", "string", "The command line."), WORKDIR, YIELD_TIME, MAX_TOKENS),
        "dangerous",
    ),
    Tool(
        "write_stdin",
        "Write to a running session and return what it wrote since. Empty chars only look.",
        (
            Parameter("session_id", "integer", "As exec_command returned it.", minimum=0),
            Parameter("chars", "string", "What to type; \\u0003 is Ctrl-C, \\u0004 the end of input.", ""),
            YIELD_TIME,
            MAX_TOKENS,
        ),
        "dangerous",
    ),
)  # fmt: skip

INTERNAL: tuple[Tool, ...] = (
    Tool(
        "read_text",
        "Read a text file with its lines whole, so many of them as a result may hold.",
        (
            path_parameter(),
            OFFSET,
            Parameter("limit", "integer", "How many lines to return.", None, minimum=1),
        ),
        "safe",
    ),
    Tool(
        "read_bytes",
        "Read a file as it is, in base64.",
        (
            path_parameter(),
            OFFSET,
            Parameter("limit", "integer", "How many bytes to return.", None, minimum=0),
        ),
        "safe",
    ),
)
"""What some dialect needs and none advertises."""

TOOLS: dict[str, Tool] = {tool.name: tool for tool in (*STANDARD, *INTERNAL)}
