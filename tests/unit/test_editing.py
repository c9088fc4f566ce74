"""The law: an edit changes the one place it names; a text that is missing and one that is there twice are
different refusals; mode, encoding, line endings and the end of the file stay as they were; a backup comes
first."""

from __future__ import annotations

from pathlib import Path

import pytest

from ws.errors import FsViolationError, TextAmbiguousError, TextNotFoundError, ToolError, ToolValidationError
from ws.fs.host import HostFilesystem
from ws.fs.memory import MemoryFilesystem
from ws.fs.protocol import WORKSPACE_LIMITS
from ws.tools.context import ToolContext
from ws.tools.editing import insert, str_replace
from ws.tools.trash import Backups

BOM = b"\xef\xbb\xbf"


@pytest.fixture(params=["memory", "host"])
def context(request: pytest.FixtureRequest, tmp_path: Path) -> ToolContext:
    (tmp_path / "root").mkdir()
    host = request.param == "host"
    filesystem = (
        HostFilesystem(str(tmp_path / "root"), limits=WORKSPACE_LIMITS)
        if host
        else MemoryFilesystem(limits=WORKSPACE_LIMITS)
    )
    return ToolContext(filesystem, Backups(filesystem, MemoryFilesystem("/backups")))


def replaced(context: ToolContext, data: bytes, old: str, new: str) -> bytes:
    context.filesystem.write_bytes("f", data)
    str_replace(context, path="f", old_str=old, new_str=new)
    return context.filesystem.read_bytes("f")


def inserted(context: ToolContext, data: bytes, line: int, text: str) -> bytes:
    context.filesystem.write_bytes("f", data)
    insert(context, path="f", line=line, text=text)
    return context.filesystem.read_bytes("f")


# str_replace


def test_the_one_place_is_replaced_and_the_result_shows_the_diff(context: ToolContext) -> None:
    context.filesystem.write("d/f.py", "a = 1\nb = 2\n")
    result = str_replace(context, path="d/f.py", old_str="b = 2", new_str="b = 3")
    assert context.filesystem.read("d/f.py") == "a = 1\nb = 3\n"
    assert result.message == "d/f.py: replaced the text at line 2"
    assert result.output == "--- a/d/f.py\n+++ b/d/f.py\n@@ -1,2 +1,2 @@\n a = 1\n-b = 2\n+b = 3\n"
    assert result.summary is not None
    assert (result.summary.files_touched, result.summary.bytes_written) == (("d/f.py",), 12)
    assert result.summary.diff == result.output


def test_a_text_that_is_missing_is_one_error(context: ToolContext) -> None:
    context.filesystem.write("f", "  a = 1\n")
    with pytest.raises(TextNotFoundError, match="f: the text is not in the file"):
        str_replace(context, path="f", old_str="a = 2", new_str="x")


def test_a_text_that_differs_in_indentation_is_missing_and_the_hint_says_where_to_look(
    context: ToolContext,
) -> None:
    context.filesystem.write("f", "x\n    a = 1\n")
    with pytest.raises(TextNotFoundError) as caught:
        str_replace(context, path="f", old_str="\ta = 1\n", new_str="x")
    assert "at line 2" in (caught.value.hint or "")


def test_a_text_that_is_there_several_times_is_another_and_names_the_lines(context: ToolContext) -> None:
    context.filesystem.write("f", "x\na\nx\nx\n")
    with pytest.raises(TextAmbiguousError, match="3 times, at lines 1, 3, 4") as caught:
        str_replace(context, path="f", old_str="x", new_str="y")
    assert "add lines" in (caught.value.hint or "")
    assert context.filesystem.read("f") == "x\na\nx\nx\n"


def test_places_that_overlap_count(context: ToolContext) -> None:
    context.filesystem.write("f", "aaa")
    with pytest.raises(TextAmbiguousError, match="2 times"):
        str_replace(context, path="f", old_str="aa", new_str="b")


def test_nothing_is_a_pattern(context: ToolContext) -> None:
    assert replaced(context, b"a.*b axb [x]\n", "a.*b", "\\1") == b"\\1 axb [x]\n"


def test_a_text_may_be_taken_away(context: ToolContext) -> None:
    assert replaced(context, b"one\ntwo\n", "one\n", "") == b"two\n"


@pytest.mark.parametrize(("old", "new"), [("", "x"), ("same", "same")])
def test_a_replacement_that_says_nothing_is_refused(context: ToolContext, old: str, new: str) -> None:
    context.filesystem.write("f", "same\n")
    with pytest.raises(ToolValidationError):
        str_replace(context, path="f", old_str=old, new_str=new)


def test_line_endings_are_those_of_the_file(context: ToolContext) -> None:
    assert replaced(context, b"a\r\nb\r\nc\r\n", "a\nb", "1\n2\n3") == b"1\r\n2\r\n3\r\nc\r\n"
    assert replaced(context, b"a\r\nb\r\n", "b", "1\n2") == b"a\r\n1\r\n2\r\n"
    assert replaced(context, b"a\nb\r\nc", "c", "1\n2") == b"a\nb\r\n1\r\n2"


def test_line_endings_that_are_said_are_taken_as_said(context: ToolContext) -> None:
    assert replaced(context, b"a\r\nb\r\n", "a\r\nb\r\n", "a\nb\n") == b"a\nb\n"
    assert replaced(context, b"a\nb\n", "a\n", "a\r\n") == b"a\r\nb\n"


