"""A command that runs in the container, followed from the host: its frames, its input, its terminal.

`ws.shim.running` has the protocol. The shim is hostile: it may send more output than it was told to,
results that no process can have, or nothing at all; the first is cut off here too, the others are
ProtocolError.
"""

from __future__ import annotations

import _thread
import os
import select
import stat
import time

from ws.errors import ProtocolError
from ws.remote.calls import REPLY_TIMEOUT_S
from ws.remote.results import ExecResult
from ws.shim.wire import MAX_POLL_MS, field, optional

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, BinaryIO, Final, Self

    from ws.remote.calls import Call

WINDOW_BYTES: Final = 64 << 10  # input that may be on its way without being confirmed
CHUNK_BYTES: Final = 64 << 10
_SLACK_S: Final = 15.0  # for the shim to end a command at its deadline and say so
_STREAMS: Final = ("stdout", "stderr")


class Following:
    """A command from its request to its result."""

    def __init__(
        self,
        call: Call,
        output: Callable[[str, bytes], None],
        *,
        time_limit_s: float | None,
        max_output_bytes: int | None,
        started: Callable[[], None] | None = None,
    ) -> None:
        self._call = call
        self._output = output
        self._time_limit_s = time_limit_s
        self._room = dict.fromkeys(_STREAMS, max_output_bytes)
        self._cut = False
        self._on_start = started
        self._deadline: float | None = time.monotonic() + REPLY_TIMEOUT_S
        self._counting = _thread.allocate_lock()  # one thread may read while another sends
        self.credit = WINDOW_BYTES
        self.started = False
        self.result: ExecResult | None = None

    def step(self, descriptor: int = -1, *, wait_s: float | None = None) -> bool:
        """Take one frame; or return True when the descriptor is readable, False when the time is over.

        Raises the error that the shim sent, ContainerDied, ProtocolError.
        """
        frame = self._call.receive_ready()
        if frame is None:
            if descriptor >= 0 or wait_s is not None:
                ready = self._poll(descriptor, wait_s)
                if self._call.fileno() not in ready:
                    return descriptor in ready
            frame = self._call.receive(deadline=self._deadline)
        self._take(*frame)
        return False

    def _poll(self, descriptor: int, wait_s: float | None) -> list[int]:
        poll = select.poll()
        poll.register(self._call.fileno(), select.POLLIN)
        if descriptor >= 0:
            poll.register(descriptor, select.POLLIN)
        limits = [] if wait_s is None else [wait_s]
        if self._deadline is not None:
            limits.append(self._deadline - time.monotonic())
        wait_ms = min(max(0.0, min(limits)) * 1000, MAX_POLL_MS) if limits else None
        ready = [number for number, _ in poll.poll(wait_ms)]
        if not ready and self._deadline is not None and time.monotonic() >= self._deadline:
            return [self._call.fileno()]  # whose `receive` says that it is late
        return ready

    def send_input(self, data: bytes | memoryview) -> None:
        """At most `credit` bytes."""
        with self._counting:
            self.credit -= len(data)
        self._call.send("data", data)

    def end_input(self) -> None:
        self._call.send("end")

    def _take(self, kind: str, header: dict[str, Any], body: bytes) -> None:
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise ProtocolError("the peer has much to say, but not how the command ended")
        if kind == "started" and not self.started:
            self.started = True
            limit_s = self._time_limit_s
            self._deadline = None if limit_s is None else time.monotonic() + limit_s + _SLACK_S
            if self._on_start is not None:
                self._on_start()
        elif kind == "data" and self.started:
            self._take_output(field(header, "stream", str), body)
        elif kind == "want" and self.started:
            confirmed = field(header, "size_bytes", int)
            if not 0 < confirmed <= WINDOW_BYTES - self.credit:
                raise ProtocolError("the peer confirmed input that it was not sent")
            with self._counting:
                self.credit += confirmed
        elif kind == "result" and self.started:
            self.result = self._read_result(field(header, "result", dict))
        else:
            raise ProtocolError("the peer sent a frame that a command does not have")

    def _take_output(self, stream: str, data: bytes) -> None:
        if stream not in self._room or not data:
            raise ProtocolError("the peer sent output that a command does not have")
        room = self._room[stream]
        if room is not None:
            self._cut = self._cut or len(data) > room
            data = data[:room]
            self._room[stream] = room - len(data)
        if data:
            self._output(stream, data)

    def _read_result(self, fields: dict[str, Any]) -> ExecResult:
        exit_code, signal = field(fields, "exit_code", int), optional(fields, "signal", int)
        duration_s = field(fields, "duration_s", float)
        if not 0 <= exit_code <= 255 or (signal is not None and not 0 < signal < 128) or duration_s < 0:
            raise ProtocolError("the peer sent a result that no command has")
        return ExecResult(
            exit_code=exit_code,
            truncated=field(fields, "truncated", bool) or self._cut,
            timed_out=field(fields, "timed_out", bool),
            signal=signal,
            duration_s=duration_s,
        )


