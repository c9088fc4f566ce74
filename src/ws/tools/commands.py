"""Running a command to its end: streams, caps, deadlines; the same code in the shim and in-process.

`attend` is the one loop. It stands between a child and a `Client`, the one whom the command serves: a
buffer or a callback in-process, the connection to the host in the shim. Its promises:

- Done at the process's exit plus a short drain. What the process itself wrote lies in the pipe by then; a
  daemon it left behind holds the pipe open, and is not waited for.
- Memory is constant. Nothing is kept here; beyond the cap output is thrown away without being copied
  (`splice` to /dev/null), so that `yes` costs its own time and not ours. A client that does not keep up
  stops the command's writes, never the clock.
- At the deadline the whole session is ended (SIGTERM first if there is a grace) and what came so far is the
  result. So it is when the client goes away, except that there is nobody left to have a result.
"""

from __future__ import annotations

import os
import select
import time

from ws.tools.spawning import (
    SIGKILL,
    SIGTERM,
    build_environment,
    end_session,
    set_terminal_size,
    spawn,
    split_status,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import BinaryIO, Final

    from ws.tools.spawning import Child

CHUNK_BYTES: Final = 64 << 10
DRAIN_S: Final = 0.1
MAX_OUTPUT_BYTES: Final = 10 << 20  # of each stream, where the caller does not say
_MAX_POLL_MS: Final = 1e9  # poll(2) takes an int; a longer wait is made of several
_MAX_PIPE_BYTES: Final = 1 << 20  # what a pipe holds at most: no more was written before the end
_READABLE: Final = select.POLLIN | select.POLLHUP | select.POLLERR


class Outcome:
    """How a command ended."""

    __slots__ = (
        "duration_s",
        "exit_code",
        "leftover",
        "signal",
        "stderr",
        "stdout",
        "timed_out",
        "truncated",
    )

    def __init__(self, status: int, *, timed_out: bool, truncated: bool, duration_s: float) -> None:
        self.exit_code, self.signal = split_status(status)
        self.timed_out = timed_out
        self.truncated = truncated
        self.duration_s = duration_s
        self.leftover: list[int] = []  # pipes that something it started still holds; the caller's to close
        self.stdout = b""
        self.stderr = b""


class Client:
    """Whom a command serves. This one takes nothing and gives nothing; others override what they do."""

    descriptor = -1  # to be polled beside the command's own, if there is one

    @property
    def backlogged(self) -> bool:
        """True while output must wait."""
        return False

    def begun(self, running: Running, pid: int) -> None:
        """The process exists."""

    def ready(self, running: Running) -> None:
        """The descriptor has input, or room for the backlog. May raise, which ends the command."""

    def output(self, stream: str, data: bytes) -> None:
        """A piece of what the command wrote."""

    def input_taken(self, running: Running, size_bytes: int) -> None:
        """The command took all its input, so many bytes; 0 at the start. Call `feed` or `finish_input`."""


class Running:
    """A command while it runs: what a client may do to it."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._input = memoryview(b"")
        self._input_finished = False
        self._fed = 0

    def feed(self, data: bytes) -> None:
        """Put bytes behind the input that waits; they are lost when the command has closed its stdin."""
        if self._child.stdin < 0:
            return
        self._input = memoryview(bytes(self._input) + data) if self._input else memoryview(data)
        self._fed += len(data)

    def finish_input(self) -> None:
        """No more input: the command sees the end of its stdin once it has read the rest."""
        self._input_finished = True
        if self._child.tty:
            self.feed(b"\x04")
        elif not self._input:
            self._child.close_stdin()

    def resize(self, size: tuple[int, int]) -> None:
        """Rows and columns of its terminal, if it has one."""
        if self._child.tty and self._child.stdin >= 0:
            set_terminal_size(self._child.stdin, size)

    def signal(self, number: int) -> None:
        """Signal its session."""
        end_session(self._child.pid, number)

    @property
    def input_descriptor(self) -> int:
        """Where input waits to be written, or -1."""
        return self._child.stdin if self._input else -1

    def write_input(self) -> int:
        """Write what fits; once all is written, return how much was fed since the last time."""
        try:
            self._input = self._input[os.write(self._child.stdin, self._input) :]
        except BlockingIOError:
            return 0
        except OSError:  # it closed its stdin: what is left is lost, as in any shell
            self._input = memoryview(b"")
            self._input_finished = True
        if self._input:
            return 0
        if self._input_finished:
            self._child.close_stdin()
        taken, self._fed = self._fed, 0
        return taken


def attend(
    child: Child,
    client: Client,
    *,
    timeout_s: float | None = None,
    grace_s: float = 0.0,
    max_output_bytes: int | None = MAX_OUTPUT_BYTES,
) -> Outcome:
    """Stand by a child until it ends. What the client raises ends the child's session and goes through."""
    attendance = _Attendance(child, client, timeout_s, grace_s, max_output_bytes)
    try:
        return attendance.run()
    finally:
        attendance.end()


class _Attendance:
    def __init__(
        self,
        child: Child,
        client: Client,
        timeout_s: float | None,
        grace_s: float,
        max_output_bytes: int | None,
    ) -> None:
        self.child = child
        self.client = client
        self.running = Running(child)
        self.started_at = time.monotonic()
        self.deadline = None if timeout_s is None else self.started_at + timeout_s
        self.grace_s = grace_s
        self.timed_out = False
        self.status: int | None = None
        self.duration_s = 0.0
        self.room = dict.fromkeys(("stdout", "stderr"), max_output_bytes)
        self.truncated = False
        self.quiet = False
        self.unread = dict.fromkeys(child.outputs, _MAX_PIPE_BYTES)  # counts once the process has ended

    def run(self) -> Outcome:
        self.client.begun(self.running, self.child.pid)
        if self.child.stdin >= 0:
            self.client.input_taken(self.running, 0)
        while not self.done():
            self.quiet = not self.client.backlogged
            for descriptor, events in self.wait():
                if descriptor == self.child.ended and self.status is None:
                    self.process_ended()
                elif descriptor == self.client.descriptor:
                    self.client.ready(self.running)
                elif descriptor == self.running.input_descriptor and events & ~select.POLLIN:
                    taken = self.running.write_input()
                    if taken:
                        self.client.input_taken(self.running, taken)
                if descriptor in self.child.outputs and events & _READABLE:
                    self.read(descriptor)
            if self.deadline is not None and time.monotonic() >= self.deadline:
                self.deadline_passed()
        assert self.status is not None
        outcome = Outcome(self.status, timed_out=self.timed_out, truncated=self.truncated, duration_s=self.duration_s)
        if not self.child.tty:
            outcome.leftover = list(self.child.outputs)
            self.child.outputs.clear()
        return outcome

    def done(self) -> bool:
        if self.status is None:
            return False
        if not self.child.outputs:
            return True
        if self.client.backlogged:
            return False
        # Quiet: the pipes were empty at the last look. Somebody who writes for ever is cut off by size.
        drained = self.quiet and self.deadline is not None and time.monotonic() >= self.deadline
        return drained or all(self.unread[descriptor] <= 0 for descriptor in self.child.outputs)

    def wait(self) -> list[tuple[int, int]]:
        poll = select.poll()
        if self.status is None:
            poll.register(self.child.ended, select.POLLIN)
        backlogged = self.client.backlogged
        if self.client.descriptor >= 0:
            poll.register(self.client.descriptor, select.POLLIN | (select.POLLOUT if backlogged else 0))
        if not backlogged:
            for descriptor in self.child.outputs:
                if self.status is None or self.unread[descriptor] > 0:
                    poll.register(descriptor, select.POLLIN)
        waiting_input = self.running.input_descriptor
        if waiting_input >= 0:
            both = waiting_input in self.child.outputs and not backlogged  # a terminal is one descriptor
            poll.register(waiting_input, select.POLLOUT | (select.POLLIN if both else 0))
        if self.deadline is None or (self.status is not None and backlogged):
            return poll.poll()
        return poll.poll(min(max(0.0, (self.deadline - time.monotonic()) * 1000), _MAX_POLL_MS))

    def process_ended(self) -> None:
        self.duration_s = time.monotonic() - self.started_at
        if self.timed_out:
            end_session(self.child.pid)  # those who outlived SIGTERM
        self.status = self.child.wait()
        self.child.close_stdin()
        self.deadline = time.monotonic() + DRAIN_S

    def deadline_passed(self) -> None:
        if self.status is not None:
            return  # the drain is over; `done` sees it
        if not self.timed_out and self.grace_s > 0:
            self.deadline = time.monotonic() + self.grace_s
            end_session(self.child.pid, SIGTERM)
        else:
            self.deadline = None
            end_session(self.child.pid, SIGKILL)
        self.timed_out = True

    def read(self, descriptor: int) -> None:
        self.quiet = False
        stream = self.child.outputs[descriptor]
        room = self.room[stream]
        if room is not None and room <= 0:
            size = discard(descriptor)
            self.truncated = self.truncated or size > 0
        else:
            data = _read(descriptor)
            size = len(data)
            if room is not None:
                self.room[stream] = room - size
                if size > room:
                    self.truncated = True
                    data = data[:room]
            if data:
                self.client.output(stream, data)
        if not size:
            self.child.close_output(descriptor)
        elif self.status is not None:
            self.unread[descriptor] -= size

    def end(self) -> None:
        if self.status is None:
            end_session(self.child.pid)
            self.status = self.child.wait()
        self.child.close()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, CHUNK_BYTES)
    except OSError:
        return b""  # EIO: the last process that had the terminal closed it


