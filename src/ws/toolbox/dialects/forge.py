"""The one tool of Forge Agent's filesystem contract: `filesystem`, with an operation and its arguments.

It reads and writes files and does nothing else. An operation that is not in the table, such as one that
would run something or ask about the system, is refused with `OperationNotSupportedError`, on purpose.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ws.errors import OperationNotSupportedError
from ws.toolbox.catalog import MODES, OFFSET, Tool, directory_parameter, path_parameter
from ws.toolbox.dialects import NO_ENCODING, NO_SESSIONS, NO_UNDO, Dialect, DialectTool, Session
from ws.toolbox.parameters import Parameter, Parameters, check_arguments, usage
from ws.tools.context import ToolResult

Perform = Callable[[Session, dict[str, Any]], ToolResult]

_PATH = path_parameter("Path")
_CONTENT = Parameter("content", "string", "The text to write.")


def _read_file(session: Session, arguments: dict[str, Any]) -> ToolResult:
    """Bytes or whole lines; `offset` and `limit` count the same."""
    tool = "read_bytes" if arguments.pop("binary") else "read_text"
    return session.run(tool, **arguments)


def _list_directory(session: Session, arguments: dict[str, Any]) -> ToolResult:
    return session.run("list_dir", **arguments, depth=1, limit=10_000)


def _exists(session: Session, arguments: dict[str, Any]) -> ToolResult:
    try:
        info = session.run("file_info", path=arguments["path"])
    except (FileNotFoundError, NotADirectoryError):
        return ToolResult(message=f"{arguments['path']} does not exist", output="false", data={"exists": False})
    return ToolResult(
        message=f"{arguments['path']} exists", output="true", data={"exists": True, "type": info.data["type"]}
    )


def _get_info(session: Session, arguments: dict[str, Any]) -> ToolResult:
    return session.run("file_info", path=arguments["path"])


def _create_file(session: Session, arguments: dict[str, Any]) -> ToolResult:
    return session.run("write_file", **arguments, mode="create")


def _write_file(session: Session, arguments: dict[str, Any]) -> ToolResult:
    return session.run("write_file", **arguments)


def _append_file(session: Session, arguments: dict[str, Any]) -> ToolResult:
    return session.run("write_file", **arguments, mode="append")


def _create_directory(session: Session, arguments: dict[str, Any]) -> ToolResult:
    return session.run("mkdir", path=arguments["path"])


def _delete_file(session: Session, arguments: dict[str, Any]) -> ToolResult:
    return session.run("delete", path=arguments["path"])


def _delete_directory(session: Session, arguments: dict[str, Any]) -> ToolResult:
    return session.run("delete", **arguments)


OPERATIONS: dict[str, tuple[Perform, Parameters]] = {
    "read_file": (
        _read_file,
        (
            _PATH,
            Parameter("binary", "boolean", "Return the bytes, in base64.", False),
            Parameter("offset", "integer", "How many lines, or bytes, to skip.", 0, minimum=0),
            Parameter("limit", "integer", "How many lines, or bytes, to return.", None, minimum=1),
        ),
    ),
    "list_directory": (_list_directory, (directory_parameter(), OFFSET)),
    "exists": (_exists, (_PATH,)),
    "get_info": (_get_info, (_PATH,)),
    "create_file": (
        _create_file,
        (_PATH, Parameter("content", "string", "The text to write.", "")),
    ),
    "write_file": (
        _write_file,
        (_PATH, _CONTENT, Parameter("mode", "string", "Overwrite or append.", "overwrite", choices=MODES)),
    ),
    "append_file": (_append_file, (_PATH, _CONTENT)),
    "create_directory": (_create_directory, (_PATH,)),
    "delete_file": (_delete_file, (_PATH,)),
    "delete_directory": (
        _delete_directory,
        (_PATH, Parameter("recursive", "boolean", "Delete what it holds too.", False)),
    ),
}


def _filesystem(session: Session, arguments: dict[str, Any]) -> ToolResult:
    operation = arguments["operation"]
    if operation not in OPERATIONS:
        raise OperationNotSupportedError(
            f"filesystem has no operation {operation!r}",
            hint=f"it has {', '.join(OPERATIONS)}; to run something, use another tool",
        )
    perform, parameters = OPERATIONS[operation]
    return perform(session, check_arguments(f"filesystem.{operation}", parameters, arguments["arguments"]))


DIALECT = Dialect.of(
    "forge",
    DialectTool(
        Tool(
            "filesystem",
            "Work with files and directories, and with nothing else. Operations: "
            + "; ".join(usage(name, parameters).removeprefix("call ") for name, (_, parameters) in OPERATIONS.items())
            + ". Paths lie inside the workspace; `~` is the home directory, where that is allowed.",
            (
                Parameter("operation", "string", "Which operation."),
                Parameter("arguments", "object", "Its arguments.", {}),
                Parameter(
                    "tool",
                    "string",
                    "The tool's own name.",
                    "filesystem",
                    choices=("filesystem",),
                    advertised=False,
                ),
            ),
            "dangerous",
        ),
        _filesystem,
    ),
    instructions=(
        "Use `filesystem` for everything that is done to files: `operation` is one of "
        + ", ".join(f"`{name}`" for name in OPERATIONS)
        + ", `arguments` an object. It runs no command and asks nothing about the system."
    ),
    words=(
        *NO_ENCODING,
        *NO_SESSIONS,
        *NO_UNDO,
        (r"look into it with a command such as xxd", "read it with `binary` set to true"),
        (r"; use recursive to delete it", "; use `delete_directory` with `recursive` set to true to delete it"),
        (r"; use `mode` overwrite or append, or `str_replace` for a part", "; use `write_file` or `append_file`"),
    ),
)
