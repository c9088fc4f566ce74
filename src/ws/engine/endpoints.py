"""Unix sockets of engines: where they may lie, who listens, and a raw stream over one with a deadline.

The SDKs speak HTTP to these sockets. Two things they do not do are here: tell who is at the other end, and
read a hijacked stream (the output of an exec) so that it ends in time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import stat
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ws.errors import EngineError, EngineUnavailable

_PATH_BYTES = 107  # sun_path, less the final zero
_PLAIN = re.compile(r"[A-Za-z0-9/._-]+")
_FRAME = struct.Struct(">B3xI")  # stream (1 stdout, 2 stderr), length
_CHUNK = 64 << 10


def parse_endpoint(url: str, *, variable: str) -> str:
    """The socket's path in a unix:// URL. Raises EngineUnavailable for engines of another machine."""
    scheme, _, path = url.partition("://")
    if scheme not in ("unix", "http+unix") or not path.startswith("/"):
        raise EngineUnavailable(
            f"{variable}={url} is not a local socket",
            hint=f"a workspace shares directories with its engine: unset {variable}, or name unix:///PATH",
        )
    return path


def shorten_socket(path: str) -> str:
    """`path`, or a short one under the user's runtime directory, named by the hash of the long one.

    Short means that it fits into sockaddr_un, and holds no character that podman-py's URL quoting would bend.
    """
    if len(os.fsencode(path)) <= _PATH_BYTES and _PLAIN.fullmatch(path):
        return path
    candidates = [os.environ.get("XDG_RUNTIME_DIR", ""), "/run", "/tmp"]
    parent = next(each for each in candidates if each and os.access(each, os.W_OK | os.X_OK))
    directory = os.path.join(parent, f"ws-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        os.mkdir(directory, 0o700)
    found = os.lstat(directory)
    # In /tmp anyone could have made it first.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise EngineUnavailable(f"{directory} is not ours", hint="set WS_HOME to a shorter path")
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:16]
    return os.path.join(directory, f"{digest}.sock")


@dataclass(frozen=True, slots=True)
class Peer:
    pid: int
    uid: int


def find_listener(path: str, *, timeout_s: float = 2.0) -> Peer | None:
    """Who listens on the socket, or None when nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout_s)
        try:
            sock.connect(path)
        except (OSError, ValueError):
            return None
        pid, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return Peer(pid, uid)


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """An exception and what it came from: the SDKs wrap a refused or silent socket several times over."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextlib.contextmanager
def hijack(path: str, target: str, body: dict[str, object], *, timeout_s: float) -> Iterator[socket.socket]:
    """POST, and yield the connection once the engine has turned it into a raw stream.

    Raises EngineUnavailable when it does not answer in time, EngineError when it refuses.
    """
    payload = json.dumps(body).encode()
    request = (
        f"POST {target} HTTP/1.1\r\nHost: ws\r\nContent-Type: application/json\r\n"
        f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(payload)}\r\n\r\n"
    ).encode() + payload
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(timeout_s)
        try:
            sock.connect(path)
            sock.sendall(request)
            head = b""
            # Byte by byte: what comes after the blank line belongs to the stream.
            while not head.endswith(b"\r\n\r\n") and len(head) < 16 << 10:
                byte = sock.recv(1)
                if not byte:
                    raise EngineError("the engine closed the connection")
                head += byte
            status = int(head.split(None, 2)[1])
            if status not in (101, 200):
                raise EngineError(
                    f"the engine refused to attach: {_read_message(sock)}",
                    hint="a user is a name that the image has, or a number; a directory must be there",
                )
        except OSError as error:
            raise EngineUnavailable(f"no answer from {path}: {error}") from error
        yield sock


def _read_message(sock: socket.socket) -> str:
    text = sock.recv(_CHUNK).decode(errors="replace")
    with contextlib.suppress(ValueError, KeyError, TypeError):
        return str(json.loads(text)["message"])
    return text.strip()[:500]


class Frames:
    """The two streams of an exec, multiplexed on one connection; each piece is handed on as it comes."""

    def __init__(self, sock: socket.socket, output: Callable[[str, bytes], None]) -> None:
        self._sock = sock
        self._output = output
        self._header = bytearray()
        self._stream = ""
        self._left = 0

    def read_until(self, deadline: float) -> bool:
        """Read on; True at the end of the stream, False when the deadline came first."""
        while True:
            wait_s = deadline - time.monotonic()
            if wait_s <= 0:
                return False
            self._sock.settimeout(wait_s)
            try:
                data = self._sock.recv(min(self._left, _CHUNK) or _FRAME.size - len(self._header))
            except TimeoutError:
                return False
            except ConnectionResetError:
                return True
            if not data:
                return True
            if self._left:
                self._left -= len(data)
                self._output(self._stream, data)
                continue
            self._header += data
            if len(self._header) == _FRAME.size:
                number, self._left = _FRAME.unpack(self._header)
                self._stream = "stderr" if number == 2 else "stdout"
                self._header.clear()
