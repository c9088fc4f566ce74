"""Who uses a base: what the collector goes by before it takes one away.

A base that a record or a stack names is used. Before a record names it, its user says so by a time of `info.json`:

    mtime    when a workspace was last about to be made from it. The collector spares it for an hour: until the record
             is there, and for the next workspace of the same project. 0: it was only ever rebuilt from git.
    atime    when an operation that has announced its intent (a restore, a fork, a start) was last about to use it. The
             collector spares it while there is an intent from before that. (The kernel may set it, too: no harm.)

Both sides hold a lock on the directory of bases. A user that came before the collector is seen by it; one that comes
after it finds the base gone, and rebuilds it. The lock is held for these looks alone, and no other one is waited for
meanwhile.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from ws.layout import Home

TOUCH_S = 60  # what was used so lately need not be said again: one thing less for the disk


def touch(home: Home, key: str, *, announced: bool = False) -> bool:
    """Say that a base is about to be used; `announced`: by an operation whose intent is in `pending/`.

    False when it was collected a moment ago.
    """
    path = os.path.join(home.base(key), "info.json")
    now = time.time()
    with using_bases(home):
        try:
            look = os.stat(path)
            if announced and now - look.st_atime > TOUCH_S:
                os.utime(path, (now, look.st_mtime))
            elif not announced and now - look.st_mtime > TOUCH_S:
                os.utime(path, (now, now))
        except FileNotFoundError:
            return False
    return True


@contextlib.contextmanager
def using_bases(home: Home, *, alone: bool = False) -> Iterator[None]:
    """Hold the lock on the directory of bases: together with other users, or `alone` to take bases away."""
    fd = os.open(home.at("bases"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield
    finally:
        os.close(fd)


def last_import_at(path: str) -> float:
    """When a workspace was last about to be made from the base at a path; 0.0 when none was."""
    try:
        return os.stat(os.path.join(path, "info.json")).st_mtime
    except (FileNotFoundError, NotADirectoryError):
        return 0.0


def last_announced_at(path: str) -> float:
    """When an operation with an intent was last about to use the base at a path."""
    try:
        return os.stat(os.path.join(path, "info.json")).st_atime
    except (FileNotFoundError, NotADirectoryError):
        return 0.0
