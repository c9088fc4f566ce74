"""Where podman keeps network namespaces: a directory that must be a shared mount before a container has one.

A container with a user namespace has a monitor in a mount namespace of its own, which is made before the container's
network is, and there podman cleans up when the container ends. It finds the network namespace, which is a mount too,
only where mounts are passed on; else it takes it for gone and forgets it: the namespace, its address and its rules
stay for good. For containers without a user namespace podman shares the directory itself, as `ip netns` does; on a
machine that had none of those, nobody has.
"""

from __future__ import annotations

import ctypes
import fcntl
import os

from ws.errors import EngineError

DIRECTORY = "/run/netns"

_libc = ctypes.CDLL(None, use_errno=True)
_MS_BIND, _MS_REC, _MS_SHARED = 1 << 12, 1 << 14, 1 << 20


def ensure_shared(directory: str = DIRECTORY) -> None:
    """Have what is mounted below the directory seen in every mount namespace; idempotent. Raises EngineError."""
    os.makedirs(directory, mode=0o755, exist_ok=True)
    if _is_shared(directory):
        return
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # as `ip netns` does: two who bind it at once would cover each other
        if not _is_shared(directory):
            if not _mounted(directory):
                _mount(directory, directory, _MS_BIND | _MS_REC)
            _mount(None, directory, _MS_SHARED | _MS_REC)
    except OSError as error:
        raise EngineError(f"{directory} cannot be shared: {error.strerror}", hint="`--network none` works") from error
    finally:
        os.close(fd)


def _is_shared(directory: str) -> bool:
    return any(field.startswith("shared:") for field in _mounted(directory))


def _mounted(directory: str) -> list[str]:
    """The fields of the uppermost mount there, as mountinfo has them; none when there is none."""
    found: list[str] = []
    with open("/proc/thread-self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            fields = line.partition(" - ")[0].split(" ")
            if fields[4] == directory:
                found = fields
    return found


def _mount(source: str | None, target: str, flags: int) -> None:
    origin = None if source is None else os.fsencode(source)
    if _libc.mount(origin, os.fsencode(target), None, ctypes.c_ulong(flags), None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), target)
