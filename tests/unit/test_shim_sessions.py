"""The law of terminals: a session outlives the call and the process that began it, never its limits; a
terminal that somebody sits at dies with the connection."""

from __future__ import annotations

import contextlib
import os
import pty
import termios
import threading
import time
from collections.abc import Iterator

import pytest

from shim_process import Shim, is_alive, running_shim, session_runtime, wait_until
from ws.errors import CommandNotStarted, InvalidRequest, LimitExceeded, SessionNotFound
from ws.remote.channel import Channel
from ws.tools import sessions as module
from ws.tools import spawning
from ws.tools.sessions import Sessions

ENV = spawning.build_environment({}, {b"PATH": os.environb[b"PATH"], b"PS1": b"> "})


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shim]:
    with running_shim(session_runtime(str(tmp_path_factory.mktemp("runtime")))) as running:
        yield running


def read_all(channel: Channel, session_id: int) -> tuple[bytes, int | None]:
    data = b""
    while True:
        found = channel.read_session(session_id, wait_s=5)
        data += found.data
        if not found.running:
            return data, found.exit_code


def test_a_session_lives_between_calls_and_connections(shim: Shim) -> None:
    session = shim.channel.start_session(["sh"], env={"PS1": "> "})
    another = Channel(shim.run_dir, peer_pid=shim.pid)
    another.write_session(session, b"x=42\n", wait_s=0.05)
    another.close()
    found = shim.channel.write_session(session, b"echo x is $x\n", wait_s=0.3)
    assert b"x is 42" in found.data
    assert found.running
    assert found.exit_code is None
    assert session in [facts.id for facts in shim.channel.list_sessions()]
    found = shim.channel.write_session(session, b"exit 7\n", wait_s=5)
    assert (found.running, found.exit_code) == (False, 7)
    with pytest.raises(SessionNotFound):
        shim.channel.read_session(session)


def test_a_poll_waits_its_time_and_no_longer_than_the_session(shim: Shim) -> None:
    session = shim.channel.start_session(["sleep", "0.5"])
    before = time.monotonic()
    assert shim.channel.read_session(session, wait_s=0.1).running
    assert 0.05 < time.monotonic() - before < 0.4
    assert not shim.channel.read_session(session, wait_s=20).running
    assert time.monotonic() - before < 3


def test_it_is_a_terminal_with_a_size_that_changes(shim: Shim) -> None:
    session = shim.channel.start_session(["sh", "-c", "tty; stty size; read x; stty size"], rows=30, columns=99)
    assert b"30 99" in shim.channel.read_session(session, wait_s=0.3).data
    shim.channel.resize_session(session, 50, 120)
    shim.channel.write_session(session, b"\n", wait_s=0)
    data, status = read_all(shim.channel, session)
    assert b"50 120" in data
    assert status == 0


def test_ctrl_c_reaches_the_foreground(shim: Shim) -> None:
    session = shim.channel.start_session(["sh", "-c", "trap 'echo caught; exit 3' INT; sleep 60 & wait"])
    time.sleep(0.2)
    found = shim.channel.write_session(session, b"\x03", wait_s=5)
    assert b"caught" in found.data
    assert found.exit_code == 3


def test_end_of_input_ends_a_reader(shim: Shim) -> None:
    session = shim.channel.start_session(["cat"])
    found = shim.channel.write_session(session, b"hello\n\x04", wait_s=5)
    assert b"hello\r\nhello" in found.data
    assert (found.running, found.exit_code) == (False, 0)


def test_closing_ends_every_process_of_the_session(shim: Shim) -> None:
    script = "set -m; sleep 300 & echo $!; (trap '' HUP TERM; sleep 300) & echo $!; wait"
    session = shim.channel.start_session(["sh", "-c", script])
    pids = [int(word) for word in shim.channel.read_session(session, wait_s=0.5).data.split()]
    assert len(pids) == 2
    shim.channel.close_session(session)
    assert wait_until(lambda: not any(is_alive(pid) for pid in pids))
    with pytest.raises(SessionNotFound):
        shim.channel.close_session(session)


def test_what_nobody_reads_is_dropped_from_the_front_and_counted(shim: Shim) -> None:
    session = shim.channel.start_session(["sh", "-c", "seq 1 400000; echo the end"])
    assert wait_until(lambda: not _listed(shim.channel, session).running, 20)
    data, dropped = b"", 0
    while True:
        found = shim.channel.read_session(session, wait_s=0)
        data += found.data
        dropped += found.dropped_bytes
        if not found.running:
            break
    assert data.endswith(b"the end\r\n")
    assert len(data) == 1 << 20
    assert dropped > 1 << 20


def _listed(channel: Channel, session: int) -> object:
    return next(facts for facts in channel.list_sessions() if facts.id == session)


def test_a_read_returns_at_most_what_was_asked(shim: Shim) -> None:
    session = shim.channel.start_session(["sh", "-c", "seq 1 10000"])
    first = shim.channel.read_session(session, wait_s=1, max_bytes=100)
    assert len(first.data) == 100
    assert first.running
    rest, _ = read_all(shim.channel, session)
    assert (first.data + rest).split() == [str(number).encode() for number in range(1, 10001)]


