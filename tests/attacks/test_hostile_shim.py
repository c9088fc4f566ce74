"""The law: a shim that was taken over can lie, drip, flood or vanish; the host ends with one typed error, or
a result that it can bound, in bounded time and flat memory, and its next call is as good as the first.

HARDENING D1–D5, D7, B7.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shim_process import memory_kb
from ws.errors import Busy, ContainerDied, FsViolationError, ProtocolError, SessionNotFound, WorkspaceError
from ws.remote import calls
from ws.remote.channel import Channel
from ws.shim import wire
from ws.shim.wire import SOCKET_NAME

Behaviour = Callable[[socket.socket], None]


def frame(header: object, body: bytes = b"") -> bytes:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(data).to_bytes(4, "big") + len(body).to_bytes(4, "big") + data + body


def read_request(peer: socket.socket) -> dict[str, object]:
    start = peer.recv(8, socket.MSG_WAITALL)
    if len(start) < 8:
        raise ConnectionError
    header = peer.recv(int.from_bytes(start[:4], "big"), socket.MSG_WAITALL)
    body_bytes = int.from_bytes(start[4:], "big")
    if body_bytes:
        peer.recv(body_bytes, socket.MSG_WAITALL)
    found: dict[str, object] = json.loads(header)
    return found


class HostileShim:
    """Listens where a shim would and does to each connection what it is told."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.behaviour: Behaviour = lambda peer: None
        self.connections = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(run_dir / SOCKET_NAME))
        self._listener.listen(16)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with peer:
                try:
                    self.behaviour(peer)
                except (OSError, ValueError):
                    pass  # the host hung up, as it should

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)

    def replies(self, *frames: bytes) -> None:
        """Answer the first request with these bytes and hold the line."""

        def behave(peer: socket.socket) -> None:
            read_request(peer)
            for data in frames:
                peer.sendall(data)
            peer.settimeout(5)
            while peer.recv(65536):
                pass

        self.behaviour = behave


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[HostileShim]:
    shim = HostileShim(tmp_path)
    yield shim
    shim.close()


@pytest.fixture
def channel(hostile: HostileShim) -> Iterator[Channel]:
    channel = Channel(str(hostile.run_dir), peer_pid=os.getpid())
    yield channel
    channel.close()


STARTED = frame({"id": 1, "kind": "started", "pid": 2})
GOOD = {"exit_code": 0, "signal": None, "timed_out": False, "truncated": False, "duration_s": 0.1}
RESULT = frame({"id": 1, "kind": "result", "result": GOOD})

