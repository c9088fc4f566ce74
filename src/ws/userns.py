"""User namespaces that ws makes itself, as values: a descriptor keeps one alive, and no process is in it.

The kernel makes a user namespace only for a process with one thread. So a small process is started for it, makes the
namespace, waits until its maps are written from outside, and ends: 8 ms. What it runs is this file, as a program of
its own, with the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Mapping

_CLONE_NEWUSER = 0x10000000
_PR_SET_SECUREBITS = 28
_NO_SETUID_FIXUP = 1 << 2  # the capabilities stay when the effective user changes
_DONE = b"+"


class IdMapping:
    """Extents of ids: (first inside, first outside, count), for users and for groups."""

    __slots__ = ("gids", "uids")

    def __init__(self, uids: tuple[tuple[int, int, int], ...], gids: tuple[tuple[int, int, int], ...]) -> None:
        self.uids = uids
        self.gids = gids


def create(mapping: IdMapping, *, owner: int = 0, limits: Mapping[str, int] | None = None) -> int:
    """A new user namespace, as a descriptor; the caller closes it.

    What is counted in the namespace is charged to `owner` outside of it. `limits` are written to its /proc/sys/user.
    Raises OSError when the kernel refuses.
    """
    words = [f"{name}={value}" for name, value in (limits or {}).items()]
    command = [sys.executable, "-I", "-S", __file__, str(owner), *words]
    with contextlib.ExitStack() as held:
        ready_read, ready_write = os.pipe2(os.O_CLOEXEC)
        held.callback(os.close, ready_read)
        go_read, go_write = os.pipe2(os.O_CLOEXEC)
        with contextlib.ExitStack() as given:
            given.callback(os.close, ready_write)
            given.callback(os.close, go_read)
            actions = [(os.POSIX_SPAWN_DUP2, go_read, 0), (os.POSIX_SPAWN_DUP2, ready_write, 1)]
            actions.append((os.POSIX_SPAWN_DUP2, ready_write, 2))
            try:
                pid = os.posix_spawn(sys.executable, command, {}, file_actions=actions)
            except BaseException:
                os.close(go_write)
                raise
        held.callback(_reap, pid)
        held.callback(os.close, go_write)  # the process ends when its input does
        said = os.read(ready_read, 4096)
        if said != _DONE:
            raise OSError(f"a user namespace cannot be made: {said.decode(errors='replace')[-200:].strip()}")
        namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for name, extents in (("uid_map", mapping.uids), ("gid_map", mapping.gids)):
                with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
                    file.write("".join(f"{inside} {outside} {count}\n" for inside, outside, count in extents))
        except BaseException:
            os.close(namespace)
            raise
        return namespace


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # the program that uses ws may reap every child itself
        os.waitpid(pid, 0)


def main() -> None:
    """The words are the owner, and limits as NAME=VALUE."""
    libc = ctypes.CDLL(None, use_errno=True)
    owner = int(sys.argv[1])
    if owner:
        libc.prctl(_PR_SET_SECUREBITS, _NO_SETUID_FIXUP, 0, 0, 0)
        os.setresgid(-1, owner, -1)
        os.setresuid(-1, owner, -1)
    if libc.unshare(_CLONE_NEWUSER) != 0:
        code = ctypes.get_errno()
        os.write(1, os.strerror(code).encode())
        return
    for word in sys.argv[2:]:
        name, _, value = word.partition("=")
        with contextlib.suppress(FileNotFoundError):  # a kernel without this limit
            # Not `open`: in the new namespace the files of Python's own library may be out of reach.
            descriptor = os.open(f"/proc/sys/user/{name}", os.O_WRONLY)
            os.write(descriptor, value.encode())
            os.close(descriptor)
    os.write(1, _DONE)
    os.read(0, 1)


if __name__ == "__main__":
    main()
