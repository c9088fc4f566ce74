"""One command through an engine's own exec: deadline, partial output, and nothing of it left running.

Both engines leave the command running when their client goes away (measured), and keep the stream open for as
long as some grandchild holds it. So the end of a command is the end of its process plus a short drain, and on
a timeout its processes are killed from the host, by the pid that the engine reports.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from ws.engine.base import ExecOutput, OnOutput
from ws.engine.endpoints import Frames, hijack
from ws.engine.processes import kill_all
from ws.errors import EngineError

_ATTACH_S = 30.0
_DRAIN_S = 0.2
_LOOK_FIRST_S = 0.1
_LOOK_MOST_S = 2.0


class Collected:
    """What a command wrote, each stream up to a cap; for a caller who does not take it as it comes."""

    CAP_BYTES = 8 << 20

    def __init__(self) -> None:
        self._streams = {"stdout": bytearray(), "stderr": bytearray()}
        self._truncated = False

    def take(self, stream: str, data: bytes) -> None:
        kept = self._streams[stream]
        room = self.CAP_BYTES - len(kept)
        kept += data[:room]
        self._truncated |= len(data) > room

    def output(self, exit_code: int, *, timed_out: bool) -> ExecOutput:
        stdout, stderr = map(bytes, self._streams.values())
        return ExecOutput(exit_code, stdout, stderr, timed_out, self._truncated)


@dataclass(frozen=True, slots=True)
class ExecState:
    running: bool
    pid: int
    exit_code: int


def run_exec(
    socket_path: str,
    target: str,
    *,
    inspect: Callable[[], ExecState],
    container_pid: int,
    timeout_s: float | None,
    on_output: OnOutput | None,
) -> ExecOutput:
    """Start a prepared exec and wait for it. A timeout is a result, with what came before it.

    The connection is its input: nothing is sent, and it ends with us.

    Raises EngineError when the engine refuses, EngineUnavailable when it does not answer.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    collected = Collected()
    with hijack(socket_path, target, {"Detach": False, "Tty": False}, timeout_s=_ATTACH_S) as sock:
        frames = Frames(sock, on_output or collected.take)
        try:
            timed_out = not _wait(frames, inspect, deadline)
        except BaseException:
            _end(inspect, container_pid)
            raise
        if timed_out:
            _end(inspect, container_pid)
            frames.read_until(time.monotonic() + _DRAIN_S)
    return collected.output(_exit_code(inspect), timed_out=timed_out)


def _wait(frames: Frames, inspect: Callable[[], ExecState], deadline: float | None) -> bool:
    look_s = _LOOK_FIRST_S
    while True:
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            return False
        until = now + look_s if deadline is None else min(now + look_s, deadline)
        if frames.read_until(until):
            return True
        state = inspect()
        if not state.running and state.pid:
            frames.read_until(time.monotonic() + _DRAIN_S)
            return True
        look_s = min(look_s * 2, _LOOK_MOST_S)


def _end(inspect: Callable[[], ExecState], container_pid: int) -> None:
    state = inspect()
    if not state.running or not state.pid:
        return
    try:
        # A pid can be another's by now; nothing outside the container's own pid namespace is ever killed.
        inside = os.readlink(f"/proc/{state.pid}/ns/pid") == os.readlink(f"/proc/{container_pid}/ns/pid")
    except OSError:
        return
    if inside and not kill_all(state.pid):
        raise EngineError(f"process {state.pid} of a timed out command cannot be killed")


def _exit_code(inspect: Callable[[], ExecState]) -> int:
    """The engine learns of the end a moment after the stream has closed."""
    deadline = time.monotonic() + 5.0
    while True:
        state = inspect()
        if not state.running:
            return state.exit_code
        if time.monotonic() >= deadline:
            raise EngineError("the engine does not say how the command ended")
        time.sleep(0.01)
