"""The law: every line of `forge-agent-filesystem-contract.md` holds in the dialect `forge`."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tool_bench import BACKENDS, ToolBench, open_bench

from workspaces import SharedWorkspaces
from ws.errors import FsViolationError, OperationNotSupportedError, ToolValidationError
from ws.toolbox.dialects import open_dialect
from ws.toolbox.dialects.forge import OPERATIONS
from ws.tools.context import ToolResult


@pytest.fixture(params=BACKENDS)
def bench(
    request: pytest.FixtureRequest, tmp_path: Path, shared: Callable[[str], SharedWorkspaces]
) -> Iterator[ToolBench]:
    with open_bench(request.param, tmp_path, shared, "forge") as bench:
        yield bench


def do(bench: ToolBench, operation: str, **arguments: Any) -> ToolResult:
    return bench.call("filesystem", operation=operation, arguments=arguments)


def test_there_is_one_tool() -> None:
    assert list(open_dialect("forge").tools) == ["filesystem"]


class TestReading:
    def test_contents_as_text(self, bench: ToolBench) -> None:
        bench.put({"src/main.py": "print(1)\n"})
        assert do(bench, "read_file", path="src/main.py").output == "print(1)"

    def test_contents_as_binary(self, bench: ToolBench) -> None:
        data = bytes(range(256))
        bench.put({"x.bin": data})
        result = do(bench, "read_file", path="x.bin", binary=True)
        assert base64.b64decode(result.output) == data
        assert result.data["encoding"] == "base64"
        with pytest.raises(ValueError, match="binary"):
            do(bench, "read_file", path="x.bin")

    def test_a_directory_with_structured_metadata(self, bench: ToolBench) -> None:
        bench.put({"a.txt": "12345", "d/b": ""})
        result = do(bench, "list_directory", path=".")
        assert [(entry["name"], entry["type"]) for entry in result.data["entries"]] == [
            ("a.txt", "file"),
            ("d", "directory"),
        ]
        assert result.data["entries"][0]["size_bytes"] == 5
        assert result.data["entries"][0]["modified"]

    def test_existence_and_properties(self, bench: ToolBench) -> None:
        bench.put({"a.txt": "12345"})
        assert do(bench, "exists", path="a.txt").data == {"exists": True, "type": "file"}
        assert do(bench, "exists", path="missing").data == {"exists": False}
        assert do(bench, "exists", path="a.txt/under").data == {"exists": False}
        info = do(bench, "get_info", path="a.txt").data
        assert (info["type"], info["size_bytes"]) == ("file", 5)


class TestWriting:
    def test_files_and_directories_are_created(self, bench: ToolBench) -> None:
        do(bench, "create_file", path="d/a.txt", content="x")
        do(bench, "create_directory", path="e/f")
        assert bench.read("d/a.txt") == "x"
        assert (bench.root / "e/f").is_dir()
        with pytest.raises(FileExistsError):
            do(bench, "create_file", path="d/a.txt", content="y")

    def test_contents_are_overwritten_or_appended(self, bench: ToolBench) -> None:
        do(bench, "write_file", path="a", content="one\n")
        do(bench, "write_file", path="a", content="two\n")
        do(bench, "write_file", path="a", content="three\n", mode="append")
        do(bench, "append_file", path="a", content="four\n")
        assert bench.read("a") == "two\nthree\nfour\n"

    def test_files_and_directories_are_deleted(self, bench: ToolBench) -> None:
        bench.put({"a": "", "d/b": ""})
        do(bench, "delete_file", path="a")
        with pytest.raises(OSError, match="not empty"):
            do(bench, "delete_directory", path="d")
        do(bench, "delete_directory", path="d", recursive=True)
        assert list(bench.root.iterdir()) == []


class TestPathResolution:
    def test_the_tilde_is_the_home_directory_and_must_be_allowed(self, tmp_path: Path) -> None:
        home = tmp_path / "home"
        repository = home / "repos" / "forge-agent" / "src"
        repository.mkdir(parents=True)
        (repository / "main.py").write_text("x\n")
        (home / "private").write_text("p\n")
        (tmp_path / "bench").mkdir()
        bench = ToolBench(tmp_path / "bench", "forge", home=str(home), allowed_paths=["~/repos"])
        assert do(bench, "read_file", path="~/repos/forge-agent/src/main.py").output == "x"
        names = [e["name"] for e in do(bench, "list_directory", path="~/repos/forge-agent").data["entries"]]
        assert names == ["src"]
        with pytest.raises(FsViolationError):
            do(bench, "read_file", path="~/private")
        bench.close()

    def test_without_a_home_the_tilde_is_refused(self, bench: ToolBench) -> None:
        with pytest.raises(FsViolationError, match="home"):
            do(bench, "read_file", path="~/x")

    def test_relative_paths_are_resolved(self, bench: ToolBench) -> None:
        bench.put({"src/main.py": "x\n"})
        assert do(bench, "read_file", path="src/../src/./main.py").output == "x"


class TestForbidden:
    @pytest.mark.parametrize(
        "operation",
        [
            "execute", "run", "shell", "exec", "invoke_interpreter", "run_script",
            "get_system_info", "process_status", "list_processes", "get_env", "environment",
            "fetch", "download", "upload", "mount", "",
        ],
    )  # fmt: skip
    def test_nothing_is_run_asked_or_fetched(self, bench: ToolBench, operation: str) -> None:
        bench.put({"script.sh": "#!/bin/sh\ntouch ran\n"})
        (bench.root / "script.sh").chmod(0o755)
        with pytest.raises(OperationNotSupportedError) as caught:
            do(bench, operation, path="script.sh")
        assert "read_file" in (caught.value.hint or "")
        assert not (bench.root / "ran").exists()

    def test_no_operation_there_is_runs_a_command(self) -> None:
        """The dialect is made of standard calls; none of them is one that runs something."""
        seen: list[str] = []

        class Recorder:
            root = "/workspace"

            def run(self, tool: str, params: Any) -> ToolResult:
                seen.append(tool)
                return ToolResult(data={"type": "file", "entries": []})

        from ws.toolbox.router import Router

        router = Router(Recorder(), dialect="forge")
        for operation, (_, parameters) in OPERATIONS.items():
            router.call("filesystem", operation=operation, arguments={p.name: "x" for p in parameters if p.required})
        assert set(seen) == {"read_text", "list_dir", "file_info", "write_file", "mkdir", "delete"}


class TestSecurityInvariants:
    def test_every_path_is_validated_after_it_was_resolved(self, bench: ToolBench) -> None:
        (bench.root / "symlink_to_etc").symlink_to("/etc")
        (bench.root / "symlink_to_secret").symlink_to(bench.outside / "secret.txt")
        calls: list[tuple[str, dict[str, Any]]] = [
            ("read_file", {}),
            ("read_file", {"binary": True}),
            ("get_info", {}),
            ("create_file", {}),
            ("write_file", {"content": "x"}),
            ("append_file", {"content": "x"}),
            ("create_directory", {}),
            ("delete_file", {}),
        ]
        for operation, arguments in calls:
            for path in ("/etc/passwd", "../outside/secret.txt", "symlink_to_etc/passwd"):
                with pytest.raises(FsViolationError) as caught:
                    do(bench, operation, path=path, **arguments)
                assert path in str(caught.value)
        for operation in ("read_file", "append_file"):
            with pytest.raises(FsViolationError):
                do(bench, operation, path="symlink_to_secret", **({"content": "x"} if operation != "read_file" else {}))
        assert bench.untouched()

    def test_allowed_paths_take_priority_over_restricted_paths(self, tmp_path: Path) -> None:
        bench = ToolBench(tmp_path, "forge", restricted_paths=["private"], allowed_paths=["private/shared"])
        bench.put({"private/key": "k", "private/shared/note": "n", "open": "o"})
        assert do(bench, "read_file", path="private/shared/note").output == "n"
        assert do(bench, "read_file", path="open").output == "o"
        with pytest.raises(FsViolationError, match="restricted"):
            do(bench, "read_file", path="private/key")
        (bench.root / "link").symlink_to("private/key")
        with pytest.raises(FsViolationError):
            do(bench, "read_file", path="link")
        bench.close()

    @pytest.mark.parametrize("backend", BACKENDS)
    def test_a_restricted_path_inside_the_root_is_refused_with_its_own_reason_and_hint(
        self, backend: str, tmp_path: Path, shared: Callable[[str], SharedWorkspaces]
    ) -> None:
        rules = {"restricted_paths": ["private"], "allowed_paths": ["private/shared"]}
        with open_bench(backend, tmp_path, shared, "forge", **rules) as bench:
            bench.put({"private/key": "k", "private/shared/note": "n", "open": "o"})
            (bench.root / "link").symlink_to("private/key")
            (bench.root / "open_link").symlink_to("private/shared/note")
            calls: list[tuple[str, dict[str, Any]]] = [
                ("read_file", {}),
                ("read_file", {"binary": True}),
                ("list_directory", {}),
                ("exists", {}),
                ("get_info", {}),
                ("create_file", {}),
                ("write_file", {"content": "x"}),
                ("append_file", {"content": "x"}),
                ("create_directory", {}),
                ("delete_file", {}),
                ("delete_directory", {"recursive": True}),
            ]
            paths = ("private/key", f"{bench.root}/private/key", "private/missing", "private/no/dir/x", "private/key/x")
            for operation, arguments in calls:
                for path in (*paths, *(() if operation in ("exists", "get_info", "create_file") else ("link",))):
                    if (operation, path) in {("delete_file", "link"), ("delete_directory", "link")}:
                        continue  # removes the link, never its target
                    with pytest.raises(FsViolationError, match="the path is restricted") as caught:
                        do(bench, operation, path=path, **arguments)
                    assert path in str(caught.value)
                    assert f"{bench.root}/private" in str(caught.value)
                    assert "outside" not in str(caught.value)
                    assert "inside the root, but is restricted" in (caught.value.hint or "")
            for path in ("private", "."):
                with pytest.raises((FsViolationError, OSError)) as whole:
                    do(bench, "delete_directory", path=path, recursive=True)
                assert "use a path inside the root" not in str(getattr(whole.value, "hint", ""))
            told = bench.router.call_safely("filesystem", {"operation": "read_file", "arguments": {"path": "link"}})
            assert (told.data["code"], told.data["hint"]) == ("fs_violation", caught.value.hint)
            assert do(bench, "read_file", path="open_link").output == "n"
            assert do(bench, "read_file", path="private/../open").output == "o"
            assert sorted(path.name for path in (bench.root / "private").iterdir()) == ["key", "shared"]
            with pytest.raises(FsViolationError, match="path outside project root") as outside:
                do(bench, "read_file", path="/etc/passwd")
            assert outside.value.hint == "use a path inside the root"

    def test_a_link_that_stays_inside_is_followed(self, bench: ToolBench) -> None:
        bench.put({"real": "x\n"})
        (bench.root / "link").symlink_to("real")
        assert do(bench, "read_file", path="link").output == "x"

    def test_violations_and_failures_are_never_silent(self, bench: ToolBench) -> None:
        for operation, arguments, code in (
            ("read_file", {"path": "/etc/passwd"}, "fs_violation"),
            ("read_file", {"path": "missing"}, "file_not_found"),
            ("execute", {"path": "x"}, "operation_not_supported"),
            ("read_file", {}, "tool_validation"),
            ("read_file", {"path": "x", "mode": "b"}, "tool_validation"),
        ):
            told = bench.router.call_safely("filesystem", {"operation": operation, "arguments": arguments})
            assert (told.status, told.data["code"]) == ("error", code)
            assert told.message

    def test_permission_errors_are_surfaced(self, tmp_path: Path) -> None:
        """Root may read everything, so the refusal is that of a filesystem that is read-only."""
        from ws.fs.host import HostFilesystem
        from ws.fs.memory import MemoryFilesystem
        from ws.toolbox.local import LocalBackend
        from ws.toolbox.router import Router
        from ws.tools.context import ToolContext
        from ws.tools.trash import Backups

        filesystem = HostFilesystem(str(tmp_path), read_only=True)
        context = ToolContext(filesystem, Backups(filesystem, MemoryFilesystem("/kept")))
        router = Router(LocalBackend(context), dialect="forge")
        with pytest.raises(PermissionError):
            router.call("filesystem", operation="write_file", arguments={"path": "a", "content": "x"})
        assert list(tmp_path.iterdir()) == []

    def test_mutations_are_explicit_in_the_result_and_seen_at_once(self, bench: ToolBench) -> None:
        result = do(bench, "write_file", path="a", content="x\n")
        assert result.summary is not None
        assert result.summary.files_touched == ("a",)
        bench.put({"a": "changed behind its back\n"})
        assert do(bench, "read_file", path="a").output == "changed behind its back"


class TestTheDocumentsExamples:
    @pytest.mark.parametrize(
        "call",
        [
            '{"tool": "filesystem", "operation": "list_directory", "arguments": {"path": "src"}}',
            '{"tool": "filesystem", "operation": "read_file", "arguments": {"path": "src/main.py"}}',
        ],
    )
    def test_the_valid_ones_work_word_for_word(self, bench: ToolBench, call: str) -> None:
        bench.put({"src/main.py": "x\n"})
        assert bench.router.call_json(json.loads(call)["tool"], call).status == "ok"

    @pytest.mark.parametrize(
        ("call", "error"),
        [
            (
                '{"tool": "filesystem", "operation": "execute", "arguments": {"path": "script.sh"}}',
                OperationNotSupportedError,
            ),
            (
                '{"tool": "filesystem", "operation": "get_system_info", "arguments": {}}',
                OperationNotSupportedError,
            ),
            (
                '{"tool": "filesystem", "operation": "read_file", "arguments": {"path": "/etc/passwd"}}',
                FsViolationError,
            ),
            ('{"tool": "system", "operation": "read_file", "arguments": {"path": "a"}}', ToolValidationError),
        ],
    )
    def test_the_invalid_ones_are_refused(self, bench: ToolBench, call: str, error: type[Exception]) -> None:
        with pytest.raises(error):
            bench.router.call_json("filesystem", call)
