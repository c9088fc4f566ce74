"""The law: what a model reads names only tools and parameters that its dialect has, fits the cap, and leaves nothing
out that cannot be asked for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ws.errors import ToolValidationError
from ws.fs.memory import MemoryFilesystem
from ws.toolbox.catalog import TOOLS
from ws.toolbox.dialects import DIALECTS, Dialect
from ws.toolbox.dialects.forge import OPERATIONS
from ws.toolbox.local import open_local
from ws.toolbox.router import Router
from ws.tools.context import Caps

EDITOR = "str_replace_based_edit_tool"
CALLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "standard": [
        ("str_replace", {"path": "a.txt", "old_str": "", "new_str": "x"}),
        ("str_replace", {"path": "a.txt", "old_str": "one", "new_str": "one"}),
        ("insert", {"path": "a.txt", "line": 99, "text": "x"}),
        ("read_file", {"path": "a.txt", "view_range": [5, 2]}),
        ("write_file", {"path": "a.txt", "content": "x"}),
        ("read_file", {"path": "long"}),
        ("grep", {"pattern": "o", "max_matches": 1}),
        ("shell", {"command": "sleep 9", "timeout_ms": 1}),
    ],
    "agent-q": [
        ("str_replace", {"path": "a.txt", "old_str": "", "new_str": "x"}),
        ("view_file", {"path": "a.txt", "view_range": {"start": 5, "end": 2}}),
        ("view_file", {"path": "a.txt", "view_range": {"start": 1, "end": 10**30}}),
        ("view_file", {"path": "long"}),
        ("view_file", {"path": "nope"}),
        ("view_file", {"path": "binary"}),
        ("view_file", {"path": "a.txt", "lines": 1}),
        ("create_file", {"path": "a.txt", "content": "x"}),
        ("delete_file", {"path": "d"}),
        ("delete_file", {"path": "b.txt"}),
        ("list_directory", {"path": "many"}),
    ],
    "convergio": [
        ("edit", {"path": "a.txt", "old_string": "", "new_string": "x"}),
        ("edit", {"path": "a.txt", "old_string": "one", "new_string": "one"}),
        ("edit", {"path": "a.txt", "old_string": "o", "new_string": "x"}),
        ("file_read", {"path": "a.txt", "start_line": 5, "end_line": 2}),
        ("file_read", {"path": "long"}),
        ("file_write", {"path": "a.txt", "content": "x", "mode": "create"}),
        ("file_delete", {"path": "d"}),
        ("file_delete", {"path": "b.txt"}),
        ("file_list", {"path": "many"}),
        ("shell_exec", {"command": "sleep 9", "timeout": 1}),
    ],
    "lincona": [
        ("read_file", {"path": "long"}),
        ("grep_files", {"pattern": "o", "limit": 1}),
        ("grep_files", {"pattern": "o", "include": ["*.txt", "*.md"], "limit": 1}),
        ("apply_patch_json", {"patch": "*** Begin Patch\n*** Delete File: nope\n*** End Patch"}),
    ],
    "forge": [
        ("filesystem", {"operation": "read_file", "arguments": {"path": "long"}}),
        ("filesystem", {"operation": "read_file", "arguments": {"path": "binary"}}),
        ("filesystem", {"operation": "list_directory", "arguments": {"path": "many"}}),
        ("filesystem", {"operation": "create_file", "arguments": {"path": "a.txt"}}),
        ("filesystem", {"operation": "delete_file", "arguments": {"path": "d"}}),
        ("filesystem", {"operation": "delete_file", "arguments": {"path": "b.txt"}}),
    ],
    "anthropic": [
        (EDITOR, {"command": "insert", "path": "a.txt", "insert_line": 99, "insert_text": "x"}),
        (EDITOR, {"command": "str_replace", "path": "a.txt", "old_str": "", "new_str": "x"}),
        (EDITOR, {"command": "view", "path": "a.txt", "view_range": [5, 2]}),
        (EDITOR, {"command": "view", "path": "long"}),
        (EDITOR, {"command": "view", "path": "many"}),
    ],
}

Open = Callable[..., Router]


@pytest.fixture
def open_router(tmp_path: Path) -> Iterator[Open]:
    for name, content in {
        "a.txt": "one\no\n",
        "b.txt": "o\n",
        "c.md": "o\n",
        "d/f": "x",
        "binary": "a\0b",
        "long": "0123456789\n" * 100_000,
        **{f"many/{n:04d}-{'x' * 60}": "" for n in range(300)},
    }.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    backend = open_local(str(tmp_path / "root"), MemoryFilesystem("/backups"), env={"PATH": "/usr/bin:/bin"})
    yield lambda dialect, **options: Router(backend, dialect=dialect, **options)
    backend.close()


def own_names(dialect: Dialect) -> set[str]:
    """Every name that a model of the dialect knows."""
    names = set(OPERATIONS) if dialect.name == "forge" else set()
    names |= {p.name for _, parameters in OPERATIONS.values() for p in parameters} if names else set()
    for tool in dialect.tools.values():
        names |= {tool.spec.name, *(parameter.name for parameter in tool.spec.parameters)}
        names |= {choice for parameter in tool.spec.parameters for choice in parameter.choices}
    return names


STANDARD_NAMES = set(TOOLS) | {parameter.name for tool in TOOLS.values() for parameter in tool.parameters}
PLAIN_WORDS = {
    "path",
    "pattern",
    "name",
    "source",
    "text",
    "line",
    "mode",
    "content",
    "command",
    "limit",
    "patch",
    "delete",
}


@pytest.mark.parametrize("approval", [None, "never", "on-dangerous"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_what_is_said_names_only_what_the_dialect_has(open_router: Open, dialect: str, approval: str | None) -> None:
    router = open_router(dialect, approval=approval)
    own = own_names(router.dialect)
    for tool, arguments in CALLS[dialect]:
        result = router.call_safely(tool, arguments)
        said = result.output if result.status == "error" else result.message
        quoted = {name.partition("=")[0] for name in re.findall(r"`([^`]*)`", said)}
        assert quoted <= own, (tool, arguments, said)
        foreign = STANDARD_NAMES - own - PLAIN_WORDS
        assert not foreign & set(re.findall(r"\w+", said)), (tool, arguments, said)


def test_an_error_that_is_raised_says_the_same_names(open_router: Open) -> None:
    with pytest.raises(ToolValidationError, match="`start_line` is 5 and `end_line` 2"):
        open_router("convergio").call("file_read", path="a.txt", start_line=5, end_line=2)
    with pytest.raises(ToolValidationError, match=r"`insert_line` is 99, but a\.txt has 2 lines"):
        open_router("anthropic").call(EDITOR, command="insert", path="a.txt", insert_line=99, insert_text="x")
    with pytest.raises(OSError, match="delete what it holds first"):
        open_router("agent-q", approval="never").call("delete_file", path="d")


def test_where_there_are_no_pages_the_line_is_named(open_router: Open) -> None:
    message = open_router("convergio").call("file_read", path="long").message
    found = re.fullmatch(r"lines 1-(\d+); more is left, go on after line (\d+)", message)
    assert found is not None, message
    assert found[1] == found[2]


# what a dialect writes itself


def test_a_listing_of_agent_q_is_capped_between_entries(open_router: Open) -> None:
    result = open_router("agent-q").call("list_directory", path="many")
    *entries, marker = result.output.split("\n")
    assert len(result.output.encode()) <= Caps().max_output_bytes + len("\n[truncated]")
    assert (marker, result.truncated) == ("[truncated]", True)
    assert all(entry.startswith("(:name ") and entry.endswith(")") for entry in entries)
    assert result.message.startswith(f"{len(entries)} entries; more is left")
    assert len(result.data["entries"]) == 300


def test_a_tree_of_agent_q_is_capped_and_still_a_list(open_router: Open) -> None:
    result = open_router("agent-q").call("directory_tree")
    assert result.truncated
    assert len(result.output.encode()) < Caps().max_output_bytes * 1.1
    assert result.output.count("(") == result.output.count(")")
    assert result.output.endswith("...))))")
    assert '(:name "long" :type :file :size 1100000)' in result.output, "a level is told before the next"
    small = open_router("agent-q", caps=Caps(max_output_bytes=300)).call("directory_tree")
    assert len(small.output) < 500


def test_a_search_with_several_globs_is_one_search(open_router: Open) -> None:
    router = open_router("lincona")
    result = router.call("grep_files", pattern="^o", include=["*.txt", "*.md", "a*"])
    assert result.output == "a.txt:1:one\na.txt:2:o\nb.txt:1:o\nc.md:1:o"
    assert result.message == "4 matches in 3 files"
    assert [match["line"] for match in result.data["matches"]] == [1, 2, 1, 1]
    assert not result.truncated
    some = router.call("grep_files", pattern="^o", include=["*.txt", "*.md"], limit=3)
    assert (len(some.data["matches"]), some.truncated) == (3, True)
    assert some.message == "3 matches in 2 files; stopped at `limit=3`"
    wide = router.call("grep_files", pattern="^0", include=["long", "*.md"], limit=1000)
    assert len(wide.data["matches"]) == 1000
    assert wide.output.split("\n")[-1] == "[truncated]"
    assert wide.output.count("[truncated]") == 1


def test_forge_reads_on_and_reads_lines_whole(open_router: Open, tmp_path: Path) -> None:
    def read(path: str, **arguments: Any) -> Any:
        return open_router("forge").call("filesystem", operation="read_file", arguments={"path": path, **arguments})

    lines: list[str] = []
    while True:
        page = read("long", offset=len(lines))
        lines += page.output.split("\n")
        if not page.truncated:
            break
        assert page.message.endswith(f"go on with `offset={len(lines)}`")
    assert len(lines) == 100_000
    assert read("long", offset=99_999, limit=5).output == "0123456789"
    (tmp_path / "root" / "wide").write_text("é" * 9_000 + "\n")
    assert read("wide").output == "é" * 9_000
    assert read("long", binary=True, offset=4, limit=3).output == "NDU2"
