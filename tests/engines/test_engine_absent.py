"""The law of absence: an engine that is missing, hung, remote or too old says so within seconds, with a hint.

Real sockets, real processes: a listener that never answers, a service and a daemon stopped by signal.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ws.engine.base import Engine, EngineFacts
from ws.engine.choose import choose_engine, open_engine
from ws.engine.endpoints import find_listener
from ws.engine.processes import kill_all
from ws.errors import EngineUnavailable, InvalidRequest
from ws.layout import open_home

WITHIN_S = 6.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A WS_HOME of its own, with a podman service of its own that does not outlive the test."""
    monkeypatch.delenv("CONTAINER_HOST", raising=False)
    root = open_home(str(tmp_path / "home")).root
    yield root
    for path in Path(root, "engines").glob("*.sock"):
        peer = find_listener(str(path))
        if peer is not None:
            os.kill(peer.pid, signal.SIGCONT)
            kill_all(peer.pid)


def unavailable(call: Callable[[], object]) -> EngineUnavailable:
    began = time.monotonic()
    with pytest.raises(EngineUnavailable) as caught:
        call()
    assert time.monotonic() - began < WITHIN_S
    assert caught.value.hint
    return caught.value


def stop(pid: int) -> None:
    """Stop a process, all its threads: until then one of them may answer yet."""
    os.kill(pid, signal.SIGSTOP)
    while any(
        stat.read_text().rpartition(")")[2].split()[0] != "T" for stat in Path("/proc", str(pid), "task").glob("*/stat")
    ):
        time.sleep(0.01)


