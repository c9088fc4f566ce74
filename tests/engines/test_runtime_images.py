"""The law: the shim runs in any image, as any user, with nothing but what the runtime brings; as PID 1 it
outlives whatever the workspace does, serves nobody in it, and is gone when told."""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator

import pytest

from shim_process import memory_kb, wait_until
from ws.engine.base import RUN, RUNTIME, WORKSPACE, ContainerState, Engine
from ws.errors import CommandNotStarted, LimitExceeded, ProtocolError
from ws.layout import Home
from ws.remote.channel import Channel
from ws.remote.runtime import Runtime, ensure_runtime, rg_command, shim_command
from ws.shim.wire import SOCKET_NAME
from ws.testing import EngineBench

SHIM = shim_command(RUNTIME, socket=f"{RUN}/{SOCKET_NAME}", root=WORKSPACE)
PYTHON = SHIM[: SHIM.index("-X")]
BUSYBOX = "/bin/busybox"


class Box:
    """A container with the shim in it, seen from the host."""

    def __init__(self, engine: Engine, state: ContainerState, run_dir: str) -> None:
        self.engine = engine
        self.state = state
        self.run_dir = run_dir
        self.channel = Channel(run_dir, peer_pid=state.pid)

    def sh(self, script: str, **options: object) -> str:
        result = self.channel.exec([BUSYBOX, "sh", "-c", script], **options)  # type: ignore[arg-type]
        assert result.exit_code == 0, result
        return result.stdout

    def python(self, code: str) -> str:
        """Run some Python in the container, as a process of the workspace would."""
        result = self.channel.exec([*PYTHON, "-c", code], timeout_s=30)
        assert result.exit_code == 0, result
        return result.stdout


Boxes = Callable[..., contextlib.AbstractContextManager[Box]]


@pytest.fixture(scope="session")
def runtime(session_home: str) -> Runtime:
    return ensure_runtime(Home(session_home))


@pytest.fixture(scope="session")
def boxes(engine: Engine, session_home: str, runtime: Runtime) -> Boxes:
    @contextlib.contextmanager
    def make(image: str, *, uid: int = 1000, **options: object) -> Iterator[Box]:
        bench = EngineBench(engine, session_home, image, uid=uid, gid=uid, runtime_dir=runtime.path)
        with bench.container(*SHIM, **options) as state:
            box = Box(engine, state, os.path.join(session_home, "run", state.key))
            try:
                box.channel.wait_ready(time.monotonic() + 20)
                yield box
            finally:
                box.channel.close()

    return make


@pytest.fixture(scope="module")
def box(boxes: Boxes, busybox_image: str) -> Iterator[Box]:
    with boxes(busybox_image) as made:
        yield made


def test_an_image_that_holds_only_busybox_is_enough(box: Box) -> None:
    facts = box.channel.ping()
    assert facts.pid == 1
    assert box.sh("pwd; echo $HOME") == f"{WORKSPACE}\n/home/agent\n"
    assert box.sh("ls /bin").split() == ["busybox", "sh"]
    with pytest.raises(CommandNotStarted):
        box.channel.exec(["python3", "--version"])


def test_an_image_with_an_older_libc_runs_its_own_programs_beside_our_shim(boxes: Boxes, old_libc_image: str) -> None:
    with boxes(old_libc_image) as old:
        assert old.channel.exec(["/bin/cat", "/proc/self/comm"]).stdout == "cat\n"
        theirs = old.channel.exec(["/bin/cat", "/proc/self/maps"]).stdout
        ours = _code(f"/proc/{old.state.pid}/maps")
        assert "libc-2.31.so" in theirs
        assert RUNTIME not in theirs
        assert ours
        assert all(path.startswith(RUNTIME) or "/runtimes/" in path for path in ours)
        assert old.channel.exec([*_rg(), "--version"]).stdout.startswith("ripgrep")


def _code(maps: str) -> set[str]:
    with open(maps, encoding="utf-8") as file:
        return {line.split(None, 5)[5].strip() for line in file if " r-xp " in line and "/" in line}


def _rg() -> tuple[str, ...]:
    return (*SHIM[: SHIM.index(f"{RUNTIME}/bin/python3")], f"{RUNTIME}/bin/rg")


def test_any_user_can_run_it(boxes: Boxes, busybox_image: str) -> None:
    with boxes(busybox_image, uid=4321) as other:
        assert other.sh("id -u").strip() == "4321"


def test_ripgrep_comes_along(box: Box, runtime: Runtime) -> None:
    assert box.channel.ping().rg == (rg_command(runtime.path) is not None)
    found = box.channel.exec([*_rg(), "--no-config", "-c", "needle"], stdin=b"hay\nneedle\n")
    assert found.stdout == "1\n"


def test_a_command_has_nothing_of_the_shim_or_the_host(box: Box) -> None:
    environment = dict(line.split("=", 1) for line in box.sh("env").splitlines())
    assert not [name for name in environment if name.startswith(("PYTHON", "LD_", "WS_"))]
    assert "PYTEST_CURRENT_TEST" not in environment
    assert box.sh("ls /proc/self/fd").split() == ["0", "1", "2", "3"]
    text = box.channel.exec([BUSYBOX, "cat", "/proc/self/status"]).stdout
    status = dict(line.split(":", 1) for line in text.splitlines())
    assert status["SigBlk"].strip() == status["SigIgn"].strip() == "0" * 16


