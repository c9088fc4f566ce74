"""Ends the work on a request when its connection does.

A worker computes without looking at its connection: a search, a diff, a patch. One thread looks at the connections of
requests that take long. When the peer has hung up, it raises `Abandoned` in the worker and kills the programs that the
worker started (ripgrep), so that the shim does not compute for a caller that is gone.

Only work that may stop anywhere is watched: reading, and a change up to its first write. `Watch.leave` ends that part;
after it nothing is raised.
"""

from __future__ import annotations

import _thread
import ctypes
import os
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Final

_EVERY_S: Final = 0.2  # a request that is answered sooner is never looked at
_IDLE_ROUNDS: Final = 5
_SIGKILL: Final = 9

_lock = _thread.allocate_lock()
_watched: dict[int, Watch] = {}  # by thread
_watching = False


class Abandoned(BaseException):
    """The peer hung up; not an Exception, so that no handler takes it for a failure of the tool."""


class Watch:
    """The part of a request that ends with its connection; for a `with` block."""

    __slots__ = ("_began_at", "_descriptor", "_native", "_thread")

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._thread = _thread.get_ident()
        self._native = _thread.get_native_id()
        self._began_at = time.monotonic()

    def __enter__(self) -> Watch:
        global _watching
        with _lock:
            _watched[self._thread] = self
            start, _watching = not _watching, True
        if start:
            try:
                _thread.start_new_thread(_look, ())
            except RuntimeError:  # no more processes in the container: the work is done for nothing at worst
                with _lock:
                    _watching = False
        return self

    def leave(self) -> None:
        """From here on the work goes to its end."""
        with _lock:
            _watched.pop(self._thread, None)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()

    def is_due(self, now: float) -> bool:
        return now - self._began_at >= _EVERY_S

    def has_hung_up(self) -> bool:
        poll = select.poll()
        poll.register(self._descriptor, select.POLLRDHUP)
        return bool(poll.poll(0))

    def abandon(self) -> None:
        """Raise in the worker, and end what it waits for. The caller holds the lock: the worker cannot leave."""
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(Abandoned))
        for pid in _children(self._native):
            try:
                os.kill(pid, _SIGKILL)
            except ProcessLookupError:
                pass


def _children(native_thread: int) -> list[int]:
    """The processes that a thread started (CONFIG_PROC_CHILDREN)."""
    try:
        with open(f"/proc/self/task/{native_thread}/children", "rb") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def _look() -> None:
    """Look at what is watched, until there has been nothing for a while."""
    global _watching
    idle = 0
    while True:
        time.sleep(_EVERY_S)
        with _lock:
            now = time.monotonic()
            for watch in [watch for watch in _watched.values() if watch.is_due(now)]:
                if watch.has_hung_up():
                    del _watched[watch._thread]
                    watch.abandon()
            idle = 0 if _watched else idle + 1
            if idle >= _IDLE_ROUNDS:
                _watching = False
                return