def discard(descriptor: int) -> int:
    try:
        sink = os.open("/dev/null", os.O_WRONLY | os.O_CLOEXEC)
        try:
            return os.splice(descriptor, sink, _MAX_PIPE_BYTES)
        finally:
            os.close(sink)
    except OSError:
        return len(_read(descriptor))  # a terminal cannot be spliced


class Caller:
    """Who waits for a command. This one is the thread itself; one behind a connection can go away meanwhile."""

    descriptor = -1  # readable when there is news of the caller

    def started(self) -> None:
        """The process exists."""

    def look(self) -> None:
        """See what the news is; what this raises ends the command."""


class _Local(Client):
    """The caller in the same process: a callback or buffers, and input that is at hand."""

    def __init__(
        self, stdin: bytes | BinaryIO | None, on_output: Callable[[str, bytes], None] | None, caller: Caller
    ) -> None:
        self.buffers = {"stdout": bytearray(), "stderr": bytearray()}
        self.on_output = on_output
        self.stdin = stdin
        self.given = 0
        self.caller = caller
        self.descriptor = caller.descriptor

    def begun(self, running: Running, pid: int) -> None:  # noqa: ARG002
        self.caller.started()

    def ready(self, running: Running) -> None:  # noqa: ARG002
        self.caller.look()

    def output(self, stream: str, data: bytes) -> None:
        if self.on_output is not None:
            self.on_output(stream, data)
        else:
            self.buffers[stream] += data

    def input_taken(self, running: Running, size_bytes: int) -> None:
        self.given += size_bytes
        if isinstance(self.stdin, bytes):
            data = self.stdin[self.given : self.given + CHUNK_BYTES]
        else:
            data = self.stdin.read(CHUNK_BYTES) if self.stdin is not None else b""
        if data:
            running.feed(data)
        else:
            running.finish_input()


def run_command(
    argv: Sequence[str | bytes],
    *,
    workdir: str,
    env: Mapping[str, str],
    stdin: bytes | BinaryIO | None = None,
    timeout_s: float | None = None,
    grace_s: float = 0.0,
    max_output_bytes: int | None = MAX_OUTPUT_BYTES,
    on_output: Callable[[str, bytes], None] | None = None,
    caller: Caller | None = None,
) -> Outcome:
    """Run a command here and return how it ended, with its output unless `on_output` got it.

    `env` is the whole environment: nothing is inherited. Raises what `spawn` raises, and what the caller does.
    """
    client = _Local(stdin, on_output, caller or Caller())
    child = spawn(
        [os.fsencode(word) for word in argv],
        env=build_environment({}, {os.fsencode(name): os.fsencode(value) for name, value in env.items()}),
        workdir=os.fsencode(workdir),
        with_stdin=stdin is not None,
    )
    outcome = attend(child, client, timeout_s=timeout_s, grace_s=grace_s, max_output_bytes=max_output_bytes)
    for descriptor in outcome.leftover:
        os.close(descriptor)
    outcome.stdout, outcome.stderr = (bytes(client.buffers[stream]) for stream in ("stdout", "stderr"))
    return outcome
