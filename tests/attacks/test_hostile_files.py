"""The law: what a shim that was taken over says of files is checked before it is used. Rows that are none, names that
lead out, bytes nobody asked for and streams without an end become one typed error, in bounded memory (HARDENING D)."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_hostile_shim import HostileShim, frame, read_request

from shim_process import memory_kb
from ws.errors import LimitExceeded, ProtocolError, ToolError
from ws.fs.protocol import GrepQuery
from ws.remote.channel import Channel
from ws.remote.filesystem import RemoteFilesystem
from ws.remote.tooling import RemoteBackend

STAT = ["a", True, False, 1, 0, 0, 0, 0o644, False, None, True, True]
RESULT = {"status": "ok", "message": "", "truncated": False, "output": "", "data": {}, "summary": None}


class Entered:
    """A door that is always open."""

    root = "/workspace"
    env: dict[str, str] = {}  # noqa: RUF012 - never written

    def __init__(self, channel: Channel) -> None:
        self.calls = channel
        self.left = 0

    def enter(self) -> Entered:
        return self

    def leave(self) -> None:
        self.left += 1

    def __enter__(self) -> Entered:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[HostileShim]:
    shim = HostileShim(tmp_path)
    yield shim
    shim.close()


@pytest.fixture
def door(hostile: HostileShim) -> Iterator[Entered]:
    channel = Channel(str(hostile.run_dir), peer_pid=os.getpid())
    yield Entered(channel)
    channel.close()


@pytest.fixture
def files(door: Entered) -> RemoteFilesystem:
    return RemoteFilesystem(door)


def answer(value: Any) -> bytes:
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    return frame({"id": 1, "kind": "result", "result": {}}, body)


def changed(at: int, value: Any) -> list[Any]:
    return [*STAT[:at], value, *STAT[at + 1 :]]


STATS = {
    "nothing": None,
    "too short": STAT[:-1],
    "too long": [*STAT, 1],
    "no list": {"path": "a"},
    "path is a number": changed(0, 5),
    "path is empty": changed(0, ""),
    "path leads out": changed(0, "../../etc/passwd"),
    "path has a NUL": changed(0, "a\0b"),
    "a bool that is a number": changed(1, 1),
    "size is negative": changed(3, -1),
    "size is beyond any file": changed(3, 1 << 63),
    "size is text": changed(3, "1"),
    "time is beyond any calendar": changed(4, 10**20),
    "mode is no mode": changed(7, 0o100644),
    "target is a number": changed(9, 5),
    "half a surrogate pair": changed(0, "\ud800"),
}


@pytest.mark.parametrize("name", STATS)
def test_a_stat_that_is_none(name: str, hostile: HostileShim, files: RemoteFilesystem) -> None:
    hostile.replies(answer(STATS[name]))
    with pytest.raises(ProtocolError):
        files.stat("a")


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000, b"NaN", b"\xff", b'"\\ud800"', b"1" * 100_000])
@pytest.mark.parametrize("call", ["stat", "list", "scan", "glob", "read_link", "search", "write"])
def test_an_answer_that_is_no_json(call: str, body: bytes, hostile: HostileShim, files: RemoteFilesystem) -> None:
    calls: dict[str, Callable[[], object]] = {
        "stat": lambda: files.stat("a"),
        "list": files.list,
        "scan": files.scan,
        "glob": lambda: files.glob("*"),
        "read_link": lambda: files.read_link("a"),
        "search": lambda: files.search(GrepQuery("x")),
        "write": lambda: files.write("a", "x"),
    }
    hostile.replies(answer(body))
    with pytest.raises(ProtocolError):
        calls[call]()


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "/etc", "a\0b"])
def test_a_name_that_no_directory_holds(name: str, hostile: HostileShim, files: RemoteFilesystem) -> None:
    hostile.replies(answer([[name, f"d/{name}", True, False, False]]))
    with pytest.raises(ProtocolError):
        files.list("d")


@pytest.mark.parametrize(
    "report",
    [
        [[], [], []],
        [[["a", "1", "text", 0, 1, [], []]], [], [], False],
        [[["a", 1, "text", 0, 1, [5], []]], [], [], False],
        [[], [["a", "many"]], [], False],
        [[], [], [None], False],
        [[], [], [], "no"],
    ],
)
def test_a_report_that_is_none(report: Any, hostile: HostileShim, files: RemoteFilesystem) -> None:
    hostile.replies(answer(report))
    with pytest.raises(ProtocolError):
        files.search(GrepQuery("x"))


OPENED: dict[str, tuple[dict[str, Any], bytes]] = {
    "no length of the head": ({"kind": "opened"}, b'["a", 5]'),
    "a head that is none": ({"kind": "opened", "head": 3}, b"{}}"),
    "a size below zero": ({"kind": "opened", "head": 9}, b'["a", -5]'),
    "a path that is none": ({"kind": "opened", "head": 6}, b"[1, 5]"),
    "data before it is open": ({"kind": "data"}, b"x"),
}


@pytest.mark.parametrize("name", OPENED)
def test_a_stream_that_begins_badly(name: str, hostile: HostileShim, files: RemoteFilesystem) -> None:
    header, body = OPENED[name]
    hostile.replies(frame({"id": 1, **header}, body))
    with pytest.raises(ProtocolError):
        files.open_read("a")


def test_a_stream_with_more_than_was_asked_for_or_other_frames(hostile: HostileShim, files: RemoteFilesystem) -> None:
    head = b'["a", 10000000]'
    opened = frame({"id": 1, "kind": "opened", "head": len(head)}, head + b"x" * 65536)
    for bad in (frame({"id": 1, "kind": "started"}), frame({"id": 9, "kind": "data"}, b"x"), b"\xff" * 8):
        hostile.replies(opened, bad)
        with files.open_read("a") as reader:
            assert reader.read(65536) == b"x" * 65536
            for _ in range(2):  # the first failure stays
                with pytest.raises(ProtocolError):
                    reader.read(1)
    hostile.replies(opened, frame({"id": 1, "kind": "data"}, b"x" * 70_000))
    with files.open_read("a") as reader:
        reader.seek(5_000_000)
        with pytest.raises(ProtocolError):
            reader.read(10)


def test_a_size_that_is_a_lie_costs_no_memory(hostile: HostileShim, files: RemoteFilesystem) -> None:
    head = json.dumps(["a", 1 << 50]).encode()

    def behave(peer: socket.socket) -> None:
        read_request(peer)
        peer.sendall(frame({"id": 1, "kind": "opened", "head": len(head)}, head))
        for _ in range(50):
            read_request(peer)
            peer.sendall(frame({"id": 1, "kind": "data"}, bytes(1 << 20)))
        read_request(peer)
        peer.sendall(frame({"id": 1, "kind": "data"}))

    hostile.behaviour = behave
    before = memory_kb("self", "Rss")
    with files.open_read("a") as reader:
        assert sum(map(len, reader)) == 50 << 20
    assert memory_kb("self", "Rss") - before < 16 << 10


def test_an_endless_reply_is_cut_off(hostile: HostileShim, files: RemoteFilesystem, door: Entered) -> None:
    def behave(peer: socket.socket) -> None:
        read_request(peer)
        while True:
            peer.sendall(frame({"id": 1, "kind": "data"}, bytes(1 << 20)))

    hostile.behaviour = behave
    with pytest.raises(LimitExceeded):
        files.list()
    with pytest.raises(LimitExceeded):
        RemoteBackend(door).run("read_file", {"path": "a"})


def test_a_write_that_is_answered_before_its_end_is_no_success(hostile: HostileShim, files: RemoteFilesystem) -> None:
    hostile.replies(frame({"id": 1, "kind": "opened"}, b'"a"'), answer(b""))
    with pytest.raises(ProtocolError), files.open_write("a") as writer:
        writer.write_all(bytes(1 << 20) for _ in range(20))
    hostile.replies(
        frame({"id": 1, "kind": "opened"}, b'"a"'),
        frame({"id": 1, "kind": "error", "code": "tool_error", "message": "no"}),
    )
    with pytest.raises(ToolError, match="no"), files.open_write("a") as writer:
        writer.write_all(bytes(1 << 20) for _ in range(20))


@pytest.mark.parametrize(
    "result",
    [
        [],
        {**RESULT, "status": "fine"},
        {**RESULT, "output": 5},
        {**RESULT, "data": []},
        {**RESULT, "summary": {"files_touched": [1], "bytes_written": 0, "diff": ""}},
        {**RESULT, "truncated": None},
    ],
)
def test_a_result_of_a_tool_that_is_none(result: Any, hostile: HostileShim, door: Entered) -> None:
    hostile.replies(answer(result))
    with pytest.raises(ProtocolError):
        RemoteBackend(door).run("read_file", {"path": "a"})
    assert door.left  # the lock is let go of, whatever came
