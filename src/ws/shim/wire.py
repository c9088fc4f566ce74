"""The wire between the host and the shim: frames over a unix socket, with caps and deadlines.

    frame     u32 length of the header, u32 length of the body (big endian), JSON object, raw bytes
    request   {"v": 1, "id": N, "op": NAME, "params": {…}, "more": false}
    data      {"id": N, "kind": "data"} in either direction: a piece of the request's or the reply's stream
    end       {"id": N, "kind": "end"}: the request's stream is complete; only where it said "more"
    result    {"id": N, "kind": "result", "result": {…}}: the last frame of a reply that succeeded
    error     {"id": N, "kind": "error", "code": CODE, "message": …, "hint": …}: of one that did not

One request at a time on a connection. `id` grows by one with each; data and end frames of a request that
was answered already are skipped, so nobody has to agree on who stops first. An operation may have frame
kinds of its own (`exec` has started, want, resize, signal).

Both sides use this module, and neither trusts the other's bytes: every length is capped before anything is
allocated, every wait has a deadline, and whatever is wrong with a frame ends in one ProtocolError. How
errors cross is in `faults`.

Standard library only, and little of it: `_json` and `_socket` are the C halves of json and socket, whose
Python halves pull in re and enum (13 ms and 3 MB in the shim, which starts with every workspace).
"""

from __future__ import annotations

import select
import time
from _json import encode_basestring, make_encoder, make_scanner
from _socket import socket as Socket

from ws.errors import LimitExceeded, ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final, TypeVar

    T = TypeVar("T")

VERSION: Final = 1
SOCKET_NAME: Final = "shim.sock"  # in the run directory
MAX_HEADER_BYTES: Final = 64 << 10
MAX_BODY_BYTES: Final = 1 << 20
MAX_POLL_MS: Final = 1e9
FRAME_TIMEOUT_S: Final = 30.0  # a frame that has begun is complete by then: nobody drips bytes for ever
MAX_DEPTH: Final = 32
_RECEIVE_BYTES: Final = 68 << 10  # a chunk of 64 KiB and its header in one call


class PeerGone(Exception):
    """The other end closed the connection, or died."""


def _refuse_type(value: object) -> None:
    raise TypeError(f"{type(value).__name__} cannot cross the wire")


_encode_json = make_encoder(None, _refuse_type, encode_basestring, None, ":", ",", False, False, False)


def encode_header(header: dict[str, Any]) -> bytes:
    """The bytes of a header. Raises LimitExceeded when it is too large, ProtocolError when it is not text."""
    try:
        data = "".join(_encode_json(header, 0)).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a header cannot be encoded: {error}") from None
    if len(data) > MAX_HEADER_BYTES:
        raise LimitExceeded(f"a header of {len(data):,} bytes does not fit into a frame")
    return data


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key occurs twice")
    return found


def _short_int(text: str) -> int:
    if len(text) > 20:
        raise ValueError("a number is too long")
    return int(text)