class Input:
    """Where a command's input comes from: bytes, or a file object; its end is the end of the input.

    Pipes and terminals are read through their descriptor when they have something, so that a command whose
    input is slow is still heard; anything else is read as it is.
    """

    def __init__(self, source: bytes | BinaryIO) -> None:
        self._rest = memoryview(source if isinstance(source, bytes) else b"")
        self._file = None if isinstance(source, bytes) else source
        self._descriptor = -1 if self._file is None else _slow_descriptor(self._file)
        self._ended = False

    def descriptor(self, following: Following) -> int:
        """What to wait for before `pump`, or -1."""
        return self._descriptor if following.credit > 0 and not self._ended else -1

    def pump(self, following: Following, *, ready: bool) -> None:
        """Send what there is and what the window lets through."""
        while not self._ended and following.credit > 0 and (ready or self._descriptor < 0):
            data = self._read(min(following.credit, CHUNK_BYTES))
            ready = False
            if data:
                following.send_input(data)
            else:
                following.end_input()
                self._ended = True

    def _read(self, size: int) -> bytes | memoryview:
        if self._file is None:
            data, self._rest = self._rest[:size], self._rest[size:]
            return data
        if self._descriptor >= 0:
            return os.read(self._descriptor, size)
        return self._file.read(size)


def _slow_descriptor(file: BinaryIO) -> int:
    try:
        descriptor = file.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, AttributeError):
        return -1
    return descriptor if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode) else -1


class Terminal:
    """A command in a terminal of its own; closing it hangs up and kills.

    Use it in a `with` block. The caller sets its own terminal, if any, to raw mode and back. One thread may read while
    others send and resize; two threads must not read at once.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._following = Following(call, self._collect, time_limit_s=None, max_output_bytes=None)
        self._pieces: list[bytes] = []
        self._unsent = b""
        self._sending = _thread.allocate_lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._call.close()

    def wait_started(self) -> None:
        """Return once its process exists. Raises what kept it from it, ContainerDied, ProtocolError."""
        while not self._following.started:
            self._following.step()

    def _collect(self, _stream: str, data: bytes) -> None:
        self._pieces.append(data)

    @property
    def result(self) -> ExecResult | None:
        """How it ended, once it has; without output, which was passed on."""
        return self._following.result

    def send(self, data: bytes) -> None:
        """Type something. What the other side does not take yet goes with later calls."""
        with self._sending:
            self._unsent += data
            self._send_on()

    def _send_on(self) -> None:
        while self._unsent and self._following.credit > 0 and self.result is None:
            size = min(self._following.credit, CHUNK_BYTES)
            self._following.send_input(self._unsent[:size])
            self._unsent = self._unsent[size:]

    def _send_rest(self) -> None:
        """Send what waits for the window, unless another thread is sending: that one goes on itself."""
        if self._sending.acquire(blocking=False):
            try:
                self._send_on()
            finally:
                self._sending.release()

    def resize(self, rows: int, columns: int) -> None:
        with self._sending:
            if self.result is None:
                self._call.send("resize", rows=rows, columns=columns)

    def read(self, *, wait_s: float | None = None) -> bytes | None:
        """The next piece of output; b"" when none came in the time, None when it has ended."""
        deadline = None if wait_s is None else time.monotonic() + wait_s
        while not self._pieces and self.result is None:
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            self._following.step(wait_s=left_s)
            self._send_rest()
            if deadline is not None and time.monotonic() >= deadline:
                break
        return self._take_pieces()

    def _take_pieces(self) -> bytes | None:
        pieces, self._pieces = self._pieces, []
        return None if not pieces and self.result is not None else b"".join(pieces)

    def __iter__(self) -> Iterator[bytes]:
        while (data := self.read()) is not None:
            yield data

    def relay(self, input_fd: int, output_fd: int) -> ExecResult:
        """Pass everything on between two descriptors until it ends; follows the size of a terminal.

        Looks for a new size four times a second: a SIGWINCH handler would have to interrupt a send.
        """
        size = None
        reading = True
        while True:
            current = _terminal_size(input_fd)
            if current is not None and current != size:
                size = current
                self.resize(*size)
            wants_input = reading and not self._unsent and self._following.credit > 0
            if self._following.step(input_fd if wants_input else -1, wait_s=0.25):
                data = os.read(input_fd, CHUNK_BYTES)
                reading = bool(data)
                self.send(data or b"\x04")
            self._send_rest()
            data = self._take_pieces() or b""
            while data:
                data = data[os.write(output_fd, data) :]
            if self.result is not None:
                return self.result


def _terminal_size(descriptor: int) -> tuple[int, int] | None:
    try:
        size = os.get_terminal_size(descriptor)
    except OSError:
        return None
    return (size.lines, size.columns) if size.lines and size.columns else None
