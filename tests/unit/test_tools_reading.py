"""The law: reading shows what was asked for, says when more is left, and changes nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tool_contexts import BACKENDS, make_context

from ws.errors import FsViolationError, InvalidRequest, ToolValidationError
from ws.tools.context import Caps, ToolContext, cap_text
from ws.tools.reading import file_info, list_dir, read_file, tree


@pytest.fixture(params=BACKENDS)
def context(request: pytest.FixtureRequest, tmp_path: Path) -> ToolContext:
    return make_context(request.param, tmp_path)


def test_read_file_shows_400_lines_and_says_that_more_is_left(context: ToolContext) -> None:
    context.filesystem.write("f", "".join(f"line {n}\n" for n in range(1, 451)))
    result = read_file(context, path="f")
    lines = result.output.split("\n")
    assert (lines[0], lines[-1], len(lines)) == ("line 1", "line 400", 400)
    assert result.truncated
    assert result.message == "lines 1-400 of 450; more is left, go on with `offset=400`"
    rest = read_file(context, path="f", offset=400)
    assert rest.output.split("\n") == [f"line {n}" for n in range(401, 451)]
    assert not rest.truncated
    assert rest.message == "lines 401-450 of 450"
    assert rest.data["next_offset"] is None


def test_a_view_range_counts_from_one_and_minus_one_is_the_end(context: ToolContext) -> None:
    context.filesystem.write("f", "a\nb\nc\nd\n")
    assert read_file(context, path="f", view_range=[2, 3]).output == "b\nc"
    assert read_file(context, path="f", view_range=[3, -1]).output == "c\nd"
    assert read_file(context, path="f", view_range=[4]).output == "d"
    assert read_file(context, path="f", view_range=(1, 99)).output == "a\nb\nc\nd"
    assert read_file(context, path="f", view_range=[9, 10]).output == ""


@pytest.mark.parametrize("view_range", [[0, 1], [3, 2], [1, -2], [], [1, 2, 3]])
def test_a_range_that_cannot_be_is_refused(context: ToolContext, view_range: list[int]) -> None:
    context.filesystem.write("f", "a\n")
    with pytest.raises(ToolValidationError):
        read_file(context, path="f", view_range=view_range)


def test_long_lines_are_cut_with_a_marker(context: ToolContext) -> None:
    context.filesystem.write("f", "x" * 400 + "\n" + "y" * 401 + "\n")
    result = read_file(context, path="f")
    assert result.output == "x" * 400 + "\n" + "y" * 400 + "… [truncated line]"
    assert result.truncated


def test_numbers_and_indentation_are_put_in_front(context: ToolContext) -> None:
    context.filesystem.write("f", "a\n  b\n")
    assert read_file(context, path="f", line_numbers=True, offset=1).output == "     2\t  b"
    assert read_file(context, path="f", mode="indentation").output == "    a\n      b"
    with pytest.raises(ToolValidationError):
        read_file(context, path="f", mode="hex")


@pytest.mark.parametrize("repeat", [1, 40_000], ids=["in one chunk", "in many chunks"])
def test_line_endings_and_odd_bytes_do_not_get_in_the_way(context: ToolContext, repeat: int) -> None:
    context.filesystem.write_bytes("f", b"a\r\nb\xff\n\nlast" + b"\n" * repeat)
    assert read_file(context, path="f", limit=4).output == "a\nb\ufffd\n\nlast"


def test_binary_files_are_refused_with_a_hint(context: ToolContext) -> None:
    context.filesystem.write_bytes("f", b"\x7fELF\0\0")
    with pytest.raises(InvalidRequest, match="binary file of 6 bytes") as caught:
        read_file(context, path="f")
    assert caught.value.hint


def test_an_empty_file_and_a_page_after_the_end_are_no_errors(context: ToolContext) -> None:
    context.filesystem.write("f", "")
    assert read_file(context, path="f").message == "f is empty"
    assert read_file(context, path="f", offset=5).output == ""


def test_what_one_call_reads_is_bounded(context: ToolContext) -> None:
    context.filesystem.write("f", "0123456789" * 30 + "\n" + ("0123456789" * 30 + "\n") * 3_000)
    result = read_file(context, path="f", view_range=[1, -1])
    assert len(result.output) < 2 * context.caps.max_read_bytes
    assert result.data["more"]
    following = read_file(context, path="f", offset=result.data["next_offset"], limit=1)
    assert following.data["start_line"] == result.data["end_line"] + 1


def test_list_dir_goes_breadth_first_and_marks_types(context: ToolContext) -> None:
    fs = context.filesystem
    fs.write("b/deep/er", "")
    fs.write("b/x", "")
    fs.write("a", "")
    fs.write("run", "")
    fs.set_mode("run", 0o755)
    fs.make_link("link", "b")
    result = list_dir(context)
    assert result.output.split("\n") == ["a", "b/", "link@", "run*", "b/deep/", "b/x"]
    assert list_dir(context, depth=1).output.split("\n") == ["a", "b/", "link@", "run*"]
    assert list_dir(context, path="b", depth=3).output.split("\n") == ["deep/", "x", "deep/er"]
    assert [entry["type"] for entry in result.data["entries"][:3]] == ["file", "directory", "symlink"]


def test_list_dir_is_paged(context: ToolContext) -> None:
    for n in range(5):
        context.filesystem.write(f"f{n}", "")
    page = list_dir(context, limit=2, offset=1)
    assert (page.output, page.truncated) == ("f1\nf2", True)
    assert page.message == "2 entries; more is left, go on with `offset=3`"
    assert not list_dir(context, limit=2, offset=3).truncated


def test_a_tree_is_nested_and_leaves_out_what_is_excluded_by_basename(context: ToolContext) -> None:
    fs = context.filesystem
    for path in ("src/main.py", "src/tools/x.fasl", "src/tools/y.py", ".git/config"):
        fs.write(path, "12345")
    result = tree(context, path="src", exclude=["*.fasl"])
    assert result.data == {
        "name": "src",
        "type": "directory",
        "children": [
            {"name": "main.py", "type": "file", "size_bytes": 5},
            {
                "name": "tools",
                "type": "directory",
                "children": [{"name": "y.py", "type": "file", "size_bytes": 5}],
            },
        ],
    }
    assert result.output == "src/\n  main.py\n  tools/\n    y.py"
    assert [child["name"] for child in tree(context, exclude=[".git"]).data["children"]] == ["src"]
    assert tree(context, exclude=["*"]).data["children"] == []
    assert tree(context, depth=1).data["children"][1] == {"name": "src", "type": "directory", "children": []}


def test_a_tree_of_a_file_is_refused(context: ToolContext) -> None:
    context.filesystem.write("f", "")
    with pytest.raises(NotADirectoryError):
        tree(context, path="f")


def test_file_info_tells_everything(context: ToolContext) -> None:
    fs = context.filesystem
    fs.write("f", "12345")
    fs.set_mode("f", 0o644)
    fs.make_link("l", "f")
    fs.make_link("out", "/etc/passwd")
    info = file_info(context, path="f").data
    assert (info["type"], info["size_bytes"], info["permissions"]) == ("file", 5, "rw-r--r--")
    assert info["readable"]
    assert info["writable"]
    assert {"created", "modified", "accessed"} <= info.keys()
    link = file_info(context, path="l").data
    assert (link["type"], link["target"], link["target_type"]) == ("symlink", "f", "file")
    assert file_info(context, path="out").data["target_type"] is None
    assert file_info(context, path=".").data["type"] == "directory"


def test_paths_start_at_the_workdir_and_end_at_the_root(context: ToolContext) -> None:
    context.filesystem.write("sub/f", "inside")
    inner = ToolContext(context.filesystem, context.backups, workdir="sub")
    assert read_file(inner, path="f").output == "inside"
    assert read_file(inner, path=f"{context.filesystem.root}/sub/f").output == "inside"
    for path in ("../../x", "/etc/passwd", "~/x"):
        with pytest.raises(FsViolationError):
            read_file(inner, path=path)


def test_output_is_capped_by_bytes_and_lines_whichever_comes_first() -> None:
    caps = Caps()
    assert cap_text("short\n", caps) == ("short\n", False)
    assert cap_text("x\n" * 200, caps) == ("x\n" * 200, False)
    assert cap_text("x\n" * 201, caps) == ("x\n" * 200 + "[truncated]", True)
    text, truncated = cap_text("é" * 5_000, caps)
    assert truncated
    assert text == "é" * 4_096 + "\n[truncated]"
    assert cap_text("é" * 4_096, caps) == ("é" * 4_096, False)


def test_a_directory_without_permission_does_not_end_a_listing(tmp_path: Path) -> None:
    context = make_context("host", tmp_path)
    context.filesystem.write("a/f", "")
    context.filesystem.write("b/f", "")
    if os.geteuid() != 0:
        (tmp_path / "tree" / "a").chmod(0)
    assert "b/f" in list_dir(context).output


def test_list_dir_is_cut_between_entries_so_that_paging_loses_none(context: ToolContext) -> None:
    names = [f"{n:04d}-{'x' * 60}" for n in range(150)]
    for name in names:
        context.filesystem.write(name, "")
    first = list_dir(context)
    *shown, marker = first.output.split("\n")
    assert (marker, first.truncated) == ("[truncated]", True)
    assert first.message == f"{len(shown)} entries; more is left, go on with `offset={len(shown)}`"
    assert shown + list_dir(context, offset=len(shown)).output.split("\n") == names


@pytest.mark.parametrize("lines", [5, 20_000], ids=["in one chunk", "in many chunks"])
@pytest.mark.parametrize("beyond", [0, 1, 10_000_000])
def test_a_page_after_the_end_counts_the_lines_there_are(context: ToolContext, lines: int, beyond: int) -> None:
    context.filesystem.write("f", "0123456789\n" * lines)
    result = read_file(context, path="f", offset=lines + beyond)
    assert result.message == f"f has {lines} lines, none after line {lines + beyond}"
    assert result.data["total_lines"] == lines
    assert (result.data["start_line"], result.data["end_line"]) == (None, None)


@pytest.mark.parametrize("lines", [2, 20_000], ids=["in one chunk", "in many chunks"])
def test_a_byte_order_mark_is_not_shown(context: ToolContext, lines: int) -> None:
    context.filesystem.write("f", "\ufeff" + "0123456789\n" * lines)
    assert read_file(context, path="f", limit=1).output == "0123456789"
    assert read_file(context, path="f", offset=1, limit=1).output == "0123456789"
