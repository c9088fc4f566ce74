"""Ctrl-C, SIGTERM and a closed terminal while a verb is at work: said at once, answered by undoing.

The first signal prints "stopping…" and raises, so that what was begun is undone. Another one meanwhile is not raised
again: the undoing is what the first one asked for. At the end one sentence says what became of the work. With --json
stderr holds one JSON value, so nothing is printed.

Python runs a signal handler between two instructions of the main thread, and a sync of the disk is one instruction that
may take seconds. So a thread prints the word: the interpreter wakes it by a pipe when the signal arrives.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from ws.errors import WorkspaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from ws.workspace import Workspace

    Fate = str | Callable[[], str]  # what became of the work, or how to find out

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_at_work = 0
_stopping = False
_said = threading.Lock()


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
        _say_stopping()
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def _say_stopping() -> None:
    """Print the word once, by whichever thread comes first. The lock is never released, and never waited for."""
    if _said.acquire(blocking=False) and "--json" not in sys.argv:
        with contextlib.suppress(OSError):
            os.write(2, "stopping…\n".encode())  # not print: it may have been interrupted itself


@contextlib.contextmanager
def at_work() -> Iterator[None]:
    """A verb does something that takes time, and that is undone when it is interrupted."""
    global _at_work
    with _woken():
        _at_work += 1
        try:
            yield
        finally:
            _at_work -= 1


@contextlib.contextmanager
def _woken() -> Iterator[None]:
    """A thread that prints the word while the main thread is inside a system call."""
    if _at_work or threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    watcher = threading.Thread(target=_watch, args=(reader,), daemon=True)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        os.close(writer)  # the thread reads the end of the pipe, and closes its own end


def _watch(reader: int) -> None:
    with contextlib.closing(os.fdopen(reader, "rb", buffering=0)) as pipe:
        while numbers := pipe.read(64):
            if any(number in SIGNALS and signal.getsignal(number) is _answer for number in numbers):
                _say_stopping()


def tell(fate: Fate) -> None:
    """Say on stderr what became of interrupted work. To find out may be to undo it, so it is done with --json too."""
    with contextlib.suppress(Exception):
        sentence = fate if isinstance(fate, str) else fate()
        if sentence and "--json" not in sys.argv:
            print(sentence, file=sys.stderr)


def removing(made: list[Workspace]) -> Callable[[], str]:
    """The fate of a verb that makes workspaces: those that it has made by then are removed."""

    def remove() -> str:
        left = []
        for workspace in made:
            try:
                workspace.remove()
            except (WorkspaceError, OSError):
                left.append(workspace.name)
        return f"not removed: {', '.join(left)}; `ws rm` removes them" if left else "nothing was kept"

    return remove


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let signals wait until the block is over."""
    before = [signal.signal(number, signal.SIG_IGN) for number in SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
