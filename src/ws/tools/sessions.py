"""Terminal sessions that outlive the call that began them: start, poll, write, resize, list, close.

Each session has a thread that spawned its process, reads its terminal and waits for its end; calls come and
go. Output waits in a bounded buffer (the oldest bytes go first, and are counted), input in another. A
session ends with its process, when it is closed, or when nobody asked for it in a long time; its last words
can be read for some minutes after.
"""

from __future__ import annotations

import os
import select
import threading
import time
from codecs import getincrementaldecoder

from ws.errors import InvalidRequest, LimitExceeded, SessionNotFound
from ws.tools.spawning import end_session, set_terminal_size, spawn, split_status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Final

    from ws.tools.spawning import Child

MAX_SESSIONS: Final = 64
IDLE_TIMEOUT_S: Final = 1800.0
MAX_READ_BYTES: Final = 512 << 10
_BUFFER_BYTES: Final = 1 << 20
_INPUT_BYTES: Final = 256 << 10
_KEEP_ENDED_S: Final = 300.0
_DRAIN_S: Final = 0.1
_MAX_POLL_MS: Final = 1e9  # poll(2) takes an int; a longer wait is made of several


class SessionOutput:
    """What a session wrote since the last look, and how it is."""

    __slots__ = ("data", "dropped_bytes", "exit_code", "more", "running", "session_id", "signal")

    def __init__(
        self,
        session_id: int,
        data: bytes,
        dropped_bytes: int,
        *,
        more: bool,
        running: bool,
        exit_code: int | None,
        signal: int | None,
    ) -> None:
        self.session_id = session_id
        self.data = data
        self.more = more  # than was asked for: it is there for the next look
        self.dropped_bytes = dropped_bytes  # lost in front of `data`, because nobody read in time
        self.running = running  # False once it has ended and all its output was read
        self.exit_code = exit_code
        self.signal = signal


