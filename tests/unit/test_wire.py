"""The law: whatever bytes a peer sends, a reader ends with a frame or with one ProtocolError; never late,
never large, never with an exception of the peer's choosing."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ws.errors import LimitExceeded, ProtocolError, WorkspaceError, all_errors
from ws.shim import wire
from ws.shim.faults import describe_error, rebuild_error
from ws.shim.wire import Connection, PeerGone, decode_header, encode_header


@pytest.fixture
def pair() -> Iterator[tuple[Connection, socket.socket]]:
    ours, theirs = socket.socketpair()
    connection = Connection(ours)
    yield connection, theirs
    connection.close()
    theirs.close()


def soon(seconds: float = 0.2) -> float:
    return time.monotonic() + seconds


def frame(header: bytes, body: bytes = b"") -> bytes:
    return len(header).to_bytes(4, "big") + len(body).to_bytes(4, "big") + header + body


def test_a_frame_arrives_as_it_was_sent() -> None:
    ours, theirs = socket.socketpair()
    one, other = Connection(ours), Connection(theirs)
    header = {"text": "ü\n\u0000☃😀", "number": -(2**53), "float": 0.25, "none": None, "list": [True, {}]}
    one.send(header, b"\x00\xff" * 1000, deadline=soon())
    one.send({"next": 1}, deadline=soon())
    assert other.receive(deadline=soon()) == (header, b"\x00\xff" * 1000)
    assert other.receive(deadline=soon()) == ({"next": 1}, b"")
    one.close()
    with pytest.raises(PeerGone):
        other.receive(deadline=soon())
    other.close()


def test_a_body_of_a_mebibyte_crosses_and_a_larger_one_is_refused_before_it_is_sent(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, theirs = pair
    other = Connection(theirs)
    connection.queue({"a": 1}, bytes(wire.MAX_BODY_BYTES))
    while connection.backlogged:
        connection.flush()
        try:
            other.fill()
        except PeerGone:
            pytest.fail("the other end is there")
    assert other.receive(deadline=soon())[1] == bytes(wire.MAX_BODY_BYTES)
    with pytest.raises(LimitExceeded):
        connection.queue({}, bytes(wire.MAX_BODY_BYTES + 1))
    with pytest.raises(LimitExceeded):
        connection.queue({"x": "y" * wire.MAX_HEADER_BYTES})
    assert not connection.backlogged


BAD_HEADERS = {
    "no JSON": b"hello",
    "nothing but space": b"   ",
    "invalid UTF-8": b'{"a": "\xff\xfe"}',
    "a raw surrogate": b'{"a": "\xed\xa0\x80"}',
    "a lone surrogate": rb'{"a": "\ud800"}',
    "a lone surrogate as key": rb'{"\udc80": 1}',
    "deep brackets": b"[" * 60_000,
    "deep objects": b'{"a":' * 10_000,
    "deep but balanced": b"[" * 5000 + b"]" * 5000,
    "a huge integer": b'{"a": ' + b"9" * 60_000 + b"}",
    "a negative huge integer": b'{"a": -' + b"9" * 5000 + b"}",
    "an infinite float": b'{"a": 1e999}',
    "NaN": b'{"a": NaN}',
    "Infinity": b'{"a": -Infinity}',
    "duplicate keys": b'{"id": 1, "id": 2}',
    "duplicate keys inside": b'{"a": {"b": 1, "b": 1}}',
    "an array": b"[1, 2]",
    "a string": b'"id"',
    "a number": b"7",
    "null": b"null",
    "more behind it": b'{"a": 1} {"b": 2}',
    "space around it": b' {"a": 1}',
    "unfinished": b'{"a": ',
    "control characters in a string": b'{"a": "\n"}',
    "zeros": b"\x00" * 100,
}


@pytest.mark.parametrize("data", BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_a_bad_header_is_a_protocol_error(data: bytes, pair: tuple[Connection, socket.socket]) -> None:
    with pytest.raises(ProtocolError):
        decode_header(data)
    connection, theirs = pair
    theirs.sendall(frame(data))
    with pytest.raises(ProtocolError):
        connection.receive(deadline=soon(2))


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_but_a_protocol_error(data: bytes) -> None:
    try:
        assert isinstance(decode_header(data), dict)
    except ProtocolError:
        pass


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON, max_size=5))
def test_every_header_that_can_be_sent_is_received_as_it_was(header: dict[str, object]) -> None:
    try:
        data = encode_header(header)
    except ProtocolError:
        assert any("\ud800" <= character <= "\udfff" for character in repr(header)) or "\\ud" in repr(header)
        return
    assert decode_header(data) == header


@pytest.mark.parametrize(
    "lengths",
    [(0, 0), (0, 5), (2**32 - 1, 0), (2**31, 0), (10, 2**32 - 1), (wire.MAX_HEADER_BYTES + 1, 0)],
)
def test_a_length_that_no_frame_has_is_refused_before_anything_is_read(
    lengths: tuple[int, int], pair: tuple[Connection, socket.socket]
) -> None:
    connection, theirs = pair
    theirs.sendall(b"".join(length.to_bytes(4, "big") for length in lengths) + b"x" * 100)
    with pytest.raises(ProtocolError):
        connection.receive(deadline=soon(2))


def test_silence_ends_at_the_deadline(pair: tuple[Connection, socket.socket]) -> None:
    connection, _theirs = pair
    before = time.monotonic()
    with pytest.raises(ProtocolError):
        connection.receive(deadline=soon(0.1))
    assert 0.08 < time.monotonic() - before < 1


def test_a_frame_that_drips_in_is_given_up_even_without_a_deadline(
    pair: tuple[Connection, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "FRAME_TIMEOUT_S", 0.1)
    connection, theirs = pair
    theirs.sendall(frame(b'{"a": 1}')[:-1])
    before = time.monotonic()
    with pytest.raises(ProtocolError):
        connection.receive(deadline=None)
    assert time.monotonic() - before < 1


def test_a_frame_that_breaks_off_is_the_end_of_the_peer(pair: tuple[Connection, socket.socket]) -> None:
    connection, theirs = pair
    theirs.sendall(frame(b'{"a": 1}', b"12345")[:-2])
    theirs.close()
    with pytest.raises(PeerGone):
        connection.receive(deadline=soon(2))


def test_a_peer_that_does_not_read_ends_a_send_at_the_deadline(
    pair: tuple[Connection, socket.socket],
) -> None:
    connection, _theirs = pair
    with pytest.raises(ProtocolError):
        connection.send({}, bytes(1 << 20), deadline=soon(0.1))


@pytest.mark.parametrize("code", all_errors())
def test_every_error_of_ws_crosses_with_code_message_hint_and_class(code: str) -> None:
    kind = all_errors()[code]
    header = decode_header(encode_header(describe_error(kind("what happened", hint="what to do"))))
    found = rebuild_error(header)
    assert type(found) is kind
    assert isinstance(found, WorkspaceError)
    assert (found.code, found.message, found.hint) == (code, "what happened", "what to do")


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory", "a/b"),
        FileExistsError(errno.EEXIST, "File exists", "a"),
        IsADirectoryError(errno.EISDIR, "Is a directory", "a"),
        NotADirectoryError(errno.ENOTDIR, "Not a directory", "a"),
        PermissionError(errno.EACCES, "Permission denied", "a"),
        OSError(errno.ENOTEMPTY, "Directory not empty", "a"),
        OSError(errno.ENOSPC, "No space left on device"),
        ValueError("I/O operation on closed file"),
        RuntimeError("backend unavailable"),
        TimeoutError("too slow"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_builtins_of_the_filesystem_protocol_cross(error: Exception) -> None:
    found = rebuild_error(decode_header(encode_header(describe_error(error))))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert getattr(found, "errno", None) == getattr(error, "errno", None)
    assert getattr(found, "filename", None) == getattr(error, "filename", None)


def test_a_decode_error_keeps_its_position() -> None:
    with pytest.raises(UnicodeDecodeError) as caught:
        b"ab\xff".decode()
    found = rebuild_error(decode_header(encode_header(describe_error(caught.value))))
    assert isinstance(found, UnicodeDecodeError)
    assert (found.start, found.end, found.reason) == (2, 3, "invalid start byte")


def test_an_error_of_the_shim_itself_crosses_as_the_plain_one() -> None:
    found = rebuild_error(describe_error(KeyError("x")))
    assert type(found) is WorkspaceError
    assert "KeyError" in str(found)


def test_an_error_text_with_bytes_that_are_no_text_still_crosses() -> None:
    error = FileNotFoundError(errno.ENOENT, "No such file or directory", "bad\udcff" * 2000)
    found = rebuild_error(decode_header(encode_header(describe_error(error))))
    assert isinstance(found, FileNotFoundError)
    assert "\\udcff" in str(found)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"code": "error"},
        {"code": 7, "message": "x"},
        {"code": "KeyboardInterrupt", "message": "x"},
        {"code": "SystemExit", "message": "x"},
        {"code": "builtins.OSError", "message": "x"},
        {"code": "busy", "message": ["x"]},
        {"code": "busy", "message": "x", "hint": 3},
        {"code": "os_error", "message": "x", "errno": -1},
        {"code": "os_error", "message": "x", "errno": 10**15},
        {"code": "os_error", "message": "x", "errno": True},
        {"code": "unicode_decode", "message": "x"},
        {"code": "unicode_decode", "message": "x", "encoding": "u", "start": -5, "end": 1},
    ],
    ids=repr,
)
def test_an_error_frame_outside_of_the_closed_set_is_a_protocol_error(fields: dict[str, object]) -> None:
    with pytest.raises(ProtocolError):
        rebuild_error(dict(fields))
