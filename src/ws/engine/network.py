"""Addresses that a workspace with a network must not reach: those where clouds keep credentials.

A blackhole route in the container's own network namespace; the container has no capability to take it away.
The route is made from here, by a thread that joins the namespace and ends: `setns` for a network, unlike that
for mounts, binds one thread alone.
"""

from __future__ import annotations

import ctypes
import os
import socket
import struct

from ws.aside import Aside
from ws.errors import EngineError

BLOCKED = (
    (
        socket.AF_INET,
        socket.inet_pton(socket.AF_INET, "169.254.0.0"),
        16,
    ),  # link-local: 169.254.169.254 nearly everywhere
    (socket.AF_INET, socket.inet_pton(socket.AF_INET, "100.100.100.200"), 32),  # Alibaba Cloud
    (socket.AF_INET, socket.inet_pton(socket.AF_INET, "168.63.129.16"), 32),  # Azure's host agent
    (socket.AF_INET6, socket.inet_pton(socket.AF_INET6, "fd00:ec2::"), 32),  # AWS over IPv6
)

_CLONE_NEWNET = 0x40000000
_NETLINK_ROUTE = 0
_NEWROUTE = 24
_REQUEST_ACK_CREATE = 0x1 | 0x4 | 0x400
_TABLE_MAIN, _PROTOCOL_STATIC, _SCOPE_UNIVERSE, _TYPE_BLACKHOLE = 254, 4, 0, 6
_ATTRIBUTE_DST = 1
_HEADER = struct.Struct("=IHHII")
_ROUTE = struct.Struct("=BBBBBBBBI")
_EEXIST, _ENOIPV6 = 17, (95, 97)  # EOPNOTSUPP, EAFNOSUPPORT: a kernel or namespace without IPv6


def block_metadata(pid: int) -> None:
    """Cut a container off from the metadata services of clouds; idempotent. Raises EngineError."""

    def work() -> None:
        _join(pid)
        for family, address, bits in BLOCKED:
            _add_blackhole(family, address, bits)

    try:
        Aside(work).wait()
    except OSError as error:
        raise EngineError(f"cannot block the metadata services of clouds: {error}") from error


def _join(pid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if libc.setns(fd, _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
    finally:
        os.close(fd)


def _add_blackhole(family: int, address: bytes, bits: int) -> None:
    body = _ROUTE.pack(
        family, bits, 0, 0, _TABLE_MAIN, _PROTOCOL_STATIC, _SCOPE_UNIVERSE, _TYPE_BLACKHOLE, 0
    ) + struct.pack("=HH", 4 + len(address), _ATTRIBUTE_DST)
    body += address
    message = _HEADER.pack(_HEADER.size + len(body), _NEWROUTE, _REQUEST_ACK_CREATE, 1, 0) + body
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE) as sock:
        sock.settimeout(5)
        sock.send(message)
        reply = sock.recv(4096)
    code = -struct.unpack_from("=i", reply, _HEADER.size)[0]
    if code and code != _EEXIST and not (family == socket.AF_INET6 and code in _ENOIPV6):
        raise OSError(code, os.strerror(code))
