"""Ctrl-C, SIGTERM and a closed terminal while a verb is at work: said at once, answered by undoing.

The first signal prints "stopping…" and raises, so that what was begun is undone. Another one meanwhile is not raised
again: the undoing is what the first one asked for. With --json stderr holds one JSON value, so nothing is printed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from ws.errors import WorkspaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from ws.workspace import Workspace

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_at_work = 0
_stopping = False


def install() -> None:
    """Answer the signals of this process; one that the caller ignores, as nohup does, stays ignored."""
    for number in SIGNALS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _answer)


def _answer(number: int, _frame: FrameType | None) -> None:
    global _stopping
    if _stopping:
        return
    if _at_work:
        _stopping = True
        if "--json" not in sys.argv:
            with contextlib.suppress(OSError):
                os.write(2, "stopping…\n".encode())  # not print: it may have been interrupted itself
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


@contextlib.contextmanager
def at_work() -> Iterator[None]:
    """A verb does something that takes time, and that is undone when it is interrupted."""
    global _at_work
    _at_work += 1
    try:
        yield
    finally:
        _at_work -= 1


@contextlib.contextmanager
def explained(tell: Callable[[], str]) -> Iterator[None]:
    """When the block is interrupted, say on stderr what became of it, as `tell` finds out."""
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        if "--json" not in sys.argv:
            with contextlib.suppress(Exception):
                print(tell(), file=sys.stderr)
        raise


@contextlib.contextmanager
def nothing_kept(made: list[Workspace]) -> Iterator[None]:
    """When the block is interrupted, remove the workspaces that it has made by then, and say so."""
    try:
        with explained(lambda: "nothing was kept"):
            yield
    except (KeyboardInterrupt, SystemExit):
        with undisturbed():
            for workspace in made:
                with contextlib.suppress(WorkspaceError, OSError):
                    workspace.remove()
        raise


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let signals wait until the block is over."""
    before = [signal.signal(number, signal.SIG_IGN) for number in SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