def test_a_text_that_is_there_with_both_endings_is_there_twice(context: ToolContext) -> None:
    context.filesystem.write("f", "a\r\nb\nx\na\nb\n")
    with pytest.raises(TextAmbiguousError):
        str_replace(context, path="f", old_str="a\nb", new_str="c")


def test_a_byte_order_mark_and_a_missing_newline_stay(context: ToolContext) -> None:
    assert replaced(context, BOM + b"one\ntwo", "one", "1") == BOM + b"1\ntwo"
    assert replaced(context, BOM + b"one\ntwo", "two", "2") == BOM + b"one\n2"


def test_a_byte_order_mark_that_was_copied_along_stays_in_the_file(context: ToolContext) -> None:
    assert replaced(context, BOM + b"one\n", "\ufeffone", "1") == BOM + b"1\n"
    assert replaced(context, BOM + b"one\n", "\ufeffone", "\ufeff1") == BOM + b"1\n"


def test_the_mode_of_the_file_stays(context: ToolContext) -> None:
    context.filesystem.write("f", "x\n")
    context.filesystem.set_mode("f", 0o750)
    str_replace(context, path="f", old_str="x", new_str="y")
    assert context.filesystem.stat("f").mode == 0o750


def test_an_edit_through_a_link_changes_what_it_leads_to(context: ToolContext) -> None:
    context.filesystem.write("real", "x\n")
    context.filesystem.make_link("link", "real")
    str_replace(context, path="link", old_str="x", new_str="y")
    assert context.filesystem.read("real") == "y\n"
    assert context.filesystem.read_link("link") == "real"


# insert


@pytest.mark.parametrize(
    ("line", "expected"),
    [(0, b"new\na\nb\n"), (1, b"a\nnew\nb\n"), (2, b"a\nb\nnew\n"), (-1, b"a\nb\nnew\n")],
)
def test_lines_go_in_at_the_beginning_after_a_line_and_at_the_end(
    context: ToolContext, line: int, expected: bytes
) -> None:
    assert inserted(context, b"a\nb\n", line, "new") == expected
    assert inserted(context, b"a\nb\n", line, "new\n") == expected


def test_a_file_that_does_not_end_with_a_newline_does_not_after_an_insertion(context: ToolContext) -> None:
    assert inserted(context, b"a\nb", -1, "new") == b"a\nb\nnew"
    assert inserted(context, b"a\nb", 1, "new") == b"a\nnew\nb"


def test_an_insertion_takes_the_line_endings_of_its_place(context: ToolContext) -> None:
    assert inserted(context, b"a\r\nb\r\n", 1, "1\n2") == b"a\r\n1\r\n2\r\nb\r\n"
    assert inserted(context, b"a\r\nb", -1, "new") == b"a\r\nb\r\nnew"


def test_the_beginning_of_a_file_is_behind_its_byte_order_mark(context: ToolContext) -> None:
    assert inserted(context, BOM + b"a\n", 0, "new") == BOM + b"new\na\n"


def test_an_empty_file_can_be_inserted_into(context: ToolContext) -> None:
    assert inserted(context, b"", 0, "new") == b"new\n"
    assert inserted(context, b"", -1, "new\n") == b"new\n"


@pytest.mark.parametrize("line", [3, 100, -2])
def test_a_line_that_is_not_there_is_refused_with_the_number_that_are(context: ToolContext, line: int) -> None:
    context.filesystem.write("f", "a\nb\n")
    with pytest.raises(ToolValidationError, match=f"`line` is {line}, but f has 2 lines"):
        insert(context, path="f", line=line, text="x")


# both


def test_a_dry_run_shows_the_diff_and_changes_nothing(context: ToolContext) -> None:
    context.filesystem.write("f", "a\n")
    for result in (
        str_replace(context, path="f", old_str="a", new_str="b", dry_run=True),
        insert(context, path="f", line=1, text="b", dry_run=True),
    ):
        assert "+b" in result.output
        assert "would have" in result.message
        assert result.data["backup"] is None
    assert context.filesystem.read("f") == "a\n"
    assert context.backups.records() == []


def test_a_backup_is_taken_first_and_undo_brings_it_back(context: ToolContext) -> None:
    context.filesystem.write("f", "a\n")
    result = str_replace(context, path="f", old_str="a", new_str="b")
    (record,) = context.backups.records("f")
    assert record.id == result.data["backup"]
    context.backups.undo("f")
    assert context.filesystem.read("f") == "a\n"


def test_binary_files_are_refused(context: ToolContext) -> None:
    context.filesystem.write_bytes("f", b"a\0b")
    with pytest.raises(ToolError, match="binary"):
        str_replace(context, path="f", old_str="a", new_str="b")
    with pytest.raises(ToolError, match="binary"):
        insert(context, path="f", line=0, text="x")


def test_files_that_are_not_there_and_paths_that_lead_out_are_refused(context: ToolContext) -> None:
    with pytest.raises(FileNotFoundError):
        str_replace(context, path="missing", old_str="a", new_str="b")
    with pytest.raises(FsViolationError):
        insert(context, path="../f", line=0, text="x")
    context.filesystem.mkdir("d")
    with pytest.raises(IsADirectoryError):
        insert(context, path="d", line=0, text="x")


def test_a_long_diff_is_cut_in_the_output_and_whole_in_the_summary(context: ToolContext) -> None:
    context.filesystem.write("f", "a\n")
    result = str_replace(context, path="f", old_str="a", new_str="\n".join(str(n) for n in range(500)))
    assert result.truncated
    assert result.output.endswith("[truncated]")
    assert result.summary is not None
    assert "+499" in result.summary.diff
