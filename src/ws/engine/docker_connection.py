"""The connection to docker's daemon: the version to speak, one pool of connections, errors in our words.

The SDK's own adapter has a pool for each URL and closes the least used one, under whoever uses it: threads that ask
different things break each other's requests, and no connection is ever used again. Here one socket has one pool.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import docker
from docker.errors import APIError, DockerException, NotFound
from docker.transport import UnixHTTPAdapter
from docker.transport.unixconn import UnixHTTPConnectionPool

from ws.engine.endpoints import causes_of, find_listener, parse_endpoint
from ws.errors import EngineError, EngineUnavailable

PING_S = 3
QUICK_S = 15
SLOW_S = 60
IMAGE_S = 900
_OLDEST = (1, 41)  # docker 20.10
_NEWEST = (1, 44)  # what docker 29 takes at least
_KEPT = 8  # connections that stay open for the next requests


class _OneSocket(UnixHTTPAdapter):
    def __init__(self, path: str, timeout_s: int) -> None:
        super().__init__(f"http+unix://{path}", timeout_s)
        self._pool = UnixHTTPConnectionPool("http://localhost", path, timeout_s, maxsize=_KEPT)

    def get_connection(self, url: Any, proxies: Any = None) -> UnixHTTPConnectionPool:  # noqa: ARG002
        return self._pool

    def close(self) -> None:
        super().close()
        self._pool.close()


class DockerConnection:
    """Requests to one daemon, each with a deadline. Threads may share it."""

    def __init__(self) -> None:
        self._clients: dict[int, docker.APIClient] = {}  # by deadline
        self._lock = threading.Lock()
        self.api = ""
        self.version = ""

    def close(self) -> None:
        with self._lock:
            clients, self._clients = self._clients, {}
        for client in clients.values():
            client.close()

    def open(self) -> None:
        """Find the version to speak. Raises EngineUnavailable."""
        self.close()
        path = socket_path()
        if not os.path.exists(path):
            raise EngineUnavailable(f"docker is not running: no {path}", hint="start dockerd, or use podman")
        if find_listener(path) is None:
            raise EngineUnavailable(
                f"nobody we can reach listens on {path}", hint="start dockerd, or join the group docker"
            )
        self.api = ".".join(map(str, _OLDEST))
        found = self.ask(PING_S, "version", api_version=False)
        newest, oldest = _numbers(found.get("ApiVersion", "")), _numbers(found.get("MinAPIVersion", ""))
        chosen = min(newest, max(_NEWEST, oldest))
        if chosen < _OLDEST:
            raise EngineUnavailable(
                f"docker on {path} speaks API {found.get('ApiVersion') or 'unknown'}",
                hint="ws needs docker 20.10 or later",
            )
        self.close()
        self.api = ".".join(map(str, chosen))
        self.version = str(found.get("Version", ""))

    def ask(self, timeout_s: int, call: str, *args: Any, **kwargs: Any) -> Any:
        """One call of the SDK. Raises the SDK's NotFound, else EngineError or EngineUnavailable."""
        if not self.api:
            self.open()
        with self._lock:
            client = self._clients.get(timeout_s)
            if client is None:
                client = docker.APIClient(f"unix://{socket_path()}", version=self.api, timeout=timeout_s)
                client.mount("http+docker://", _OneSocket(socket_path(), timeout_s))
                self._clients[timeout_s] = client
        with translated(call):
            return getattr(client, call)(*args, **kwargs)


def socket_path() -> str:
    named = os.environ.get("DOCKER_HOST")
    return parse_endpoint(named, variable="DOCKER_HOST") if named else "/var/run/docker.sock"


def _numbers(version: str) -> tuple[int, int]:
    major, _, minor = version.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)


@contextlib.contextmanager
def translated(call: str) -> Iterator[None]:
    try:
        yield
    except NotFound:
        raise
    except APIError as error:
        raise EngineError(f"docker: {error.explanation or error}") from error
    except (DockerException, OSError) as error:  # requests' own are OSErrors
        if any(isinstance(each, TimeoutError) for each in causes_of(error)):
            raise EngineUnavailable(
                f"docker did not answer {call} in time", hint="is dockerd stopped or overloaded?"
            ) from error
        raise EngineUnavailable(
            f"docker cannot be reached: {error}", hint="start dockerd, or look at its log"
        ) from error
