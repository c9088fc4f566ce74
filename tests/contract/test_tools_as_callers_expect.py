"""The law: tools do what a caller or a model expects of them, on every backend alike.

Undo goes back one change at a time; a file never holds two encodings; a result spells each file one way; patches are
accepted as the tools that models are trained on accept them; the time of an edit is linear in the size of the file.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tool_bench import BACKENDS, ToolBench, open_bench

from workspaces import SharedWorkspaces
from ws.errors import NotFound, PatchApplyError, TextAmbiguousError, ToolError, ToolValidationError
from ws.toolbox.router import Router

RUSSIAN = "привет\nмир\n"
JAPANESE = "表示\nソース\n"  # Shift-JIS has 0x5c, a backslash, as the second byte of 表 and ソ
FILES = {
    "cp1251": (RUSSIAN, "мир", "пока"),
    "koi8-r": (RUSSIAN, "мир", "пока"),
    "shift_jis": (JAPANESE, "ソース", "対応"),
    "euc-jp": (JAPANESE, "ソース", "対応"),
    "iso2022_jp": (JAPANESE, "ソース", "対応"),
    "latin-1": ("café\nthé\n", "thé", "crème"),
    "gb18030": ("你好\n世界\n", "世界", "再见"),
    "utf-16-le": (RUSSIAN, "мир", "пока"),
}


@pytest.fixture(params=BACKENDS)
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, shared: Callable[[str], SharedWorkspaces]
) -> Iterator[ToolBench]:
    with open_bench(request.param, tmp_path, shared, "standard") as bench:
        yield bench


def envelope(body: str) -> str:
    return f"*** Begin Patch\n{body}*** End Patch\n"


class TestUndo:
    def test_undo_edit_goes_back_as_far_as_there_are_changes_and_redo_edit_forward(self, bench: ToolBench) -> None:
        router = bench.with_router(dialect="anthropic")

        def edit(command: str) -> None:
            router.call("str_replace_based_edit_tool", command=command, path="a.txt")

        bench.put({"a.txt": "v1\n"})
        for old, new in (("v1", "v2"), ("v2", "v3")):
            bench.call("str_replace", path="a.txt", old_str=old, new_str=new)
        seen = []
        for command in ("undo_edit", "undo_edit", "redo_edit", "redo_edit", "undo_edit"):
            edit(command)
            seen.append(bench.read("a.txt").strip())
        assert seen == ["v2", "v1", "v2", "v3", "v2"]
        edit("undo_edit")
        with pytest.raises(NotFound):
            edit("undo_edit")

    @pytest.mark.parametrize("dialect", ["standard", "anthropic"])
    def test_the_description_says_so(self, bench: ToolBench, dialect: str) -> None:
        said = " ".join(tool.description for tool in bench.with_router(dialect=dialect).tools)
        assert "further" in said
        assert "redo" in said


class TestEncodings:
    @pytest.mark.parametrize("encoding", FILES)
    def test_a_file_is_edited_in_the_encoding_that_the_caller_names(self, bench: ToolBench, encoding: str) -> None:
        text, old, new = FILES[encoding]
        bench.put({"f": text.encode(encoding)})
        read = bench.call("read_file", path="f", encoding=encoding)
        assert read.output == text.rstrip("\n")
        bench.call("str_replace", path="f", old_str=old, new_str=new, encoding=encoding)
        bench.call("insert", path="f", line=0, text=old, encoding=encoding)
        first = text.split("\n")[0]
        patch = envelope(f"*** Update File: f\n@@\n {first}\n-{new}\n+{old}\n")
        preview = bench.call("apply_patch", patch=patch, encoding=encoding, dry_run=True).summary
        assert preview is not None
        assert f"\n-{new}\n" in preview.diff
        bench.call("apply_patch", patch=patch, encoding=encoding)
        bench.call("write_file", path="f", content=f"{new}\n", mode="append", encoding=encoding)
        assert (bench.root / "f").read_bytes().decode(encoding) == f"{old}\n{text}{new}\n"
        bench.call("undo", path="f")
        assert (bench.root / "f").read_bytes().decode(encoding) == f"{old}\n{text}"

    @pytest.mark.parametrize("encoding", ["cp1251", "shift_jis", "latin-1", "gb18030"])
    def test_without_its_name_every_edit_is_refused_and_the_file_stays(self, bench: ToolBench, encoding: str) -> None:
        data = FILES[encoding][0].encode(encoding) + b"x = 1\n"
        bench.put({"f": data})
        edits = (
            ("str_replace", {"path": "f", "old_str": "x = 1", "new_str": "x = 2"}),
            ("insert", {"path": "f", "line": 0, "text": "é"}),
            ("apply_patch", {"patch": envelope("*** Update File: f\n@@\n-x = 1\n+x = 2\n")}),
            ("apply_patch", {"patch": "--- a/f\n+++ b/f\n@@ -3 +3 @@\n-x = 1\n+x = 2\n"}),
            ("write_file", {"path": "f", "content": "é\n", "mode": "append"}),
        )
        for tool, arguments in edits:
            with pytest.raises(ToolError, match="f: is not UTF-8 text") as caught:
                bench.call(tool, **arguments)
            assert "`encoding`" in (caught.value.hint or "")
        assert (bench.root / "f").read_bytes() == data

    def test_reading_it_says_that_it_is_not_utf8(self, bench: ToolBench) -> None:
        bench.put({"f": RUSSIAN.encode("cp1251"), "long": b"ok\n" * 40_000 + b"\xff\n", "fine": "\ufffd\n"})
        for path, arguments in (("f", {}), ("long", {"view_range": [40_000, -1]})):
            result = bench.call("read_file", path=path, **arguments)
            assert "not UTF-8" in result.text
            assert result.data["replaced"]
        assert "not UTF-8" not in bench.call("read_file", path="fine").text

    @pytest.mark.parametrize("encoding", ["utf-16", "utf-32", "utf-8-sig"])
    def test_a_byte_order_mark_says_the_encoding_and_stays(self, bench: ToolBench, encoding: str) -> None:
        bench.put({"f": RUSSIAN.encode(encoding)})
        assert bench.call("read_file", path="f").output == RUSSIAN.rstrip("\n")
        bench.call("str_replace", path="f", old_str="мир", new_str="пока")
        assert (bench.root / "f").read_bytes() == RUSSIAN.replace("мир", "пока").encode(encoding)
        with pytest.raises(ToolValidationError, match="byte order mark"):
            bench.call("insert", path="f", line=0, text="x", encoding="latin-1")

    def test_a_utf8_file_is_not_taken_for_a_single_byte_encoding(self, bench: ToolBench) -> None:
        bench.put({"f": "é\n"})
        with pytest.raises(ToolValidationError, match="is valid UTF-8"):
            bench.call("insert", path="f", line=-1, text="è", encoding="latin-1")
        assert bench.read("f") == "é\n"

    def test_what_the_encoding_cannot_represent_is_refused(self, bench: ToolBench) -> None:
        data = RUSSIAN.encode("cp1251")
        bench.put({"f": data})
        with pytest.raises(ToolValidationError, match="has no character '表'"):
            bench.call("str_replace", path="f", old_str="мир", new_str="表", encoding="cp1251")
        with pytest.raises(ToolValidationError, match="lone surrogate"):
            bench.call("insert", path="f", line=0, text="\udc80", encoding="cp1251")
        for name in ("rot13", "idna", "unicode_escape", "base64", "no such", "\x00", "é"):
            with pytest.raises(ToolValidationError, match="not a known character encoding"):
                bench.call("insert", path="f", line=0, text="x", encoding=name)
        with pytest.raises(ToolError, match="is not shift_jis text"):
            bench.call("insert", path="f", line=0, text="x", encoding="shift_jis")
        assert (bench.root / "f").read_bytes() == data

    def test_a_patch_leaves_binary_files_alone(self, bench: ToolBench) -> None:
        bench.put({"f": b"a\n\0\n", "g": "a\n"})
        body = "*** Update File: g\n@@\n-a\n+b\n*** Update File: f\n@@\n-a\n+b\n"
        with pytest.raises(ToolError, match="f: is a binary file"):
            bench.call("apply_patch", patch=envelope(body))
        assert bench.read("g") == "a\n"

    def test_a_patch_may_touch_files_in_two_encodings(self, bench: ToolBench) -> None:
        bench.put({"r": RUSSIAN.encode("cp1251"), "u": "é\n"})
        body = "*** Update File: r\n@@\n-мир\n+пока\n*** Update File: u\n@@\n-é\n+è\n"
        bench.call("apply_patch", patch=envelope(body), encoding="cp1251")
        assert (bench.root / "r").read_bytes() == RUSSIAN.replace("мир", "пока").encode("cp1251")
        assert bench.read("u") == "è\n"


class TestPaths:
    def test_results_spell_a_file_relative_to_the_root(self, bench: ToolBench) -> None:
        root = bench.router.dialect and bench.backend.root
        bench.put({"d/a.txt": "one\n", "m": "m\n"})
        calls = (
            ("str_replace", {"path": f"{root}/d/a.txt", "old_str": "one", "new_str": "two"}),
            ("str_replace", {"path": "d/../d/./a.txt", "old_str": "two", "new_str": "three"}),
            ("insert", {"path": f"{root}//d//a.txt", "line": 0, "text": "zero"}),
            ("write_file", {"path": f"{root}/d/a.txt", "content": "all\n", "mode": "overwrite"}),
            ("apply_patch", {"patch": envelope(f"*** Update File: {root}/d/a.txt\n@@\n-all\n+any\n")}),
            ("undo", {"path": f"{root}/d/a.txt"}),
            ("redo", {"path": f"{root}/d/a.txt"}),
            ("delete", {"path": f"{root}/d/a.txt"}),
        )
        for tool, arguments in calls:
            result = bench.call(tool, **arguments)
            assert result.summary is not None
            assert result.summary.files_touched == ("d/a.txt",), tool
            assert result.data.get("path", "d/a.txt") == "d/a.txt", tool
            assert root not in result.text
        moved = bench.call("move", source=f"{root}/m", destination=f"{root}/d/../n")
        assert moved.summary is not None
        assert moved.summary.files_touched == ("m", "n")

    def test_git_applies_the_diff_of_a_result(self, bench: ToolBench, tmp_path: Path) -> None:
        before = "one\ntwo\n"
        bench.put({"a.txt": before})
        result = bench.call("str_replace", path=f"{bench.backend.root}/a.txt", old_str="two", new_str="2")
        assert result.summary is not None
        copy = tmp_path / "copy"
        copy.mkdir()
        (copy / "a.txt").write_text(before)
        subprocess.run(["git", "apply"], input=result.summary.diff.encode(), cwd=copy, check=True)
        assert (copy / "a.txt").read_text() == "one\n2\n"

    @pytest.mark.parametrize("path", ["zz/../ee.txt", "zz/yy/../../ee.txt", "zz/./yy/../xx/../../ee.txt"])
    def test_a_directory_that_a_path_leaves_again_is_not_made(self, bench: ToolBench, path: str) -> None:
        bench.call("write_file", path=path, content="x")
        bench.call("mkdir", path=path.replace("ee.txt", "dd"))
        assert sorted(each.name for each in bench.root.iterdir()) == ["dd", "ee.txt"]
        bench.call("write_file", path="zz/../new/ee.txt", content="x")
        assert (bench.root / "new/ee.txt").read_text() == "x"
        assert not (bench.root / "zz").exists()


class TestPatches:
    def test_add_file_and_move_to_replace_a_file_and_undo_brings_it_back(self, bench: ToolBench) -> None:
        bench.put({"a": "old a\n", "b": "b\n", "c": "old c\n"})
        body = "*** Add File: a\n+new a\n*** Update File: b\n*** Move to: c\n@@\n-b\n+new b\n"
        bench.call("apply_patch", patch=envelope(body))
        assert (bench.read("a"), bench.read("c"), (bench.root / "b").exists()) == ("new a\n", "new b\n", False)
        bench.call("undo", path="a")
        bench.call("undo", path="c")
        assert (bench.read("a"), bench.read("b"), bench.read("c")) == ("old a\n", "b\n", "old c\n")

    def test_a_patch_that_replaces_a_file_and_fails_later_changes_nothing(self, bench: ToolBench) -> None:
        bench.put({"a": "old a\n", "b": "b\n"})
        body = "*** Add File: a\n+new a\n*** Update File: b\n@@\n-not there\n+x\n"
        with pytest.raises(PatchApplyError):
            bench.call("apply_patch", patch=envelope(body))
        assert (bench.read("a"), bench.read("b")) == ("old a\n", "b\n")

    def test_a_unified_diff_still_refuses_to_create_over_a_file(self, bench: ToolBench) -> None:
        bench.put({"a": "old\n"})
        with pytest.raises(PatchApplyError, match="exists already"):
            bench.call("apply_patch", patch="--- /dev/null\n+++ b/a\n@@ -0,0 +1 @@\n+new\n")
        assert bench.read("a") == "old\n"

    @pytest.mark.parametrize(
        "wrapper",
        [
            "```\n{}```\n",
            "```diff\n{}```",
            "Here is the patch:\n\n{}",
            "Here is the patch:\n```patch\n{}```\nThat should do it.\n",
            "apply_patch <<'EOF'\n{}EOF\nDone.\n",
        ],
    )
    def test_a_fence_and_prose_around_the_envelope_are_ignored(self, bench: ToolBench, wrapper: str) -> None:
        bench.put({"a": "one\n"})
        bench.call("apply_patch", patch=wrapper.format(envelope("*** Update File: a\n@@\n-one\n+1\n")))
        assert bench.read("a") == "1\n"

    def test_a_diff_about_an_envelope_is_a_diff(self, bench: ToolBench) -> None:
        bench.put({"a": "*** Begin Patch\nx\n"})
        bench.call("apply_patch", patch="--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n *** Begin Patch\n-x\n+y\n")
        assert bench.read("a") == "*** Begin Patch\ny\n"

    CLASSES = (
        "class S:\n    def f(self):\n        return 1\n\n\n"
        "class T:\n    def f(self):\n        return 1\n\n    def g(self):\n        return 1\n"
    )

    @pytest.mark.parametrize(
        "chunks",
        [
            "@@ class T:\n     def f(self):\n-        return 1\n+        return 2\n"
            "@@ class T:\n     def g(self):\n-        return 1\n+        return 3\n",
            "@@ class T:\n@@     def f(self):\n-        return 1\n+        return 2\n"
            "@@ class T:\n@@     def g(self):\n-        return 1\n+        return 3\n",
            "@@ class T:\n@@ def f(self):\n-        return 1\n+        return 2\n"
            "@@ def g(self):\n-        return 1\n+        return 3\n",
        ],
    )
    def test_anchors_nest_and_a_second_chunk_may_name_its_parent_again(self, bench: ToolBench, chunks: str) -> None:
        bench.put({"a.py": self.CLASSES})
        bench.call("apply_patch", patch=envelope(f"*** Update File: a.py\n{chunks}"))
        head, _, tail = self.CLASSES.rpartition("return 1")
        before, _, middle = head.rpartition("return 1")
        assert bench.read("a.py") == f"{before}return 2{middle}return 3{tail}"

    def test_an_anchor_that_is_nowhere_is_refused(self, bench: ToolBench) -> None:
        bench.put({"a.py": self.CLASSES})
        with pytest.raises(PatchApplyError, match="its `@@` line 'class U:' is not in the file"):
            bench.call("apply_patch", patch=envelope("*** Update File: a.py\n@@ class U:\n-        return 1\n+x\n"))

    def test_a_lone_carriage_return_ends_a_line(self, bench: ToolBench) -> None:
        bench.put({"mac": b"one\rtwo\rthree\r", "a": "one\n"})
        assert bench.call("read_file", path="mac").data["total_lines"] == 3
        bench.call("apply_patch", patch=envelope("*** Update File: mac\n@@\n one\n-two\n+2\n"))
        bench.call("insert", path="mac", line=3, text="four")
        bench.call("str_replace", path="mac", old_str="one\n2", new_str="1\n2")
        assert (bench.root / "mac").read_bytes() == b"1\r2\rthree\rfour\r"
        bench.call("apply_patch", patch=envelope("*** Update File: a\n@@\n-one\n+1\n").replace("\n", "\r"))
        assert bench.read("a") == "1\n"


class TestTime:
    @pytest.mark.parametrize("ending", ["\n", "\r\n"])
    def test_text_that_overlaps_itself_is_searched_for_in_linear_time(self, bench: ToolBench, ending: str) -> None:
        bench.put({"f": (("x" * 200_000) + ending + "y" + ending).encode()})
        began = time.monotonic()
        with pytest.raises(TextAmbiguousError, match="more than 100 times"):
            bench.call("str_replace", path="f", old_str="x" * 100_000, new_str="z")
        with pytest.raises(ToolError):
            bench.call("str_replace", path="f", old_str="x" * 100_000 + "\ny\nz", new_str="z")
        assert time.monotonic() - began < 10, "it took 20 s before the search was linear"

    def test_a_few_overlapping_places_are_named(self, bench: ToolBench) -> None:
        bench.put({"f": "aaa\r\nb\r\naaa\r\nb\r\n"})
        with pytest.raises(TextAmbiguousError, match="2 times, at lines 1, 3"):
            bench.call("str_replace", path="f", old_str="aaa\nb", new_str="z")
        bench.call("str_replace", path="f", old_str="b\naaa\nb", new_str="c\nd")
        assert bench.read("f") == "aaa\r\nc\r\nd\r\n"


def test_in_memory_too(tmp_path: Path) -> None:
    """One story over the memory backend: the rest of it shares its code with the host's."""
    from ws.fs.memory import MemoryFilesystem
    from ws.toolbox.local import LocalBackend
    from ws.tools.context import ToolContext
    from ws.tools.trash import Backups

    filesystem = MemoryFilesystem()
    router = Router(LocalBackend(ToolContext(filesystem, Backups(filesystem, MemoryFilesystem("/kept")))))
    filesystem.write_bytes("f", RUSSIAN.encode("cp1251"))
    router.call("str_replace", path="/workspace/f", old_str="мир", new_str="пока", encoding="cp1251")
    router.call("write_file", path="zz/../ee.txt", content="x")
    assert filesystem.read_bytes("f") == RUSSIAN.replace("мир", "пока").encode("cp1251")
    assert not filesystem.exists("zz")
    router.call("undo", path="f")
    router.call("redo", path="f")
    assert filesystem.read_bytes("f") == RUSSIAN.replace("мир", "пока").encode("cp1251")


def test_tags_follow_one_rule_on_memory_and_on_a_directory(tmp_path: Path) -> None:
    import ws
    from ws.errors import InvalidName, TagExists

    (tmp_path / "root").mkdir()
    directory = ws.RewindableDirectory(str(tmp_path / "root"), git_dir=str(tmp_path / "git"))
    for filesystem in (ws.MemoryFilesystem(), directory):
        assert filesystem.snapshot("tests: all pass").tag == "tests: all pass"
        with pytest.raises(TagExists):
            filesystem.snapshot("tests: all pass")
        assert filesystem.snapshot("tests: all pass", force=True).tag == "tests: all pass"
        for bad in ("", "a\nb", "x" * 201, "base", "@1"):
            with pytest.raises(InvalidName):
                filesystem.snapshot(bad)
