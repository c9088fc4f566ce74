"""The few requests to the kernel's rtnetlink that networks of workspaces need; see rtnetlink(7).

Each is made in the network namespace of the calling thread.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_NETLINK_ROUTE = 0
_REQUEST, _ACK, _CREATE, _DUMP = 0x1, 0x4, 0x400, 0x300
_DONE, _ERROR = 3, 2
_GETLINK, _SETLINK, _GETADDR, _NEWROUTE = 18, 19, 22, 24
_TABLE_MAIN, _PROTOCOL_STATIC, _SCOPE_UNIVERSE, _TYPE_BLACKHOLE = 254, 4, 0, 6
_RTA_DST = 1
_IFLA_LINK, _IFLA_PROTINFO, _IFLA_BRPORT_ISOLATED = 5, 12, 33
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_NESTED = 0x8000
_AF_BRIDGE = 7
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BBHiII")
_ADDRESS = struct.Struct("=BBBBI")
_ROUTE = struct.Struct("=BBBBBBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_TIMEOUT_S = 5


@dataclass(frozen=True, slots=True)
class Network:
    """Addresses that share their first `bits` bits; `address` is packed."""

    family: int
    address: bytes
    bits: int

    def __contains__(self, address: bytes) -> bool:
        if len(address) != len(self.address):
            return False
        rest = len(address) * 8 - self.bits
        return int.from_bytes(address, "big") >> rest == int.from_bytes(self.address, "big") >> rest


@dataclass(frozen=True, slots=True)
class Address:
    """An address of an interface, with the network that is behind it."""

    index: int
    address: bytes
    network: Network


def peers() -> list[int]:
    """The interfaces at the other ends of this namespace's virtual ethernet pairs, by their numbers there."""
    found = []
    for body in _dump(_GETLINK, _LINK.pack(0, 0, 0, 0, 0, 0)):
        own = _LINK.unpack_from(body)[3]
        other = _attributes(body[_LINK.size :]).get(_IFLA_LINK)
        if other is not None and (number := struct.unpack("=i", other)[0]) not in (0, own):
            found.append(number)
    return found


def addresses() -> list[Address]:
    """All addresses of this namespace's interfaces."""
    found = []
    for body in _dump(_GETADDR, _ADDRESS.pack(0, 0, 0, 0, 0)):
        family, bits, _, _, index = _ADDRESS.unpack_from(body)
        fields = _attributes(body[_ADDRESS.size :])
        address = fields.get(_IFA_LOCAL, fields.get(_IFA_ADDRESS))
        if address is not None and family in (socket.AF_INET, socket.AF_INET6):
            rest = len(address) * 8 - bits
            first = (int.from_bytes(address, "big") >> rest << rest).to_bytes(len(address), "big")
            found.append(Address(index, address, Network(family, first, bits)))
    return found


def isolate_port(index: int) -> None:
    """Let a port of a bridge exchange frames with ports that are not isolated, and with the bridge itself, alone."""
    inner = _attribute(_IFLA_BRPORT_ISOLATED, b"\1")
    body = _LINK.pack(_AF_BRIDGE, 0, 0, index, 0, 0) + _attribute(_IFLA_PROTINFO | _NESTED, inner)
    _ask(_SETLINK, body)


def add_blackhole(network: Network) -> None:
    """Have nothing sent to a network; idempotent, and nothing where there is no IPv6."""
    body = _ROUTE.pack(
        network.family, network.bits, 0, 0, _TABLE_MAIN, _PROTOCOL_STATIC, _SCOPE_UNIVERSE, _TYPE_BLACKHOLE, 0
    )
    try:
        _ask(_NEWROUTE, body + _attribute(_RTA_DST, network.address), _CREATE)
    except OSError as error:
        without = network.family == socket.AF_INET6 and error.errno in (errno.EOPNOTSUPP, errno.EAFNOSUPPORT)
        if error.errno != errno.EEXIST and not without:
            raise


def _ask(kind: int, body: bytes, flags: int = 0) -> None:
    with _connected() as link:
        link.send(_HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | _ACK | flags, 1, 0) + body)
        code = -struct.unpack_from("=i", link.recv(4096), _HEADER.size)[0]
    if code:
        raise OSError(code, os.strerror(code))


def _dump(kind: int, body: bytes) -> Iterator[bytes]:
    with _connected() as link:
        link.send(_HEADER.pack(_HEADER.size + len(body), kind, _REQUEST | _DUMP, 1, 0) + body)
        while True:
            data = link.recv(1 << 20)
            position = 0
            while position + _HEADER.size <= len(data):
                length, found, _, _, _ = _HEADER.unpack_from(data, position)
                message = data[position + _HEADER.size : position + length]
                if found == _DONE:
                    return
                if found == _ERROR:
                    code = -struct.unpack_from("=i", message)[0]
                    raise OSError(code, os.strerror(code))
                yield message
                position += (length + 3) & ~3


@contextlib.contextmanager
def _connected() -> Iterator[socket.socket]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_ROUTE) as link:
        link.settimeout(_TIMEOUT_S)
        yield link


def _attribute(kind: int, value: bytes) -> bytes:
    padding = b"\0" * (-len(value) % 4)
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value + padding


def _attributes(data: bytes) -> dict[int, bytes]:
    found = {}
    position = 0
    while position + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, position)
        if length < _ATTRIBUTE.size:
            break
        found[kind & ~_NESTED] = data[position + _ATTRIBUTE.size : position + length]
        position += (length + 3) & ~3
    return found
