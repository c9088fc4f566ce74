"""The law of tools in a container: commands do not keep the workspace from being snapshot, end with whoever waits for
them and with the workspace; terminals and shells outlive the process that began them; no race leads a tool out."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shim_process import wait_until
from workspaces import SharedWorkspaces, ids_inside, paths_inside
from ws.engine.base import Engine
from ws.errors import ApprovalDenied, CommandTimeoutError, FsViolationError, SessionNotFound, TextNotFoundError
from ws.layout import EngineName
from ws.manager import Manager
from ws.toolbox.events import Event
from ws.workspace import Workspace

SOURCE = str(Path(__file__).parents[2] / "src")
ROUNDS = 400


@pytest.fixture(scope="module")
def boxes(engine: Engine, shared: Callable[[str], SharedWorkspaces]) -> SharedWorkspaces:
    return shared(engine.name)


@pytest.fixture
def box(boxes: SharedWorkspaces) -> Workspace:
    return boxes.take()


@pytest.fixture
def own_box(engine_name: EngineName, boxes: SharedWorkspaces) -> Iterator[Workspace]:
    with Manager(home=boxes.home, engine=engine_name) as manager:
        box = manager.create(env={"GREETING": "hello"})
        try:
            yield box
        finally:
            box.remove()


def in_another_process(home: str, name: str, body: str, *, wait: bool = True) -> Any:
    """Run Python with a handle `box` of the workspace; what it prints is read as JSON."""
    script = f"import json, sys, ws\nbox = ws.Manager(home=sys.argv[1]).open(sys.argv[2])\n{body}\n"
    argv = [sys.executable, "-c", script, home, name]
    environment = {**os.environ, "PYTHONPATH": SOURCE}
    if not wait:
        return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE)
    return json.loads(subprocess.run(argv, env=environment, check=True, stdout=subprocess.PIPE).stdout)


def runs(box: Workspace, what: str) -> bool:
    listed = box.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"]).stdout
    return what in listed.replace(f"grep {what}", "")


class TestCommands:
    def test_they_have_the_variables_of_the_workspace_and_its_user(self, own_box: Workspace) -> None:
        said = own_box.tools.call("shell", command="echo $GREETING $HOME $(id -u)").output
        assert said == f"hello /home/agent {ids_inside(own_box)[0]}"

    def test_one_that_runs_does_not_keep_a_snapshot_waiting(self, own_box: Workspace) -> None:
        done: list[float] = []
        began = time.monotonic()

        def run() -> None:
            own_box.tools.call("shell", command="echo begun > begun; sleep 4")
            done.append(time.monotonic() - began)

        thread = threading.Thread(target=run)
        thread.start()
        assert wait_until(lambda: own_box.fs.exists("begun"))
        own_box.snapshot("while it runs")
        took = time.monotonic() - began
        thread.join()
        assert took < 3 < done[0]

    def test_one_whose_time_is_up_is_ended_with_all_it_started(self, box: Workspace) -> None:
        with pytest.raises(CommandTimeoutError) as caught:
            box.tools.call("shell", command="echo so far; sleep 4321 & sleep 4321", timeout_ms=300)
        assert caught.value.output == "so far"
        assert not runs(box, "sleep 4321")

    def test_one_ends_when_whoever_waits_for_it_dies(self, boxes: SharedWorkspaces, box: Workspace) -> None:
        call = "box.tools.call('shell', command='sleep 4322', timeout_ms=600_000)"
        process = in_another_process(boxes.home, box.name, call, wait=False)
        assert wait_until(lambda: runs(box, "sleep 4322"))
        process.kill()
        process.communicate()
        assert wait_until(lambda: not runs(box, "sleep 4322"))

    def test_one_ends_when_the_workspace_is_restored(self, own_box: Workspace) -> None:
        taken = own_box.snapshot()
        results: list[Any] = []
        thread = threading.Thread(
            target=lambda: results.append(own_box.tools.call("shell", command="sleep 4323", timeout_ms=60_000))
        )
        thread.start()
        assert wait_until(lambda: runs(own_box, "sleep 4323"))
        own_box.restore(taken)
        thread.join(10)
        assert results[0].data["signal"] == signal.SIGKILL


class TestSessions:
    def test_they_are_found_by_other_processes_and_listed(self, boxes: SharedWorkspaces, box: Workspace) -> None:
        begin = (
            "result = box.tools.call('exec_command', cmd='read line; echo got $line; sleep 60', yield_time_ms=50)\n"
            "print(json.dumps(result.data['session_id']))"
        )
        session = in_another_process(boxes.home, box.name, begin)
        write = (
            f"result = box.tools.call('write_stdin', session_id={session}, chars='news\\n', yield_time_ms=500)\n"
            "print(json.dumps(result.output))"
        )
        assert "got news" in in_another_process(boxes.home, box.name, write)
        assert session in [found.id for found in box.sessions()]
        box.close_session(session)
        assert session not in [found.id for found in box.sessions()]
        with pytest.raises(SessionNotFound):
            box.tools.call("write_stdin", session_id=session)

    def test_they_end_with_a_restore(self, own_box: Workspace) -> None:
        taken = own_box.snapshot()
        session = own_box.tools.call("exec_command", cmd="exec sleep 4324", yield_time_ms=50).data["session_id"]
        own_box.restore(taken)
        assert not runs(own_box, "sleep 4324")
        assert not own_box.tools.call("write_stdin", session_id=session).data["running"]

    def test_a_persistent_shell_is_one_shell_for_all_processes_and_new_after_a_restore(
        self, boxes: SharedWorkspaces, own_box: Workspace
    ) -> None:
        taken = own_box.snapshot()
        router = own_box.router("anthropic")
        router.call("bash", command="cd /tmp && word=kept")
        ask = "print(json.dumps(box.router('anthropic').call('bash', command='echo $word in $PWD').output))"
        assert in_another_process(boxes.home, own_box.name, ask).strip() == "kept in /tmp"
        own_box.restore(taken)
        assert router.call("bash", command="echo ${word:-gone} in $PWD").output.strip() == "gone in /workspace"


class TestApproval:
    def test_a_router_has_the_policy_that_its_dialect_asks_for(self, box: Workspace) -> None:
        with pytest.raises(ApprovalDenied, match=r"^create_file needs approval"):
            box.router("agent-q").call("create_file", path="asked")
        assert not box.fs.exists("asked")
        assert box.router("agent-q", approval="never").call("create_file", path="asked").status == "ok"
        for dialect, name, arguments in (
            ("standard", "delete", {"path": "asked"}),
            ("lincona", "shell", {"command": "true"}),
            ("convergio", "file_write", {"path": "c", "content": ""}),
            ("forge", "filesystem", {"operation": "create_file", "arguments": {"path": "f"}}),
            ("anthropic", "bash", {"command": "true"}),
        ):
            assert box.router(dialect).call(name, **arguments).status == "ok"


class TestLargeCalls:
    def test_arguments_and_results_go_beyond_a_frame(self, box: Workspace) -> None:
        text = "".join(f"line {number} with some é words\n" for number in range(40_000))
        assert len(text) > 1 << 20
        box.tools.call("write_file", path="large", content=text)
        assert box.fs.read("large") == text
        part = text[: 900 << 10]
        result = box.tools.call("write_file", path="part", content=part)
        assert result.summary is not None
        assert len(result.summary.diff) > 900 << 10
        assert result.truncated


class TestEvents:
    def test_calls_of_all_processes_are_in_one_log_with_the_snapshot_they_began_from(
        self, boxes: SharedWorkspaces, own_box: Workspace
    ) -> None:
        seen: list[Event] = []
        own_box.tools.events.subscribe(seen.append)
        own_box.tools.call("write_file", path="a", content="x")
        taken = own_box.snapshot().id
        call = "print(json.dumps(box.tools.call('read_file', path='a').output))"
        in_another_process(boxes.home, own_box.name, call)
        with pytest.raises(FileNotFoundError):
            own_box.tools.call("read_file", path="nope")
        assert [event.tool for event in seen] == ["write_file", "write_file", "read_file", "read_file"]
        log = own_box.tools.events.log
        assert log is not None
        lines = list(log.read())
        assert [(event.event, event.tool) for event in lines] == [
            ("start", "write_file"), ("end", "write_file"), ("start", "read_file"),
            ("end", "read_file"), ("start", "read_file"), ("error", "read_file"),
        ]  # fmt: skip
        assert [event.snapshot for event in lines] == [None, None, taken, taken, taken, taken]


class TestRaces:
    """HARDENING B1 and B2 through the shim; the long runs are on the same code, in tests/attacks."""

    def test_a_directory_swapped_for_a_link_leads_no_tool_out(self, box: Workspace) -> None:
        container = box.record().container
        assert container is not None
        box.exec(["sh", "-c", "mkdir dir /tmp/out; echo inside > dir/file; ln -s /tmp/out decoy"])
        box.exec(["sh", "-c", "echo CANARY > /tmp/out/file"])
        root = paths_inside(container.pid)("/workspace")
        calls: list[Callable[[int], Any]] = [
            lambda n: box.tools.call("read_file", path="dir/file").output,
            lambda n: box.tools.call("list_dir", path="dir").output,
            lambda n: box.tools.call("str_replace", path="dir/file", old_str="inside", new_str="inside!").output,
            lambda n: box.tools.call("write_file", path="dir/file", content="inside\n", mode="overwrite").output,
            lambda n: box.tools.call("write_file", path=f"dir/new{n}", content="x").output,
            lambda n: box.tools.call("grep", pattern="CANARY|inside", path="dir").output,
            lambda n: box.tools.call("delete", path=f"dir/new{n - 2}", permanent=True).message,
            lambda n: box.fs.read("dir/file"),
            lambda n: box.fs.write("dir/sub/file", "x"),
        ]
        went = 0
        with exchanging(root / "dir", root / "decoy"):
            for number in range(ROUNDS):
                with contextlib.suppress(OSError, TextNotFoundError):
                    assert "CANARY" not in str(calls[number % len(calls)](number))
                    went += 1
        assert went > ROUNDS // 20
        assert box.exec(["sh", "-c", "ls -A /tmp/out; cat /tmp/out/file"]).stdout == "file\nCANARY\n"
        box.exec(["rm", "-rf", "/tmp/out"])


@contextlib.contextmanager
def exchanging(first: Path, second: Path) -> Iterator[None]:
    """Two names exchange what they stand for, over and over, from outside of the container."""
    script = (
        "import ctypes, os, sys\n"
        "swap = ctypes.CDLL(None).renameat2\n"
        "names = [os.fsencode(word) for word in sys.argv[1:]]\n"
        "parent = os.getppid()\n"
        "print('ready', flush=True)\n"
        "while os.getppid() == parent: swap(-100, names[0], -100, names[1], 2)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, os.fspath(first), os.fspath(second)], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield
            assert process.poll() is None
        finally:
            process.kill()


def test_without_a_container_files_and_tools_work_the_same(session_home: str) -> None:
    with Manager(home=session_home, engine="none") as manager, manager.create(remove_on_exit=True) as box:
        box.fs.write("a", "one\n")
        box.tools.call("str_replace", path="a", old_str="one", new_str="two")
        assert box.tools.call("shell", command="cat a; pwd").output == f"two\n{box.root}"
        box.tools.call("undo", path="a")
        assert box.fs.read("a") == "one\n"
        with pytest.raises(FsViolationError):
            box.fs.read("/etc/passwd")
