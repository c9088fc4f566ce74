"""A container's files as the host reaches them, through /proc/PID/root of its first process.

They are the container's, or its image's, and hostile: a link in them, followed from here, leads into the
host. So every component is opened by itself and none may be a link.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from ws.engine import HOME
from ws.errors import EngineError

# A link in the way, something that is not a directory, or the container has ended.
_OF_THE_IMAGE = (errno.ELOOP, errno.ENOTDIR, errno.ENOENT, errno.ESRCH)
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@contextlib.contextmanager
def open_inside(pid: int, path: str, flags: int = 0) -> Iterator[int]:
    """A descriptor of an absolute path in the container. Raises OSError, also when a component is a link."""
    fd = os.open(f"/proc/{pid}/root", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        *parents, last = path.strip("/").split("/")
        for name in parents:
            inner = os.open(name, _FLAGS | os.O_DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = inner
        inner = os.open(last, _FLAGS | flags, dir_fd=fd)
        os.close(fd)
        fd = inner
        yield fd
    finally:
        os.close(fd)


def read_inside(pid: int, path: str, *, cap_bytes: int) -> bytes:
    """The beginning of a regular file; empty when there is none. Raises nothing of the file's making."""
    try:
        with open_inside(pid, path) as fd:
            return os.read(fd, cap_bytes) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
    except OSError:
        return b""


def settle_directories(pid: int, uid: int, gid: int) -> None:
    """Give the container's tmpfs directories the owner and modes that were planned.

    podman cannot give a tmpfs to a user, and runc gives one the mode of the image's directory under it. Where the
    image has a link in the way, it stays as the engine made it. Raises EngineError when the kernel refuses: the user
    could not write to HOME.
    """
    for path, mode, owned in ((HOME, 0o700, True), ("/tmp", 0o1777, False), ("/dev/shm", 0o1777, False)):
        try:
            with open_inside(pid, path, os.O_DIRECTORY) as fd:
                if owned:
                    os.fchown(fd, _on_host(pid, "uid_map", uid), _on_host(pid, "gid_map", gid))
                os.fchmod(fd, mode)
        except OSError as error:
            if error.errno not in _OF_THE_IMAGE:
                raise EngineError(f"{path} could not be given to user {uid}:{gid}: {error.strerror}") from error


def _on_host(pid: int, name: str, inner: int) -> int:
    """An id of the container as we see it, by the map of its user namespace. Raises OSError when it has none.

    The kernel shows the map of another namespace in ids of the reader's, but that of the reader's own namespace in ids
    of its parent. A rootless container is in our own namespace: there an id is itself.
    """
    if os.stat(f"/proc/{pid}/ns/user").st_ino == os.stat("/proc/self/ns/user").st_ino:
        return inner
    with open(f"/proc/{pid}/{name}", encoding="ascii") as file:
        for line in file:
            first, outer, count = map(int, line.split())
            if first <= inner < first + count:
                return outer + inner - first
    raise OSError(errno.EOVERFLOW, f"id {inner} is not mapped")
