"""Directories under `staging/`: what a process is building, removed when it is done or gives up.

After an interrupt the caller is to have the process back at once, and a tree of 10^5 files takes seconds to remove. So
the removal is waited for only briefly; a process of its own finishes it. Where that cannot be started, or is killed,
recovery removes the directory, whose name has the pid of a process that is gone.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

from ws.aside import Aside
from ws.layout import Home
from ws.process_identity import process_start
from ws.removing import remove_tree

_WAIT_S = 0.2  # that an interrupted process waits for the removal of what it has built
_START = "import sys; sys.path.insert(0, sys.argv[1]); from ws.staged import adopt; adopt(sys.argv[2])"


@contextlib.contextmanager
def staged_directory(home: Home) -> Iterator[str]:
    """A new, empty directory to build something in; it is gone when the block ends."""
    path = home.staging()
    os.mkdir(path, 0o700)
    with removed_at_end(path):
        yield path


@contextlib.contextmanager
def removed_at_end(path: str) -> Iterator[None]:
    """Remove a tree when the block ends; after an interrupt (KeyboardInterrupt, SystemExit), in the background."""
    try:
        yield
    except Exception:
        remove_tree(path)
        raise
    except BaseException:
        remove_in_background(path)
        raise
    remove_tree(path)


def remove_staged(path: str) -> None:
    """Remove a tree that is in the way of nothing any more; when this is interrupted, the rest in the background."""
    try:
        remove_tree(path)
    except (KeyboardInterrupt, SystemExit):
        remove_in_background(path)
        raise


def remove_in_background(path: str, wait_s: float = _WAIT_S) -> None:
    """Remove a tree; what takes longer than a moment is left to a process that outlives this one."""
    if Aside(lambda: remove_tree(path)).finished(wait_s):
        return
    import subprocess  # late: `ws exec` comes through this module, and has no time for it

    from ws.engine.processes import spawn_detached

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    with contextlib.suppress(OSError, subprocess.SubprocessError):  # recovery removes it
        words = [sys.executable, "-I", "-c", _START, package, path]
        spawn_detached(words, log=os.devnull, env=os.environ)


def adopt(path: str) -> None:
    """The process in the background: give a staged tree a name with the own pid, so that recovery lets it be."""
    directory, name = os.path.split(path)
    if name.partition(".")[0].isdigit():
        own = os.path.join(directory, f"{os.getpid()}.{process_start(os.getpid())}.{os.urandom(6).hex()}")
        try:
            os.rename(path, own)
        except FileNotFoundError:
            return  # gone, or another process has it
        path = own
    remove_tree(path)
