"""The law: `ws tool`, `ws tools`, `ws events`, `ws trash` and `ws cp` do on a real engine what their help says. Output
is data, a failure says what to do, a dangerous call asks whoever sits there, and a copy never leads out."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_stage import DEADLINE_S, Stage, warm_home
from ws.engine.base import Engine


@pytest.fixture(scope="module")
def stage(engine: Engine, session_home: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    stage = Stage(warm_home(tmp_path_factory.mktemp("tools") / "home", session_home), engine.name)
    project = tmp_path_factory.mktemp("project")
    (project / "main.py").write_text("print('hello')\n")
    assert stage.run("create", str(project), "--name", "box").returncode == 0
    yield stage
    stage.run("rm", "--all", "--yes")
    assert stage.left() == []


def tool(stage: Stage, name: str, *options: str, **arguments: object) -> subprocess.CompletedProcess[bytes]:
    return stage.run("tool", "box", name, json.dumps(arguments), *options)


class TestTool:
    def test_output_is_all_that_stdout_gets(self, stage: Stage) -> None:
        done = tool(stage, "read_file", path="main.py")
        assert (done.returncode, done.stdout, done.stderr) == (0, b"print('hello')\n", b"")

    def test_arguments_come_from_stdin_and_the_whole_result_is_json(self, stage: Stage) -> None:
        call = json.dumps({"path": "made.txt", "content": "one\n"}).encode()
        done = stage.run("tool", "box", "write_file", "-", "--json", data=call)
        result = json.loads(done.stdout)
        assert (result["status"], result["summary"]["files_touched"]) == ("ok", ["made.txt"])
        assert stage.run("exec", "box", "--", "cat", "made.txt").stdout == b"one\n"

    def test_a_command_line_ends_with_the_commands_status(self, stage: Stage) -> None:
        done = stage.run("tool", "box", "!echo out; echo err >&2; exit 7")
        assert (done.returncode, done.stdout) == (7, b"out\nerr\n")
        assert stage.run("tool", "box", "!reboot").returncode == 10

    def test_what_is_left_out_is_said_on_stderr(self, stage: Stage) -> None:
        stage.run("tool", "box", "!seq 1 500 > long.txt")
        done = tool(stage, "read_file", path="long.txt", limit=2)
        assert done.stdout == b"1\n2\n"
        assert b"lines 1-2 of 500" in done.stderr

    @pytest.mark.parametrize(
        ("call", "status", "code"),
        [
            (("read_file", '{"path": "nope"}'), 10, "file_not_found"),
            (("read_file", '{"path": "../x"}'), 10, "fs_violation"),
            (("read_file", "{}"), 2, "tool_validation"),
            (("read_file", "{"), 2, "tool_validation"),
            (("reed_file", "{}"), 2, "tool_validation"),
            (("read_file", '{"path": "main.py"}', "--dialect", "klingon"), 2, "invalid_request"),
            (("read_file", '{"path": "main.py"}', "--approval", "maybe"), 2, "invalid_request"),
            (("write_file", '{"path": "x", "content": ""}', "--approval", "read-only"), 10, "approval_denied"),
        ],
    )
    def test_failures_have_a_status_a_code_and_a_hint(
        self, stage: Stage, call: tuple[str, ...], status: int, code: str
    ) -> None:
        done = stage.run("tool", "box", *call, "--json")
        assert (done.returncode, done.stdout) == (status, b"")
        error = json.loads(done.stderr)["error"]
        assert error["code"] == code
        assert error["hint"]

    def test_every_dialect_can_be_called(self, stage: Stage) -> None:
        for dialect, name, arguments in (
            ("agent-q", "view_file", {"path": "main.py"}),
            ("convergio", "file_read", {"path": "main.py"}),
            ("lincona", "read_file", {"path": "main.py"}),
            ("forge", "filesystem", {"operation": "read_file", "arguments": {"path": "main.py"}}),
            ("anthropic", "str_replace_based_edit_tool", {"command": "view", "path": "main.py"}),
        ):
            done = stage.run("tool", "box", name, json.dumps(arguments), "--dialect", dialect)
            assert done.returncode == 0, done.stderr
            assert b"print('hello')" in done.stdout

    def test_a_shell_stays_between_two_processes(self, stage: Stage) -> None:
        bash = ("tool", "box", "--dialect", "anthropic", "bash")
        stage.run(*bash, json.dumps({"command": "cd /tmp; word=kept"}))
        assert stage.run(*bash, json.dumps({"command": "echo $word $PWD"})).stdout.strip() == b"kept /tmp"

    def test_a_workspace_that_is_not_there_has_a_neighbour(self, stage: Stage) -> None:
        done = stage.run("tool", "bix", "read_file", "{}")
        assert done.returncode == 3
        assert b"did you mean 'box'" in done.stderr


class TestApproval:
    def ask(self, stage: Stage, answer: str, *words: str) -> tuple[int, str]:
        """Run at a terminal, type an answer when asked, and return the status with all that was shown."""
        pid, master = pty.fork()
        if pid == 0:
            os.execve(sys.executable, [sys.executable, "-m", "ws", "tool", "box", *words], stage.env)
        shown = b""
        try:
            while b"allow it?" not in shown:
                shown += os.read(master, 4096)
            os.write(master, f"{answer}\n".encode())
            while True:
                try:
                    data = os.read(master, 4096)
                except OSError:
                    break
                if not data:
                    break
                shown += data
        finally:
            os.close(master)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()

    def test_a_dangerous_call_shows_what_it_would_do_and_does_it_when_told(self, stage: Stage) -> None:
        tool(stage, "write_file", path="asked.txt", content="one\n")
        call = json.dumps({"path": "asked.txt", "content": "two\n", "mode": "overwrite"})
        status, shown = self.ask(stage, "no keep it", "--approval", "on-dangerous", "write_file", call)
        assert status == 10
        assert "-one" in shown
        assert "+two" in shown
        assert "keep it" in shown
        assert stage.run("exec", "box", "--", "cat", "asked.txt").stdout == b"one\n"
        status, _ = self.ask(stage, "y", "--approval", "on-dangerous", "write_file", call)
        assert status == 0
        assert stage.run("exec", "box", "--", "cat", "asked.txt").stdout == b"two\n"

    def test_where_nobody_can_be_asked_it_is_refused(self, stage: Stage) -> None:
        for policy, status in (((), 10), (("--approval", "never"), 0)):
            done = tool(stage, "create_file", "--dialect", "agent-q", *policy, path="q.lisp")
            assert done.returncode == status
            assert (b"create_file needs approval" in done.stderr and b"--approval never" in done.stderr) == bool(status)
        done = tool(stage, "delete", "--approval", "on-dangerous", path="main.py")
        assert done.returncode == 10
        assert b"there is no approval handler" in done.stderr
        assert tool(stage, "read_file", "--approval", "always", path="main.py").returncode == 0


class TestEventsAndTrash:
    def test_events_are_lines_for_people_and_json_for_machines(self, stage: Stage) -> None:
        tool(stage, "read_file", path="main.py")
        tool(stage, "read_file", path="\x1b[31mnope")
        lines = stage.run("events", "box").stdout.decode().splitlines()
        assert "read_file" in lines[-1]
        assert "file_not_found" in lines[-1]
        assert "\x1b" not in "".join(lines)
        last = json.loads(stage.run("events", "box", "--json").stdout.splitlines()[-1])
        assert (last["event"], last["tool"], last["code"]) == ("error", "read_file", "file_not_found")

    def test_events_are_followed_until_told_to_stop(self, stage: Stage) -> None:
        process = stage.start("events", "box", "--follow", "--json", stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        tool(stage, "list_dir", path=".")
        deadline = time.monotonic() + DEADLINE_S
        while b'"list_dir"' not in process.stdout.readline():
            assert time.monotonic() < deadline
        process.send_signal(signal.SIGINT)
        assert process.wait(DEADLINE_S) == 130
        process.stdout.close()

    def test_what_was_deleted_is_listed_restored_and_purged(self, stage: Stage) -> None:
        tool(stage, "write_file", path="doomed.txt", content="keep me\n")
        tool(stage, "delete", path="doomed.txt")
        header, row = (line.split() for line in stage.run("trash", "box").stdout.decode().splitlines()[:2])
        assert header == ["ENTRY", "KIND", "SIZE", "WHY", "WHEN", "PATH"]
        assert row[-1] == "doomed.txt"
        assert stage.run("trash", "box", "restore", row[0], "--to", "saved.txt").returncode == 0
        assert stage.run("exec", "box", "--", "cat", "saved.txt").stdout == b"keep me\n"
        tool(stage, "delete", path="saved.txt")
        assert stage.run("trash", "box", "purge").returncode == 2
        told = stage.run("trash", "box", "purge", "--older-than", "0", "--dry-run")
        assert told.stdout.decode().splitlines()[1].split()[-1] == "saved.txt"
        assert told.stderr == b"nothing was removed: --dry-run\n"
        (entry,) = stage.data("trash", "box", "purge", "--older-than", "0", "--dry-run")["entries"]
        assert stage.data("trash", "box", "purge", entry["name"], "--dry-run")["entries"] == [entry]
        assert stage.data("trash", "box", "purge", "--older-than", "1", "--dry-run")["entries"] == []
        assert stage.run("trash", "box", "purge", "no/such", "--dry-run").returncode == 3
        assert stage.run("trash", "box", "--dry-run").returncode == 2
        assert stage.data("trash", "box")["data"]["total"] == 1
        assert stage.run("trash", "box", "purge", "--older-than", "0").returncode == 0
        assert stage.data("trash", "box")["data"]["total"] == 0
        assert stage.run("trash", "box", "restore", "no/such").returncode == 3

    def test_tools_are_shown_for_people_and_in_every_format(self, stage: Stage) -> None:
        assert b"str_replace" in stage.run("tools").stdout
        for form, key in (("openai", "parameters"), ("anthropic", "input_schema"), ("mcp", "inputSchema")):
            found = json.loads(stage.run("tools", "--dialect", "convergio", "--format", form).stdout)
            assert {"file_read", "edit"} <= {spec["name"] for spec in found}
            assert all(key in spec for spec in found)


class TestCopy:
    def test_a_tree_goes_in_and_comes_out_as_it_was(self, stage: Stage, tmp_path: Path) -> None:
        tree = tmp_path / "tree"
        (tree / "deep" / "er").mkdir(parents=True)
        (tree / "run.sh").write_text("#!/bin/sh\n")
        (tree / "run.sh").chmod(0o4755)
        (tree / "deep" / "large").write_bytes(os.urandom(3 << 20))
        os.symlink("/etc/passwd", tree / "out")
        os.symlink("run.sh", tree / "in")
        (tree / "odd \n name").write_text("odd")
        with open(os.fsencode(tree) + b"/\xff", "w") as file:
            file.write("not utf-8")
        os.mkfifo(tree / "pipe")
        os.utime(tree / "run.sh", (1, 978307200.5))
        (tree / "deep" / "er").chmod(0o555)
        done = stage.run("cp", str(tree), "box:copy")
        assert done.returncode == 0, done.stderr
        assert b"left out" in done.stderr
        back = tmp_path / "back"
        assert stage.run("cp", "box:copy", str(back)).returncode == 0
        names = sorted(os.listdir(os.fsencode(tree)))
        assert sorted(os.listdir(os.fsencode(back))) == [name for name in names if name != b"pipe"]
        assert (back / "deep" / "large").read_bytes() == (tree / "deep" / "large").read_bytes()
        assert os.readlink(back / "out") == "/etc/passwd"
        status = (back / "run.sh").stat()
        assert (status.st_mode & 0o7777, status.st_mtime) == (0o755, 978307200.5)
        assert (back / "deep" / "er").stat().st_mode & 0o777 == 0o555

    def test_into_a_directory_under_its_own_name_or_its_contents_alone(self, stage: Stage, tmp_path: Path) -> None:
        (tmp_path / "d").mkdir()
        (tmp_path / "d" / "f").write_text("1")
        stage.run("exec", "box", "--", "mkdir", "-p", "into", "bare")
        assert stage.run("cp", str(tmp_path / "d"), "box:into").returncode == 0
        assert stage.run("cp", f"{tmp_path}/d/.", "box:bare").returncode == 0
        assert stage.run("exec", "box", "--", "find", "into", "bare", "-type", "f").stdout == b"into/d/f\nbare/f\n"
        (tmp_path / "a:b").write_text("colon")
        done = subprocess.run(
            [sys.executable, "-m", "ws", "cp", "./a:b", "box:into/"], env=stage.env, cwd=tmp_path, capture_output=True
        )
        assert done.returncode == 0, done.stderr
        assert stage.run("exec", "box", "--", "cat", "into/a:b").stdout == b"colon"

    @pytest.mark.parametrize(
        ("words", "status"),
        [
            (("a", "b"), 2),
            (("box:a", "box:b"), 2),
            (("box:nope", "."), 10),
            (("box:main.py", "no/such/place"), 10),
            (("nobody:x", "."), 3),
            (("box:../../etc/passwd", "."), 10),
        ],
    )
    def test_what_cannot_be_copied_says_why(self, stage: Stage, words: tuple[str, str], status: int) -> None:
        done = stage.run("cp", *words)
        assert done.returncode == status
        assert done.stderr.startswith(b"error: ")

    def test_a_file_does_not_take_the_place_of_a_directory_nor_a_directory_that_of_a_file(
        self, stage: Stage, tmp_path: Path
    ) -> None:
        (tmp_path / "main.py").mkdir()
        (tmp_path / "main.py" / "kept").write_text("x")
        assert stage.run("cp", "box:main.py", str(tmp_path)).returncode == 10
        (tmp_path / "clash").write_text("a file")
        stage.run("exec", "box", "--", "mkdir", "-p", "clash")
        assert stage.run("cp", "box:clash", str(tmp_path / "clash")).returncode == 10
        assert (tmp_path / "main.py" / "kept").exists()
        assert (tmp_path / "clash").read_text() == "a file"

    def test_a_copy_out_writes_nothing_through_links_that_lead_out(self, stage: Stage, tmp_path: Path) -> None:
        (tmp_path / "secret").mkdir()
        (tmp_path / "place" / "d").mkdir(parents=True)
        os.symlink(tmp_path / "secret", tmp_path / "place" / "d" / "sub")
        stage.run("exec", "box", "--", "sh", "-c", "mkdir -p d/sub; echo evil > d/sub/f")
        assert stage.run("cp", "box:d", str(tmp_path / "place")).returncode == 10
        assert list((tmp_path / "secret").iterdir()) == []
