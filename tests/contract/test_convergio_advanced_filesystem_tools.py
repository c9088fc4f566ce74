"""The law: every line of `convergio-advanced-filesystem-tools.md` holds in the dialect `convergio`.

Two things stand elsewhere than in the document. Backups and trash are kept outside the tree, in the workspace's state
and not in `~/.convergio`, so that a restore does not take them away; and the trash is ours on every system, there
is no Finder in a container. What the document promises of them is tested here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tool_bench import BACKENDS, RG, ToolBench, open_bench

from workspaces import SharedWorkspaces
from ws.errors import ApprovalDenied, FsViolationError, TextAmbiguousError, TextNotFoundError
from ws.toolbox.dialects import open_dialect
from ws.toolbox.policy import CommandPolicy
from ws.tools.trash import Retention


@pytest.fixture(params=BACKENDS)
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, shared: Callable[[str], SharedWorkspaces]
) -> Iterator[ToolBench]:
    with open_bench(request.param, tmp_path, shared, "convergio") as bench:
        yield bench


@pytest.fixture
def host_bench(tmp_path: Path, shared: Callable[[str], SharedWorkspaces]) -> Iterator[ToolBench]:
    """For what is about a process of this machine."""
    with open_bench("host", tmp_path, shared, "convergio") as bench:
        yield bench


STAMP = r"\d{8}T\d{6}\.\d{9}Z"


def schema(name: str) -> dict[str, Any]:
    return open_dialect("convergio").tools[name].spec.schema


def test_the_dialect_has_the_four_basic_and_the_four_advanced_tools_and_those_that_take_it_back() -> None:
    assert list(open_dialect("convergio").tools) == [
        "file_read", "file_write", "file_list", "shell_exec", "glob", "grep", "edit", "file_delete",
        "undo", "redo", "trash_list", "trash_restore",
    ]  # fmt: skip


class TestBasicTools:
    def test_file_read_write_and_list(self, bench: ToolBench) -> None:
        bench.call("file_write", path="d/a.txt", content="one\ntwo\nthree\n")
        bench.call("file_write", path="d/a.txt", content="four\n", mode="append")
        assert bench.call("file_read", path="d/a.txt").output == "one\ntwo\nthree\nfour"
        assert bench.call("file_read", path="d/a.txt", start_line=2, end_line=3).output == "two\nthree"
        assert bench.call("file_list").output == "d/"
        assert bench.call("file_list", recursive=True).output == "d/\nd/a.txt"
        bench.call("file_write", path="d/a.txt", content="new\n")
        assert bench.read("d/a.txt") == "new\n"

    def test_shell_exec(self, bench: ToolBench) -> None:
        bench.put({"d/a.txt": ""})
        result = bench.call("shell_exec", command="ls; exit 2", working_dir="d")
        assert (result.output, result.data["exit_code"]) == ("a.txt", 2)
        assert bench.router.call_safely("shell_exec", {"command": "sleep 9", "timeout": 1}).data["code"] == (
            "command_timeout"
        )


class TestGlob:
    def test_its_parameters_and_defaults(self) -> None:
        properties = schema("glob")["properties"]
        assert list(properties) == ["pattern", "path", "max_results"]
        assert properties["max_results"]["default"] == 100
        assert schema("glob")["required"] == ["pattern"]

    def test_two_stars_go_down(self, bench: ToolBench) -> None:
        bench.put({"a.c": "", "src/b.c": "", "src/deep/c.c": "", "src/d.h": ""})
        assert set(bench.call("glob", pattern="**/*.c").data["paths"]) == {"a.c", "src/b.c", "src/deep/c.c"}
        assert bench.call("glob", pattern="*.c").data["paths"] == ["a.c"]

    def test_it_starts_in_the_workspace_or_where_it_is_told(self, bench: ToolBench) -> None:
        bench.put({"a.c": "", "src/b.c": ""})
        assert bench.call("glob", pattern="*.c", path="src").data["paths"] == ["src/b.c"]

    def test_the_newest_come_first_and_no_more_than_were_asked_for(self, bench: ToolBench) -> None:
        now = time.time()
        for n in range(120):
            bench.put({f"f{n:03}.c": ""})
            os.utime(bench.root / f"f{n:03}.c", (now - n, now - n))
        found = bench.call("glob", pattern="*.c")
        assert found.data["paths"] == [f"f{n:03}.c" for n in range(100)]
        assert found.truncated
        assert bench.call("glob", pattern="*.c", max_results=2).output.splitlines()[:2] == ["f000.c", "f001.c"]

    def test_it_respects_the_boundary(self, bench: ToolBench) -> None:
        (bench.root / "link").symlink_to(bench.outside)
        assert "link/secret.txt" not in bench.call("glob", pattern="**").data["paths"]
        for path in ("..", "/", str(bench.outside), "link"):
            with pytest.raises((FsViolationError, ValueError)):
                bench.call("glob", pattern="*", path=path)


@pytest.fixture(params=["ripgrep", "without ripgrep"])
def grep_bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ToolBench]:
    """The document: `ripgrep` when available, else a fallback. Both say the same."""
    if request.param == "ripgrep" and RG is None:
        pytest.skip("ripgrep is not installed on this machine")
    bench = ToolBench(tmp_path, "convergio", rg=(RG,) if request.param == "ripgrep" else None)
    bench.put(
        {
            "a.c": "int main\nreturn 0;\nINT x\n",
            "b.txt": "int y\n",
            "src/c.c": "one\ntwo\nint z = 1;\nthree\nfour\n",
        }
    )
    yield bench
    bench.close()


class TestGrep:
    def test_its_parameters_and_defaults(self) -> None:
        properties = schema("grep")["properties"]
        assert list(properties) == [
            "pattern", "path", "glob", "context_before", "context_after", "ignore_case", "output_mode", "max_matches",
        ]  # fmt: skip
        defaults = {name: field["default"] for name, field in properties.items() if "default" in field}
        assert defaults == {
            "path": ".",
            "context_before": 0,
            "context_after": 0,
            "ignore_case": False,
            "output_mode": "content",
            "max_matches": 50,
        }
        assert properties["output_mode"]["enum"] == ["content", "files_with_matches", "count"]

    def test_a_regular_expression_over_a_directory(self, grep_bench: ToolBench) -> None:
        found = grep_bench.call("grep", pattern=r"^int \w+$")
        assert found.output.splitlines() == ["a.c:1:int main", "b.txt:1:int y"]

    def test_a_file_as_path(self, grep_bench: ToolBench) -> None:
        assert grep_bench.call("grep", pattern="int", path="src/c.c").output == "src/c.c:3:int z = 1;"

    def test_a_glob_narrows_the_search(self, grep_bench: ToolBench) -> None:
        assert grep_bench.call("grep", pattern="int", glob="*.txt").output == "b.txt:1:int y"

    def test_lines_before_and_after(self, grep_bench: ToolBench) -> None:
        found = grep_bench.call("grep", pattern="int z", context_before=1, context_after=2)
        assert found.output.splitlines() == [
            "src/c.c-2-two", "src/c.c:3:int z = 1;", "src/c.c-4-three", "src/c.c-5-four",
        ]  # fmt: skip

    def test_without_regard_to_case(self, grep_bench: ToolBench) -> None:
        assert "a.c:3:INT x" not in grep_bench.call("grep", pattern="int x").output
        assert grep_bench.call("grep", pattern="int x", ignore_case=True).output == "a.c:3:INT x"

    def test_files_with_matches_and_counts(self, grep_bench: ToolBench) -> None:
        files = grep_bench.call("grep", pattern="int", output_mode="files_with_matches", ignore_case=True)
        assert files.output.splitlines() == ["a.c", "b.txt", "src/c.c"]
        counts = grep_bench.call("grep", pattern="int", output_mode="count", ignore_case=True)
        assert counts.output.splitlines() == ["a.c:2", "b.txt:1", "src/c.c:1"]

    def test_no_more_matches_than_were_asked_for(self, grep_bench: ToolBench) -> None:
        grep_bench.put({"many.txt": "hit\n" * 80})
        found = grep_bench.call("grep", pattern="hit")
        assert len(found.output.splitlines()) == 50
        assert found.truncated
        assert len(grep_bench.call("grep", pattern="hit", max_matches=3).output.splitlines()) == 3

    def test_it_respects_the_boundary(self, grep_bench: ToolBench) -> None:
        (grep_bench.root / "link").symlink_to(grep_bench.outside)
        assert grep_bench.call("grep", pattern="secret").output == ""
        with pytest.raises(FsViolationError):
            grep_bench.call("grep", pattern="secret", path="../outside")


class TestEdit:
    def test_its_parameters(self) -> None:
        assert list(schema("edit")["properties"])[:3] == ["path", "old_string", "new_string"]
        assert schema("edit")["required"] == ["path", "old_string", "new_string"]

    def test_an_exact_string_is_replaced(self, bench: ToolBench) -> None:
        bench.put({"a.c": "int a;\nint b;\n"})
        bench.call("edit", path="a.c", old_string="int a;", new_string="long a;")
        assert bench.read("a.c") == "long a;\nint b;\n"

    def test_before_any_edit_a_backup_is_made_and_named(self, bench: ToolBench) -> None:
        bench.put({"a.c": "old\n"})
        result = bench.call("edit", path="a.c", old_string="old", new_string="new")
        kept = bench.kept / result.data["backup"]
        assert kept.read_bytes().endswith(b"old\n")
        assert re.fullmatch(rf"a\.c\.{STAMP}\.bak", kept.name), "{filename}.{timestamp}.bak"
        assert bench.root not in kept.parents

    def test_it_fails_when_the_string_is_not_unique(self, bench: ToolBench) -> None:
        bench.put({"a.c": "x\nx\n"})
        with pytest.raises(TextAmbiguousError, match="2 times"):
            bench.call("edit", path="a.c", old_string="x", new_string="y")
        with pytest.raises(TextNotFoundError):
            bench.call("edit", path="a.c", old_string="z", new_string="y")
        assert bench.read("a.c") == "x\nx\n"

    def test_it_writes_a_temporary_file_and_renames_it(self, bench: ToolBench) -> None:
        """A reader that has the old file open keeps the old bytes; no other file is left beside it."""
        bench.put({"a.c": "old\n"})
        with open(bench.root / "a.c") as reader:
            bench.call("edit", path="a.c", old_string="old", new_string="new")
            assert reader.read() == "old\n"
        assert bench.read("a.c") == "new\n"
        assert os.listdir(bench.root) == ["a.c"]

    def test_a_crash_in_the_middle_leaves_the_old_file(self, host_bench: ToolBench) -> None:
        """Killed at the rename, by a hook in the child alone: what is found is the old file, whole."""
        host_bench.put({"a.c": "old\n"})
        script = textwrap.dedent(
            """
            import os, signal, sys
            from ws.fs.memory import MemoryFilesystem
            from ws.toolbox.local import open_local
            from ws.toolbox.router import Router
            def hook(event, arguments):
                if event == "os.rename" and os.fsdecode(arguments[1]).endswith("a.c"):
                    os.kill(os.getpid(), signal.SIGKILL)
            router = Router(open_local(sys.argv[1], MemoryFilesystem("/kept")), dialect="convergio")
            sys.addaudithook(hook)
            router.call("edit", path="a.c", old_string="old", new_string="new")
            """
        )
        done = subprocess.run([sys.executable, "-c", script, str(host_bench.root)], check=False, env=os.environ)
        assert done.returncode == -9
        assert host_bench.read("a.c") == "old\n"


class TestFileDelete:
    def test_its_parameters_and_defaults(self) -> None:
        assert list(schema("file_delete")["properties"]) == ["path", "permanent", "dry_run"]
        assert schema("file_delete")["properties"]["permanent"]["default"] is False
        assert "NOT RECOMMENDED" in schema("file_delete")["properties"]["permanent"]["description"]

    def test_a_file_moves_to_the_trash_and_can_come_back(self, bench: ToolBench) -> None:
        bench.put({"a.c": "keep me\n"})
        name = bench.call("file_delete", path="a.c").data["trash_name"]
        assert not (bench.root / "a.c").exists()
        assert (bench.kept / name).read_bytes().endswith(b"keep me\n")
        bench.with_router(dialect="standard").call("undo", path="a.c")
        assert bench.read("a.c") == "keep me\n"

    def test_names_in_the_trash_have_a_timestamp_and_do_not_collide(self, bench: ToolBench) -> None:
        kept = set()
        for n in range(20):
            bench.put({"a.c": str(n)})
            name = bench.call("file_delete", path="a.c").data["trash_name"]
            assert re.fullmatch(rf"{STAMP}_a\.c", name.rpartition("/")[2]), "{timestamp}_{basename}"
            assert (bench.kept / name).is_file()
            kept.add(name)
        assert len(kept) == 20
        assert sorted(kept) == sorted(kept, key=lambda name: (bench.kept / name).stat().st_mtime_ns)

    def test_a_directory_in_the_trash_has_the_same_name(self, bench: ToolBench) -> None:
        bench.put({"d/a.c": "x", "-odd \n name.bak": "y"})
        trash = bench.with_router(dialect="standard")
        name = trash.call("delete", path="d", recursive=True).data["trash_name"]
        assert re.fullmatch(rf"{STAMP}_d", name.rpartition("/")[2])
        assert (bench.kept / f"{name}.tree" / "a.c").read_text() == "x"
        odd = bench.call("file_delete", path="-odd \n name.bak").data["trash_name"]
        assert re.fullmatch(rf"{STAMP}_-odd \n name\.bak", odd.rpartition("/")[2])
        for path in ("d", "-odd \n name.bak"):
            bench.call("undo", path=path)
        assert (bench.read("d/a.c"), bench.read("-odd \n name.bak")) == ("x", "y")

    def test_permanent_skips_the_trash(self, bench: ToolBench) -> None:
        bench.put({"a.c": "x"})
        assert bench.call("file_delete", path="a.c", permanent=True).data["trash_name"] is None
        assert bench.with_router(dialect="standard").call("trash_list").data["entries"] == []


class TestDirectPrefix:
    @pytest.mark.parametrize("prefix", ["!", "$"])
    def test_a_line_with_the_prefix_runs_at_once(self, bench: ToolBench, prefix: str) -> None:
        bench.put({"a.c": ""})
        assert "a.c" in bench.router.run_line(f"{prefix}ls -la").output

    def test_the_safety_checks_still_apply(self, bench: ToolBench) -> None:
        for line in ("!rm -rf /", "$mkfs /dev/sda", "!:(){ :|:& };:"):
            with pytest.raises(ApprovalDenied):
                bench.router.run_line(line)


class TestSafetyLayers:
    @pytest.mark.parametrize(
        ("name", "arguments"),
        [
            ("file_read", {}),
            ("file_write", {"content": "x"}),
            ("file_list", {}),
            ("grep", {"pattern": "x"}),
            ("edit", {"old_string": "secret", "new_string": "x"}),
            ("file_delete", {}),
            ("file_delete", {"permanent": True}),
        ],
    )
    def test_layer_1_every_path_is_held_inside(self, bench: ToolBench, name: str, arguments: dict[str, Any]) -> None:
        (bench.root / "link").symlink_to(bench.outside)
        for path in ("../outside/secret.txt", f"{bench.outside}/secret.txt", "link/secret.txt"):
            with pytest.raises(FsViolationError):
                bench.call(name, path=path, **arguments)
        assert bench.untouched()

    def test_layer_2_edits_and_layer_3_deletions_are_kept(self, bench: ToolBench) -> None:
        bench.put({"a": "1\n"})
        bench.call("edit", path="a", old_string="1", new_string="2")
        bench.call("file_write", path="a", content="3\n")
        bench.call("file_delete", path="a")
        undo = bench.with_router(dialect="standard")
        seen = []
        for _ in range(3):
            record = bench.backups.records("a")[0]
            undo.call("trash_restore", name=record.id, overwrite=True)
            seen.append(bench.read("a"))
            for extra in bench.backups.records("a"):
                if extra.reason == "restore":
                    undo.call("trash_purge", name=extra.id)
        assert seen == ["3\n", "2\n", "1\n"]

    def test_layer_4_commands_are_held_against_a_block_list_that_can_be_configured(self, bench: ToolBench) -> None:
        with pytest.raises(ApprovalDenied):
            bench.call("shell_exec", command="sudo shutdown now")
        strict = bench.with_router(commands=CommandPolicy().also(programs=["git"]))
        with pytest.raises(ApprovalDenied):
            strict.call("shell_exec", command="git push")


class TestConsequences:
    def test_the_prompt_prefers_the_dedicated_tools(self) -> None:
        tools = open_dialect("convergio").tools
        for name, instead in (
            ("glob", "shell find"),
            ("grep", "shell grep"),
            ("edit", "file_write"),
            ("file_delete", "shell rm"),
        ):
            text = tools[name].spec.description
            assert "Prefer it" in text
            assert instead in text

    def test_the_preferences_are_a_text_for_a_system_prompt(self, bench: ToolBench) -> None:
        text = bench.router.instructions()
        for line in (
            "Prefer `glob` over shell `find`",
            "Prefer `grep` over shell `grep`",
            "Prefer `edit` over `file_write` for modifications",
            "Prefer `file_delete` over shell `rm`",
        ):
            assert line in text

    def test_the_last_50_backups_of_a_file_and_30_days_of_trash_are_kept(self, bench: ToolBench) -> None:
        assert Retention() == Retention(max_per_path=50, max_age_s=30 * 86_400.0)
        bench.put({"a": "0"})
        for n in range(55):
            bench.call("edit", path="a", old_string=str(n), new_string=str(n + 1))
        assert len(bench.backups.records("a")) == 50


class TestFutureEnhancements:
    """The document's list of wishes: here they are."""

    def test_undo_restores_from_backup_and_from_trash(self, bench: ToolBench) -> None:
        bench.put({"a": "1\n"})
        bench.call("edit", path="a", old_string="1", new_string="2")
        bench.call("undo", path="a")
        assert bench.read("a") == "1\n"
        bench.call("redo", path="a")
        assert bench.read("a") == "2\n"
        bench.call("undo", path="a")
        assert "undo" in bench.call("file_delete", path="a").message
        bench.call("undo", path="a")
        assert bench.read("a") == "1\n"

    def test_the_trash_can_be_viewed_restored_from_and_emptied(self, bench: ToolBench) -> None:
        bench.put({"a": "1\n", "b": "2\n"})
        for name in ("a", "b"):
            bench.call("file_delete", path=name)
        entries = bench.call("trash_list").data["entries"]
        assert [entry["path"] for entry in entries] == ["b", "a"]
        bench.call("trash_restore", name=entries[1]["name"])
        assert bench.read("a") == "1\n"
        trash = bench.with_router(dialect="standard")
        trash.call("trash_purge", older_than_days=0)
        assert trash.call("trash_list").data["entries"] == []

    def test_dry_runs_show_and_do_not_do(self, bench: ToolBench) -> None:
        bench.put({"a": "1\n"})
        assert "+2" in bench.call("edit", path="a", old_string="1", new_string="2", dry_run=True).output
        assert "+3" in bench.call("file_write", path="a", content="3\n", dry_run=True).output
        assert "would be moved to the trash" in bench.call("file_delete", path="a", dry_run=True).message
        assert "for good" in bench.call("file_delete", path="a", permanent=True, dry_run=True).message
        assert bench.read("a") == "1\n"
        assert bench.call("trash_list").data["entries"] == []
        bench.call("edit", path="a", old_string="1", new_string="2")
        assert "would be brought back" in bench.call("undo", path="a", dry_run=True).message
        assert bench.read("a") == "2\n"
        bench.call("undo", path="a")
        assert "would be brought back" in bench.call("redo", path="a", dry_run=True).message
        assert bench.read("a") == "1\n"
        standard = bench.with_router(dialect="standard")
        assert "would be moved" in standard.call("move", source="a", destination="b", dry_run=True).message
        assert os.listdir(bench.root) == ["a"]


def test_the_specs_are_the_documents_json() -> None:
    """Names and parameters as the document's JSON blocks have them."""
    spec = json.loads(json.dumps(open_dialect("convergio").tools["glob"].spec.schema))
    assert "recursive" in spec["properties"]["pattern"]["description"]
    assert "workspace" in spec["properties"]["path"]["description"]
