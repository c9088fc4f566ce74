"""Calls to a shim: connections to its socket, one request and its reply at a time on each.

The peer is hostile. It lives in the container, it can replace the socket, and it may send anything at any
time:

- The socket's inode is pinned before it is used (`O_PATH|O_NOFOLLOW`, must be a socket) and connected
  through its descriptor in /proc, so that a link planted over its name leads nowhere; the kernel says whose
  socket it is, and that must be the container's first process. (A path through /proc also has no limit of
  108 bytes.)
- A reply belongs to the request by its number, or the connection is dropped with ProtocolError. A
  connection that has bytes to read while nothing was asked is dropped as well.
- Each wait has a deadline, each length a cap (`ws.shim.wire`); nothing here grows with what the peer sends.

A peer that is gone is ContainerDied. `ws exec` imports this on its way: standard library only, and little
of it.
"""

from __future__ import annotations

import _thread
import os
import stat
import sys
import time
from _socket import AF_UNIX, SHUT_WR, SO_PEERCRED, SOCK_STREAM, SOL_SOCKET
from _socket import socket as Socket

from ws.errors import Busy, ContainerDied, LimitExceeded, ProtocolError
from ws.shim.faults import rebuild_error
from ws.shim.wire import SOCKET_NAME, VERSION, Connection, PeerGone, field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any, Final, Self

REPLY_TIMEOUT_S: Final = 30.0
MAX_REPLY_BYTES: Final = 64 << 20  # of a reply that is collected; a stream has no limit
_MAX_IDLE: Final = 32  # as many threads keep theirs; a connection anew costs the shim a thread


class _Line(Connection):
    """A connection and the number of its last request."""

    __slots__ = ("number",)

    def __init__(self, socket: Socket) -> None:
        super().__init__(socket)
        self.number = 0


class Reply:
    """What a call returned: the fields of its result, and the bytes that came with it."""

    __slots__ = ("body", "result")

    def __init__(self, result: dict[str, Any], body: bytes) -> None:
        self.result = result
        self.body = body


class Call:
    """One request whose reply is on its way; for a `with` block. Left early, its connection is dropped."""

    __slots__ = ("_calls", "_line", "reply")

    def __init__(self, calls: Calls, line: _Line) -> None:
        self._calls = calls
        self._line = line
        self.reply: Reply | None = None  # once `receive` said "result"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back if the reply is complete; else drop it, which the shim takes as an end."""
        if self._line.fileno() < 0:
            return
        if self.reply is not None:
            self._calls._give_back(self._line)
        else:
            self._line.close()

    def drop(self) -> None:
        """Close the connection, whatever came: the two sides are not in step."""
        self._line.close()

    def break_off(self) -> None:
        """Drop the connection, and come back when the shim has done so too: then it holds nothing for the call."""
        deadline = time.monotonic() + REPLY_TIMEOUT_S
        try:
            self._line.socket.shutdown(SHUT_WR)
            while time.monotonic() < deadline:  # what was on its way is of no use any more
                self._line.receive(deadline=deadline)
        except (OSError, PeerGone, ProtocolError):
            pass
        self._line.close()

    def fileno(self) -> int:
        return self._line.fileno()

    def send(self, kind: str, body: bytes | memoryview = b"", /, **fields: Any) -> None:
        """A frame that belongs to this request. Raises ContainerDied, ProtocolError."""
        deadline = time.monotonic() + REPLY_TIMEOUT_S
        try:
            self._line.send({"id": self._line.number, "kind": kind, **fields}, body, deadline=deadline)
        except PeerGone as error:
            raise _died(error) from None

    def receive(self, *, deadline: float | None) -> tuple[str, dict[str, Any], bytes]:
        """The next frame of the reply: its kind, header, body. After "result" there is none.

        Raises the error that the shim sent, ContainerDied, or ProtocolError.
        """
        try:
            header, body = self._line.receive(deadline=deadline)
        except PeerGone as error:
            raise _died(error) from None
        return self._check(header, body)

    def receive_ready(self) -> tuple[str, dict[str, Any], bytes] | None:
        """Like `receive`, with what is there: None when it is not a whole frame. For a caller that polls."""
        frame = self._line.next_frame()
        if frame is None:
            return None
        return self._check(*frame)

    @property
    def answered(self) -> bool:
        """True when something of the reply has come."""
        return self._line.stale

    def _check(self, header: dict[str, Any], body: bytes) -> tuple[str, dict[str, Any], bytes]:
        kind = field(header, "kind", str)
        number = field(header, "id", int)
        if kind == "error" and (number == self._line.number or (self._line.number == 1 and number == 0)):
            error = rebuild_error(header)
            if number:
                self.reply = Reply({}, b"")  # the connection is as good as before
            elif not isinstance(error, Busy):
                raise ProtocolError("the peer refused a connection with an error that it cannot have")
            raise error
        if number != self._line.number:
            raise ProtocolError("the peer answered a request that was not asked")
        if kind == "result":
            self.reply = Reply(field(header, "result", dict), body)
        return kind, header, body

    def chunks(self, *, timeout_s: float = REPLY_TIMEOUT_S) -> Iterator[bytes]:
        """The reply's stream, piece by piece, each within the time; then `reply` is there."""
        while True:
            kind, _, body = self.receive(deadline=time.monotonic() + timeout_s)
            if kind == "result":
                return
            if kind != "data" or not body:
                raise ProtocolError("the peer sent a frame that the call does not have")
            yield body


