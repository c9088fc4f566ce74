"""The law: all requests to docker go through connections that are kept, and no thread closes another's."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from docker.errors import NotFound

from ws.engine.docker_connection import QUICK_S, DockerConnection


class Daemon(socketserver.ThreadingUnixStreamServer):
    """Knows its version and no container; counts who connects, and can hold answers back."""

    daemon_threads = True
    connections = 0

    def __init__(self, path: str) -> None:
        self.held = threading.Event()
        self.asked = threading.Semaphore(0)
        super().__init__(path, Answer)


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Daemon

    def setup(self) -> None:
        self.server.connections += 1
        super().setup()

    def do_GET(self) -> None:
        known = self.path.endswith("/version")
        if "slow" in self.path:
            self.server.asked.release()
            self.server.held.wait(10)
        self.answer(
            200 if known else 404, {"ApiVersion": "1.41", "MinAPIVersion": "1.12"} if known else {"message": ""}
        )

    def answer(self, status: int, body: dict[str, str]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Daemon]:
    path = tmp_path / "docker.sock"
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    with Daemon(str(path)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.held.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def connection(daemon: Daemon) -> Iterator[DockerConnection]:
    opened = DockerConnection()
    opened.open()
    yield opened
    opened.close()


def is_unknown(connection: DockerConnection, name: str) -> bool:
    try:
        connection.ask(QUICK_S, "inspect_container", name)
    except NotFound:
        return True
    return False


def test_one_connection_serves_whatever_is_asked(daemon: Daemon, connection: DockerConnection) -> None:
    assert is_unknown(connection, "first")
    before = daemon.connections
    assert all(is_unknown(connection, f"container-{number}") for number in range(20))
    assert daemon.connections == before


def test_a_request_under_way_is_not_disturbed_by_another(daemon: Daemon, connection: DockerConnection) -> None:
    answers: list[bool] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.append(is_unknown(connection, f"slow-{n}"))) for n in range(4)
    ]
    for thread in threads:
        thread.start()
        assert daemon.asked.acquire(timeout=10)
    assert all(is_unknown(connection, f"container-{number}") for number in range(20))
    daemon.held.set()
    for thread in threads:
        thread.join(10)
    assert answers == [True] * 4
