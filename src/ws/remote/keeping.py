"""A command of another user, followed from the host: the engine runs a keeper for it (`ws.shim.keeper`).

The shim has one user, and no right to become another; so this goes through the engine, which is slower. The same is
promised: output as it comes, caps, a deadline, an end with the caller's. What runs in the container is hostile: what
comes before the keeper's first word is bounded, and its errors are of the closed set.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ws.engine import RUNTIME
from ws.errors import EngineError, ProtocolError
from ws.remote.results import ExecResult
from ws.shim.faults import rebuild_error
from ws.shim.keeper import BEGUN, FAILED
from ws.shim.place import keeper_command
from ws.shim.wire import decode_header

if TYPE_CHECKING:
    from ws.engine.base import Engine, OnOutput

_MAX_BEFORE_BYTES = 1 << 20


def exec_kept(
    engine: Engine,
    container_id: str,
    argv: Sequence[str],
    *,
    user: str,
    workdir: str,
    env: Mapping[str, str],
    timeout_s: float | None,
    max_output_bytes: int | None,
    on_output: OnOutput | None,
    started: Callable[[], None],
) -> ExecResult:
    """Run a command to its end; `started` is called when its process exists.

    Raises CommandNotStarted, InvalidRequest for a workdir that is none, ContainerDied, EngineError when the engine
    does not start it, EngineUnavailable.
    """
    output = _Output(on_output, max_output_bytes, started)
    began = time.monotonic()
    # Where there is no container, nobody else may read the runtime: the command has no keeper then, and may outlive us.
    kept = engine.name != "none"
    if not kept:
        output.begin(b"")
    words = (*keeper_command(RUNTIME), workdir, *argv) if kept else argv
    ended = engine.exec(
        container_id,
        words,
        user=user,
        workdir="/" if kept else workdir,
        env=env,
        timeout_s=timeout_s,
        on_output=output.take,
    )
    if not ended.timed_out:
        output.check_begun()
    return ExecResult(
        exit_code=ended.exit_code,
        stdout_bytes=bytes(output.collected["stdout"]),
        stderr_bytes=bytes(output.collected["stderr"]),
        truncated=output.truncated,
        timed_out=ended.timed_out,
        duration_s=time.monotonic() - began,
    )


class _Output:
    """First what is said of the start, then what the command writes, each stream up to the cap."""

    def __init__(self, on_output: OnOutput | None, max_output_bytes: int | None, started: Callable[[], None]) -> None:
        self.collected = {"stdout": bytearray(), "stderr": bytearray()}
        self.truncated = False
        self._room = dict.fromkeys(self.collected, max_output_bytes)
        self._on_output = on_output or self._collect
        self._started = started
        self._begun = False
        self._before = {"stdout": b"", "stderr": b""}

    def take(self, stream: str, data: bytes) -> None:
        if self._begun:
            self._pass_on(stream, data)
            return
        # The streams are two pipes: what a command says on the one may overtake the keeper's word on the other.
        self._before[stream] += data
        if self._before["stdout"].startswith(BEGUN):
            self._started()
            self.begin(self._before["stdout"][len(BEGUN) :])
        elif len(self._before[stream]) > _MAX_BEFORE_BYTES:
            raise ProtocolError("a command of another user has much to say, but not that it was started")

    def begin(self, stdout: bytes) -> None:
        self._begun = True
        for stream, data in (("stdout", stdout), ("stderr", self._before["stderr"])):
            self._pass_on(stream, data)

    def check_begun(self) -> None:
        """Raises what kept the command from being started, if it was."""
        if self._begun:
            return
        said = self._before["stdout"]
        if said.startswith(FAILED):
            raise rebuild_error(decode_header(said[len(FAILED) :]))
        complaint = (self._before["stderr"] + said).decode(errors="replace").strip()
        raise EngineError(
            f"the engine did not start the command: {complaint[:500]}",
            hint="a user is a name that the image has, or a number",
        )

    def _pass_on(self, stream: str, data: bytes) -> None:
        room = self._room[stream]
        if room is not None:
            self.truncated |= len(data) > room
            data = data[:room]
            self._room[stream] = room - len(data)
        if data:
            self._on_output(stream, data)

    def _collect(self, stream: str, data: bytes) -> None:
        self.collected[stream] += data