GARBAGE = {
    "2^32−1 bytes of header": b"\xff\xff\xff\xff\x00\x00\x00\x00",
    "2^32−1 bytes of body": b"\x00\x00\x00\x02\xff\xff\xff\xff{}",
    "no header": b"\x00" * 8,
    "text": b"HTTP/1.1 200 OK\r\n\r\n",
    "invalid UTF-8": frame(b'{"id":1,"kind":"\xff"}'),
    "brackets": frame(b"[" * 60_000),
    "a long integer": frame(b'{"id":' + b"1" * 60_000 + b"}"),
    "NaN": frame(b'{"id":NaN}'),
    "duplicate keys": frame(b'{"id":1,"id":1}'),
    "a lone surrogate": frame(rb'{"id":1,"kind":"\ud800"}'),
    "no id": frame({"kind": "result", "result": {}}),
    "no kind": frame({"id": 1}),
    "a wrong id": frame({"id": 7, "kind": "result", "result": {}}),
    "a boolean id": frame({"id": True, "kind": "result", "result": {}}),
    "a kind that nobody has": frame({"id": 1, "kind": "surprise"}),
    "a result that is no object": frame({"id": 1, "kind": "result", "result": 7}),
    "an error without a code": frame({"id": 1, "kind": "error", "message": "x"}),
    "an error of its own": frame({"id": 1, "kind": "error", "code": "SystemExit", "message": "x"}),
    "an error for nobody": frame({"id": 0, "kind": "error", "code": "fs_violation", "message": "x"}),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_one_protocol_error_and_the_connection_is_dropped(
    garbage: bytes, hostile: HostileShim, channel: Channel
) -> None:
    hostile.replies(garbage)
    with pytest.raises(ProtocolError) as caught:
        channel.ping()
    assert type(caught.value) is ProtocolError
    hostile.replies(garbage)
    with pytest.raises(ProtocolError):
        channel.exec(["true"], timeout_s=1)
    assert hostile.connections == 2


@pytest.mark.parametrize(
    "change",
    [
        {"exit_code": 256},
        {"exit_code": -1},
        {"exit_code": True},
        {"exit_code": None},
        {"signal": 0},
        {"signal": "KILL"},
        {"timed_out": 1},
        {"truncated": None},
        {"duration_s": -1},
        {"duration_s": "long"},
    ],
    ids=repr,
)
def test_a_result_that_no_command_has_is_refused(
    change: dict[str, object], hostile: HostileShim, channel: Channel
) -> None:
    hostile.replies(STARTED, frame({"id": 1, "kind": "result", "result": {**GOOD, **change}}))
    with pytest.raises(ProtocolError):
        channel.exec(["true"])


@pytest.mark.parametrize(
    "frames",
    [
        (RESULT,),
        (STARTED, STARTED, RESULT),
        (STARTED, frame({"id": 1, "kind": "data", "stream": "stdlog"}, b"x")),
        (STARTED, frame({"id": 1, "kind": "data"}, b"x")),
        (STARTED, frame({"id": 1, "kind": "want", "size_bytes": 1 << 60})),
        (STARTED, frame({"id": 1, "kind": "want", "size_bytes": -5})),
        (frame({"id": 1, "kind": "data", "stream": "stdout"}, b"early"),),
        (STARTED, frame({"id": 1, "kind": "data", "stream": "stdout"})),
    ],
    ids=["no start", "two starts", "stream", "no stream", "much wanted", "less wanted", "early", "empty"],
)
def test_frames_out_of_their_order_are_refused(
    frames: tuple[bytes, ...], hostile: HostileShim, channel: Channel
) -> None:
    hostile.replies(*frames)
    with pytest.raises(ProtocolError):
        channel.exec(["cat"], stdin=b"x")


def test_a_second_answer_is_never_taken_for_the_next_one(hostile: HostileShim, channel: Channel) -> None:
    facts = {"version": 1, "pid": 1, "uptime_s": 1, "python": "3", "rg": True}
    answer = frame({"id": 1, "kind": "result", "result": facts})
    stale = frame({"id": 2, "kind": "result", "result": {**facts, "pid": 666}})
    hostile.replies(answer + stale)
    assert channel.ping().pid == 1
    hostile.replies(answer)
    assert channel.ping().pid == 1
    assert hostile.connections == 2  # the first one had something to say that nobody asked for


def test_a_shim_of_another_version_is_refused(hostile: HostileShim, channel: Channel) -> None:
    facts = {"version": 2, "pid": 1, "uptime_s": 1, "python": "3", "rg": True}
    hostile.replies(frame({"id": 1, "kind": "result", "result": facts}))
    with pytest.raises(ProtocolError, match="version"):
        channel.ping()


def test_silence_ends_at_the_deadline(hostile: HostileShim, channel: Channel) -> None:
    hostile.replies()
    before = time.monotonic()
    with pytest.raises(ProtocolError):
        channel.ping(timeout_s=0.3)
    assert time.monotonic() - before < 2


def test_a_command_whose_end_is_never_told_is_given_up(
    hostile: HostileShim, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ws.remote import following

    monkeypatch.setattr(following, "_SLACK_S", 0.2)
    hostile.replies(STARTED)
    before = time.monotonic()
    with pytest.raises(ProtocolError):
        channel.exec(["true"], timeout_s=0.2)
    assert time.monotonic() - before < 3


@pytest.mark.parametrize("part", [3, 8, 20, -1])
def test_a_frame_that_stops_or_drips_is_given_up(
    part: int, hostile: HostileShim, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "FRAME_TIMEOUT_S", 0.4)
    whole = frame({"id": 1, "kind": "data", "stream": "stdout"}, b"x" * 100)

    def drip(peer: socket.socket) -> None:
        read_request(peer)
        peer.sendall(STARTED + whole[:part])
        for byte in whole[part:-1]:
            time.sleep(0.15)
            peer.sendall(bytes([byte]))
        peer.recv(1)

    hostile.behaviour = drip
    before = time.monotonic()
    with pytest.raises(ProtocolError):
        channel.exec(["true"])  # no deadline of its own
    assert time.monotonic() - before < 3


def test_a_frame_that_breaks_off_is_a_dead_container(hostile: HostileShim, channel: Channel) -> None:
    def break_off(peer: socket.socket) -> None:
        read_request(peer)
        peer.sendall(STARTED + frame({"id": 1, "kind": "data", "stream": "stdout"}, b"x" * 100)[:-5])

    hostile.behaviour = break_off
    with pytest.raises(ContainerDied):
        channel.exec(["true"])


def test_a_flood_beyond_the_cap_is_cut_in_flat_memory(hostile: HostileShim, channel: Channel) -> None:
    chunk = frame({"id": 1, "kind": "data", "stream": "stdout"}, b"x" * (1 << 20))

    def flood(peer: socket.socket) -> None:
        read_request(peer)
        peer.sendall(STARTED)
        for _ in range(300):
            peer.sendall(chunk)
        peer.sendall(RESULT)  # and it says that nothing was cut
        peer.recv(1)

    hostile.behaviour = flood
    before_kb = memory_kb("self", "Rss")
    result = channel.exec(["true"], max_output_bytes=1_000_000)
    assert result.truncated
    assert len(result.stdout_bytes) == 1_000_000
    assert memory_kb("self", "Rss") - before_kb < 16_000


def test_a_flood_that_never_ends_ends_at_the_deadline(
    hostile: HostileShim, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ws.remote import following

    monkeypatch.setattr(following, "_SLACK_S", 0.3)
    small = frame({"id": 1, "kind": "data", "stream": "stdout"}, b"x") * 1000

    def flood(peer: socket.socket) -> None:
        read_request(peer)
        peer.sendall(STARTED)
        while True:
            peer.sendall(small)

    hostile.behaviour = flood
    before_kb, before = memory_kb("self", "Rss"), time.monotonic()
    with pytest.raises(ProtocolError):
        channel.exec(["true"], timeout_s=0.3)
    assert time.monotonic() - before < 5
    assert memory_kb("self", "Rss") - before_kb < 8_000


def test_a_reply_that_never_ends_is_cut(
    hostile: HostileShim, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "MAX_REPLY_BYTES", 4 << 20)
    chunk = frame({"id": 1, "kind": "data"}, b"x" * (1 << 20))

    def flood(peer: socket.socket) -> None:
        read_request(peer)
        while True:
            peer.sendall(chunk)

    hostile.behaviour = flood
    before_kb = memory_kb("self", "Rss")
    with pytest.raises(WorkspaceError) as caught:
        channel.call("fs.read", {})
    assert caught.value.code == "limit_exceeded"
    assert memory_kb("self", "Rss") - before_kb < 16_000


def test_a_peer_that_does_not_read_does_not_hold_the_host(
    hostile: HostileShim, channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "REPLY_TIMEOUT_S", 0.5)

    def deaf(peer: socket.socket) -> None:
        time.sleep(3)

    hostile.behaviour = deaf
    before = time.monotonic()
    with pytest.raises(ProtocolError):
        channel.call("fs.write", {}, iter([b"x" * (1 << 20)] * 100), timeout_s=0.5)
    assert time.monotonic() - before < 2.5


def test_the_errors_it_may_send_arrive_as_themselves(hostile: HostileShim, channel: Channel) -> None:
    for code, kind in (("fs_violation", FsViolationError), ("session_not_found", SessionNotFound)):
        text = "\x1b[31mred\nlines" + "x" * 10_000
        hostile.replies(frame({"id": 1, "kind": "error", "code": code, "message": text, "hint": text}))
        with pytest.raises(kind) as caught:
            channel.call("fs.read", {})
        assert len(str(caught.value)) <= 3000
        channel.close()
        channel._closed = False


def test_a_shim_that_is_busy_says_so_only_at_the_door(hostile: HostileShim, channel: Channel) -> None:
    hostile.replies(frame({"id": 0, "kind": "error", "code": "busy", "message": "no"}))
    with pytest.raises(Busy):
        channel.ping()


def test_it_can_close_at_any_byte(hostile: HostileShim, channel: Channel) -> None:
    whole = STARTED + frame({"id": 1, "kind": "data", "stream": "stdout"}, b"x") + RESULT
    for length in range(len(whole)):

        def part(peer: socket.socket, length: int = length) -> None:
            read_request(peer)
            peer.sendall(whole[:length])

        hostile.behaviour = part
        with pytest.raises(ContainerDied):
            channel.exec(["true"])


@pytest.mark.parametrize("kind", ["link", "file", "fifo", "directory", "nothing"])
def test_a_socket_that_was_replaced_is_not_followed(kind: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    engine = HostileShim(elsewhere)  # stands for the engine's own socket
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    planted = run_dir / SOCKET_NAME
    match kind:
        case "link":
            planted.symlink_to(elsewhere / SOCKET_NAME)
        case "file":
            planted.write_text("x")
        case "fifo":
            os.mkfifo(planted)
        case "directory":
            planted.mkdir()
    with pytest.raises(ContainerDied if kind == "nothing" else ProtocolError):
        Channel(str(run_dir), peer_pid=os.getpid()).ping()
    engine.close()
    assert engine.connections == 0


def test_a_socket_of_another_process_is_not_spoken_to(hostile: HostileShim) -> None:
    heard: list[bytes] = []
    hostile.behaviour = lambda peer: heard.append(peer.recv(100))
    with pytest.raises(ProtocolError, match="another process"):
        Channel(str(hostile.run_dir), peer_pid=os.getppid()).exec(["echo", "secret"])
    time.sleep(0.05)
    assert b"".join(heard) == b""


def test_a_thousand_bad_calls_leave_no_descriptor(hostile: HostileShim, channel: Channel) -> None:
    hostile.replies(b"\xff" * 100)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(200):
        with pytest.raises(ProtocolError):
            channel.ping()
    for _ in range(50):
        time.sleep(0.01)
        if len(os.listdir("/proc/self/fd")) <= before + 1:
            break
    assert len(os.listdir("/proc/self/fd")) <= before + 1
