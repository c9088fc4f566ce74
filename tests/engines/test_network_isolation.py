"""The law: two workspaces with a network do not reach each other, by no protocol, on no engine (issue 10, C)."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_stage import warm_home
from conftest import Engines
from ws.engine.images import DEFAULT_IMAGE, build_image
from ws.layout import default_home
from ws.manager import Manager
from ws.workspace import Workspace

PORT = 4711
LISTEN = f"""
import socket, struct, sys, threading
open("/tmp/heard", "a").close()
def note(text):
    with open("/tmp/heard", "a") as file:
        file.write(text + "\\n")
def datagrams(family):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    s.bind(("", {PORT}))
    if family == socket.AF_INET:
        s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton("224.0.0.251") + bytes(4))
    while True:
        data, peer = s.recvfrom(100)
        note(data.decode())
def connections(family):
    s = socket.create_server(("", {PORT}), family=family)
    while True:
        c, peer = s.accept()
        note(c.recv(100).decode())
for family in (socket.AF_INET, socket.AF_INET6):
    threading.Thread(target=datagrams, args=(family,)).start()
    threading.Thread(target=connections, args=(family,)).start()
open("/tmp/listening", "w").close()
"""
SPEAK = f"""
import socket, sys
name, four, six = sys.argv[1:]
def device(s):
    s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"eth0")
def plain(s):
    pass
index = socket.if_nametoindex("eth0")
for how in (plain, device):
    for family, address in ((socket.AF_INET, (four, {PORT})), (socket.AF_INET6, (six, {PORT}, 0, index))):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            try:
                with socket.socket(family, kind) as s:
                    s.settimeout(1.5)
                    how(s)
                    s.connect(address)
                    s.send(f"{{name}} {{family.name}} {{kind.name}} {{how.__name__}}".encode())
            except OSError:
                pass
    for address in ("255.255.255.255", "224.0.0.251"):
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
                s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
                how(s)
                s.sendto(f"{{name}} {{address}}".encode(), (address, {PORT}))
        except OSError:
            pass
"""
ADDRESSES = "ip -j addr show dev eth0 2>/dev/null || true"


@contextlib.contextmanager
def networked(engines: Engines, name: str, home: Path, session_home: str) -> Iterator[Workspace]:
    build_image(engines.get(name), home=default_home(), reference=DEFAULT_IMAGE)
    with Manager(home=str(warm_home(home, session_home)), engine=name) as manager:
        box = manager.create(network="bridge")
        try:
            yield box
        finally:
            box.remove()


def pid_of(box: Workspace) -> int:
    container = box.record().container
    assert container is not None
    return container.pid


def addresses(box: Workspace) -> tuple[str, str]:
    """Of the container's interface, as the host's `ip` reads them in its network namespace."""
    words = ["nsenter", "-t", str(pid_of(box)), "-n", "ip", "-j", "addr", "show", "dev", "eth0"]
    found = json.loads(subprocess.run(words, capture_output=True, check=True, text=True).stdout)[0]["addr_info"]
    four = next(each["local"] for each in found if each["family"] == "inet")
    six = next((each["local"] for each in found if each["family"] == "inet6"), "::1")
    return four, six


def listen(box: Workspace) -> None:
    started = box.exec(["sh", "-c", f"nohup python3 -c '{LISTEN}' >/tmp/log 2>&1 & "])
    assert started.exit_code == 0, started.stderr
    waited = box.exec(
        ["sh", "-c", "for i in $(seq 100); do test -e /tmp/listening && exit; sleep 0.1; done; cat /tmp/log; exit 1"]
    )
    assert waited.exit_code == 0, waited.stdout


def heard(box: Workspace) -> list[str]:
    return sorted(box.exec(["cat", "/tmp/heard"]).stdout.splitlines())


def speak(box: Workspace, name: str, to: tuple[str, str]) -> None:
    done = box.exec(["python3", "-c", SPEAK, name, *to], timeout=60)
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize(
    ("first", "second"), [("podman", "podman"), ("docker", "docker"), ("podman", "docker"), ("docker", "podman")]
)
def test_two_workspaces_with_a_network_do_not_reach_each_other(
    engines: Engines, session_home: str, tmp_path: Path, first: str, second: str
) -> None:
    with (
        networked(engines, first, tmp_path / "one", session_home) as one,
        networked(engines, second, tmp_path / "two", session_home) as two,
    ):
        boxes = {"one": one, "two": two}
        for box in boxes.values():
            listen(box)
        for name, box in boxes.items():
            speak(box, name, addresses(two if name == "one" else one))
        for box in boxes.values():  # the listeners do listen: the host reaches them
            with socket.create_connection((addresses(box)[0], PORT), timeout=5) as link:
                link.sendall(b"host")
        for name, box in boxes.items():
            while "host" not in heard(box):
                time.sleep(0.05)
            others = [line for line in heard(box) if not line.startswith(name)]  # its own multicasts come back to it
            assert others == ["host"]


def test_a_workspace_with_a_network_still_has_its_way_out(engines: Engines, session_home: str, tmp_path: Path) -> None:
    for name in ("podman", "docker"):
        with networked(engines, name, tmp_path / name, session_home) as box, socket.socket() as server:
            words = ["nsenter", "-t", str(pid_of(box)), "-n", "ip", "-j", "route", "show", "default"]
            gateway = json.loads(subprocess.run(words, capture_output=True, check=True, text=True).stdout)[0]["gateway"]
            server.bind((gateway, 0))
            server.listen()
            script = (
                f"import socket; print(socket.create_connection(('{gateway}', {server.getsockname()[1]}), 5).recv(9))"
            )

            def answer(server: socket.socket = server) -> None:
                with server.accept()[0] as link:
                    link.sendall(b"reached")

            thread = threading.Thread(target=answer)
            thread.start()
            done = box.exec(["python3", "-c", script])
            thread.join()
            assert "reached" in done.stdout, done.stderr


def test_metadata_services_are_cut_off_for_good(engines: Engines, session_home: str, tmp_path: Path) -> None:
    """As routes that the container can neither see around nor remove, on every address that clouds are known to use."""
    services = ("169.254.169.254", "100.100.100.200", "168.63.129.16", "192.0.0.192")
    script = (
        "import socket, sys\nfor a in sys.argv[1:]: print(a, socket.socket(type=socket.SOCK_DGRAM).connect_ex((a, 80)))"
    )
    for name in ("podman", "docker"):
        with networked(engines, name, tmp_path / name, session_home) as box:
            done = box.exec(["python3", "-c", script, *services, "192.0.2.1"])
            codes = dict(line.split() for line in done.stdout.splitlines())
            assert codes.pop("192.0.2.1") == "0", "there is a network"
            assert set(codes) == set(services)
            assert "0" not in codes.values(), codes
