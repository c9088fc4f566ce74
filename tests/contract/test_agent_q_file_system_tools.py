"""The law: every line of `agent-q-file-system-tools.md` holds in the dialect `agent-q`.

What the document says of a Lisp image and of Emacs (ASDF and SLY as sources of the project root, `eval-in-emacs` as
the way to the files) is said of the place where its tools run. Here that place is a workspace, and the way to it is the
backend: the last section holds it to what the document expects of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tool_bench import BACKENDS, ToolBench, open_bench

from cli_stage import DEADLINE_S, Stage, warm_home
from workspaces import SharedWorkspaces
from ws.errors import (
    ApprovalDenied,
    FsViolationError,
    SourceRefused,
    TextAmbiguousError,
    TextNotFoundError,
    ToolValidationError,
)
from ws.layout import EngineName
from ws.toolbox.approval import ALLOW, Approval, ApprovalRequest, deny
from ws.toolbox.dialects import open_dialect
from ws.toolbox.events import Event, Events
from ws.toolbox.roots import find_root
from ws.toolbox.router import Router
from ws.tools.context import ToolResult


@pytest.fixture(params=BACKENDS)
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, shared: Callable[[str], SharedWorkspaces]
) -> Iterator[ToolBench]:
    """Its router asks for no approval; `bench.with_router()` has the dialect's own policy."""
    with open_bench(request.param, tmp_path, shared, "agent-q", approval="never") as bench:
        yield bench


@pytest.fixture
def stage_of(
    shared: Callable[[str], SharedWorkspaces], session_home: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[EngineName], Stage]]:
    """The command line on an engine, with a WS_HOME of its own."""
    stages: list[Stage] = []

    def make(engine: EngineName) -> Stage:
        if engine != "none":
            shared(engine)  # does it work here?
        stages.append(Stage(warm_home(tmp_path_factory.mktemp("stage") / "home", session_home), engine))
        return stages[-1]

    yield make
    for stage in stages:
        stage.run("rm", "--all", "--yes")