class Session:
    """One process in one terminal, and the thread that looks after it."""

    def __init__(
        self,
        session_id: int,
        argv: Sequence[bytes],
        *,
        env: Mapping[bytes, bytes],
        workdir: bytes,
        size: tuple[int, int],
        idle_timeout_s: float,
    ) -> None:
        self.id = session_id
        self.command = b" ".join(argv)[:200].decode("utf-8", "replace")
        self.started_at = self.used_at = time.monotonic()
        self.ended_at: float | None = None
        self.idle_timeout_s = idle_timeout_s
        self._changed = threading.Condition()
        self._output = bytearray()
        self._dropped = 0
        self._input = bytearray()
        self._status: int | None = None
        self._closing = False
        self._failure: BaseException | None = None
        self._master = -1
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        begun = threading.Event()
        thread = threading.Thread(
            target=self._look_after, args=(begun, argv, env, workdir, size), daemon=True, name="ws-session"
        )
        try:
            thread.start()
        except RuntimeError:
            self._close_wake()
            raise LimitExceeded("no thread can be started for another session") from None
        begun.wait()
        if self._failure is not None:
            raise self._failure

    # calls, from any thread

    def read(self, wait_s: float, max_bytes: int, *, as_text: bool = False) -> SessionOutput:
        """What came within the time; earlier when the session ends or so much has come.

        With `as_text` it is cut between characters: what may be the beginning of one waits for the rest.
        """
        deadline = time.monotonic() + wait_s
        with self._changed:
            self.used_at = time.monotonic()
            self._changed.wait_for(
                lambda: self.ended_at is not None or len(self._output) >= max_bytes,
                max(0.0, deadline - time.monotonic()),
            )
            self.used_at = time.monotonic()
            data = bytes(self._output[:max_bytes])
            more = len(self._output) > len(data)
            if as_text and (more or self.ended_at is None):
                data = data[: len(data) - _unfinished_bytes(data)]
            del self._output[: len(data)]
            dropped, self._dropped = self._dropped, 0
            running = self.ended_at is None or bool(self._output)
            exit_code, signal = (None, None) if running or self._status is None else split_status(self._status)
            return SessionOutput(self.id, data, dropped, more=more, running=running, exit_code=exit_code, signal=signal)

    def write(self, data: bytes) -> None:
        """Type into the terminal. Raises LimitExceeded when the process does not read what is typed."""
        with self._changed:
            self.used_at = time.monotonic()
            if self.ended_at is not None or not data:
                return
            if len(self._input) + len(data) > _INPUT_BYTES:
                raise LimitExceeded(
                    f"session {self.id} does not read its input", hint="poll it, or send less at a time"
                )
            self._input += data
            self._wake()

    def resize(self, size: tuple[int, int]) -> None:
        with self._changed:
            self.used_at = time.monotonic()
            if self.ended_at is None:
                set_terminal_size(self._master, size)

    def close(self) -> None:
        """End the process and all of its session; returns when it is gone."""
        with self._changed:
            self._closing = True
            if self.ended_at is None:
                self._wake()
            self._changed.wait_for(lambda: self.ended_at is not None, 10.0)

    @property
    def has_output(self) -> bool:
        return bool(self._output)

    # the session's own thread

    def _look_after(
        self,
        begun: threading.Event,
        argv: Sequence[bytes],
        env: Mapping[bytes, bytes],
        workdir: bytes,
        size: tuple[int, int],
    ) -> None:
        try:
            child = spawn(argv, env=env, workdir=workdir, tty_size=size)
            self._master = child.stdin
        except BaseException as error:  # noqa: BLE001 - it is raised again in the caller's thread
            self._failure = error
            self._close_wake()
            return
        finally:
            begun.set()
        try:
            self._pump(child)
        finally:
            end_session(child.pid)  # the rest of it: a terminal without its session leader is no use to anyone
            status = child.wait()
            with self._changed:
                self._status = status
                self.ended_at = time.monotonic()
                child.close()
                self._close_wake()
                self._changed.notify_all()

    def _pump(self, child: Child) -> None:
        give_up_at: float | None = None  # once the process has ended
        while not self._closing:
            now = time.monotonic()
            limit = self.used_at + self.idle_timeout_s if give_up_at is None else give_up_at
            if now >= limit:
                return
            poll = select.poll()
            poll.register(self._wake_read, select.POLLIN)
            if child.outputs:
                poll.register(self._master, select.POLLIN | (select.POLLOUT if self._input else 0))
            elif give_up_at is not None:
                return
            if give_up_at is None:
                poll.register(child.ended, select.POLLIN)
            for descriptor, events in poll.poll(min((limit - now) * 1000, _MAX_POLL_MS)):
                if descriptor == self._wake_read:
                    os.read(self._wake_read, 4096)
                elif descriptor == child.ended:
                    give_up_at = time.monotonic() + _DRAIN_S
                elif events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                    self._take_output(child)
                elif events & select.POLLOUT:
                    self._give_input()

    def _take_output(self, child: Child) -> None:
        try:
            data = os.read(self._master, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # EIO: nobody has the terminal any more
        with self._changed:
            if not data:
                child.close_output(self._master)
                return
            self._output += data
            excess = len(self._output) - _BUFFER_BYTES
            if excess > 0:
                del self._output[:excess]
                self._dropped += excess
            self._changed.notify_all()

    def _give_input(self) -> None:
        with self._changed:
            try:
                del self._input[: os.write(self._master, self._input)]
            except BlockingIOError:
                return
            except OSError:
                self._input.clear()

    def _wake(self) -> None:
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            pass  # it has not yet seen the last one

    def _close_wake(self) -> None:
        os.close(self._wake_read)
        os.close(self._wake_write)


class Sessions:
    """All sessions of a workspace; safe for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sessions: dict[int, Session] = {}

    def start(
        self,
        argv: Sequence[bytes],
        *,
        env: Mapping[bytes, bytes],
        workdir: bytes,
        size: tuple[int, int] = (24, 80),
        idle_timeout_s: float = IDLE_TIMEOUT_S,
    ) -> int:
        """Begin a session and return its id. Raises what `spawn` does; LimitExceeded at too many."""
        check_size(size)
        self._forget_ended()
        with self._lock:
            if sum(session.ended_at is None for session in self._sessions.values()) >= MAX_SESSIONS:
                raise LimitExceeded(f"{MAX_SESSIONS} sessions are open", hint="close one of them")
            session_id = self._free_id()
            self._sessions[session_id] = session = Session(
                session_id, argv, env=env, workdir=workdir, size=size, idle_timeout_s=idle_timeout_s
            )
        return session.id

    def read(
        self, session_id: int, *, wait_s: float, max_bytes: int = MAX_READ_BYTES, as_text: bool = False
    ) -> SessionOutput:
        """See `Session.read`; the id is forgotten with the last words of a session that ended."""
        found = self.find(session_id).read(wait_s, max(1, min(max_bytes, MAX_READ_BYTES)), as_text=as_text)
        if not found.running:
            with self._lock:
                self._sessions.pop(session_id, None)
        return found

    def find(self, session_id: int) -> Session:
        """Raises SessionNotFound."""
        with self._lock:
            session = self._sessions.get(session_id)
        if session is None:
            raise SessionNotFound(f"there is no session {session_id}", hint="it ended; start a new one")
        return session

    def close(self, session_id: int) -> None:
        self.find(session_id).close()
        with self._lock:
            self._sessions.pop(session_id, None)

    def list(self) -> list[Session]:
        self._forget_ended()
        with self._lock:
            return list(self._sessions.values())

    def _free_id(self) -> int:
        # Not counted up: after a restore, an old id must not mean a new session.
        while True:
            number = int.from_bytes(os.urandom(3), "big")
            if number and number not in self._sessions:
                return number

    def _forget_ended(self) -> None:
        now = time.monotonic()
        with self._lock:
            for session in list(self._sessions.values()):
                if session.ended_at is not None and now - session.ended_at > _KEEP_ENDED_S:
                    del self._sessions[session.id]


def _unfinished_bytes(data: bytes) -> int:
    """How many bytes at the end mean nothing without the next: part of a character, or half of a line's ending."""
    if data.endswith(b"\r"):
        return 1
    decoder = getincrementaldecoder("utf-8")("replace")
    decoder.decode(data[-3:])  # of a character that has four bytes, three may be here
    return len(decoder.getstate()[0])


def check_size(size: tuple[int, int]) -> None:
    """Rows and columns that a terminal can have. Raises InvalidRequest."""
    if not all(0 < number < 10_000 for number in size):
        raise InvalidRequest(f"a terminal cannot have {size[0]} rows and {size[1]} columns")
