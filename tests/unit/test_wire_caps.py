"""The caps of the wire at their edges: the last value that is taken, and the first that is not."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from ws.errors import ProtocolError
from ws.shim.wire import MAX_BODY_BYTES, MAX_DEPTH, MAX_HEADER_BYTES, Connection, decode_header


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, Connection]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield theirs, Connection(ours)


@pytest.mark.parametrize(
    ("header_bytes", "body_bytes"),
    [(0, 0), (MAX_HEADER_BYTES + 1, 0), (2**32 - 1, 0), (2, MAX_BODY_BYTES + 1), (2, 2**32 - 1)],
)
def test_a_length_beyond_its_cap_is_refused_by_the_length_alone(
    pair: tuple[socket.socket, Connection], header_bytes: int, body_bytes: int
) -> None:
    peer, connection = pair
    peer.sendall(header_bytes.to_bytes(4, "big") + body_bytes.to_bytes(4, "big"))
    connection.fill()
    with pytest.raises(ProtocolError, match="lengths"):
        connection.next_frame()


def test_lengths_at_their_caps_are_waited_for(pair: tuple[socket.socket, Connection]) -> None:
    peer, connection = pair
    peer.sendall(MAX_HEADER_BYTES.to_bytes(4, "big") + MAX_BODY_BYTES.to_bytes(4, "big"))
    connection.fill()
    assert connection.next_frame() is None


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_a_header_nests_as_deep_as_the_cap_and_no_deeper(opening: str) -> None:
    closing = {"[": "]", '{"a":': "}"}[opening]

    def nested(depth: int) -> bytes:
        return ('{"x":' + opening * (depth - 1) + "1" + closing * (depth - 1) + "}").encode()

    assert decode_header(nested(MAX_DEPTH))
    with pytest.raises(ProtocolError, match="deep"):
        decode_header(nested(MAX_DEPTH + 1))


def test_a_number_has_twenty_digits_at_most() -> None:
    assert decode_header(b'{"x":' + b"9" * 20 + b"}") == {"x": int("9" * 20)}
    with pytest.raises(ProtocolError, match="too long"):
        decode_header(b'{"x":' + b"9" * 21 + b"}")
