"""The law of the shim: one request, one answer; commands live as long as their client; it is light, survives
whatever happens to its connections and children, and goes when told."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from shim_process import Shim, is_alive, running_shim, session_runtime, wait_until
from ws.errors import (
    Busy,
    CommandNotStarted,
    ContainerDied,
    InvalidRequest,
    OperationNotSupportedError,
    ProtocolError,
)
from ws.remote.calls import upload
from ws.remote.channel import Channel
from ws.remote.runtime import Runtime
from ws.shim import server as server_module
from ws.shim.wire import SOCKET_NAME, VERSION


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Runtime:
    return session_runtime(str(tmp_path_factory.mktemp("runtime")))


@pytest.fixture(scope="module")
def shim(runtime: Runtime) -> Iterator[Shim]:
    with running_shim(runtime) as running:
        yield running


@pytest.fixture
def own_shim(runtime: Runtime) -> Iterator[Shim]:
    with running_shim(runtime) as running:
        yield running


def test_a_ping_says_who_is_there(shim: Shim) -> None:
    facts = shim.channel.ping()
    assert facts.version == VERSION
    assert facts.pid == shim.pid
    assert facts.uptime_s > 0


def test_a_command_runs_in_the_root_with_the_base_environment(shim: Shim) -> None:
    result = shim.channel.exec(["sh", "-c", "pwd; env"], env={"GIVEN": "ü", "BASE": "2"})
    lines = result.stdout.splitlines()
    assert lines[0] == shim.root
    names = {line.partition("=")[0] for line in lines[1:]}
    assert {"GIVEN=ü", "BASE=2"} <= set(lines)
    assert not [name for name in names if name.startswith(("LD_", "PYTHON", "LC_"))]
    assert names <= {"PATH", "HOME", "GIVEN", "BASE", "PWD", "OLDPWD", "SHLVL", "_"}


def test_the_working_directory_is_relative_to_the_root_or_absolute(shim: Shim) -> None:
    os.makedirs(os.path.join(shim.root, "a/b"), exist_ok=True)
    assert shim.channel.exec(["pwd"], workdir="a/b").stdout.strip() == f"{shim.root}/a/b"
    assert shim.channel.exec(["pwd"], workdir="/usr").stdout.strip() == "/usr"
    with pytest.raises(InvalidRequest, match="nowhere"):
        shim.channel.exec(["pwd"], workdir="nowhere")


def test_words_may_be_any_bytes_and_longer_than_a_header(shim: Shim) -> None:
    assert shim.channel.exec(["printf", "%s", b"\xff\xfe\n"]).stdout_bytes == b"\xff\xfe\n"
    assert shim.channel.exec(["printf", "%s", b"\xff\xfe"]).stdout == "��"
    script = "#" + "x" * 120_000 + "\necho ok"
    assert shim.channel.exec(["sh", "-c", script]).stdout == "ok\n"
    with pytest.raises(InvalidRequest, match="zero byte"):
        shim.channel.exec(["echo", "a\0b"])


def test_errors_cross_with_their_class_and_the_connection_is_still_good(shim: Shim) -> None:
    with pytest.raises(CommandNotStarted) as caught:
        shim.channel.exec(["no-such-command"])
    assert caught.value.errno == 2
    assert caught.value.hint
    with pytest.raises(OperationNotSupportedError):
        shim.channel.call("fs.unheard_of", {})
    with pytest.raises(OperationNotSupportedError):
        shim.channel.call("nothing", {})
    assert shim.channel.exec(["true"]).exit_code == 0


def test_output_is_streamed_while_the_command_runs(shim: Shim) -> None:
    seen: list[tuple[str, bytes, float]] = []
    started: list[float] = []
    result = shim.channel.exec(
        ["sh", "-c", "echo one; sleep 0.3; echo two >&2"],
        on_output=lambda stream, data: seen.append((stream, data, time.monotonic())),
        started=lambda: started.append(time.monotonic()),
    )
    assert [(stream, data) for stream, data, _ in seen] == [("stdout", b"one\n"), ("stderr", b"two\n")]
    assert seen[1][2] - seen[0][2] > 0.2
    assert len(started) == 1
    assert started[0] <= seen[0][2]
    assert (result.stdout, result.stderr) == ("", "")


def test_input_comes_from_bytes_files_and_pipes(shim: Shim, tmp_path: Path) -> None:
    data = os.urandom(1 << 20)
    assert shim.channel.exec(["cat"], stdin=data).stdout_bytes == data
    assert shim.channel.exec(["cat"], stdin=io.BytesIO(data)).stdout_bytes == data
    (tmp_path / "file").write_bytes(data)
    with open(tmp_path / "file", "rb") as file:
        file.read(10)
        assert shim.channel.exec(["cat"], stdin=file).stdout_bytes == data[10:]
    assert shim.channel.exec(["cat"], stdin=b"").stdout == ""
    assert shim.channel.exec(["head", "-c", "3"], stdin=data).stdout_bytes == data[:3]


def test_a_slow_pipe_as_input_does_not_hold_up_the_output(shim: Shim) -> None:
    read, write = os.pipe()
    seen = threading.Event()

    def type_slowly() -> None:
        os.write(write, b"first\n")
        assert seen.wait(5)
        os.write(write, b"second\n")
        os.close(write)

    thread = threading.Thread(target=type_slowly)
    thread.start()
    collected: list[bytes] = []

    def listen(_stream: str, data: bytes) -> None:
        collected.append(data)
        seen.set()

    with os.fdopen(read, "rb") as source:
        assert shim.channel.exec(["cat"], stdin=source, on_output=listen, timeout_s=10).exit_code == 0
    thread.join()
    assert b"".join(collected) == b"first\nsecond\n"


def test_a_command_that_neither_reads_nor_stops_writing_is_ended_with_both_sides_whole(shim: Shim) -> None:
    result = shim.channel.exec(["sh", "-c", "exec yes"], stdin=b"x" * (8 << 20), timeout_s=0.5, max_output_bytes=1000)
    assert (result.timed_out, result.truncated, len(result.stdout_bytes)) == (True, True, 1000)
    assert shim.channel.ping().pid == shim.pid


def test_the_deadline_is_kept_while_nobody_reads_the_output(shim: Shim) -> None:
    before = time.monotonic()
    result = shim.channel.exec(["yes"], timeout_s=0.5, max_output_bytes=None, on_output=lambda *_: time.sleep(0.02))
    assert result.timed_out
    assert result.duration_s < 2
    assert time.monotonic() - before < 10


def test_a_gibibyte_streams_through_in_constant_memory(shim: Shim) -> None:
    shim.channel.exec(["head", "-c", "10M", "/dev/zero"])
    before_kb = shim.rss_kb()
    count = 0

    def listen(_stream: str, data: bytes) -> None:
        nonlocal count
        count += len(data)

    shim.channel.exec(["head", "-c", "1G", "/dev/zero"], max_output_bytes=None, on_output=listen)
    assert count == 1 << 30
    assert shim.rss_kb() - before_kb < 4_000


def test_a_client_that_is_killed_takes_its_command_with_it(own_shim: Shim) -> None:
    code = (
        "import sys; from ws.remote.channel import Channel;"
        "Channel(sys.argv[1]).exec(['sh', '-c', 'echo $$ > pid; timeout 300 sleep 300'])"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    client = subprocess.Popen([sys.executable, "-c", code, own_shim.run_dir], env=environment)
    path = os.path.join(own_shim.root, "pid")
    assert wait_until(lambda: os.path.exists(path) and os.path.getsize(path) > 0)
    with open(path, encoding="ascii") as file:
        pid = int(file.read())
    assert is_alive(pid)
    client.kill()
    client.wait()
    assert wait_until(lambda: not is_alive(pid))
    assert wait_until(lambda: own_shim.channel.exec(["pgrep", "-s", str(pid)]).stdout == "")


def test_an_interrupted_caller_takes_its_command_with_it(own_shim: Shim) -> None:
    pids: list[int] = []

    def listen(_stream: str, data: bytes) -> None:
        pids.append(int(data))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        own_shim.channel.exec(["sh", "-c", "echo $$; sleep 300"], on_output=listen)
    assert wait_until(lambda: not is_alive(pids[0]))


def test_a_daemon_left_behind_lives_and_may_go_on_writing(own_shim: Shim) -> None:
    script = "(trap 'exit 1' PIPE; while sleep 0.01; do echo line; done; ) & echo $!"
    pid = int(own_shim.channel.exec(["sh", "-c", script]).stdout.split()[0])
    time.sleep(0.4)
    assert is_alive(pid)
    assert own_shim.channel.kill_all() == 0
    os.kill(pid, signal.SIGKILL)  # on a host, kill_all ends what runs for a client; a daemon is nobody's


def test_many_threads_share_a_channel(shim: Shim) -> None:
    failures: list[object] = []

    def work(number: int) -> None:
        for turn in range(10):
            result = shim.channel.exec(["sh", "-c", f"echo {number}-{turn}; exit {number}"])
            if (result.stdout, result.exit_code) != (f"{number}-{turn}\n", number):
                failures.append(result)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_stream_goes_both_ways_through_a_handler() -> None:
    """The seam for file tools: a handler that reads an upload and answers with a download."""
    ours, theirs = socket.socketpair()
    shim_server = server_module.Server("/", "/", {})

    def double(request: server_module.Request) -> dict[str, object]:
        upload = b"".join(request.chunks())  # an answer that begins earlier ends the upload: it means an error
        request.send(upload * 2)
        return {"total": len(upload)}

    shim_server._handlers["double"] = double
    thread = threading.Thread(target=_ignore_end, args=(shim_server, server_module.Connection(theirs)), daemon=True)
    thread.start()
    channel = Channel("/nowhere")
    from ws.remote.calls import _Line

    channel._idle.append(_Line(ours))
    reply = channel.call("double", {}, iter([b"ab", b"c" * 10]))
    assert reply.result == {"total": 12}
    assert reply.body == (b"ab" + b"c" * 10) * 2
    assert channel.call("ping", {}).result["version"] == VERSION
    channel.close()
    thread.join(5)
    theirs.close()


def _ignore_end(shim_server: server_module.Server, connection: server_module.Connection) -> None:
    try:
        shim_server._serve(connection)
    except server_module.PeerGone:
        pass


def test_garbage_on_one_connection_does_not_touch_the_others(shim: Shim) -> None:
    for garbage in (b"\xff" * 100, b"\0" * 8, b"GET / HTTP/1.1\r\n\r\n", b"", b"\0\0\0\2\0\0\0\0[]"):
        with socket.socket(socket.AF_UNIX) as raw:
            raw.connect(os.path.join(shim.run_dir, SOCKET_NAME))
            raw.sendall(garbage)
            raw.shutdown(socket.SHUT_WR)
            raw.settimeout(5)
            while raw.recv(4096):
                pass
    assert shim.channel.exec(["true"]).exit_code == 0


def test_more_connections_than_it_serves_are_told_so(own_shim: Shim) -> None:
    path = os.path.join(own_shim.run_dir, SOCKET_NAME)
    crowd = []
    try:
        for _ in range(server_module.MAX_CONNECTIONS + 20):
            raw = socket.socket(socket.AF_UNIX)
            raw.connect(path)
            crowd.append(raw)
        with pytest.raises(Busy), Channel(own_shim.run_dir).begin("ping", {}) as call:
            call.receive(deadline=time.monotonic() + 5)
        assert own_shim.channel.ping().pid == own_shim.pid  # on the connection that it has
    finally:
        for raw in crowd:
            raw.close()
    fresh = Channel(own_shim.run_dir)
    assert wait_until(lambda: _answers(fresh))
    fresh.close()
    assert wait_until(lambda: len(os.listdir(f"/proc/{own_shim.pid}/task")) <= 4)


def _answers(channel: Channel) -> bool:
    try:
        channel.ping()
        return True
    except Busy:
        return False


def test_ten_thousand_connections_leave_nothing_behind(own_shim: Shim) -> None:
    path = os.path.join(own_shim.run_dir, SOCKET_NAME)
    before = len(os.listdir(f"/proc/{own_shim.pid}/fd"))
    for _ in range(10_000):
        with socket.socket(socket.AF_UNIX) as raw:
            try:
                raw.connect(path)
            except BlockingIOError:
                time.sleep(0.001)
    assert wait_until(lambda: len(os.listdir(f"/proc/{own_shim.pid}/fd")) <= before)
    assert own_shim.channel.ping().pid == own_shim.pid
    assert own_shim.rss_kb() < 16_000


def test_it_is_light_and_holds_nothing_below_the_root(own_shim: Shim) -> None:
    own_shim.channel.exec(["true"])
    own_shim.channel.exec(["cat"], stdin=b"x" * 1000)
    assert own_shim.rss_kb() < 12_000
    assert os.readlink(f"/proc/{own_shim.pid}/cwd") == "/"
    held = [os.readlink(f"/proc/{own_shim.pid}/fd/{fd}") for fd in os.listdir(f"/proc/{own_shim.pid}/fd")]
    assert not [path for path in held if path.startswith(own_shim.root)]


def test_it_ends_at_once_and_takes_its_commands_along(runtime: Runtime) -> None:
    with running_shim(runtime) as shim:
        pids: list[int] = []
        ends: list[str | int] = []

        def run() -> None:
            try:
                command = ["sh", "-c", "echo $$; sleep 300"]
                result = shim.channel.exec(command, on_output=lambda _, data: pids.append(int(data)))
                ends.append(result.exit_code)
            except ContainerDied:
                ends.append("died")

        thread = threading.Thread(target=run)
        thread.start()
        assert wait_until(lambda: pids)
        before = time.monotonic()
        shim.process.terminate()
        assert shim.process.wait(5) == 0
        assert time.monotonic() - before < 1
        thread.join(5)
        assert ends in (["died"], [137])  # whichever the shim was quicker with
        assert wait_until(lambda: not is_alive(pids[0]))  # killed; its end may take a busy machine a moment
        with pytest.raises(ContainerDied):
            shim.channel.ping()


def test_a_vanished_shim_is_a_dead_container(runtime: Runtime) -> None:
    with running_shim(runtime) as shim:
        shim.process.kill()
        shim.process.wait()
        with pytest.raises(ContainerDied) as caught:
            shim.channel.exec(["true"])
        assert caught.value.hint
        with pytest.raises(ContainerDied):
            shim.channel.wait_ready(time.monotonic() + 10)  # does not wait: the process is gone


def test_it_listens_below_a_path_longer_than_an_address(runtime: Runtime, tmp_path: Path) -> None:
    run_dir = tmp_path.joinpath(*(["d" * 60] * 4))
    with running_shim(runtime, run_dir=str(run_dir)) as shim:
        assert shim.channel.exec(["echo", "far"]).stdout == "far\n"
        assert os.stat(run_dir / SOCKET_NAME).st_mode & 0o777 == 0o600


def test_a_new_version_of_the_protocol_is_refused(shim: Shim) -> None:
    with socket.socket(socket.AF_UNIX) as raw:
        raw.connect(os.path.join(shim.run_dir, SOCKET_NAME))
        header = b'{"v":99,"id":1,"op":"ping","params":{}}'
        raw.sendall(len(header).to_bytes(4, "big") + bytes(4) + header)
        raw.settimeout(5)
        assert b"protocol_error" in raw.recv(4096)


def test_unlimited_output_needs_somewhere_to_go(shim: Shim) -> None:
    with pytest.raises(InvalidRequest):
        shim.channel.exec(["true"], max_output_bytes=None)


def test_only_the_expected_process_is_spoken_to(shim: Shim) -> None:
    channel = Channel(shim.run_dir, peer_pid=os.getpid())
    with pytest.raises(ProtocolError, match="another process"):
        channel.ping()


def _cpu_ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


SLOW_PATCH = "*** Begin Patch\n*** Update File: same.txt\n@@\n" + "-same\n" * 20_000 + "-other\n+x\n*** End Patch\n"


def test_the_work_for_a_caller_that_is_gone_ends(shim: Shim) -> None:
    (Path(shim.root) / "same.txt").write_text("same\n" * 60_000)
    asked = {"tool": "apply_patch", "params": {"patch": SLOW_PATCH}}
    idle = _cpu_ticks(shim.pid)
    call = shim.channel.begin("tool", {}, more=True)
    upload(call, [json.dumps(asked).encode()])
    assert wait_until(lambda: _cpu_ticks(shim.pid) - idle > 50, timeout_s=30)
    assert not call.answered, "the patch is not slow enough to be seen"
    call.drop()
    deadline = time.monotonic() + 20
    quiet = 0
    while quiet < 3:
        before = _cpu_ticks(shim.pid)
        time.sleep(0.3)
        quiet = quiet + 1 if _cpu_ticks(shim.pid) - before <= 2 else 0
        assert time.monotonic() < deadline, "the shim computes on for a caller that is gone"
    assert shim.channel.exec(["true"]).exit_code == 0
    assert (Path(shim.root) / "same.txt").stat().st_size == 300_000
