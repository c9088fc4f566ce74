"""Standard tools run inside a workspace: the backend of a router, at the other end of a shim.

The workspace's lock is held while a file tool works, and for a command until its process exists: a restore may come
while it runs, and ends it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from ws.errors import LimitExceeded, ProtocolError
from ws.remote.calls import MAX_REPLY_BYTES, REPLY_TIMEOUT_S, Call, upload
from ws.remote.entering import Door, Inside
from ws.shim.wire import MAX_BODY_BYTES
from ws.tools.context import Caps, ToolResult
from ws.tools.dispatch import COMMANDS
from ws.tools.results import decode_result, encode_params

FILE_TIMEOUT_S: Final = 600.0  # a search through a large tree says nothing before it is done
_OWN_TIMES: Final = ("timeout_ms", "yield_time_ms")


class RemoteBackend:
    """Where the router of a workspace has its tools run."""

    def __init__(
        self,
        door: Door,
        *,
        allowed_paths: Sequence[str] = (),
        restricted_paths: Sequence[str] = (),
        caps: Caps | None = None,
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """`waiting` is entered for as long as the container is at work."""
        self._door = door
        self._waiting = waiting
        self._rules: dict[str, Any] = {}  # in the shim's words (`shim.places`); what is usual goes without saying
        if allowed_paths:
            self._rules["allowed_paths"] = list(allowed_paths)
        if restricted_paths:
            self._rules["restricted_paths"] = list(restricted_paths)
        if caps is not None:
            self._rules["caps"] = {name: getattr(caps, name) for name in Caps.__slots__}

    @property
    def root(self) -> str:
        return self._door.root

    def run(self, tool: str, params: Mapping[str, Any]) -> ToolResult:
        """Raises what the tool raises, and ContainerDied, ProtocolError, Busy, WorkspaceNotFound."""
        with self._door.enter() as inside:
            asked: dict[str, Any] = {"tool": tool, "params": dict(params)}
            if self._rules:
                asked["rules"] = self._rules
            if tool in COMMANDS:
                asked["env"] = dict(inside.env)
            data = memoryview(encode_params(asked))
            more = len(data) > MAX_BODY_BYTES
            with inside.calls.begin("tool", {}, data[:MAX_BODY_BYTES], more=more) as call:
                if more:
                    upload(call, (data[MAX_BODY_BYTES:],))
                return decode_result(self._collect(call, inside, _timeout_s(params)))

    def _collect(self, call: Call, inside: Inside, timeout_s: float) -> bytes:
        collected = bytearray()
        while True:
            with self._waiting():
                kind, _, body = call.receive(deadline=time.monotonic() + timeout_s)
            if kind == "started":
                inside.leave()
            elif kind in ("data", "result"):
                collected += body
                if len(collected) > MAX_REPLY_BYTES:
                    raise LimitExceeded(f"the result of a tool is larger than {MAX_REPLY_BYTES:,} bytes")
                if kind == "result":
                    return bytes(collected)
            else:
                raise ProtocolError("the peer sent a frame that the call does not have")


def _timeout_s(params: Mapping[str, Any]) -> float:
    given = [params[name] for name in _OWN_TIMES if isinstance(params.get(name), int)]
    return given[0] / 1000 + REPLY_TIMEOUT_S if given else FILE_TIMEOUT_S
