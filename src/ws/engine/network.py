"""What a workspace with a network must not reach: where clouds keep credentials, and other workspaces.

Metadata services: a blackhole route in the container's own network namespace; the container has no capability to take
it away.

Other workspaces, in the same network: the host's end of the container's virtual ethernet pair becomes an isolated port
of the engine's bridge. The kernel passes no frame from one isolated port to another, whatever its protocol; the
bridge itself, which is the way out, is not isolated.

Other workspaces, in another network, as of the other engine: the host would route between the two, under an address of
its own, so that the receiver cannot tell. The sender's namespace has blackhole routes for the default networks of both
engines, and for every other network in which there is an isolated port.

All of it is done from here, by a thread that joins the namespace and ends: `setns` for a network, unlike that for
mounts, binds one thread alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import socket
from collections.abc import Callable
from typing import TypeVar

from ws.aside import Aside
from ws.engine import rtnetlink
from ws.engine.rtnetlink import Network
from ws.errors import EngineError

T = TypeVar("T")


def _network(text: str, bits: int) -> Network:
    family = socket.AF_INET6 if ":" in text else socket.AF_INET
    return Network(family, socket.inet_pton(family, text), bits)


BLOCKED = (
    _network("169.254.0.0", 16),  # link-local: 169.254.169.254 nearly everywhere
    _network("100.100.100.200", 32),  # Alibaba Cloud
    _network("168.63.129.16", 32),  # Azure's host agent
    _network("192.0.0.192", 32),  # Oracle Cloud
    _network("fd00:ec2::", 32),  # AWS over IPv6
    _network("fd20:ce::254", 128),  # Google Cloud over IPv6
    _network("fd00:42::42", 128),  # Scaleway over IPv6
)

_CLONE_NEWNET = 0x40000000
_DEVICES = "/sys/class/net"
_ENGINES = re.compile(r"docker0|(cni-)?podman[0-9]+")  # the bridges of the engines' default networks


def confine_network(pid: int) -> None:
    """Cut a container with a network off from metadata services and from other workspaces; idempotent.

    Raises EngineError: such a container must not be used.
    """
    try:
        ends, own = _inside(pid, lambda: (rtnetlink.peers(), rtnetlink.addresses()))
        for end in ends:
            rtnetlink.isolate_port(end)
        near = [each.network for each in own]
        far = [network for network in _networks_of_workspaces(set(ends)) if network not in near]
        _inside(pid, lambda: _cut_off((*BLOCKED, *far)))
    except OSError as error:
        raise EngineError(
            f"the container's network cannot be cut off from other workspaces: {error}", hint="`--network none` works"
        ) from error


def _cut_off(networks: tuple[Network, ...]) -> None:
    for network in networks:
        rtnetlink.add_blackhole(network)


def _networks_of_workspaces(own: set[int]) -> list[Network]:
    """The networks of the host's bridges in which other workspaces are, or may come to be."""
    bridges = set()
    for name in os.listdir(_DEVICES):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            ports = os.listdir(f"{_DEVICES}/{name}/brif")
            others = (port for port in ports if _read(f"{port}/ifindex") not in own)
            if _ENGINES.fullmatch(name) or any(_read(f"{port}/brport/isolated") == 1 for port in others):
                bridges.add(_read(f"{name}/ifindex"))
    return [
        each.network for each in rtnetlink.addresses() if each.index in bridges and not _is_link_local(each.network)
    ]


def _is_link_local(network: Network) -> bool:
    return network.address[:2] in (b"\xfe\x80", b"\xa9\xfe")


def _read(name: str) -> int:
    try:
        with open(f"{_DEVICES}/{name}", encoding="ascii") as file:
            return int(file.read())
    except (FileNotFoundError, NotADirectoryError):
        return -1


def _inside(pid: int, work: Callable[[], T]) -> T:
    def run() -> T:
        _join(pid)
        return work()

    return Aside(run).wait()


def _join(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(fd, _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(fd)