def _finite_float(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError("a number is not finite")
    return value


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")


class _Rules:
    """What the C scanner reads its options from."""

    strict = True
    object_hook = None
    object_pairs_hook = staticmethod(_unique)
    parse_float = staticmethod(_finite_float)
    parse_int = staticmethod(_short_int)
    parse_constant = staticmethod(_no_constant)


_scan_json = make_scanner(_Rules())  # type: ignore[arg-type]


def decode_header(data: bytes) -> dict[str, Any]:
    """A header from bytes that anybody may have written. Raises ProtocolError, and nothing else."""
    try:
        text = data.decode()
        if text.count("[") + text.count("{") > MAX_DEPTH:
            _check_depth(text)
        value, end = _scan_json(text, 0)
        if end != len(text):
            raise ValueError("there is more behind the header")
        if "\\u" in text:  # the one way to write half a surrogate pair, which no later encode() would survive
            "".join(_encode_json(value, 0)).encode()
    except (ValueError, StopIteration, RecursionError, ImportError) as error:
        # ImportError: the scanner fetches JSONDecodeError from json.decoder only when it needs it.
        raise ProtocolError(f"the peer sent a bad header: {error}"[:200]) from None
    if type(value) is not dict:
        raise ProtocolError("the peer sent a header that is no object")
    return value


def _check_depth(text: str) -> None:
    # The C scanner recurses on the C stack; how deep it may go differs between Pythons and thread stacks.
    depth = 0
    in_string = escaped = False
    for character in text:
        if in_string:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                in_string = False
        elif character == '"':
            in_string = True
        elif character in "[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise ValueError("nested too deeply")
        elif character in "]}":
            depth -= 1


def field(fields: dict[str, Any], name: str, kind: type[T]) -> T:
    """A field that must be there and of exactly this type (bool is not int). Raises ProtocolError."""
    value = fields.get(name)
    if type(value) is kind:
        return value
    if kind is float and type(value) is int:
        return float(value)  # type: ignore[return-value]
    raise ProtocolError(f"the field {name!r} is missing or not of type {kind.__name__}")


def optional(fields: dict[str, Any], name: str, kind: type[T]) -> T | None:
    """Like `field`, but absent and null are None."""
    return None if fields.get(name) is None else field(fields, name, kind)


class Connection:
    """Frames over a connected stream socket; not for two threads at once.

    `send` and `receive` wait, up to a deadline on the monotonic clock. An event loop uses the parts they are
    made of: `fill` and `next_frame` after a poll for input, `queue` and `flush` around one for output.
    """

    __slots__ = ("_begun_at", "_in", "_out", "_poll_in", "_poll_out", "_wanted", "socket")

    def __init__(self, socket: Socket) -> None:
        socket.setblocking(False)
        self.socket = socket
        self._in = bytearray()
        self._wanted = 8  # bytes until the buffer can hold the next whole frame
        self._begun_at = 0.0
        self._out: list[memoryview] = []
        self._poll_in = select.poll()
        self._poll_in.register(socket.fileno(), select.POLLIN)
        self._poll_out = select.poll()
        self._poll_out.register(socket.fileno(), select.POLLOUT)

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self) -> None:
        self.socket.close()

    # receiving

    def next_frame(self) -> tuple[dict[str, Any], bytes] | None:
        """A frame that has arrived whole, or None. Raises ProtocolError on one that cannot be."""
        have = len(self._in)
        if have < 8:
            self._wanted = 8 - have
            return None
        header_bytes = int.from_bytes(self._in[:4], "big")
        body_bytes = int.from_bytes(self._in[4:8], "big")
        if not 0 < header_bytes <= MAX_HEADER_BYTES or body_bytes > MAX_BODY_BYTES:
            raise ProtocolError("the peer sent a frame with lengths that no frame has")
        body_at = 8 + header_bytes
        end = body_at + body_bytes
        if have < end:
            self._wanted = end - have
            return None
        with memoryview(self._in) as view:
            header, body = bytes(view[8:body_at]), bytes(view[body_at:end])
        del self._in[:end]
        self._wanted = 8
        self._begun_at = time.monotonic() if self._in else 0.0
        return decode_header(header), body

    def fill(self) -> None:
        """Take what has arrived. Raises PeerGone at the end of the stream."""
        try:
            data = self.socket.recv(max(self._wanted, _RECEIVE_BYTES))
        except BlockingIOError:
            return
        except OSError as error:
            raise PeerGone(str(error)) from None
        if not data:
            raise PeerGone("the connection was closed")
        if not self._in:
            self._begun_at = time.monotonic()
        self._in += data

    def receive(self, *, deadline: float | None) -> tuple[dict[str, Any], bytes]:
        """The next frame. Raises ProtocolError when it is malformed or late, PeerGone when none will come.

        Without a deadline a frame may begin at any time; once begun it has FRAME_TIMEOUT_S.
        """
        while True:
            frame = self.next_frame()
            if frame is not None:
                return frame
            limit = deadline
            if self._in:
                complete_by = self._begun_at + FRAME_TIMEOUT_S
                limit = complete_by if limit is None else min(limit, complete_by)
            if not self._poll_in.poll(_remaining_ms(limit)):
                if limit is not None and time.monotonic() < limit:
                    continue  # a wait that poll(2) cannot express at once
                raise ProtocolError(
                    "the peer began a frame and did not finish it" if self._in else "the peer did not answer in time"
                )
            self.fill()

    @property
    def stale(self) -> bool:
        """True when an idle connection has something to read: its end, or bytes that nobody asked for."""
        return bool(self._in) or bool(self._poll_in.poll(0))

    # sending

    @property
    def backlogged(self) -> bool:
        """True while queued frames wait for the peer to read."""
        return bool(self._out)

    def queue(self, header: dict[str, Any], body: bytes | memoryview = b"") -> None:
        """Put a frame behind those that wait."""
        if len(body) > MAX_BODY_BYTES:
            raise LimitExceeded(f"a body of {len(body):,} bytes does not fit into a frame")
        data = encode_header(header)
        self._out.append(memoryview(len(data).to_bytes(4, "big") + len(body).to_bytes(4, "big") + data))
        if body:
            self._out.append(memoryview(body))

    def flush(self) -> None:
        """Send as much of the queue as the socket takes now. Raises PeerGone."""
        while self._out:
            try:
                sent = self.socket.sendmsg(self._out[:16])
            except BlockingIOError:
                return
            except OSError as error:
                self._out.clear()
                raise PeerGone(str(error)) from None
            while self._out and sent >= len(self._out[0]):
                sent -= len(self._out.pop(0))
            if sent:
                self._out[0] = self._out[0][sent:]

    def send(self, header: dict[str, Any], body: bytes | memoryview = b"", *, deadline: float) -> None:
        """Send a frame. Raises PeerGone, or ProtocolError when the peer does not read it in time."""
        self.queue(header, body)
        self.flush()
        while self._out:
            if not self._poll_out.poll(_remaining_ms(deadline)):
                raise ProtocolError("the peer does not read what it is sent")
            self.flush()


def _remaining_ms(deadline: float | None) -> float | None:
    # poll(2) takes milliseconds as an int: a longer wait is made of several.
    return None if deadline is None else min(max(0.0, (deadline - time.monotonic()) * 1000), MAX_POLL_MS)
