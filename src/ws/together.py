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
    def __init__(self) -> None:
        self.over = threading.Event()
        self.results: list[T] = []  # none when it failed


class Together(Generic[T]):
    """Work that gives everybody the same, told apart by keys."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Hashable, _Turn[T]] = {}
        self._waiting: dict[Hashable, _Turn[T]] = {}

    def do(self, key: Hashable, work: Callable[[], T]) -> T:
        """What `work` returns, here or in another thread; when that one fails, here: its error is its own."""
        with self._lock:
            before = self._running.get(key)
            joined = self._waiting.get(key) if before else None
            turn = joined or _Turn()
            if joined is None:
                (self._waiting if before else self._running)[key] = turn
        if joined is not None:
            joined.over.wait()
            return joined.results[0] if joined.results else work()
        try:
            if before is not None:
                try:
                    before.over.wait()  # an interrupt may come here, and those who joined must not wait for ever
                finally:
                    with self._lock:
                        self._running[key] = self._waiting.pop(key)
            turn.results.append(work())
        finally:
            with self._lock:
                if self._running.get(key) is turn:
                    del self._running[key]
            turn.over.set()
        return turn.results[0]