def test_a_terminal_works_in_it(box: Box) -> None:
    with box.channel.terminal([BUSYBOX, "sh"], rows=31, columns=81) as terminal:
        terminal.send(b"busybox stty size; busybox tty; exit 3\n")
        shown = b"".join(terminal)
        assert terminal.result is not None
        assert terminal.result.exit_code == 3
    assert b"31 81" in shown
    assert b"/dev/pts/" in shown


def test_orphans_are_reaped_and_no_status_is_lost(box: Box) -> None:
    box.sh("for i in $(seq 20); do (busybox setsid busybox sleep 0.0$i &) ; done")
    for number in range(20):
        assert box.channel.exec([BUSYBOX, "sh", "-c", f"exit {number}"]).exit_code == number
    assert wait_until(lambda: len(_processes(box)) == 1), _processes(box)


def _processes(box: Box) -> list[str]:
    """What runs in the container besides the command that looks."""
    lines = box.sh("ps -o pid,stat,comm").splitlines()[1:]
    return [line for line in lines if not line.split()[2].startswith(("ps", "sh", "busybox"))]


def test_nothing_that_the_workspace_kills_is_the_shim(box: Box) -> None:
    script = "busybox sleep 300 & kill -9 -1; for s in 9 HUP INT QUIT STOP TSTP USR1 SEGV; do kill -$s 1; done"
    box.sh(script)
    assert wait_until(lambda: _answers(box))


def _answers(box: Box) -> bool:
    now = box.engine.find(box.state.id)
    return now is not None and now.running and box.channel.ping().pid == 1


def test_kill_all_leaves_nothing_but_the_shim(box: Box) -> None:
    box.sh("busybox sleep 300 & (busybox setsid busybox sleep 300 &) ; busybox sleep 300 &")
    session = box.channel.start_session([BUSYBOX, "sleep", "300"])
    assert len(_processes(box)) >= 1
    assert box.channel.kill_all() == 0
    assert box.sh("ps -o pid,args | busybox grep '[s]leep' || echo none") == "none\n"
    assert box.channel.read_session(session, wait_s=5).signal == signal.SIGKILL


def test_a_process_of_the_workspace_cannot_speak_to_the_shim(box: Box) -> None:
    code = f"""
import _socket
refused = 0
for _ in range(500):
    s = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    s.connect({f"{RUN}/{SOCKET_NAME}"!r})
    try:
        s.send(b"\\0\\0\\0\\2\\0\\0\\0\\0{{}}")
        refused += s.recv(100) == b""
    except OSError:
        refused += 1
    s.close()
print(refused)
"""
    assert box.python(code) == "500\n"
    with Channel(box.run_dir, peer_pid=box.state.pid) as fresh:
        assert fresh.ping().pid == 1


def test_a_socket_that_the_workspace_put_in_place_of_ours_is_refused(boxes: Boxes, busybox_image: str) -> None:
    with boxes(busybox_image) as taken:
        code = f"""
import os, _socket, time
path = {f"{RUN}/{SOCKET_NAME}"!r}
os.unlink(path)
s = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
s.bind(path)
s.listen(5)
os.chmod(path, 0o777)
if os.fork(): os._exit(0)
os.close(1); os.close(2)
time.sleep(60)
"""
        taken.python(code)
        with pytest.raises(ProtocolError, match="another process"):
            Channel(taken.run_dir, peer_pid=taken.state.pid).ping()
        assert taken.channel.ping().pid == 1  # the connection from before


def test_a_fork_bomb_meets_its_limit_and_is_ended_from_outside(boxes: Boxes, busybox_image: str) -> None:
    with boxes(busybox_image, pids=64) as bombed:
        bombed.channel.ping()
        bomb = "bomb() { bomb | bomb & }; bomb; while :; do :; done"
        result = bombed.channel.exec([BUSYBOX, "sh", "-c", bomb], timeout_s=1, max_output_bytes=1000)
        # The first shell may itself be the one that is refused a process, and end.
        assert result.timed_out or "can't fork" in result.stderr
        before = time.monotonic()
        deadline = before + 30
        while bombed.channel.kill_all() and time.monotonic() < deadline:
            pass
        assert time.monotonic() - before < 20
        assert wait_until(lambda: _runs(bombed), 10)


def _runs(box: Box) -> bool:
    try:
        return box.channel.exec([BUSYBOX, "true"]).exit_code == 0
    except LimitExceeded:
        return False


def test_it_is_light_quick_and_holds_nothing_of_the_workspace(box: Box) -> None:
    exec_s = []
    for _ in range(50):
        before = time.perf_counter()
        box.channel.exec([BUSYBOX, "true"])
        exec_s.append(time.perf_counter() - before)
    assert statistics.median(exec_s) < 0.03  # 1.4 ms on a quiet machine
    assert memory_kb(box.state.pid, "Pss") < 12_000
    assert os.readlink(f"/proc/{box.state.pid}/cwd") == "/"
    held = [os.readlink(f"/proc/{box.state.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{box.state.pid}/fd")]
    assert not [path for path in held if path.startswith(WORKSPACE)]


def test_it_goes_at_once_when_told(boxes: Boxes, busybox_image: str) -> None:
    with boxes(busybox_image) as ending:
        ending.sh("busybox sleep 300 &")
        before = time.monotonic()
        os.kill(ending.state.pid, signal.SIGTERM)
        assert wait_until(lambda: not os.path.exists(f"/proc/{ending.state.pid}"), 5)
        assert time.monotonic() - before < 2
