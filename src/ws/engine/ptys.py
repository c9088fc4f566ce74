"""How many terminals a container may have: the kernel counts them for the whole machine (kernel.pty.max, 4,096).

Each container has a devpts of its own, with a limit of its own for who asks for one. A remount sets it; what a remount
does not name falls back to the kernel's default, so all that is there is named again.
"""

from __future__ import annotations

import ctypes
import os

from ws import overlay
from ws.errors import EngineError, KernelRefused

MAX_PTYS = 128
_TARGET = "/dev/pts"
_MS_REMOUNT = 1 << 5
_FLAGS = {"ro": 1, "nosuid": 2, "nodev": 4, "noexec": 8, "noatime": 1 << 10, "nodiratime": 1 << 11, "relatime": 1 << 21}

_libc = ctypes.CDLL(None, use_errno=True)


def limit_ptys(pid: int) -> None:
    """Bound the terminals of the container whose first process is `pid`; idempotent. Nothing without a devpts.

    Raises EngineError: such a container must not be used.
    """
    found = _find_mount(pid)
    if found is None or f"max={MAX_PTYS}" in found[1]:
        return
    flags, options = found
    data = ",".join([*_kept(options), f"max={MAX_PTYS}"])

    def remount() -> None:
        if _libc.mount(b"devpts", _TARGET.encode(), b"devpts", ctypes.c_ulong(_MS_REMOUNT | flags), data.encode()) != 0:
            code = ctypes.get_errno()
            raise KernelRefused(f"remount of {_TARGET}: {os.strerror(code)}", errno=code)

    try:
        overlay.in_mount_namespace(pid, remount)
    except KernelRefused as error:
        raise EngineError(f"the container's terminals cannot be limited: {error.message}") from error


def _kept(options: list[str]) -> list[str]:
    """The options to name again. Ids are shown as the first user namespace has them, and read as ours does."""
    kept = []
    for option in options:
        name, _, value = option.partition("=")
        if name in ("uid", "gid"):
            inner = _as_ours(f"/proc/self/{name}_map", int(value))
            kept += [] if inner is None else [f"{name}={inner}"]
        elif name not in ("rw", "ro", "max"):
            kept.append(option)
    return kept


def _as_ours(path: str, number: int) -> int | None:
    with open(path, encoding="ascii") as file:
        for line in file:
            inner, outer, count = map(int, line.split())
            if outer <= number < outer + count:
                return inner + number - outer
    return None


def _find_mount(pid: int) -> tuple[int, list[str]] | None:
    """The flags of the mount and the options of the filesystem, as mountinfo has them."""
    found = None
    try:
        with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            for line in file:
                mount, _, filesystem = line.partition(" - ")
                fields, kind = mount.split(" "), filesystem.split()
                if fields[4] == _TARGET and kind[0] == "devpts":
                    flags = sum(_FLAGS.get(word, 0) for word in fields[5].split(","))
                    found = flags, kind[2].split(",")
    except OSError as error:
        raise EngineError(f"the mounts of process {pid} cannot be read: {error.strerror}") from error
    return found
