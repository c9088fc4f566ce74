"""The tools of Agent-Q's file system vocabulary, which answer in its own notation: Lisp property lists.

`(:name "agent.lisp" :type :file :size 1234)` in the output, the same fields in `data`. Arguments may be
written as keywords too: `:old_str` is `old_str`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

from ws.errors import ToolValidationError
from ws.toolbox.catalog import (
    DRY_RUN,
    ENCODING,
    EXCLUDE,
    TOOLS,
    Tool,
    directory_parameter,
    path_parameter,
)
from ws.toolbox.dialects import (
    NO_COMMANDS,
    NO_PAGES,
    NO_RECURSION,
    NO_SESSIONS,
    NO_UNDO,
    Dialect,
    DialectTool,
    Session,
)
from ws.toolbox.parameters import MAX_INTEGER, Parameter, Parameters
from ws.tools.context import ToolResult, cap_lines

_KEYWORDS = frozenset({"file", "directory", "symlink", "other"})


def plist(value: Any) -> str:
    """A value as Lisp reads it: property lists, lists, strings, numbers, t and nil."""
    if isinstance(value, Mapping):
        return "(" + " ".join(f":{key} {_field(key, one)}" for key, one in value.items()) + ")"
    if isinstance(value, list | tuple):
        return "(" + " ".join(plist(one) for one in value) + ")"
    if isinstance(value, bool) or value is None:
        return "t" if value else "nil"
    if value is ...:
        return "..."
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


def _field(key: str, value: Any) -> str:
    return f":{value}" if key == "type" and value in _KEYWORDS else plist(value)


def _answer(result: ToolResult, value: Mapping[str, Any], *, key: str) -> ToolResult:
    """A result said in a property list."""
    return dataclasses.replace(result, output=plist(value), data={key: value})


def _entry(entry: Mapping[str, Any]) -> dict[str, Any]:
    fields = {"name": entry["name"], "type": entry["type"]}
    if "size_bytes" in entry:
        fields["size"] = entry["size_bytes"]
    if "modified" in entry:
        fields["modified"] = entry["modified"]
    if "children" in entry:
        fields["children"] = [_entry(child) for child in entry["children"]]
    return fields


def _list_directory(session: Session, arguments: dict[str, Any]) -> ToolResult:
    result = session.run("list_dir", path=arguments["path"], depth=1, limit=10_000)
    entries = [_entry(entry) for entry in result.data["entries"]]
    output, shown = cap_lines([plist(entry) for entry in entries], session.caps)
    left = shown < len(entries) or bool(result.data.get("more"))
    message = f"{shown} entries; more is left, look for it with `search_files`" if left else result.message
    return ToolResult(message=message, truncated=left, output=output, data={"entries": entries})


def _directory_tree(session: Session, arguments: dict[str, Any]) -> ToolResult:
    result = session.run("tree", **arguments)
    tree = _entry(result.data)
    fitted, cut = _fitted(tree, session.caps.max_output_bytes)
    message = result.message.partition(";")[0] + ("; more is left, ask for less depth or a part" if cut else "")
    return ToolResult(message=message, truncated=cut, output=plist(fitted), data={"tree": tree})


def _fitted(tree: dict[str, Any], room: int) -> tuple[dict[str, Any], bool]:
    """As much of a tree as there is room for, level by level, and whether some is left out; `...` stands for that."""
    top = {**tree, "children": []}
    pending = [(tree, top)]
    for whole, kept in pending:  # which grows meanwhile
        for child in whole["children"]:
            node = {**child, "children": []} if "children" in child else child
            room -= len(plist(node).encode("utf-8", "surrogateescape")) + 1
            if room < 0:
                kept["children"].append(...)
                break
            kept["children"].append(node)
            if "children" in child:
                pending.append((child, node))
    return top, room < 0


def _get_file_info(session: Session, arguments: dict[str, Any]) -> ToolResult:
    result = session.run("file_info", path=arguments["path"])
    told = result.data
    info = {
        "path": os.path.normpath(os.path.join(session.root, told["path"])),
        "type": told["type"],
        "size": told["size_bytes"],
        **{key: told[key] for key in ("created", "modified", "accessed", "permissions", "readable", "writable")},
    }
    if "target" in told:  # `target` is the canonical path, nil where the link leads out; `link` is what it holds
        leads_to = told["target_path"]
        info["target"] = None if leads_to is None else os.path.normpath(os.path.join(session.root, leads_to))
        info["link"] = told["target"]
    return _answer(result, info, key="info")


def _search_files(session: Session, arguments: dict[str, Any]) -> ToolResult:
    return session.run("glob", **arguments)


def _view_file(session: Session, arguments: dict[str, Any]) -> ToolResult:
    lines = _view_range(arguments["view_range"])
    return session.run("read_file", path=arguments["path"], view_range=lines, encoding=arguments["encoding"])


def _view_range(given: dict[str, Any] | None) -> list[int]:
    """`(:start 10 :end 50)` as first and last line; without an end, to the end of the file."""
    fields = {name.removeprefix(":"): value for name, value in (given or {}).items()}
    start, end = fields.pop("start", 1), fields.pop("end", -1)
    if fields or not all(isinstance(number, int) and abs(number) <= MAX_INTEGER for number in (start, end)):
        raise ToolValidationError(
            f"view_file: view_range: got {given!r}, takes start and end, both integers",
            hint='write it like {"start": 10, "end": 50}; an end of -1 is the end of the file',
        )
    return [start, end]


def _rename(tool: str, **fixed: Any) -> Callable[[Session, dict[str, Any]], ToolResult]:
    def perform(session: Session, arguments: dict[str, Any]) -> ToolResult:
        return session.run(tool, **arguments, **fixed)

    return perform


def _tool(
    name: str,
    standard: str,
    parameters: Parameters,
    perform: Callable[[Session, dict[str, Any]], ToolResult],
    description: str = "",
) -> DialectTool:
    """A tool with the tier of the standard one behind it; every parameter may be written as a keyword."""
    keyworded = tuple(
        dataclasses.replace(one, aliases=(*one.aliases, *(f":{n}" for n in (one.name, *one.aliases))))
        for one in parameters
    )
    behind = TOOLS[standard]
    return DialectTool(Tool(name, description or behind.description, keyworded, behind.tier), perform)


DIALECT = Dialect.of(
    "agent-q",
    _tool(
        "list_directory",
        "list_dir",
        (directory_parameter("Directory to list"),),
        _list_directory,
        "List the entries of a directory: name, type, size in bytes, time of modification.",
    ),
    _tool(
        "directory_tree",
        "tree",
        (
            directory_parameter("Directory to begin at"),
            EXCLUDE,
            Parameter("depth", "integer", "How many levels to go down; all by default.", None, minimum=1),
        ),
        _directory_tree,
    ),
    _tool("get_file_info", "file_info", (path_parameter("File or directory"),), _get_file_info),
    _tool(
        "search_files",
        "glob",
        (
            Parameter("pattern", "string", "Such as `**/*.lisp`."),
            directory_parameter("Directory to begin at"),
            EXCLUDE,
            Parameter("max_results", "integer", "How many paths to return.", 100, minimum=1),
        ),
        _search_files,
    ),
    _tool(
        "view_file",
        "read_file",
        (
            path_parameter(),
            Parameter(
                "view_range", "object", "Lines to show: `start` counted from 1, `end` inclusive; -1 or no "
                "end is the end of the file.", None,
            ),
            ENCODING,
        ),
        _view_file,
        "Show a text file, or a range of its lines.",
    ),
    _tool("str_replace", "str_replace", TOOLS["str_replace"].parameters, _rename("str_replace")),
    _tool(
        "insert_text",
        "insert",
        (
            path_parameter(),
            Parameter(
                "line", "integer", "0 inserts at the beginning, N after line N, -1 at the end.", minimum=-1
            ),
            Parameter("text", "string", "The lines to insert."),
            ENCODING,
            DRY_RUN,
        ),
        _rename("insert"),
    ),
    _tool(
        "create_file",
        "write_file",
        (path_parameter("File to create"), Parameter("content", "string", "The text to write.", ""), DRY_RUN),
        _rename("write_file", mode="create"),
        "Create a file with the directories above it. A file that exists is refused.",
    ),
    _tool("move_file", "move", TOOLS["move"].parameters, _rename("move")),
    _tool("delete_file", "delete", (path_parameter("Path to delete"),), _rename("delete")),
    words=(
        *NO_COMMANDS,
        *NO_PAGES,
        *NO_RECURSION,
        *NO_SESSIONS,
        *NO_UNDO,
        (r"; use `mode` overwrite or append, or `str_replace` for a part", "; use `str_replace` for a part of it"),
    ),
    default_approval="on-dangerous",  # "Tier 3 (Dangerous): Always route through approval handler"
)  # fmt: skip
