"""The podman service: the one that listens already, else one of our own.

podman has no daemon; its API is served by `podman system service`. A system's own service is used when its
runtime works on this machine. Otherwise ws starts one, with the runtime it chose, in its own session, and it
ends by itself when idle. A `flock` makes one of several processes start it; the others find it listening.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Iterable
from dataclasses import dataclass

from ws import durable
from ws.engine.endpoints import Peer, find_listener, parse_endpoint, shorten_socket
from ws.engine.podman_userns import in_podmans_mounts, noted_pause
from ws.engine.processes import kill_all, spawn_detached
from ws.errors import EngineUnavailable
from ws.layout import process_start

IDLE_S = 300
_START_S = 5.0
_LOG_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Service:
    socket: str
    peer: Peer
    ours: bool


def is_rootless() -> bool:
    """Whether we are an ordinary user, or root only inside a user namespace such as `podman unshare`."""
    if os.geteuid() != 0:
        return True
    with open("/proc/self/uid_map", encoding="ascii") as file:
        return file.read().split() != ["0", "0", "4294967295"]


def real_uid() -> int:
    """Who we are outside of a user namespace."""
    with open("/proc/self/uid_map", encoding="ascii") as file:
        for line in file:
            first, outer, count = map(int, line.split())
            if first <= os.geteuid() < first + count:
                return outer + os.geteuid() - first
    return os.geteuid()


def find_system_service() -> Service | None:
    """The service that the user named or the system runs, if it listens and belongs to us.

    Raises EngineUnavailable when CONTAINER_HOST names one that does not listen, or is not local.
    """
    named = os.environ.get("CONTAINER_HOST")
    if named:
        path = parse_endpoint(named, variable="CONTAINER_HOST")
        peer = find_listener(path)
        if peer is None:
            raise EngineUnavailable(
                f"nothing listens on CONTAINER_HOST={named}",
                hint="start it with `podman system service`, or unset CONTAINER_HOST",
            )
        return Service(path, peer, ours=False)
    runtime_dir = os.environ.get("XDG_RUNTIME_DIR")
    candidates = ["/run/podman/podman.sock"] if not is_rootless() else []
    if runtime_dir and is_rootless():
        candidates.append(os.path.join(runtime_dir, "podman", "podman.sock"))
    for path in candidates:
        peer = find_listener(path)
        if peer is not None and peer.uid == os.geteuid():
            return Service(path, peer, ours=False)
    return None


def check_same_view(pid: int, paths: Iterable[str]) -> None:
    """Raises EngineUnavailable when a service has another directory than ours under one of these paths, or none.

    A service may be in a mount namespace that is older than a mount of ours. It would bind what lies below the mount.
    """
    for path in paths:
        ours = os.stat(path)
        try:
            theirs = os.stat(f"/proc/{pid}/root{os.path.realpath(path)}")
        except PermissionError:
            continue  # another user's service: podman itself says what it lacks
        except OSError:
            theirs = None
        if theirs is None or not os.path.samestat(ours, theirs):
            raise EngineUnavailable(
                f"podman does not see {path} as ws does: it lies on a mount that is newer than podman's namespace",
                hint="end podman's processes with `podman system migrate`, or put WS_HOME on another filesystem",
            )


def find_podman() -> str:
    """The program. Raises EngineUnavailable."""
    binary = shutil.which("podman")
    if binary is None:
        raise EngineUnavailable("podman is not installed", hint="apt-get install podman runc uidmap")
    return binary


def read_runtime(pid: int) -> str | None:
    """The runtime that a service was told to use, if its command line says so."""
    try:
        with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
            words = file.read().split("\0")
    except OSError:
        return None
    if os.path.basename(words[0]) != "podman" or "--runtime" not in words:
        return None
    return words[words.index("--runtime") + 1]


def ensure_own_service(home: str, runtime: str) -> Service:
    """Our service for this WS_HOME and runtime, started if it does not run.

    Raises EngineUnavailable when podman is not installed or its service does not come up.
    """
    engines = os.path.join(home, "engines")
    mark = runtime if runtime.isalnum() else hashlib.sha256(runtime.encode()).hexdigest()[:8]
    path = shorten_socket(os.path.join(engines, f"podman-{mark}.sock"))
    peer = find_listener(path)
    if peer is None:
        binary = find_podman()
        os.makedirs(engines, mode=0o700, exist_ok=True)
        lock = os.path.join(engines, "podman.lock")
        durable.create_lock_file(lock)
        with durable.locked(lock, timeout_s=2 * _START_S, what="the start of podman's service"):
            peer = find_listener(path) or _start(binary, runtime, path, os.path.join(engines, "podman.log"))
    return Service(path, peer, ours=True)


def _start(binary: str, runtime: str, path: str, log: str) -> Peer:
    pause = noted_pause()
    if pause is not None:
        check_same_view(pause, [os.path.dirname(log)])
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # left by one that was killed; the lock is ours, so nobody is about to listen on it
    with contextlib.suppress(FileNotFoundError):
        if os.path.getsize(log) > _LOG_BYTES:
            os.truncate(log, 0)
    began = os.path.getsize(log) if os.path.exists(log) else 0
    # These would make the service a client of another one.
    env = {k: v for k, v in os.environ.items() if k not in ("CONTAINER_HOST", "CONTAINER_CONNECTION")}
    argv = [binary, "--runtime", runtime, "system", "service", "-t", str(IDLE_S), f"unix://{path}"]
    pid = in_podmans_mounts(lambda: spawn_detached(argv, log=log, env=env))
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        peer = find_listener(path)
        if peer is not None:
            return peer
        if process_start(pid) is None:
            break
        time.sleep(0.01)
    kill_all(pid)
    with open(log, encoding="utf-8", errors="replace") as file:
        file.seek(began)
        said = file.read()[-500:].strip() or "it said nothing"
    raise EngineUnavailable(f"podman's service did not start: {said}", hint=f"run `{' '.join(argv)}` to see why")
