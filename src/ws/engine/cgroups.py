"""The control groups of this machine and of a container's first process: layout, where the limits stand.

Three layouts are met: v2 alone, v1 alone, and the hybrid of v1 controllers with a v2 tree beside them.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import Literal

from ws.errors import Busy, ContainerDied, KernelRefused
from ws.freezer import freezer_of

Layout = Literal["unified", "legacy", "hybrid"]


@dataclass(frozen=True, slots=True)
class CgroupMounts:
    """Where the controllers are mounted; "" is the v2 tree."""

    layout: Layout
    points: dict[str, str]
    unified_controllers: tuple[str, ...]


def read_mounts(mountinfo: str = "/proc/self/mountinfo") -> CgroupMounts:
    """The layout of this machine."""
    points: dict[str, str] = {}
    with open(mountinfo, encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            before, _, after = line.partition(" - ")
            kind, _, options = after.split()[:3]
            where = before.split()[4].replace("\\040", " ")
            if kind == "cgroup2":
                points.setdefault("", where)
            elif kind == "cgroup":
                for option in options.split(","):
                    if option not in ("rw", "ro", "xattr"):
                        points.setdefault(option, where)
    controllers: tuple[str, ...] = ()
    if "" in points:
        try:
            with open(os.path.join(points[""], "cgroup.controllers"), encoding="ascii") as file:
                controllers = tuple(file.read().split())
        except OSError:
            pass
    old = any(name and not name.startswith("name=") for name in points)
    layout: Layout = "unified" if not old else "hybrid" if "" in points else "legacy"
    return CgroupMounts(layout=layout, points=points, unified_controllers=controllers)


def find_directory(pid: int, controller: str) -> str | None:
    """The directory that controls a process, or None when the controller (or the process) is not there."""
    mounts = read_mounts()
    paths: dict[str, str] = {}
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
            for line in file:
                _, names, path = line.rstrip("\n").split(":", 2)
                for name in names.split(","):
                    paths[name] = path
    except (FileNotFoundError, ProcessLookupError):
        return None
    name = controller if controller in paths else ""
    if name not in paths or name not in mounts.points:
        return None
    return mounts.points[name] + paths[name].rstrip("/")


def read_delegated(uid: int, mounts: CgroupMounts) -> frozenset[str]:
    """The controllers that an ordinary user may set limits with: those systemd delegates, on cgroup v2 alone."""
    if mounts.layout != "unified":
        return frozenset()
    slice_ = f"user.slice/user-{uid}.slice/user@{uid}.service"
    return frozenset(_read(os.path.join(mounts.points[""], slice_, "cgroup.controllers")).split())


def ensure_frozen(pid: int) -> None:
    """Stop a container's processes, if they can be."""
    with contextlib.suppress(Busy, ContainerDied, KernelRefused):
        freezer_of(pid).freeze()


def ensure_thawed(pid: int) -> None:
    """Let a container's processes run, whoever froze them: frozen, they do not die of SIGKILL (cgroup v1)."""
    with contextlib.suppress(ContainerDied, KernelRefused):
        freezer_of(pid).thaw()


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
