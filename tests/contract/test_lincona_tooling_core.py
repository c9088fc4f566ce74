"""The law: every line of `lincona-tooling-core.md` holds in the dialect `lincona`.

The document's package layout, checklist and epic numbers are its own; what they are to do is tested here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tool_bench import BACKENDS, ToolBench, open_bench

from workspaces import SharedWorkspaces
from ws import errors, toolbox
from ws.errors import (
    ApprovalDenied,
    CommandTimeoutError,
    FsViolationError,
    InvalidRequest,
    PatchApplyError,
    PatchParseError,
    SessionNotFound,
    SourceRefused,
    ToolValidationError,
)
from ws.fs.memory import MemoryFilesystem
from ws.store.references import pack_references
from ws.store.repository import Store
from ws.toolbox import lincona
from ws.toolbox.approval import ALLOW, Approval, ApprovalRequest, deny
from ws.toolbox.dialects import open_dialect
from ws.toolbox.events import Event, EventLog, Events
from ws.toolbox.lincona import FsBoundary, PtyManager, approval_guard
from ws.toolbox.local import open_local
from ws.toolbox.roots import find_root
from ws.toolbox.router import Router


@pytest.fixture(params=BACKENDS)
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, shared: Callable[[str], SharedWorkspaces]
) -> Iterator[ToolBench]:
    with open_bench(request.param, tmp_path, shared, "lincona") as bench:
        yield bench


@pytest.fixture
def host_bench(tmp_path: Path, shared: Callable[[str], SharedWorkspaces]) -> Iterator[ToolBench]:
    """For what is about a process of this machine."""
    with open_bench("host", tmp_path, shared, "lincona") as bench:
        yield bench


def defaults(name: str) -> dict[str, Any]:
    return {
        parameter.name: "required" if parameter.required else parameter.default
        for parameter in open_dialect("lincona").tools[name].spec.parameters
    }


def diff(path: str, old: str, new: str, *, line: int = 1) -> str:
    return f"--- a/{path}\n+++ b/{path}\n@@ -{line} +{line} @@\n-{old}\n+{new}\n"


def envelope(body: str) -> str:
    return f"*** Begin Patch\n{body}*** End Patch\n"


def test_the_core_tools_are_there() -> None:
    assert list(open_dialect("lincona").tools) == [
        "list_dir", "read_file", "grep_files", "apply_patch_json", "apply_patch_freeform", "shell", "exec_command",
        "write_stdin",
    ]  # fmt: skip


class TestFilesystemBoundary:
    def test_in_restricted_mode_the_root_is_the_working_directory_and_not_the_git_root(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / ".git").mkdir()
        here = tmp_path / "sub"
        here.mkdir()
        assert find_root(cwd=str(here), git=False) == str(here)
        monkeypatch.chdir(here)
        assert FsBoundary().root == FsBoundary("unrestricted").root == str(here)
        for fs_mode, root in (("restricted", here), (None, tmp_path), ("unrestricted", tmp_path)):
            backend = open_local(None, MemoryFilesystem("/kept"), fs_mode=fs_mode)  # type: ignore[arg-type]
            assert backend.root == str(root)
            backend.close()

    def test_unrestricted_allows_any_absolute_path(self, tmp_path: Path) -> None:
        root, other = tmp_path / "root", tmp_path / "other"
        root.mkdir()
        other.mkdir()
        (other / "a.txt").write_text("x\n")
        for mode in ("restricted", "unrestricted"):
            backend = open_local(str(root), MemoryFilesystem("/kept"), fs_mode=mode)  # type: ignore[arg-type]
            router = Router(backend, dialect="lincona")
            if mode == "restricted":
                with pytest.raises(FsViolationError):
                    router.call("read_file", path=f"{other}/a.txt")
            else:
                assert router.call("read_file", path=f"{other}/a.txt").output == "x"
                router.call("apply_patch_json", patch=diff(f"{other}/a.txt", "x", "y"))
                assert (other / "a.txt").read_text() == "y\n"
                assert router.call("shell", command="pwd", workdir=str(other)).output == str(other)
            backend.close()

    @pytest.mark.parametrize("engine", ["podman", "docker"])
    def test_every_router_of_a_workspace_takes_the_mode(
        self, engine: str, shared: Callable[[str], SharedWorkspaces]
    ) -> None:
        """Unrestricted is every absolute path of the container; what is restricted by name stays so."""
        box = shared(engine).take()
        box.exec(["sh", "-c", "echo outside > /tmp/a.txt; echo inside > a.txt; echo k > key"])
        for fs_mode in (None, "restricted"):
            router = box.router("lincona", fs_mode=fs_mode)  # type: ignore[arg-type]
            assert router.call("read_file", path="a.txt").output == "inside"
            with pytest.raises(FsViolationError, match="path outside project root"):
                router.call("read_file", path="/tmp/a.txt")
            with pytest.raises(FsViolationError):
                router.call("shell", command="pwd", workdir="/tmp")
        router = box.router("lincona", fs_mode="unrestricted", restricted_paths=["key"])
        assert router.call("read_file", path="/tmp/a.txt").output == "outside"
        assert router.call("shell", command="pwd", workdir="/tmp").output == "/tmp"
        router.call("apply_patch_json", patch=diff("/tmp/a.txt", "outside", "changed"))
        assert box.exec(["cat", "/tmp/a.txt"]).stdout == "changed\n"
        for path in ("key", "/workspace/key"):
            with pytest.raises(FsViolationError, match="restricted"):
                router.call("read_file", path=path)
        with pytest.raises(InvalidRequest, match="unknown fs_mode"):
            box.router("lincona", fs_mode="open")  # type: ignore[arg-type]

    def test_a_restricted_path_stays_so_in_unrestricted_mode(self, tmp_path: Path) -> None:
        bench = ToolBench(tmp_path, "lincona", fs_mode="unrestricted", restricted_paths=["key"])
        bench.put({"key": "k\n"})
        assert bench.call("read_file", path=f"{bench.outside}/secret.txt").output == "secret"
        for path in ("key", f"{bench.root}/key"):
            with pytest.raises(FsViolationError, match="restricted"):
                bench.call("read_file", path=path)
        bench.close()

    def test_the_boundary_resolves_and_validates(self, tmp_path: Path) -> None:
        root, other = tmp_path / "root", tmp_path / "other"
        (root / "d").mkdir(parents=True)
        other.mkdir()
        (root / "link").symlink_to(other)
        (root / "inner").symlink_to("d")
        (root / "file").write_text("")
        boundary = FsBoundary(root=str(root))
        for path, found in (
            ("d/../d//new", "d/new"), ("inner/x", "d/x"), (f"{root}/d", "d"), (".", ""), (Path("d"), "d"),
        ):  # fmt: skip
            assert boundary.assert_within_root(path) == os.path.join(root, found).rstrip("/")
        for path in ("../other", "link/x", str(other), "/", "d/../../other"):
            with pytest.raises((FsViolationError, InvalidRequest)) as caught:
                boundary.assert_within_root(path)
            assert isinstance(caught.value, FsViolationError), path
            with pytest.raises(FsViolationError):
                boundary.sanitize_workdir(path)
        assert boundary.sanitize_workdir() == boundary.sanitize_workdir(None) == str(root)
        assert boundary.sanitize_workdir("inner") == boundary.sanitize_workdir(f"{root}/d") == f"{root}/d"
        for path, error in (("file", InvalidRequest), ("missing", FileNotFoundError)):
            with pytest.raises(error):
                boundary.sanitize_workdir(path)
        everywhere = FsBoundary("unrestricted", root=str(root))
        assert everywhere.assert_within_root(str(other)) == everywhere.sanitize_workdir("link") == str(other)
        for wrong in ({"root": "/"}, {"root": str(root / "file")}):
            with pytest.raises(SourceRefused):
                FsBoundary(**wrong)  # type: ignore[arg-type]

    def test_paths_are_normalised_and_what_escapes_is_rejected(self, bench: ToolBench) -> None:
        bench.put({"d/a.txt": "x\n"})
        (bench.root / "link").symlink_to(bench.outside)
        assert bench.call("read_file", path="d/../d//./a.txt").output == "x"
        for path in ("../outside/secret.txt", "d/../../outside/secret.txt", "link/secret.txt", "/etc/passwd"):
            with pytest.raises(FsViolationError):
                bench.call("read_file", path=path)

    def test_the_work_directory_is_safe_and_absolute_or_refused(self, bench: ToolBench) -> None:
        bench.put({"d/a": ""})
        assert bench.call("shell", command="pwd").output == str(bench.root)
        assert bench.call("shell", command="pwd", workdir="d").output == f"{bench.root}/d"
        for workdir in ("..", "../outside", "/", str(bench.outside)):
            with pytest.raises((FsViolationError, InvalidRequest)):
                bench.call("shell", command="pwd", workdir=workdir)


class TestListDir:
    def test_its_defaults(self) -> None:
        assert defaults("list_dir") == {"path": ".", "depth": 2, "offset": 0, "limit": 200}

    def test_breadth_first_sorted_with_type_markers(self, bench: ToolBench) -> None:
        bench.put({"b/inner/deep": "", "b/file": "", "a": "", "run.sh": ""})
        (bench.root / "run.sh").chmod(0o755)
        (bench.root / "link").symlink_to("a")
        assert bench.call("list_dir").output.splitlines() == [
            "a", "b/", "link@", "run.sh*", "b/file", "b/inner/",
        ]  # fmt: skip

    def test_depth_offset_and_limit(self, bench: ToolBench) -> None:
        bench.put({f"d/f{n}": "" for n in range(5)})
        assert bench.call("list_dir", depth=1).output == "d/"
        assert bench.call("list_dir", offset=1, limit=2).output == "d/f0\nd/f1"


class TestReadFile:
    def test_its_defaults(self) -> None:
        assert defaults("read_file") == {"path": "required", "offset": 0, "limit": 400, "mode": "slice"}

    def test_a_slice_of_lines(self, bench: ToolBench) -> None:
        bench.put({"a": "".join(f"{n}\n" for n in range(1, 501))})
        assert bench.call("read_file", path="a").output.splitlines() == [str(n) for n in range(1, 401)]
        assert bench.call("read_file", path="a", offset=10, limit=2).output == "11\n12"

    def test_an_indentation_prefix(self, bench: ToolBench) -> None:
        bench.put({"a": "x\n  y\n"})
        assert bench.call("read_file", path="a", mode="indentation").output == "    x\n      y"

    def test_long_lines_are_trimmed_with_a_marker(self, bench: ToolBench) -> None:
        bench.put({"a": "x" * 401 + "\n" + "y" * 400 + "\n"})
        first, second = bench.call("read_file", path="a").output.splitlines()
        assert first == "x" * 400 + "… [truncated line]"
        assert second == "y" * 400


class TestGrepFiles:
    def test_its_defaults(self) -> None:
        assert defaults("grep_files") == {"pattern": "required", "path": ".", "include": None, "limit": 200}

    def test_file_line_match_recursively(self, bench: ToolBench) -> None:
        bench.put({"a.py": "import os\nx = 1\n", "d/b.py": "import re\n", "c.txt": "import\n"})
        assert bench.call("grep_files", pattern=r"^import \w+").output.splitlines() == [
            "a.py:1:import os",
            "d/b.py:1:import re",
        ]

    def test_include_globs(self, bench: ToolBench) -> None:
        bench.put({"a.py": "hit\n", "b.txt": "hit\n", "c.md": "hit\n", "d/e.py": "hit\n"})
        assert bench.call("grep_files", pattern="hit", include="*.txt").output == "b.txt:1:hit"
        several = bench.call("grep_files", pattern="hit", include=["*.py", "*.md"])
        assert several.output.splitlines() == ["a.py:1:hit", "c.md:1:hit", "d/e.py:1:hit"]

    def test_it_stops_after_limit_matches(self, bench: ToolBench) -> None:
        bench.put({"a.py": "hit\n" * 300, "b.md": "hit\n" * 300})
        found = bench.call("grep_files", pattern="hit", limit=5)
        assert len(found.output.splitlines()) == 5
        assert found.truncated
        both = bench.call("grep_files", pattern="hit", include=["*.py", "*.md"], limit=7)
        assert len(both.output.splitlines()) == 7
        assert both.truncated

    def test_the_regular_expressions_are_pythons_and_need_no_ripgrep(self, tmp_path: Path) -> None:
        bench = ToolBench(tmp_path, "lincona", rg=None)
        bench.put({"a": "foobar\nbar\n"})
        assert bench.call("grep_files", pattern=r"(?<=foo)bar").output == "a:1:foobar"
        bench.close()

    def test_look_around_works_with_ripgrep_too(self, bench: ToolBench) -> None:
        bench.put({"a": "foobar\nbar\n"})
        assert bench.call("grep_files", pattern=r"(?<=foo)bar").output == "a:1:foobar"


class TestApplyPatch:
    def test_a_unified_diff_is_applied_and_each_file_has_its_statistics(self, bench: ToolBench) -> None:
        bench.put({"a": "1\n", "b": "2\n"})
        result = bench.call("apply_patch_json", patch=diff("a", "1", "one") + diff("b", "2", "two"))
        assert (bench.read("a"), bench.read("b")) == ("one\n", "two\n")
        assert [(file["path"], file["added"], file["removed"]) for file in result.data["files"]] == [
            ("a", 1, 1),
            ("b", 1, 1),
        ]

    def test_what_is_no_diff_is_a_parse_error(self, bench: ToolBench) -> None:
        with pytest.raises(PatchParseError):
            bench.call("apply_patch_json", patch="hello")

    def test_fuzz_and_offset_are_rejected(self, bench: ToolBench) -> None:
        bench.put({"a": "0\n1\n2\n"})
        with pytest.raises(PatchApplyError, match="line 1"):
            bench.call("apply_patch_json", patch=diff("a", "1", "one"))
        context = "--- a/a\n+++ b/a\n@@ -1,3 +1,3 @@\n zero\n-1\n+one\n 2\n"
        with pytest.raises(PatchApplyError, match="expected 'zero', found '0'"):
            bench.call("apply_patch_json", patch=context)
        assert bench.read("a") == "0\n1\n2\n"

    def test_every_target_lies_within_the_root_new_and_deleted_ones_too(self, bench: ToolBench) -> None:
        bench.put({"a": "1\n"})
        outside = f"{bench.outside}/secret.txt"
        for patch in (
            "--- /dev/null\n+++ ../outside/new\n@@ -0,0 +1 @@\n+x\n",
            f"--- {outside}\n+++ /dev/null\n@@ -1 +0,0 @@\n-secret\n",
            f"--- {outside}\n+++ {outside}\n@@ -1 +1 @@\n-secret\n+x\n",
        ):
            with pytest.raises(FsViolationError):
                bench.call("apply_patch_json", patch=diff("a", "1", "one") + patch)
        assert bench.untouched()
        assert bench.read("a") == "1\n"

    def test_new_files_are_made_with_the_directories_above_them(self, bench: ToolBench) -> None:
        bench.call("apply_patch_json", patch="--- /dev/null\n+++ b/x/y/z\n@@ -0,0 +1 @@\n+new\n")
        assert bench.read("x/y/z") == "new\n"

    def test_it_is_applied_atomically(self, bench: ToolBench) -> None:
        """A reader that has the old file open keeps it; a failure in the last file leaves all of them."""
        bench.put({"a": "1\n", "b": "2\n"})
        with open(bench.root / "a") as reader:
            bench.call("apply_patch_json", patch=diff("a", "1", "one"))
            assert reader.read() == "1\n"
        with pytest.raises(PatchApplyError):
            bench.call("apply_patch_json", patch=diff("a", "one", "uno") + diff("b", "not there", "x"))
        assert bench.read("a") == "one\n"
        assert sorted(os.listdir(bench.root)) == ["a", "b"]

    def test_the_freeform_envelope_is_parsed(self, bench: ToolBench) -> None:
        bench.put({"a": "1\n2\n", "gone": "x\n"})
        bench.router.call_json(
            "apply_patch_freeform",
            envelope("*** Update File: a\n@@\n-1\n+one\n*** Add File: new\n+n\n*** Delete File: gone\n"),
        )
        assert (bench.read("a"), bench.read("new")) == ("one\n2\n", "n\n")
        assert not (bench.root / "gone").exists()

    def test_a_diff_in_the_envelope_is_extracted_and_delegated(self, bench: ToolBench) -> None:
        bench.put({"a": "1\n"})
        bench.call("apply_patch_freeform", patch=envelope(diff("a", "1", "one")))
        assert bench.read("a") == "one\n"


class TestShell:
    def test_its_defaults(self) -> None:
        assert defaults("shell") == {"command": "required", "workdir": None, "timeout_ms": 60_000}

    def test_stdout_and_stderr_are_captured_and_the_exit_code_surfaced(self, bench: ToolBench) -> None:
        result = bench.call("shell", command="echo out; echo err >&2; exit 7")
        assert (result.data["stdout"], result.data["stderr"], result.data["exit_code"]) == ("out\n", "err\n", 7)

    def test_it_runs_in_the_users_shell(self, tmp_path: Path) -> None:
        for shell in ("/bin/bash", "/bin/sh"):
            (tmp_path / os.path.basename(shell)).mkdir()
            bench = ToolBench(
                tmp_path / os.path.basename(shell), "lincona", env={"SHELL": shell, "PATH": "/usr/bin:/bin"}
            )
            assert bench.call("shell", command="echo $0").output == shell
            bench.close()

    def test_a_timeout_ends_the_command_and_everything_it_started(self, bench: ToolBench) -> None:
        begin = time.monotonic()
        with pytest.raises(CommandTimeoutError) as caught:
            bench.call("shell", command="echo before; (sleep 60; touch late) & sleep 60", timeout_ms=300)
        assert time.monotonic() - begin < 10
        assert caught.value.output == "before"
        assert not (bench.root / "late").exists()

    def test_its_output_is_capped(self, bench: ToolBench) -> None:
        result = bench.call("shell", command="yes | head -1000; yes e | head -1000 >&2")
        for stream in ("stdout", "stderr"):
            assert result.data[stream].endswith("\n[truncated]")
            assert len(result.data[stream].splitlines()) == 201
        assert result.truncated
        wide = bench.call("shell", command="head -c 9000 /dev/zero | tr '\\0' x").data["stdout"]
        assert wide == "x" * 8192 + "\n[truncated]"


class TestExecCommandAndWriteStdin:
    def test_their_defaults(self) -> None:
        waits = {"yield_time_ms": 250, "max_output_tokens": 8000}
        assert defaults("exec_command") == {"cmd": "required", "workdir": None, **waits}
        assert defaults("write_stdin") == {"session_id": "required", "chars": "", **waits}

    def test_a_command_runs_in_a_terminal_and_is_known_by_its_session(self, bench: ToolBench) -> None:
        result = bench.call("exec_command", cmd="tty; cat", yield_time_ms=300)
        assert "/dev/" in result.output
        assert isinstance(result.data["session_id"], int)

    def test_output_comes_bit_by_bit(self, bench: ToolBench) -> None:
        first = bench.call("exec_command", cmd="echo one; sleep 0.6; echo two; sleep 30", yield_time_ms=200)
        assert first.output == "one\n"
        second = bench.call("write_stdin", session_id=first.data["session_id"], chars="", yield_time_ms=1000)
        assert second.output == "two\n"

    def test_what_is_written_reaches_the_command(self, bench: ToolBench) -> None:
        session = bench.call("exec_command", cmd="read x; echo got:$x", yield_time_ms=50).data["session_id"]
        result = bench.call("write_stdin", session_id=session, chars="hello\n", yield_time_ms=3000)
        assert "got:hello" in result.output
        assert result.data["exit_code"] == 0

    def test_the_end_of_input_and_an_explicit_exit_close_the_session(self, bench: ToolBench) -> None:
        for cmd, chars in (("cat", "\x04"), ("sh", "exit 3\n")):
            session = bench.call("exec_command", cmd=cmd, yield_time_ms=100).data["session_id"]
            ended = bench.call("write_stdin", session_id=session, chars=chars, yield_time_ms=5000)
            assert not ended.data["running"]
            with pytest.raises(SessionNotFound):
                bench.call("write_stdin", session_id=session, chars="x")

    def test_a_flood_is_capped_at_every_look_and_does_not_fill_the_memory(self, bench: ToolBench) -> None:
        result = bench.call("exec_command", cmd="yes", yield_time_ms=300, max_output_tokens=50)
        session = result.data["session_id"]
        for _ in range(5):
            assert len(result.output) <= 50 * 4 + len("[truncated]\n\n[truncated]")
            assert result.truncated
            assert "[truncated]" in result.output
            result = bench.call("write_stdin", session_id=session, yield_time_ms=20, max_output_tokens=50)
        while result.data["running"]:  # a core of the machine is wanted by the tests that come
            result = bench.call("write_stdin", session_id=session, chars="\x03", yield_time_ms=500)

    def test_the_initial_work_directory_is_validated(self, bench: ToolBench) -> None:
        with pytest.raises(FsViolationError):
            bench.call("exec_command", cmd="pwd", workdir="../outside")

    def test_sessions_are_cleaned_up_at_shutdown(self, host_bench: ToolBench) -> None:
        result = host_bench.call("exec_command", cmd="echo $$; exec sleep 600", yield_time_ms=300)
        pid = int(result.output.split()[0])
        os.kill(pid, 0)
        host_bench.close()
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.02)
        pytest.fail("the session outlived its owner")


class TestApprovalPolicy:
    MUTATING: tuple[tuple[str, dict[str, Any]], ...] = (
        ("apply_patch_json", {"patch": "--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+x\n"}),
        ("apply_patch_freeform", {"patch": envelope("*** Add File: y\n+y\n")}),
        ("shell", {"command": "true"}),
        ("exec_command", {"cmd": "true"}),
    )

    def test_the_default_is_never_which_asks_nobody(self, bench: ToolBench) -> None:
        assert bench.router.approval.policy == open_dialect("lincona").default_approval == "never"
        for name, arguments in self.MUTATING:
            assert bench.call(name, **arguments).status == "ok"

    def test_mutating_tools_go_through_the_guard_and_reading_ones_do_not(self, bench: ToolBench) -> None:
        session = bench.call("exec_command", cmd="cat", yield_time_ms=0).data["session_id"]
        asked: list[ApprovalRequest] = []

        def handler(request: ApprovalRequest) -> Any:
            asked.append(request)
            return ALLOW if request.tool == "write_stdin" else deny("no")

        router = bench.with_router(approval=Approval("on-dangerous", handler))
        for name, arguments in self.MUTATING:
            with pytest.raises(ApprovalDenied):
                router.call(name, **arguments)
        router.call("write_stdin", session_id=session, chars="x\n", yield_time_ms=0)
        for name, arguments in (("list_dir", {}), ("grep_files", {"pattern": "x"})):
            router.call(name, **arguments)
        assert [request.tool for request in asked] == [
            "apply_patch", "apply_patch", "shell", "exec_command", "write_stdin",
        ]  # fmt: skip

    def test_the_guard_is_a_function_of_policy_and_tool(self) -> None:
        mutating = [name for name, _ in self.MUTATING] + ["write_stdin"]
        reading = [name for name in open_dialect("lincona").tools if name not in mutating]
        for name in (*mutating, *reading):
            assert approval_guard("never", name) == ALLOW
        for policy in ("on-dangerous", "always", "read-only"):
            for name in reading:
                assert approval_guard(policy, name) == ALLOW  # type: ignore[arg-type]
            for name in mutating:
                with pytest.raises(ApprovalDenied, match=name):
                    approval_guard(policy, name)  # type: ignore[arg-type]
        asked: list[ApprovalRequest] = []
        prompt = Approval("on-dangerous", lambda request: asked.append(request) or ALLOW)  # type: ignore[func-returns-value]
        assert approval_guard(prompt, "shell", {"command": "make"}) == ALLOW
        assert [(request.tool, request.arguments) for request in asked] == [("shell", {"command": "make"})]
        with pytest.raises(ToolValidationError, match="did you mean shell"):
            approval_guard("never", "shel")


class TestPtyManager:
    def test_it_maps_ids_to_sessions_until_they_end(self, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        with PtyManager(FsBoundary(root=str(tmp_path))) as manager:
            started = manager.exec_command("pwd; read x; echo got:$x", workdir="d", yield_time_ms=500)
            session = started.data["session_id"]
            assert f"{tmp_path}/d" in started.output
            assert list(manager.sessions) == [session]
            ended = manager.write_stdin(session, "hello\n", yield_time_ms=5000)
            assert "got:hello" in ended.output
            assert manager.sessions == {}
            with pytest.raises(SessionNotFound):
                manager.write_stdin(session, "x")
            for workdir in ("..", "/", str(tmp_path.parent)):
                with pytest.raises((FsViolationError, InvalidRequest)):
                    manager.exec_command("pwd", workdir=workdir)
            left = manager.exec_command("sleep 600", yield_time_ms=0).data["session_id"]
            manager.close(left)
            with pytest.raises(SessionNotFound):
                manager.close(left)

    @pytest.mark.parametrize("ending", ["pass", "os.kill(os.getpid(), signal.SIGINT); time.sleep(30)", "1 / 0"])
    def test_no_session_outlives_the_process_that_made_it(self, tmp_path: Path, ending: str) -> None:
        program = (
            "import os, signal, time\nfrom ws.toolbox import PtyManager\n"
            "started = PtyManager().exec_command('echo $$; exec sleep 600', yield_time_ms=1000)\n"
            f"print(started.output.split()[0], flush=True)\n{ending}\n"
        )
        done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, timeout=60)
        pid = int(done.stdout)
        deadline = time.monotonic() + 10
        while os.path.exists(f"/proc/{pid}"):
            assert time.monotonic() < deadline, "the session outlived its owner"
            time.sleep(0.02)


class TestErrorsAndReports:
    def test_the_names_of_the_document_are_in_one_module(self) -> None:
        names = (
            "FsBoundary", "approval_guard", "PtyManager", "FsMode", "ApprovalPolicy", "FsViolationError",
            "PatchParseError", "PatchApplyError", "CommandTimeoutError", "CommandFailedError", "ToolValidationError",
        )  # fmt: skip
        assert set(names) == set(lincona.__all__)
        for name in names[5:]:
            assert getattr(lincona, name) is getattr(errors, name)
        assert (toolbox.FsBoundary, toolbox.PtyManager, toolbox.approval_guard) == (
            FsBoundary,
            PtyManager,
            approval_guard,
        )

    @pytest.mark.parametrize("engine", ["podman", "docker"])
    def test_events_carry_the_id_of_the_snapshot_that_the_workspace_stands_on(
        self, engine: str, shared: Callable[[str], SharedWorkspaces]
    ) -> None:
        box = shared(engine).take()
        router = box.router("lincona")
        seen: list[Event] = []
        router.events.subscribe(seen.append)

        def stands_on() -> str | None:
            seen.clear()
            router.call("list_dir")
            assert {event.snapshot for event in seen} == {seen[0].snapshot}
            return seen[0].snapshot

        box.fs.write("a", "1")
        first = box.snapshot()
        assert stands_on() == first.id
        box.fs.write("a", "2")
        second = box.snapshot()
        assert stands_on() == second.id
        with Store(first.git_dir) as store:
            assert pack_references(store)
        assert stands_on() == second.id
        box.restore(first.id)
        assert stands_on() == first.id, "read from packed-refs"

    def test_events_of_a_router_without_a_workspace_carry_what_the_caller_says(self, host_bench: ToolBench) -> None:
        seen: list[Event] = []
        events = Events()
        events.subscribe(seen.append)
        host_bench.with_router(events=events, snapshot=lambda: "0123456789ab").call("list_dir")
        host_bench.with_router(events=events).call("list_dir")
        assert [event.snapshot for event in seen] == ["0123456789ab", "0123456789ab", None, None]

    def test_the_typed_errors_are_there(self) -> None:
        for name in (
            "FsViolationError", "PatchParseError", "PatchApplyError", "CommandTimeoutError", "CommandFailedError",
            "ToolValidationError",
        ):  # fmt: skip
            assert issubclass(getattr(errors, name), errors.WorkspaceError)

    def test_responses_carry_status_message_truncated_and_a_summary_of_changes(self, bench: ToolBench) -> None:
        bench.put({"a": "1\n"})
        result = bench.call("apply_patch_json", patch=diff("a", "1", "one"))
        assert (result.status, result.message, result.truncated) == ("ok", "changed 1 file", False)
        assert result.summary is not None
        assert (result.summary.files_touched, result.summary.bytes_written) == (("a",), 4)

    def test_arguments_are_validated(self, bench: ToolBench) -> None:
        with pytest.raises(ToolValidationError):
            bench.call("read_file", path="a", limit=0)

    def test_events_tell_start_end_error_bytes_lines_truncated(self, bench: ToolBench, tmp_path: Path) -> None:
        log = EventLog(str(tmp_path / "events.jsonl"))
        live: list[Event] = []
        events = Events(log)
        events.subscribe(live.append)
        router = bench.with_router(events=events)
        router.call("shell", command="seq 1 300")
        router.call_safely("read_file", {"path": "missing"})
        told = list(log.read())
        assert told == live
        assert [(event.event, event.tool) for event in told] == [
            ("start", "shell"), ("end", "shell"), ("start", "read_file"), ("error", "read_file"),
        ]  # fmt: skip
        assert (told[1].lines, told[1].truncated) == (201, True)
        assert told[1].bytes is not None
        assert told[1].bytes > 300
        assert told[3].code == "file_not_found"


class TestSpecs:
    def test_tools_are_callables_and_specs_json_and_freeform(self, bench: ToolBench) -> None:
        functions = {spec["name"]: spec for spec in bench.router.specs("openai")}
        assert all(spec["type"] == "function" for spec in functions.values())
        native = {spec["name"]: spec for spec in bench.router.specs("openai", native=True)}
        assert native["apply_patch_freeform"]["type"] == "custom"
        assert native["apply_patch_json"]["type"] == "function"
        assert set(native) == set(functions)
