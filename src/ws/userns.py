"""User namespaces from outside: one that ws makes itself, and the limits of one that a container has.

The kernel lets a process into another user namespace only if it has one thread. So a small process is started for it,
which takes 10 ms. What it runs is this file, as a program of its own, with the standard library alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_CLONE_NEWUSER = 0x10000000
_DONE = b"+"
_BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class IdMapping:
    """Extents of ids: (first inside, first outside, count), for users and for groups."""

    uids: tuple[tuple[int, int, int], ...]
    gids: tuple[tuple[int, int, int], ...]


def create(mapping: IdMapping) -> int:
    """A new user namespace, as a descriptor that keeps it alive; the caller closes it. Raises OSError."""
    with _helper("create") as pid:
        namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        try:
            for name, extents in (("uid_map", mapping.uids), ("gid_map", mapping.gids)):
                with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
                    file.write("".join(f"{inside} {outside} {count}\n" for inside, outside, count in extents))
        except BaseException:
            os.close(namespace)
            raise
        return namespace


def restrict(pid: int, limits: Mapping[str, int]) -> None:
    """Write limits to /proc/sys/user of the user namespace of a process; those the kernel does not have are left out.

    Raises OSError.
    """
    with _helper("enter", f"/proc/{pid}/ns/user", *(f"{name}={value}" for name, value in limits.items())):
        pass


@contextlib.contextmanager
def _helper(*words: str) -> Iterator[int]:
    """The process, for as long as the block lasts; it has done its work when the block begins."""
    with contextlib.ExitStack() as held:
        ready, said = os.pipe2(os.O_CLOEXEC)
        held.callback(os.close, ready)
        with contextlib.ExitStack() as given:
            given.callback(os.close, said)
            waiting, go = os.pipe2(os.O_CLOEXEC)
            given.callback(os.close, waiting)
            held.callback(os.close, go)
            actions = [(os.POSIX_SPAWN_DUP2, *pair) for pair in ((waiting, 0), (said, 1), (said, 2))]
            command = [sys.executable, "-I", "-S", __file__, *words]
            # Ctrl-C at the terminal is for the first process, at whose end this one ends.
            pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=actions, setsigmask=_BLOCKED)
        try:
            answer = os.read(ready, 4096)
            if answer != _DONE:
                code = int(answer) if answer.isdigit() else errno.EIO
                raise OSError(code, f"user namespace: {os.strerror(code)}")
            yield pid
        finally:
            held.close()  # the process ends with its input
            _reap(pid)


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):  # the program that uses ws may reap every child itself
        os.waitpid(pid, 0)


def main() -> None:
    """Say that it is done, or the number of the error, and wait for the end of the input."""
    try:
        _work()
        answer = _DONE
    except OSError as error:
        answer = str(error.errno).encode()
    os.write(1, answer)
    os.read(0, 1)


def _work() -> None:
    """The words: `create`, or `enter`, a namespace's path, and limits as NAME=VALUE."""
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.argv[1] == "create":
        _check(libc.unshare(_CLONE_NEWUSER))
    else:
        _check(libc.setns(os.open(sys.argv[2], os.O_RDONLY), _CLONE_NEWUSER))
    for word in sys.argv[3:]:
        name, _, value = word.partition("=")
        # Not `open`: in the namespace the files of Python's own library may be out of reach.
        with contextlib.suppress(FileNotFoundError):
            os.write(os.open(f"/proc/sys/user/{name}", os.O_WRONLY), value.encode())


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


if __name__ == "__main__":
    main()
