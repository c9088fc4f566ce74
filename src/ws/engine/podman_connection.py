"""The connection to podman's service: opened when first needed, opened again when the service has ended.

podman-py carries the requests. The version is read from the headers of `_ping` (2 ms): `/version` asks
every helper program for its own and takes half a second.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from podman.api.client import APIClient
from podman.errors import APIError

from ws.engine.endpoints import causes_of, find_listener
from ws.engine.podman_service import (
    Service,
    ensure_own_service,
    find_podman,
    find_system_service,
    read_runtime,
)
from ws.engine.runtimes import choose_runtime, works_here
from ws.errors import EngineUnavailable

QUICK_S = 15.0
SLOW_S = 60.0
_MINIMUM = (4, 3)
_PING_S = 3.0


@dataclass(frozen=True, slots=True)
class Reached:
    """A service that answered."""

    socket: str
    pid: int
    version: str
    runtime: str
    notes: tuple[str, ...]
    client: APIClient


class PodmanConnection:
    """Requests to one service, each with a deadline. Threads may share it."""

    def __init__(self, home: str, *, runtime: str | None) -> None:
        self._home = home
        self._asked = runtime
        self._reached: Reached | None = None
        self._lock = threading.Lock()

    def open(self) -> Reached:
        """The service, reached now or before. Raises EngineUnavailable.

        Looks whether it still listens (0.05 ms): it may have ended while idle, and podman-py leaks the socket
        that it fails to connect.
        """
        with self._lock:
            if self._reached is not None and find_listener(self._reached.socket) is None:
                self._reached.client.close()
                self._reached = None
            if self._reached is None:
                self._reached = self._reach()
            return self._reached

    def close(self) -> None:
        with self._lock:
            reached, self._reached = self._reached, None
        if reached is not None:
            reached.client.close()

    def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        data: Any = None,
        timeout_s: float = QUICK_S,
        repeatable: bool = True,
        stream: bool = False,
    ) -> Any:
        """One request; what is answered is returned, refusals too.

        A service that ended while idle is started again, and the request repeated where that is harmless.
        Raises EngineUnavailable when there is no answer in time.
        """
        headers = {"Content-Type": "application/json"} if body is not None else {}
        extra = {"data": json.dumps(body) if body is not None else data} if method == "post" else {}
        for last in (False, True):
            send: Callable[..., Any] = getattr(self.open().client, method)
            try:
                return send(path, params=params, headers=headers, timeout=(_PING_S, timeout_s), stream=stream, **extra)
            except APIError as error:
                self.close()
                causes = list(causes_of(error))
                unsent = any(isinstance(each, ConnectionRefusedError | FileNotFoundError) for each in causes)
                hung = any(isinstance(each, TimeoutError) for each in causes)
                if last or hung or not (unsent or repeatable):
                    raise EngineUnavailable(
                        f"podman did not answer {method} {path} within {timeout_s:.0f} s"
                        if hung
                        else f"the connection to podman broke: {causes[-1]}",
                        hint="see engines/podman.log in WS_HOME, and try again",
                    ) from error
        raise AssertionError("the loop returns or raises")

    def _reach(self) -> Reached:
        notes: list[str] = []
        if self._asked is None:
            service = find_system_service()
            if service is not None:
                client, version = _ping(service)
                runtime = read_runtime(service.peer.pid) or _ask_runtime(client)
                if works_here(runtime):
                    return Reached(service.socket, service.peer.pid, version, runtime, (), client)
                client.close()
                notes.append(f"{service.socket} uses {runtime}, which fails here: ws runs its own service")
        find_podman()
        runtime = choose_runtime(self._asked)
        if runtime == "runc" and not works_here("crun"):
            notes.append("runc is used: crun refuses this machine's hybrid cgroups")
        service = ensure_own_service(self._home, runtime)
        client, version = _ping(service)
        return Reached(service.socket, service.peer.pid, version, runtime, tuple(notes), client)


def _ping(service: Service) -> tuple[APIClient, str]:
    where = f"podman's service on {service.socket}"
    client = APIClient(f"unix://{service.socket}", version="4.0.0")
    try:
        response = client.get("/_ping", timeout=(_PING_S, _PING_S))
    except APIError as error:
        client.close()
        raise EngineUnavailable(
            f"{where} does not answer",
            hint=f"look at process {service.peer.pid}; once it is gone, ws starts a new service",
        ) from error
    version = str(response.headers.get("Libpod-API-Version", ""))
    numbers = version.split(".")[:2]
    if not all(number.isdigit() for number in numbers) or tuple(map(int, numbers)) < _MINIMUM:
        client.close()
        raise EngineUnavailable(
            f"{where} has version {version or 'unknown'}",
            hint=f"ws needs podman {'.'.join(map(str, _MINIMUM))} or later",
        )
    return client, version


def _ask_runtime(client: APIClient) -> str:
    """What a service says of itself; 260 ms, so only where its command line does not tell."""
    try:
        response = client.get("/info", timeout=(_PING_S, QUICK_S))
        return str(response.json()["host"]["ociRuntime"]["name"])
    except (APIError, ValueError, KeyError, TypeError) as error:
        client.close()
        raise EngineUnavailable("podman's service does not tell its runtime") from error
