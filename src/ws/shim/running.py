"""What the shim does about processes: run a command for a connection, keep sessions, end everything.

    exec           body: the command's words, NAME=VALUE pairs, the working directory, joined by zero bytes
                   (params argc and envc say which is which): any bytes, and scripts longer than a header
      → started    the process exists
      → data       stream: stdout or stderr
      ← data, end  input; at most WINDOW_BYTES ahead of what `want` confirmed, so that neither side ever
      → want       waits for the other to read
      ← resize, signal
      → result     exit_code, signal, timed_out, truncated, duration_s
    session.*      start, read, write, resize, list, close: see `ws.tools.sessions`
    kill_all       SIGKILL to every process but ourselves

The connection is the command's life line: when it breaks, the command's session is killed.
"""

from __future__ import annotations

import os
import time

from ws.errors import InvalidRequest, LimitExceeded, ProtocolError
from ws.shim.wire import field, optional
from ws.tools.commands import Client, Running, attend
from ws.tools.spawning import (
    SIGKILL,
    build_environment,
    end_session,
    list_processes,
    live,
    session_of,
    spawn,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Final

    from ws.shim.server import Request
    from ws.tools.sessions import Sessions

WINDOW_BYTES: Final = 64 << 10
_KILL_WAIT_S: Final = 5.0
_MAX_COMMAND_BYTES: Final = 3 << 20  # the kernel takes 2 MiB


def _words(request: Request) -> tuple[list[bytes], dict[bytes, bytes], bytes]:
    argc, envc = field(request.params, "argc", int), field(request.params, "envc", int)
    parts = _body(request).split(b"\0")
    if argc < 0 or envc < 0 or len(parts) != argc + envc + 1:
        raise InvalidRequest("a command cannot contain a zero byte")
    pairs = (part.partition(b"=") for part in parts[argc:-1])
    env = build_environment(request.server.base_env, {name: value for name, _, value in pairs})
    return parts[:argc], env, os.path.join(os.fsencode(request.server.root), parts[-1])


def _body(request: Request) -> bytes:
    """The bytes of a command, which may come in several frames. Raises LimitExceeded."""
    body = bytearray()
    for chunk in request.chunks():
        body += chunk
        if len(body) > _MAX_COMMAND_BYTES:
            raise LimitExceeded(f"a command of more than {_MAX_COMMAND_BYTES:,} bytes")
    return bytes(body)


def _size(params: dict[str, Any]) -> tuple[int, int] | None:
    if params.get("rows") is None:
        return None
    from ws.tools.sessions import check_size

    size = field(params, "rows", int), field(params, "columns", int)
    check_size(size)
    return size


class _Remote(Client):
    """The connection a command runs for."""

    def __init__(self, request: Request) -> None:
        self._connection = request.connection
        self._id = request.id
        self._unconfirmed = 0
        self.descriptor = request.connection.fileno()

    @property
    def backlogged(self) -> bool:
        return self._connection.backlogged

    def say(self, kind: str, fields: dict[str, Any], body: bytes = b"") -> None:
        self._connection.queue({"id": self._id, "kind": kind, **fields}, body)
        self._connection.flush()

    def begun(self, running: Running, pid: int) -> None:
        self.say("started", {"pid": pid})
        self._take_frames(running)  # those that came together with the request; no poll would tell of them

    def output(self, stream: str, data: bytes) -> None:
        self.say("data", {"stream": stream}, data)

    def input_taken(self, running: Running, size_bytes: int) -> None:  # noqa: ARG002
        self._unconfirmed += size_bytes
        if self._unconfirmed >= WINDOW_BYTES // 2:
            self.say("want", {"size_bytes": self._unconfirmed})
            self._unconfirmed = 0

    def ready(self, running: Running) -> None:
        self._connection.flush()
        self._connection.fill()
        self._take_frames(running)

    def _take_frames(self, running: Running) -> None:
        while (frame := self._connection.next_frame()) is not None:
            header, body = frame
            if field(header, "id", int) != self._id:
                raise ProtocolError("a request was sent before the last one was answered")
            match field(header, "kind", str):
                case "data":
                    running.feed(body)
                case "end":
                    running.finish_input()
                case "resize":
                    size = _size(header)
                    if size is not None:
                        running.resize(size)
                case "signal":
                    running.signal(field(header, "signal", int))
                case kind:
                    raise ProtocolError(f"{kind[:40]!r} is no frame of exec")


def execute(request: Request) -> dict[str, Any]:
    """Run a command and stream what it writes."""
    argv, env, workdir = _words(request)
    params = request.params
    timeout_s = optional(params, "timeout_s", float)
    grace_s = optional(params, "grace_s", float) or 0.0
    max_output_bytes = optional(params, "max_output_bytes", int)
    with_stdin = bool(optional(params, "stdin", bool))
    child = spawn(argv, env=env, workdir=workdir, with_stdin=with_stdin, tty_size=_size(params))
    outcome = attend(child, _Remote(request), timeout_s=timeout_s, grace_s=grace_s, max_output_bytes=max_output_bytes)
    if outcome.leftover:
        request.server.adopt(outcome.leftover)
    return {
        "exit_code": outcome.exit_code,
        "signal": outcome.signal,
        "timed_out": outcome.timed_out,
        "truncated": outcome.truncated,
        "duration_s": round(outcome.duration_s, 6),
    }


def kill_all(request: Request) -> dict[str, Any]:
    """End every process that can be, and say how many are left (those of other users)."""
    deadline = time.monotonic() + _KILL_WAIT_S
    while True:
        left = _kill_others(is_init=request.server.is_init)
        if not left or time.monotonic() >= deadline:
            return {"remaining": left}
        time.sleep(0.001)


def _kill_others(*, is_init: bool) -> int:
    if not is_init:  # on a host we end what we started, and nothing else
        for leader in list(live):
            end_session(leader)
        return len(live)
    try:
        os.kill(-1, SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass
    return sum(pid != 1 and session_of(pid) is not None for pid in list_processes())


_sessions: Sessions | None = None


def all_sessions() -> Sessions:
    """The workspace's terminal sessions: of `session.*` and of the tools."""
    global _sessions
    if _sessions is None:
        from ws.tools.sessions import Sessions

        _sessions = Sessions()
    return _sessions


def session_start(request: Request) -> dict[str, Any]:
    argv, env, workdir = _words(request)
    from ws.tools.sessions import IDLE_TIMEOUT_S

    number = all_sessions().start(
        argv,
        env=env,
        workdir=workdir,
        size=_size(request.params) or (24, 80),
        idle_timeout_s=optional(request.params, "idle_timeout_s", float) or IDLE_TIMEOUT_S,
    )
    return {"session": number}


def session_write(request: Request) -> tuple[dict[str, Any], bytes]:
    all_sessions().find(field(request.params, "session", int)).write(request.body)
    return session_read(request)


def session_read(request: Request) -> tuple[dict[str, Any], bytes]:
    found = all_sessions().read(
        field(request.params, "session", int),
        wait_s=min(max(0.0, field(request.params, "wait_s", float)), 3600.0),
        max_bytes=field(request.params, "max_bytes", int),
    )
    return {
        "running": found.running,
        "exit_code": found.exit_code,
        "signal": found.signal,
        "dropped_bytes": found.dropped_bytes,
    }, found.data


def session_resize(request: Request) -> dict[str, Any]:
    size = _size(request.params)
    if size is not None:
        all_sessions().find(field(request.params, "session", int)).resize(size)
    return {}


def session_list(request: Request) -> dict[str, Any]:  # noqa: ARG001
    now = time.monotonic()
    return {
        "sessions": [
            {
                "session": session.id,
                "command": session.command,
                "running": session.ended_at is None,
                "age_s": round(now - session.started_at, 3),
                "idle_s": round(now - session.used_at, 3),
            }
            for session in (all_sessions().list() if _sessions else ())
        ]
    }


def session_close(request: Request) -> dict[str, Any]:
    all_sessions().close(field(request.params, "session", int))
    return {}


OPS: Final = {
    "exec": execute,
    "kill_all": kill_all,
    "session.start": session_start,
    "session.read": session_read,
    "session.write": session_write,
    "session.resize": session_resize,
    "session.list": session_list,
    "session.close": session_close,
}