def test_input_that_is_not_read_is_refused_in_the_end(shim: Shim) -> None:
    session = shim.channel.start_session(["sh", "-c", "stty raw; sleep 60"])
    time.sleep(0.2)
    with pytest.raises(LimitExceeded):
        _flood(shim.channel, session)
    shim.channel.close_session(session)


def _flood(channel: Channel, session: int) -> None:
    for _ in range(10):
        channel.write_session(session, b"x" * 100_000, wait_s=0)


def test_a_session_that_cannot_start_says_why_and_leaves_nothing(shim: Shim) -> None:
    before = [facts.id for facts in shim.channel.list_sessions()]
    with pytest.raises(CommandNotStarted):
        shim.channel.start_session(["no-such-command"])
    with pytest.raises(InvalidRequest):
        shim.channel.start_session(["sh"], workdir="nowhere")
    with pytest.raises(InvalidRequest):
        shim.channel.start_session(["sh"], rows=0)
    with pytest.raises(InvalidRequest):
        shim.channel.start_session(["sh"], rows=100_000)
    assert [facts.id for facts in shim.channel.list_sessions()] == before


def test_kill_all_ends_sessions_and_they_say_so(shim: Shim) -> None:
    session = shim.channel.start_session(["sleep", "300"])
    assert shim.channel.kill_all() == 0
    found = shim.channel.read_session(session, wait_s=5)
    assert (found.running, found.exit_code, found.signal) == (False, 137, 9)


def test_a_process_that_sends_its_streams_elsewhere_lives_on() -> None:
    sessions = Sessions()
    number = sessions.start(
        [b"sh", b"-c", b"exec </dev/null >/dev/null 2>&1; sleep 0.6; exit 4"], env=ENV, workdir=b"/"
    )
    assert sessions.read(number, wait_s=0.2).running
    assert sessions.read(number, wait_s=5).exit_code == 4


def test_a_session_that_nobody_asks_for_is_ended() -> None:
    sessions = Sessions()
    number = sessions.start([b"sh", b"-c", b"echo $$; sleep 300"], env=ENV, workdir=b"/", idle_timeout_s=0.3)
    pid = int(sessions.read(number, wait_s=0.1).data)
    time.sleep(0.1)
    assert is_alive(pid)
    assert wait_until(lambda: not is_alive(pid))
    assert sessions.read(number, wait_s=1).exit_code == 137


def test_there_is_an_end_to_the_number_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SESSIONS", 3)
    sessions = Sessions()
    numbers = [sessions.start([b"sleep", b"300"], env=ENV, workdir=b"/") for _ in range(3)]
    with pytest.raises(LimitExceeded):
        sessions.start([b"sleep", b"300"], env=ENV, workdir=b"/")
    sessions.close(numbers[0])
    numbers[0] = sessions.start([b"sleep", b"300"], env=ENV, workdir=b"/")
    for number in numbers:
        sessions.close(number)


def test_sessions_leave_no_descriptor_and_no_zombie() -> None:
    sessions = Sessions()
    before, threads = set(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(20):
        sessions.read(sessions.start([b"true"], env=ENV, workdir=b"/"), wait_s=5)
    assert wait_until(lambda: set(os.listdir("/proc/self/fd")) == before)
    assert wait_until(lambda: threading.active_count() == threads)
    assert not spawning.live


def test_somebody_can_sit_at_a_terminal(shim: Shim) -> None:
    with shim.channel.terminal(["sh"], rows=40, columns=101, env={"PS1": "> "}) as terminal:
        terminal.send(b"stty size; echo $TERM\n")
        terminal.resize(41, 102)
        terminal.send(b"stty size; exit 5\n")
        data = b"".join(terminal)
        assert terminal.result is not None
        assert terminal.result.exit_code == 5
    assert b"41 102" in data
    assert b"xterm-256color" in data


def test_hanging_up_kills_what_ran_in_the_terminal(shim: Shim) -> None:
    with shim.channel.terminal(["sh", "-c", "set -m; sleep 300 & echo $!; wait"]) as terminal:
        pid = int(terminal.read(wait_s=5) or b"0")
        assert is_alive(pid)
        assert terminal.read(wait_s=0.05) == b""
    assert wait_until(lambda: not is_alive(pid))


def test_a_terminal_whose_command_is_not_there_says_so(shim: Shim) -> None:
    with shim.channel.terminal(["no-such-command"]) as terminal, pytest.raises(CommandNotStarted):
        terminal.read()


def test_a_relay_joins_a_real_terminal_with_the_one_in_the_workspace(shim: Shim) -> None:
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    termios.tcsetwinsize(slave, (33, 77))
    statuses: list[int] = []

    def sit() -> None:
        with shim.channel.terminal(["sh"], env={"PS1": "> "}) as terminal:
            statuses.append(terminal.relay(slave, slave).exit_code)

    thread = threading.Thread(target=sit)
    thread.start()
    os.write(master, b"stty size; exit 6\n")
    thread.join(10)
    assert statuses == [6]
    shown = b""
    with contextlib.suppress(BlockingIOError):
        while True:
            shown += os.read(master, 65536)
    assert b"33 77" in shown
    os.close(master)
    os.close(slave)
