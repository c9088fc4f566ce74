"""What a tree takes: bytes and entries, at any depth, with a bound on the work."""

from __future__ import annotations

import os
import stat

from ws.fs.trees import Reach

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def measure(parent: int, name: str, most_bytes: int, most_entries: int) -> tuple[int, int]:
    """Bytes of files, and files, links and directories of a tree; links are not followed. Stops beyond either bound.

    Raises OSError for what cannot be read.
    """
    status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    if not stat.S_ISDIR(status.st_mode):
        return status.st_size if stat.S_ISREG(status.st_mode) else 0, 1
    size_bytes, entries = 0, 1
    top = os.open(name, _OPEN, dir_fd=parent)
    try:
        with Reach(top) as reach:
            pending = [""]
            while pending and size_bytes <= most_bytes and entries <= most_entries:
                below = pending.pop()
                fd = reach.open(below)
                try:
                    with os.scandir(fd) as found:
                        for entry in found:
                            entries += 1
                            if entry.is_dir(follow_symlinks=False):
                                pending.append(f"{below}/{entry.name}" if below else entry.name)
                            elif entry.is_file(follow_symlinks=False):
                                size_bytes += entry.stat(follow_symlinks=False).st_size
                finally:
                    os.close(fd)
    finally:
        os.close(top)
    return size_bytes, entries
