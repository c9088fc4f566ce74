"""What the kernel says of a container while it runs: whether somebody has paused it, how often memory ran out in it.

Every command asks, so where it stands is found once for a container, and each look is one small read: 10 µs of the
millisecond that a command takes.
"""

from __future__ import annotations

import os

from ws.errors import ContainerDied, KernelRefused
from ws.freezer import Freezer, cgroup_mounts, cgroups_of, freezer_of

_OOM_FILES = ("memory.events", "memory.oom_control")  # of cgroup v2 and v1


class Vitals:
    """The container whose first process is `pid`. Where the kernel does not say, all is well."""

    def __init__(self, pid: int) -> None:
        self._freezer: Freezer | None = None
        self._oom_file = ""
        try:
            self._freezer = freezer_of(pid)
            self._oom_file = _oom_file(pid)
        except (ContainerDied, KernelRefused):
            pass

    def paused(self) -> bool:
        """Whether its processes are stopped; ours are so only under the workspace's lock."""
        try:
            return self._freezer is not None and self._freezer.freezing()
        except (ContainerDied, KernelRefused):
            return False

    def oom_kills(self) -> int:
        """How many of its processes the kernel has ended so far for want of memory."""
        if not self._oom_file:
            return 0
        try:
            fd = os.open(self._oom_file, os.O_RDONLY | os.O_CLOEXEC)
            try:
                text = os.read(fd, 4096)
            finally:
                os.close(fd)
        except OSError:
            return 0
        return int(text.partition(b"oom_kill ")[2].split(b"\n", 1)[0] or 0)


def _oom_file(pid: int) -> str:
    mounts, paths = cgroup_mounts(), cgroups_of(str(pid))
    name = "memory" if "memory" in paths else ""
    if name not in mounts or name not in paths:
        return ""
    directory = mounts[name] + paths[name].rstrip("/")
    return next((path for each in _OOM_FILES if os.path.exists(path := f"{directory}/{each}")), "")
