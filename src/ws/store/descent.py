"""Open directories of a tree by path, component by component, following nothing.

A path may be longer than PATH_MAX and a tree 3,000 deep, so no call ever gets more than one component, and
only the deepest few directories of the current path stay open. Whoever swaps a directory for a link
while we walk gets an error from `O_NOFOLLOW`, never a step outside.
"""

from __future__ import annotations

import os

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_KEPT = 64  # open descriptors; going up from a great depth reopens the path once every so many levels


class Descent:
    """The directories below an open one. Neighbours in the tree should be asked for one after the other."""

    def __init__(self, top: int) -> None:
        self._top = top  # the caller's
        self._names: list[bytes] = []
        self._fds: list[int] = []  # −1: closed because it lies too far above

    def open(self, path: bytes) -> int:
        """A descriptor of `path` below the top, lent until the next call."""
        wanted = path.split(b"/") if path else []
        names, fds = self._names, self._fds
        same = 0
        for ours, theirs in zip(names, wanted, strict=False):
            if ours != theirs:
                break
            same += 1
        while same and fds[same - 1] < 0:
            same -= 1
        self._forget(same)
        current = fds[-1] if fds else self._top
        for name in wanted[same:]:
            current = os.open(name, DIRECTORY_FLAGS, dir_fd=current)
            names.append(name)
            fds.append(current)
            if len(fds) > _KEPT and fds[-_KEPT - 1] >= 0:
                os.close(fds[-_KEPT - 1])
                fds[-_KEPT - 1] = -1
        return current

    def close(self) -> None:
        self._forget(0)

    def _forget(self, depth: int) -> None:
        for fd in self._fds[depth:]:
            if fd >= 0:
                os.close(fd)
        del self._names[depth:], self._fds[depth:]
