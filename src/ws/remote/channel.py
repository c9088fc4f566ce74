"""What the host asks of a shim: ping, commands, terminals, sessions, and the end of all processes.

A command streams (`ws.shim.running` has the frames). Its output is collected up to a cap, or handed to a
callback; its input is sent as the shim confirms it, never more than a window ahead, so neither side can
block the other. Losing the connection kills the command: a caller that dies leaves nothing running behind.
"""

from __future__ import annotations

import os
import time

from ws.errors import ContainerDied, InvalidRequest, ProtocolError
from ws.remote.calls import REPLY_TIMEOUT_S, Calls, upload
from ws.remote.exec_request import check_input, check_output_cap, check_timeout, encode_command
from ws.remote.following import Following, Input, Terminal
from ws.remote.results import ExecResult, PeerFacts, SessionFacts, SessionOutput
from ws.shim.wire import MAX_BODY_BYTES, VERSION, field, optional

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, BinaryIO, Final

    from ws.remote.calls import Call, Reply

MAX_OUTPUT_BYTES: Final = 10 << 20  # of each stream
MAX_READ_BYTES: Final = 512 << 10


class Channel(Calls):
    """The host's end of one workspace's shim.

    Every method raises ContainerDied when the shim is gone, ProtocolError when it misbehaves or hangs,
    and Busy when it has no connection to spare.
    """

    def __init__(self, run_dir: str, *, peer_pid: int | None = None) -> None:
        super().__init__(run_dir, peer_pid=peer_pid)

    def ping(self, *, timeout_s: float = 5.0) -> PeerFacts:
        """Ask whether it is there."""
        result = self.ask("ping", {}, timeout_s=timeout_s).result
        facts = PeerFacts(
            version=field(result, "version", int),
            pid=field(result, "pid", int),
            uptime_s=field(result, "uptime_s", float),
            python=field(result, "python", str)[:40],
            rg=field(result, "rg", bool),
        )
        if facts.version != VERSION:
            raise ProtocolError(f"the shim speaks version {facts.version} of the protocol, not {VERSION}")
        return facts

    def wait_ready(self, deadline: float) -> PeerFacts:
        """Wait for a shim that is being started, until a time on the monotonic clock.

        Its socket is connectable when it appears. Raises ContainerDied when it does not, or when the first
        process of the container is gone.
        """
        while True:
            try:
                return self.ping(timeout_s=max(0.1, deadline - time.monotonic()))
            except ContainerDied:
                gone = self._peer_pid is not None and not os.path.exists(f"/proc/{self._peer_pid}")
                if gone or time.monotonic() >= deadline:
                    raise
            time.sleep(0.001)

    def kill_all(self) -> int:
        """SIGKILL to every process of the workspace but the shim; returns how many it could not end."""
        return field(self.ask("kill_all", {}).result, "remaining", int)

    def close_streams(self) -> int:
        """Have every open file let go of, so that the overlay can be taken off; returns how many there were."""
        return field(self.ask("streams.close", {}).result, "closed", int)

    # commands

    def exec(
        self,
        argv: Sequence[str | bytes],
        *,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes | str | BinaryIO | None = None,
        timeout_s: float | None = None,
        grace_s: float = 0.0,
        max_output_bytes: int | None = MAX_OUTPUT_BYTES,
        on_output: Callable[[str, bytes], None] | None = None,
        started: Callable[[], None] | None = None,
    ) -> ExecResult:
        """Run a command to its end; `started` is called when its process exists.

        The working directory is the root, a path below it, or an absolute one. Output is collected up to the
        cap, each stream; with `on_output` it goes there instead, and the cap may be None. Raises
        CommandNotStarted, InvalidRequest for what no command can have, LimitExceeded when the workspace has no
        process to spare or the command is longer than the kernel takes. A command that fails, or is ended at its
        deadline, is a result.
        """
        timeout_s, stdin = check_timeout(timeout_s), check_input(stdin)
        max_output_bytes = check_output_cap(max_output_bytes, None)
        if max_output_bytes is None and on_output is None:
            raise InvalidRequest("output without a cap needs somewhere to go", hint="give on_output")
        params: dict[str, Any] = {"stdin": stdin is not None, "grace_s": grace_s}
        params["timeout_s"] = timeout_s
        params["max_output_bytes"] = max_output_bytes
        buffers = {"stdout": bytearray(), "stderr": bytearray()}

        def collect(stream: str, data: bytes) -> None:
            buffers[stream] += data

        with self._begin_command("exec", params, argv, workdir, env) as call:
            following = Following(
                call,
                on_output or collect,
                time_limit_s=None if timeout_s is None else timeout_s + grace_s,
                max_output_bytes=max_output_bytes,
                started=started,
            )
            source = Input(b"" if stdin is None else stdin)
            ready = False
            while following.result is None:
                if stdin is not None:
                    source.pump(following, ready=ready)
                ready = following.step(source.descriptor(following))
        following.result.stdout_bytes = bytes(buffers["stdout"])
        following.result.stderr_bytes = bytes(buffers["stderr"])
        return following.result

    def terminal(
        self,
        argv: Sequence[str | bytes],
        *,
        rows: int = 24,
        columns: int = 80,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Terminal:
        """Run a command in a terminal, for somebody to sit at. Its errors come with the first read."""
        params = {"rows": rows, "columns": columns, "stdin": True}
        return Terminal(self._begin_command("exec", params, argv, workdir, env))

    def _begin_command(
        self,
        op: str,
        params: dict[str, Any],
        argv: Sequence[str | bytes],
        workdir: str | None,
        env: Mapping[str, str] | None,
    ) -> Call:
        """Send a request with a command; one that does not fit into a frame goes in several."""
        argc, envc, body = encode_command(argv, env, workdir)
        params = {**params, "argc": argc, "envc": envc}
        if len(body) <= MAX_BODY_BYTES:
            return self.begin(op, params, body)
        call = self.begin(op, params, more=True)
        try:
            upload(call, [body])
        except BaseException:
            call.drop()
            raise
        return call

    # sessions

    def start_session(
        self,
        argv: Sequence[str | bytes],
        *,
        rows: int = 24,
        columns: int = 80,
        workdir: str | None = None,
        env: Mapping[str, str] | None = None,
        idle_timeout_s: float | None = None,
    ) -> int:
        """Begin a terminal session that lives on between calls and processes; returns its id."""
        params = {"rows": rows, "columns": columns, "idle_timeout_s": idle_timeout_s}
        with self._begin_command("session.start", params, argv, workdir, env) as call:
            call.receive(deadline=time.monotonic() + REPLY_TIMEOUT_S)
            if call.reply is None:
                raise ProtocolError("the peer sent a frame that the call does not have")
            return field(call.reply.result, "session", int)

    def read_session(self, session_id: int, *, wait_s: float = 0.25, max_bytes: int = MAX_READ_BYTES) -> SessionOutput:
        """What it wrote within the time; at once when it ends. Raises SessionNotFound."""
        params = {"session": session_id, "wait_s": wait_s, "max_bytes": max_bytes}
        return _session_output(self.ask("session.read", params, timeout_s=wait_s + REPLY_TIMEOUT_S))

    def write_session(
        self, session_id: int, data: bytes, *, wait_s: float = 0.25, max_bytes: int = MAX_READ_BYTES
    ) -> SessionOutput:
        """Type into it, then as `read_session`."""
        params = {"session": session_id, "wait_s": wait_s, "max_bytes": max_bytes}
        return _session_output(self.ask("session.write", params, data, timeout_s=wait_s + REPLY_TIMEOUT_S))

    def resize_session(self, session_id: int, rows: int, columns: int) -> None:
        self.ask("session.resize", {"session": session_id, "rows": rows, "columns": columns})

    def close_session(self, session_id: int) -> None:
        """End it with all its processes. Raises SessionNotFound."""
        self.ask("session.close", {"session": session_id})

    def list_sessions(self) -> list[SessionFacts]:
        return [
            SessionFacts(
                id=field(entry, "session", int),
                command=field(entry, "command", str),
                running=field(entry, "running", bool),
                age_s=field(entry, "age_s", float),
                idle_s=field(entry, "idle_s", float),
            )
            for entry in field(self.ask("session.list", {}).result, "sessions", list)
            if isinstance(entry, dict)
        ]


def _session_output(reply: Reply) -> SessionOutput:
    return SessionOutput(
        reply.body,
        dropped_bytes=field(reply.result, "dropped_bytes", int),
        running=field(reply.result, "running", bool),
        exit_code=optional(reply.result, "exit_code", int),
        signal=optional(reply.result, "signal", int),
    )
