"""What the user namespace of a container may hold: /proc/sys/user, as the kernel counts it there.

An inotify instance is charged to the user in the container's namespace, and once more to the owner of the namespace:
root, whose service made it, or rootless the user. The kernel gives a user 128 instances. So each container gets a share
of what one user has, and no namespaces at all: system calls that make them are refused anyway (`seccomp`).
"""

from __future__ import annotations

import os

from ws import userns
from ws.errors import EngineError

_SHARE = 8
_DIRECTORY = "/proc/sys/user"
# The limits of one user, by the names that they have in a namespace, and the least that a container gets.
_COUNTED = {
    "max_inotify_instances": ("/proc/sys/fs/inotify/max_user_instances", 16),
    "max_inotify_watches": ("/proc/sys/fs/inotify/max_user_watches", 8_192),
    "max_fanotify_groups": ("/proc/sys/fs/fanotify/max_user_groups", 16),
    "max_fanotify_marks": ("/proc/sys/fs/fanotify/max_user_marks", 8_192),
}


def plan_limits() -> dict[str, int]:
    """The limits for a container, of those that this kernel has."""
    names = os.listdir(_DIRECTORY)
    limits = {name: 0 for name in names if name.endswith("_namespaces")}
    for name, (source, least) in _COUNTED.items():
        if name in names:
            limits[name] = max(least, _read(source, default=least * _SHARE) // _SHARE)
    return limits


def restrict_namespace(pid: int) -> None:
    """Set the limits of a container's user namespace; idempotent. Nothing when it has none of its own.

    Raises EngineError: such a container must not be used.
    """
    try:
        if os.stat(f"/proc/{pid}/ns/user").st_ino == os.stat("/proc/self/ns/user").st_ino:
            return
        userns.restrict(pid, plan_limits())
    except OSError as error:
        raise EngineError(f"the limits of the container's user namespace cannot be set: {error}") from error


def _read(path: str, *, default: int) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return default
