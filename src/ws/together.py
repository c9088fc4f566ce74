"""What several threads want at the same time, done by one of them for all.

What a thread gets was begun after it asked: whoever comes while somebody is at work waits for the next turn, which is
one for all who came meanwhile. Eight creates of one source look at its files twice, not eight times.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class _Turn(Generic[T]):
    """One time that the work is done."""

    __slots__ = ("_over", "results")

    def __init__(self) -> None:
        self._over = threading.Lock()  # held until then: a fifth of what an Event takes to make
        self._over.acquire()
        self.results: list[T] = []  # none when it failed

    def wait(self) -> None:
        with self._over:
            pass

    def end(self) -> None:
        """Idempotent: an interrupt may come anywhere, and the end is run twice (`Together.do`)."""
        if self._over.locked():
            self._over.release()


class Together(Generic[T]):
    """Work that gives everybody the same, told apart by keys."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Hashable, _Turn[T]] = {}
        self._waiting: dict[Hashable, _Turn[T]] = {}

    def do(self, key: Hashable, work: Callable[[], T]) -> T:
        """What `work` returns, here or in another thread; when that one fails, here: its error is its own."""
        joined: _Turn[T] | None = None
        mine: _Turn[T] = _Turn()
        try:
            with self._lock:
                before = self._running.get(key)
                joined = self._waiting.get(key) if before else None
                if joined is None:
                    (self._waiting if before else self._running)[key] = mine
            if joined is None:
                if before is not None:
                    before.wait()
                    with self._lock:
                        self._running[key] = self._waiting.pop(key)
                mine.results.append(work())
        finally:
            # An interrupt may come at any line, here too. What is left registered would be waited for without an end.
            try:
                self._end(key, mine)
            finally:
                self._end(key, mine)
        if joined is None:
            return mine.results[0]
        joined.wait()
        return joined.results[0] if joined.results else work()

    def _end(self, key: Hashable, turn: _Turn[T]) -> None:
        with self._lock:
            for turns in (self._running, self._waiting):
                if turns.get(key) is turn:
                    del turns[key]
            turn.end()