def answering(engine: Engine) -> EngineFacts:
    """Its facts, once it answers: it may be starting, or catching up."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return engine.check()
        except EngineUnavailable:
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.fixture
def podman(engines: object, home: str) -> Engine:
    engines.get("podman")  # type: ignore[attr-defined]
    return open_engine("podman", home=home)


@pytest.fixture
def silent_socket(tmp_path: Path) -> Iterator[str]:
    """Someone listens, and never says a word."""
    path = str(tmp_path / "silent.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(8)
        yield path


@pytest.fixture
def old_socket(tmp_path: Path) -> Iterator[str]:
    """Someone answers every request as podman 3 and docker 19.03 would."""
    path = str(tmp_path / "old.sock")
    body = b'{"Version": "19.03.0", "ApiVersion": "1.40", "MinAPIVersion": "1.12"}'
    answer = (
        b"HTTP/1.1 200 OK\r\nLibpod-API-Version: 3.4.4\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: " + str(len(body)).encode() + b"\r\n\r\n" + body
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(8)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    if connection.recv(65536):
                        connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        yield path
        listener.shutdown(socket.SHUT_RDWR)


def test_podman_that_is_not_installed(home: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    error = unavailable(open_engine("podman", home=home).check)
    assert "not installed" in str(error)


def test_podman_that_never_answers(home: str, silent_socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTAINER_HOST", f"unix://{silent_socket}")
    error = unavailable(open_engine("podman", home=home).check)
    assert "does not answer" in str(error)


def test_podman_that_is_too_old(home: str, old_socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTAINER_HOST", f"unix://{old_socket}")
    error = unavailable(open_engine("podman", home=home).check)
    assert "3.4.4" in str(error)


@pytest.mark.parametrize("host", ["ssh://root@elsewhere/run/podman.sock", "tcp://127.0.0.1:2375"])
def test_an_engine_of_another_machine(home: str, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CONTAINER_HOST", host)
    monkeypatch.setenv("DOCKER_HOST", host)
    for name in ("podman", "docker"):
        assert "not a local socket" in str(unavailable(open_engine(name, home=home).check))


def test_a_service_that_is_stopped_and_goes_on(podman: Engine, home: str) -> None:
    facts = podman.check()
    peer = find_listener(facts.endpoint.removeprefix("unix://"))
    assert peer is not None
    stop(peer.pid)
    try:
        unavailable(podman.check)
    finally:
        os.kill(peer.pid, signal.SIGCONT)
    assert answering(podman) == facts


def test_a_service_that_was_killed_is_started_again(podman: Engine, home: str) -> None:
    socket_path = podman.check().endpoint.removeprefix("unix://")
    for kill in (signal.SIGKILL, signal.SIGTERM):
        first = find_listener(socket_path)
        assert first is not None
        os.kill(first.pid, kill)
        while find_listener(socket_path) is not None:
            time.sleep(0.01)
        assert podman.list(home) == [], "the next call finds a service again"
        second = find_listener(socket_path)
        assert second is not None
        assert second.pid != first.pid
    podman.close()


def test_processes_that_come_together_start_one_service(podman: Engine, home: str) -> None:
    script = (
        "import sys; from ws.engine.choose import choose_engine as choose;"
        "print(choose('podman', home=sys.argv[1]).check().endpoint)"
    )
    argv = [sys.executable, "-c", script, home]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    started = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    endpoints = {process.communicate(timeout=60)[0].strip() for process in started}
    assert {process.returncode for process in started} == {0}
    assert len(endpoints) == 1
    services = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                words = Path("/proc", name, "cmdline").read_text().split("\0")
            except OSError:
                continue
            services += [name for word in words if word in endpoints]
    assert len(services) == 1


def test_a_home_whose_path_does_not_fit_a_socket(
    engines: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines.get("podman")  # type: ignore[attr-defined]
    monkeypatch.delenv("CONTAINER_HOST", raising=False)
    long = tmp_path / ("a home with spaces, and long " * 4)
    engine = open_engine("podman", home=open_home(str(long)).root)
    facts = engine.check()
    path = facts.endpoint.removeprefix("unix://")
    assert len(path) < 100
    assert os.stat(os.path.dirname(path)).st_mode & 0o077 == 0
    peer = find_listener(path)
    assert peer is not None
    assert engine.list(str(long)) == []
    engine.close()
    kill_all(peer.pid)
    os.unlink(path)


def test_docker_that_is_not_running(home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert "not running" in str(unavailable(open_engine("docker", home=home).check))


def test_docker_that_never_answers(home: str, silent_socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{silent_socket}")
    assert "in time" in str(unavailable(open_engine("docker", home=home).check))


def test_docker_that_is_too_old(home: str, old_socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{old_socket}")
    assert "1.40" in str(unavailable(open_engine("docker", home=home).check))


def test_a_daemon_that_is_stopped_and_goes_on(engines: object, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engines.get("docker")  # type: ignore[attr-defined]
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        pytest.skip("a dockerd of our own needs root and the program")
    with tempfile.TemporaryDirectory(prefix="ws-", dir="/run") as run:  # short: containerd's sockets are under it
        monkeypatch.setenv("DOCKER_HOST", f"unix://{run}/docker.sock")
        # In namespaces of its own: a second dockerd would take docker0 away from the machine's, and one that is
        # killed leaves its mounts.
        argv = ["unshare", "--net", "--mount", "dockerd", "--data-root", f"{home}/docker", "--exec-root", f"{run}/exec"]
        argv += ["-p", f"{run}/pid", "-H", f"unix://{run}/docker.sock", "--iptables=false"]
        with open(f"{home}/log", "wb") as log:
            daemon = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        engine = open_engine("docker", home=home)
        try:
            facts = answering(engine)
            stop(daemon.pid)
            unavailable(engine.check)
            daemon.send_signal(signal.SIGCONT)
            assert answering(engine) == facts
        finally:
            engine.close()
            daemon.send_signal(signal.SIGCONT)
            daemon.terminate()
            daemon.wait(30)


def test_without_any_engine_the_error_says_what_was_tried(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    monkeypatch.delenv("WS_ENGINE", raising=False)
    error = unavailable(lambda: choose_engine(home=home))
    assert "podman" in str(error)
    assert "docker" in str(error)
    assert "--engine none" in str(error.hint)


def test_none_is_chosen_only_by_name(home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_engine("none", home=home).name == "none"
    monkeypatch.setenv("WS_ENGINE", "none")
    assert choose_engine(home=home).name == "none"


def test_an_engine_that_was_asked_for_is_not_replaced(
    home: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    unavailable(lambda: choose_engine("docker", home=home))
    with pytest.raises(InvalidRequest):
        choose_engine("lxc", home=home)


def test_a_runtime_that_is_not_there(podman: Engine, home: str) -> None:
    error = unavailable(lambda: choose_engine("podman", home=home, runtime="runsc-of-nowhere"))
    assert "runsc-of-nowhere" in str(error)


def test_podman_comes_before_docker(podman: Engine, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WS_ENGINE", raising=False)
    engine = choose_engine(home=home)
    assert engine.name == "podman"
    engine.close()