def run_in(cwd: Path, stage: Stage, *words: str) -> tuple[str, str]:
    """Run ws in a directory: what it printed, and what it said on stderr."""
    process = stage.start(*words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    out, told = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, (out, told)
    return out.decode().strip(), told.decode()


def test_the_dialect_has_these_tools() -> None:
    assert set(open_dialect("agent-q").tools) == {
        "list_directory", "directory_tree", "get_file_info", "search_files", "view_file",
        "str_replace", "insert_text", "create_file", "move_file", "delete_file",
    }  # fmt: skip


class TestProjectRoot:
    def test_explicit_configuration_then_the_git_root_then_the_working_directory(self, tmp_path: Path) -> None:
        project = tmp_path / "a" / "b"
        project.mkdir(parents=True)
        assert find_root(cwd=str(project)) == str(project)
        (tmp_path / "a" / ".git").mkdir()
        assert find_root(cwd=str(project)) == str(tmp_path / "a")
        assert find_root(str(project), cwd=str(tmp_path)) == str(project)

    def test_it_is_not_the_home_directory_unless_that_is_configured(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        with pytest.raises(SourceRefused):
            find_root(cwd=str(tmp_path))
        assert find_root("~") == str(tmp_path)

    def test_it_is_never_the_system_root(self) -> None:
        for explicit, cwd in (("/", None), (None, "/")):
            with pytest.raises(SourceRefused):
                find_root(explicit, cwd=cwd)

    @pytest.mark.parametrize("engine", ["podman", "docker", "none"])
    def test_ws_create_of_a_subdirectory_says_what_it_took_and_how_to_take_the_git_root(
        self, engine: EngineName, stage_of: Callable[[EngineName], Stage], tmp_path: Path
    ) -> None:
        stage = stage_of(engine)
        repository, plain = tmp_path / "a repo", tmp_path / "plain"
        (repository / "src").mkdir(parents=True)
        (repository / "src" / "main.lisp").write_text("")
        (repository / ".git").mkdir()
        plain.mkdir()
        took = f"took {repository}/src alone"
        for cwd, source, files, noted in (
            (repository / "src", ".", ["main.lisp"], True),
            (tmp_path, "a repo/src", ["main.lisp"], True),
            (repository, ".", ["src"], False),
            (tmp_path, "plain", [], False),
        ):
            name, told = run_in(cwd, stage, "create", source)
            assert (took in told) == noted, told
            assert (f"SOURCE '{repository}' takes all of it" in told) == noted
            assert stage.run("exec", name, "--", "ls").stdout.decode().split() == files
        (repository / ".git").rmdir()
        (repository / ".git").write_text("gitdir: elsewhere")  # a worktree
        assert took in run_in(repository / "src", stage, "run", ".", "--", "true")[1]

    def test_where_no_container_bounds_the_tools_ws_create_takes_the_project(
        self, stage_of: Callable[[EngineName], Stage], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stage = stage_of("none")
        monkeypatch.setenv("HOME", str(tmp_path))
        repository, plain = tmp_path / "repo", tmp_path / "plain"
        (repository / ".git").mkdir(parents=True)
        (repository / "src").mkdir()
        (repository / "README").write_text("")
        plain.mkdir()
        (plain / "only").write_text("")
        for cwd, root, files in (
            (repository / "src", repository, ["README", "src"]),
            (repository, repository, ["README", "src"]),
            (plain, plain, ["only"]),
        ):
            name, told = run_in(cwd, stage, "create")
            assert f" {root}: with engine none" in told
            listed = stage.run("tool", name, "--dialect", "agent-q", "list_directory", "--json").stdout
            assert [
                entry["name"] for entry in json.loads(listed)["data"]["entries"] if entry["name"] != ".git"
            ] == files
        (tmp_path / ".git").mkdir()
        for refused in (tmp_path, Path("/")):
            with pytest.raises(AssertionError, match="source_refused"):
                run_in(refused, stage, "create", "--json")
        assert len(stage.names()) == 3
        other = stage_of("podman")
        name, told = run_in(repository, other, "create")
        assert (other.run("exec", name, "--", "ls", "-A").stdout, told) == (b"", "")

    def test_the_working_directory_of_the_process_is_not_the_boundary(
        self, bench: ToolBench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench.put({"a.txt": "inside\n"})
        monkeypatch.chdir(bench.outside)
        assert bench.call("view_file", path="a.txt").output == "inside"
        with pytest.raises(FileNotFoundError):
            bench.call("view_file", path="secret.txt")

    @pytest.mark.parametrize("path", ["../outside/secret.txt", "d/../../outside/secret.txt", "link/secret.txt"])
    def test_no_tool_gets_out(self, bench: ToolBench, path: str) -> None:
        bench.put({"a.txt": "x\n", "d/b.txt": "x\n"})
        (bench.root / "link").symlink_to(bench.outside)
        calls: list[tuple[str, dict[str, Any]]] = [
            ("list_directory", {"path": os.path.dirname(path)}),
            ("directory_tree", {"path": os.path.dirname(path)}),
            ("get_file_info", {"path": path}),
            ("search_files", {"pattern": "*", "path": os.path.dirname(path)}),
            ("view_file", {"path": path}),
            ("str_replace", {"path": path, "old_str": "secret", "new_str": "x"}),
            ("insert_text", {"path": path, "line": 0, "text": "x"}),
            ("create_file", {"path": os.path.dirname(path) + "/new.txt", "content": "x"}),
            ("move_file", {"source": path, "destination": "stolen.txt"}),
            ("move_file", {"source": "a.txt", "destination": os.path.dirname(path) + "/new.txt"}),
            ("delete_file", {"path": path}),
        ]
        for name, arguments in calls:
            with pytest.raises((FsViolationError, ValueError)):
                bench.call(name, **arguments)
            told = bench.router.call_safely(name, arguments)
            assert told.data["code"] in {"fs_violation", "invalid_request"}, name
        assert bench.untouched()
        assert bench.read("a.txt") == "x\n"


class TestPathResolution:
    def test_an_absolute_path_that_starts_with_the_root_is_taken(self, bench: ToolBench) -> None:
        bench.put({"a.txt": "x\n"})
        assert bench.call("view_file", path=f"{bench.root}/a.txt").output == "x"

    def test_an_absolute_path_outside_is_rejected_with_an_error_that_says_so(self, bench: ToolBench) -> None:
        for path in ("/etc/passwd", f"{bench.outside}/secret.txt", f"{bench.root}-evil/x"):
            with pytest.raises(FsViolationError) as caught:
                bench.call("view_file", path=path)
            assert path in str(caught.value)
            assert str(bench.root) in str(caught.value)
            assert "path outside project root" in str(caught.value)

    @pytest.mark.parametrize("path", ["../outside/secret.txt", "d/../../outside/secret.txt", "link", "~/secret.txt"])
    def test_a_relative_path_that_leads_out_is_rejected_in_the_same_words(self, bench: ToolBench, path: str) -> None:
        bench.put({"d/a.txt": "x\n"})
        (bench.root / "link").symlink_to(bench.outside / "secret.txt")
        for name, arguments in (("view_file", {}), ("str_replace", {"old_str": "secret", "new_str": "x"})):
            with pytest.raises(FsViolationError, match="path outside project root") as caught:
                bench.call(name, path=path, **arguments)
            assert path.removeprefix("~") in str(caught.value)
            assert str(bench.root) in str(caught.value)
        assert bench.untouched()

    def test_relative_paths_are_joined_with_the_root(self, bench: ToolBench) -> None:
        bench.put({"d/a.txt": "x\n"})
        assert bench.call("view_file", path="d/a.txt").output == "x"

    @pytest.mark.parametrize("path", ["d//a.txt", "./d/./a.txt", "d/../d/a.txt", "link/a.txt", "d/to_a"])
    def test_separators_dots_and_links_are_resolved(self, bench: ToolBench, path: str) -> None:
        bench.put({"d/a.txt": "x\n"})
        (bench.root / "link").symlink_to("d")
        (bench.root / "d" / "to_a").symlink_to(bench.root / "d" / "a.txt")
        assert bench.call("view_file", path=path).output == "x"

    def test_a_canonical_path_is_absolute(self, bench: ToolBench) -> None:
        bench.put({"d/a.txt": "x\n"})
        info = bench.call("get_file_info", path="./d//a.txt").data["info"]
        assert info["path"] == f"{bench.root}/d/a.txt"

    def test_the_file_info_of_a_link_has_its_canonical_target(self, bench: ToolBench) -> None:
        bench.put({"d/a.txt": "x\n"})
        links = {
            "to_a": "d/../d//a.txt",
            "to_to_a": "to_a",
            "absolute": f"{bench.root}/d/a.txt",
            "to_d": "d",
            "d/up": "../d/a.txt",
            "dangling": "d/missing",
            "out": str(bench.outside / "secret.txt"),
            "loop": "loop",
        }
        for name, target in links.items():
            (bench.root / name).symlink_to(target)

        def info(path: str) -> dict[str, Any]:
            found = bench.call("get_file_info", path=path).data["info"]
            assert found["type"] == ("symlink" if path in links else "file")
            return dict(found)

        for name in ("to_a", "to_to_a", "absolute", "d/up"):
            assert (info(name)["target"], info(name)["link"]) == (f"{bench.root}/d/a.txt", links[name])
        assert info("to_d")["target"] == f"{bench.root}/d"
        assert info("dangling")["target"] == f"{bench.root}/d/missing"
        assert info("out")["target"] is info("loop")["target"] is None
        assert "target" not in info("d/a.txt")
        assert info("to_d/a.txt")["path"] == f"{bench.root}/d/a.txt", "links above the last segment are resolved"
        assert f':target "{bench.root}/d/a.txt"' in bench.call("get_file_info", path="to_a").output


class TestStrReplace:
    def test_an_exact_string_is_replaced(self, bench: ToolBench) -> None:
        bench.put({"a.lisp": "(defun f () 1)\n(defun g () 2)\n"})
        bench.call("str_replace", path="a.lisp", old_str="(defun f () 1)", new_str="(defun f () 3)")
        assert bench.read("a.lisp") == "(defun f () 3)\n(defun g () 2)\n"

    def test_the_fields_may_be_written_as_keywords(self, bench: ToolBench) -> None:
        bench.put({"a.lisp": "old\n"})
        bench.call("str_replace", **{":path": "a.lisp", ":old_str": "old", ":new_str": "new"})
        assert bench.read("a.lisp") == "new\n"

    def test_several_matches_are_an_error_that_asks_for_more_context(self, bench: ToolBench) -> None:
        bench.put({"a": "x\nx\n"})
        with pytest.raises(TextAmbiguousError, match="lines 1, 2") as caught:
            bench.call("str_replace", path="a", old_str="x", new_str="y")
        assert "add lines" in (caught.value.hint or "")
        assert bench.read("a") == "x\nx\n"

    def test_no_match_is_an_error_that_says_not_found(self, bench: ToolBench) -> None:
        bench.put({"a": "x\n"})
        with pytest.raises(TextNotFoundError, match="not in the file"):
            bench.call("str_replace", path="a", old_str="z", new_str="y")

    def test_it_is_no_regular_expression(self, bench: ToolBench) -> None:
        bench.put({"a": "x1 x.\n"})
        bench.call("str_replace", path="a", old_str="x.", new_str="y")
        assert bench.read("a") == "x1 y\n"

    def test_repeated_calls_replace_several(self, bench: ToolBench) -> None:
        bench.put({"a": "1 x\n2 x\n"})
        bench.call("str_replace", path="a", old_str="1 x", new_str="1 y")
        bench.call("str_replace", path="a", old_str="x", new_str="y")
        assert bench.read("a") == "1 y\n2 y\n"

    def test_white_space_matters(self, bench: ToolBench) -> None:
        bench.put({"a": "foo  bar\n"})
        with pytest.raises(TextNotFoundError):
            bench.call("str_replace", path="a", old_str="foo bar", new_str="x")
        bench.put({"b": "    indented\n"})
        with pytest.raises(TextNotFoundError):
            bench.call("str_replace", path="b", old_str="\tindented", new_str="x")


class TestLines:
    def test_line_0_is_the_beginning_n_is_after_n_and_minus_1_is_the_end(self, bench: ToolBench) -> None:
        bench.put({"a": "1\n2\n"})
        bench.call("insert_text", path="a", line=0, text="zero")
        bench.call("insert_text", path="a", line=2, text="after two")
        bench.call("insert_text", path="a", line=-1, text="end")
        assert bench.read("a") == "zero\n1\nafter two\n2\nend\n"

    def test_lines_are_parted_by_newlines_alone(self, bench: ToolBench) -> None:
        bench.put({"a": b"1\r2\x0c3\xe2\x80\xa84\n5\n"})
        bench.call("insert_text", path="a", line=1, text="after the first")
        assert (bench.root / "a").read_bytes() == b"1\r2\x0c3\xe2\x80\xa84\nafter the first\n5\n"

    @pytest.mark.parametrize(
        ("view_range", "expected"),
        [
            ({"start": 10, "end": 12}, "10\n11\n12"),
            ({"start": 98}, "98\n99\n100"),
            ({":start": 99, ":end": -1}, "99\n100"),
            ({"start": 1, "end": 1}, "1"),
        ],
    )
    def test_a_view_range_is_inclusive_and_open_to_the_end(
        self, bench: ToolBench, view_range: dict[str, int], expected: str
    ) -> None:
        bench.put({"a": "".join(f"{n}\n" for n in range(1, 101))})
        assert bench.call("view_file", path="a", view_range=view_range).output == expected

    def test_start_1_end_minus_1_is_the_entire_file(self, bench: ToolBench) -> None:
        text = "".join(f"{n}\n" for n in range(1, 1001))
        bench.put({"a": text})
        for arguments in ({"view_range": {"start": 1, "end": -1}}, {}):
            assert bench.call("view_file", path="a", **arguments).output == text.removesuffix("\n")

    @pytest.mark.parametrize("bad", [{"start": 0}, {"start": 5, "end": 2}, {"begin": 1}, {"start": "x"}])
    def test_a_range_that_cannot_be_is_refused(self, bench: ToolBench, bad: dict[str, Any]) -> None:
        bench.put({"a": "1\n"})
        with pytest.raises(ToolValidationError):
            bench.call("view_file", path="a", view_range=bad)


class TestEntriesTreesAndInfo:
    def test_a_directory_entry_has_name_type_size_and_modified(self, bench: ToolBench) -> None:
        bench.put({"filename.lisp": "x" * 1234, "sub/inner": ""})
        (bench.root / "link").symlink_to("filename.lisp")
        result = bench.call("list_directory")
        file, link, directory = result.data["entries"]
        assert (file["name"], file["type"], file["size"]) == ("filename.lisp", "file", 1234)
        assert file["modified"].startswith("20")
        assert (link["name"], link["type"]) == ("link", "symlink")
        assert (directory["name"], directory["type"]) == ("sub", "directory")
        assert "size" not in directory, "bytes are told of files only"
        assert result.output.splitlines()[0].startswith('(:name "filename.lisp" :type :file :size 1234 :modified "')

    def test_symbolic_links_are_resolved_for_operations(self, bench: ToolBench) -> None:
        bench.put({"real": "one\n"})
        (bench.root / "link").symlink_to("real")
        bench.call("str_replace", path="link", old_str="one", new_str="two")
        assert bench.read("real") == "two\n"
        assert (bench.root / "link").is_symlink()

    def test_a_tree_is_nested_and_leaves_out_what_is_excluded(self, bench: ToolBench) -> None:
        bench.put(
            {
                "src/package.lisp": "x" * 500,
                "src/tools/buffer.lisp": "",
                "src/tools/buffer.fasl": "",
                "src/.git/config": "",
                "src/node_modules/m.js": "",
            }
        )
        result = bench.call("directory_tree", path="src", exclude=["*.fasl", ".git", "node_modules"])
        assert result.data["tree"] == {
            "name": "src",
            "type": "directory",
            "children": [
                {"name": "package.lisp", "type": "file", "size": 500},
                {
                    "name": "tools",
                    "type": "directory",
                    "children": [{"name": "buffer.lisp", "type": "file", "size": 0}],
                },
            ],
        }
        assert result.output == (
            '(:name "src" :type :directory :children ((:name "package.lisp" :type :file :size 500) '
            '(:name "tools" :type :directory :children ((:name "buffer.lisp" :type :file :size 0)))))'
        )

    def test_file_info_has_every_field(self, bench: ToolBench) -> None:
        bench.put({"src/agent.lisp": "x" * 15234})
        (bench.root / "src/agent.lisp").chmod(0o644)
        result = bench.call("get_file_info", path="src/agent.lisp")
        info = result.data["info"]
        assert info["path"] == f"{bench.root}/src/agent.lisp"
        assert (info["type"], info["size"], info["permissions"]) == ("file", 15234, "rw-r--r--")
        assert (info["readable"], info["writable"]) == (True, True)
        for moment in ("created", "modified", "accessed"):
            assert info[moment].startswith("20")
        assert ":type :file :size 15234 " in result.output
        assert ':permissions "rw-r--r--" :readable t :writable t)' in result.output
        assert bench.call("get_file_info", path="src").data["info"]["type"] == "directory"

    def test_odd_names_are_written_so_that_lisp_reads_them(self, bench: ToolBench) -> None:
        bench.put({'a "b" \\ c': ""})
        assert '(:name "a \\"b\\" \\\\ c" :type :file' in bench.call("list_directory").output


class TestSafetyTiers:
    DESTRUCTIVE: tuple[tuple[str, dict[str, Any]], ...] = (
        ("create_file", {"path": "b"}),
        ("move_file", {"source": "a", "destination": "c"}),
        ("delete_file", {"path": "d"}),
    )

    def test_the_tiers_are_those_of_the_table(self) -> None:
        tiers = {name: tool.spec.tier for name, tool in open_dialect("agent-q").tools.items()}
        safe = ("list_directory", "directory_tree", "get_file_info", "search_files", "view_file")
        assert tiers == {
            **dict.fromkeys(safe, "safe"),
            **dict.fromkeys(("str_replace", "insert_text"), "cautious"),
            **dict.fromkeys(("create_file", "move_file", "delete_file"), "dangerous"),
        }

    def test_tier_1_runs_at_once_tier_2_is_logged_with_a_diff_tier_3_asks(self, bench: ToolBench) -> None:
        bench.put({"a": "x\n", "d": ""})
        asked: list[ApprovalRequest] = []
        told: list[Event] = []

        def handler(request: ApprovalRequest) -> Any:
            asked.append(request)
            return deny("not now")

        events = Events()
        events.subscribe(told.append)
        router = bench.with_router(approval=Approval("on-dangerous", handler), events=events)
        router.call("view_file", path="a")
        assert not asked
        diff = router.call("str_replace", path="a", old_str="x", new_str="y").output
        assert "-x\n+y" in diff
        assert not asked
        assert [event.tool for event in told if event.event == "end"] == ["view_file", "str_replace"]
        for name, arguments in self.DESTRUCTIVE:
            assert "not now" in router.call_safely(name, arguments).output
        assert [request.tier for request in asked] == ["dangerous"] * 3
        assert [request.called for request in asked] == ["create_file", "move_file", "delete_file"]
        assert bench.read("a") == "y\n"

    def test_tier_3_always_needs_a_handler_and_without_one_it_is_refused_with_how_to_give_it(
        self, bench: ToolBench
    ) -> None:
        bench.put({"a": "x\n", "d": ""})
        router = bench.with_router()
        assert router.call("view_file", path="a").output == "x"
        router.call("str_replace", path="a", old_str="x", new_str="y")
        for name, arguments in self.DESTRUCTIVE:
            with pytest.raises(ApprovalDenied, match=f"^{name} needs approval") as caught:
                router.call(name, **arguments)
            assert 'approval=Approval("on-dangerous", handler)' in (caught.value.hint or "")
            assert "never" in router.call_safely(name, arguments).output
        assert {path.name for path in bench.root.iterdir()} == {"a", "d"}
        allowing = bench.with_router(approval=Approval("on-dangerous", lambda request: ALLOW))
        for name, arguments in self.DESTRUCTIVE:
            assert allowing.call(name, **arguments).status == "ok"


class TestDestructiveTools:
    def test_create_makes_the_file_and_refuses_one_that_exists(self, bench: ToolBench) -> None:
        bench.call("create_file", path="new/a.txt", content="x\n")
        assert bench.read("new/a.txt") == "x\n"
        with pytest.raises(FileExistsError):
            bench.call("create_file", path="new/a.txt", content="y\n")
        assert bench.read("new/a.txt") == "x\n"

    def test_move_and_delete(self, bench: ToolBench) -> None:
        bench.put({"a": "x\n"})
        bench.call("move_file", source="a", destination="b")
        assert bench.read("b") == "x\n"
        bench.call("delete_file", path="b")
        assert not (bench.root / "b").exists()


class TestGlobPatterns:
    @pytest.fixture(autouse=True)
    def _files(self, bench: ToolBench) -> None:
        for path in (
            "package.lisp", "agent.lisp", "README.md", "src/package.lisp", "src/tools/buffer.lisp",
            "docs/api/README.md", "test-1.el", "test-a.el", "test-10.el", "project/test/foo.lisp", "test/bar.lisp",
            "[abc].txt", "a.txt", "{a,b}.txt", "b.txt", "!c.txt", "@(x).txt", "+(x).txt",
        ):  # fmt: skip
            bench.put({path: ""})

    @pytest.mark.parametrize(
        ("pattern", "expected"),
        [
            ("*.lisp", {"package.lisp", "agent.lisp"}),
            (
                "**/*.lisp",
                {
                    "package.lisp",
                    "agent.lisp",
                    "src/package.lisp",
                    "src/tools/buffer.lisp",
                    "project/test/foo.lisp",
                    "test/bar.lisp",
                },
            ),
            ("**/*.md", {"README.md", "docs/api/README.md"}),
            ("test-?.el", {"test-1.el", "test-a.el"}),
            ("**/test/*.lisp", {"project/test/foo.lisp", "test/bar.lisp"}),
            ("[abc].txt", {"[abc].txt"}),
            ("[!abc].txt", set()),
            ("[a-z].txt", set()),
            ("{a,b}.txt", {"{a,b}.txt"}),
            ("@(x).txt", {"@(x).txt"}),
            ("+(x).txt", {"+(x).txt"}),
            ("!c.txt", {"!c.txt"}),
            ("/regex/", set()),
            ("^a$.txt", set()),
        ],
    )
    def test_what_a_pattern_finds(self, bench: ToolBench, pattern: str, expected: set[str]) -> None:
        try:
            found = bench.call("search_files", pattern=pattern)
        except ValueError:
            assert pattern == "/regex/"
            return
        assert set(found.data["paths"]) == expected

    def test_the_newest_come_first(self, bench: ToolBench) -> None:
        now = time.time()
        for age, name in enumerate(("agent.lisp", "package.lisp")):
            os.utime(bench.root / name, (now - age, now - age))
        assert bench.call("search_files", pattern="*.lisp").data["paths"] == ["agent.lisp", "package.lisp"]


class TestExclusionPatterns:
    @pytest.fixture(autouse=True)
    def _files(self, bench: ToolBench) -> None:
        for path in (
            "build/tools.fasl",
            "src/package.fasl",
            "src/a.lisp",
            ".git/config",
            "node_modules/x/y.js",
            "B.FASL",
        ):
            bench.put({path: ""})

    def found(self, bench: ToolBench, *exclude: str) -> set[str]:
        return set(bench.call("search_files", pattern="**", exclude=list(exclude)).data["paths"])

    def test_they_are_held_against_the_basename_anywhere(self, bench: ToolBench) -> None:
        found = self.found(bench, "*.fasl")
        assert not found & {"build/tools.fasl", "src/package.fasl"}
        assert "src/a.lisp" in found

    def test_several_exclude_files_and_directories_with_what_is_in_them(self, bench: ToolBench) -> None:
        found = self.found(bench, "*.fasl", ".git", "node_modules")
        assert {path for path in found if not (bench.root / path).is_dir()} == {"src/a.lisp", "B.FASL"}

    def test_none_exclude_nothing_and_a_star_excludes_everything(self, bench: ToolBench) -> None:
        assert "build/tools.fasl" in self.found(bench)
        assert self.found(bench, "*") == set()
        assert bench.call("directory_tree", exclude=["*"]).data["tree"]["children"] == []

    def test_they_are_no_paths_no_negations_and_sensitive_to_case(self, bench: ToolBench) -> None:
        assert "build/tools.fasl" in self.found(bench, "build/*.fasl")
        assert "src/a.lisp" in self.found(bench, "!a.lisp")
        assert "B.FASL" in self.found(bench, "*.fasl")


class TestTheWayToTheFiles:
    """`eval-in-emacs`: operations are done where the files are; without a connection they fail and say so."""

    def test_every_tool_goes_through_the_one_way(self) -> None:
        seen: list[str] = []

        class Elsewhere:
            root = "/workspace"

            def run(self, tool: str, params: Mapping[str, Any]) -> ToolResult:
                seen.append(tool)
                return ToolResult(data={"entries": [], "path": ".", "type": "file"})

        router = Router(Elsewhere(), dialect="agent-q", approval="never")
        router.call("list_directory")
        router.call("search_files", pattern="*")
        router.call("view_file", path="a")
        router.call("create_file", path="a")
        assert seen == ["list_dir", "glob", "read_file", "write_file"]

    def test_without_a_connection_a_tool_fails_and_says_so(self) -> None:
        class Disconnected:
            root = "/workspace"

            def run(self, tool: str, params: Mapping[str, Any]) -> ToolResult:
                raise ConnectionError("not connected to the workspace")

        told = Router(Disconnected(), dialect="agent-q").call_safely("list_directory", {})
        assert told.data["code"] == "unavailable"
        assert "not connected" in told.output