class Calls:
    """Connections to one shim; safe for many threads."""

    def __init__(self, run_dir: str, *, peer_pid: int | None) -> None:
        self._socket_path = os.path.join(run_dir, SOCKET_NAME)
        self._peer_pid = peer_pid
        self._lock = _thread.allocate_lock()
        self._idle: list[_Line] = []
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the idle connections. The shim goes on."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for line in idle:
            line.close()

    def begin(
        self,
        op: str,
        params: dict[str, Any],
        body: bytes | memoryview = b"",
        *,
        more: bool = False,
        timeout_s: float = REPLY_TIMEOUT_S,
    ) -> Call:
        """Send a request; `more` says that data frames follow. Raises ContainerDied, Busy, ProtocolError."""
        deadline = time.monotonic() + timeout_s
        line = self._borrow(deadline)
        line.number += 1
        header: dict[str, Any] = {"v": VERSION, "id": line.number, "op": op, "params": params}
        if more:
            header["more"] = True
        try:
            line.send(header, body, deadline=deadline)
        except PeerGone as error:
            line.close()
            raise _died(error) from None
        except BaseException:
            line.close()
            raise
        return Call(self, line)

    def call(
        self,
        op: str,
        params: dict[str, Any],
        body: bytes | Iterable[bytes] = b"",
        *,
        timeout_s: float = REPLY_TIMEOUT_S,
        on_data: Callable[[bytes], None] | None = None,
    ) -> Reply:
        """One request to its end. A body that is not bytes is streamed; so is the reply, where `on_data` is.

        The time is for each step of the peer, not for the whole. Raises the error that the shim sent,
        ContainerDied, ProtocolError; LimitExceeded when a reply that is collected is too large.
        """
        whole, stream = (body, None) if isinstance(body, bytes) else (b"", body)
        begin_s = min(timeout_s, REPLY_TIMEOUT_S)
        with self.begin(op, params, whole, more=stream is not None, timeout_s=begin_s) as call:
            if stream is not None:
                upload(call, stream)
            collected = bytearray()  # not a list: pieces of one byte each would cost forty
            for chunk in call.chunks(timeout_s=timeout_s):
                if on_data is not None:
                    on_data(chunk)
                    continue
                collected += chunk
                if len(collected) > MAX_REPLY_BYTES:
                    raise LimitExceeded(f"the reply to {op} is larger than {MAX_REPLY_BYTES:,} bytes")
            assert call.reply is not None
            if collected:
                call.reply.body = bytes(collected) + call.reply.body
            return call.reply

    def ask(self, op: str, params: dict[str, Any], body: bytes = b"", *, timeout_s: float = REPLY_TIMEOUT_S) -> Reply:
        """One request whose answer is one frame, all within the time. Raises as `call` does."""
        deadline = time.monotonic() + timeout_s
        with self.begin(op, params, body, timeout_s=timeout_s) as call:
            call.receive(deadline=deadline)
            if call.reply is None:
                raise ProtocolError("the peer sent a frame that the call does not have")
            return call.reply

    # connections

    def _borrow(self, deadline: float) -> _Line:
        while True:
            with self._lock:
                line = self._idle.pop() if self._idle else None
            if line is None:
                return self._connect(deadline)
            if not line.stale:
                return line
            line.close()

    def _give_back(self, line: _Line) -> None:
        with self._lock:
            if len(self._idle) < _MAX_IDLE and not self._closed:
                self._idle.append(line)
                return
        line.close()

    def _connect(self, deadline: float) -> _Line:
        try:
            pinned = os.open(self._socket_path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise _died(error) from None
        try:
            if not stat.S_ISSOCK(os.fstat(pinned).st_mode):
                raise ProtocolError("the shim's socket was replaced by something that is none")
            line = _Line(Socket(AF_UNIX, SOCK_STREAM))
            try:
                _connect_within(line.socket, f"/proc/self/fd/{pinned}", deadline)
                self._check_peer(line.socket)
            except BaseException:
                line.close()
                raise
        finally:
            os.close(pinned)
        return line

    def _check_peer(self, socket: Socket) -> None:
        credentials = socket.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)
        pid = int.from_bytes(credentials[:4], sys.byteorder)
        if self._peer_pid is not None and pid != self._peer_pid:
            raise ProtocolError(
                "the shim's socket belongs to another process than the container's first",
                hint="something in the workspace replaced it; restart the workspace",
            )


def _connect_within(socket: Socket, path: str, deadline: float) -> None:
    while True:
        try:
            socket.connect(path)
            return
        except BlockingIOError:  # its queue is full
            if time.monotonic() >= deadline:
                raise Busy("the shim does not take connections", hint="try again") from None
            time.sleep(0.002)
        except OSError as error:
            raise _died(error) from None


def upload(call: Call, chunks: Iterable[bytes | memoryview]) -> None:
    """The rest of a request that said `more`."""
    for chunk in chunks:
        if call.answered:
            break  # it failed already; the shim skips what is on its way
        view = memoryview(chunk)
        while view:
            call.send("data", view[: 256 << 10])
            view = view[256 << 10 :]
    call.send("end")


def _died(cause: Exception) -> ContainerDied:
    return ContainerDied(
        f"the container of the workspace does not answer: {cause}",
        hint="use the workspace again to restart it",
    )
