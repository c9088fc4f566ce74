"""Threads that call tools take turns: one does the Python of a call, and lets the next one in while it waits.

Else they take turns at the interpreter's lock, which each hands over at every one of the dozen short system calls that
a call makes. Sixteen threads made 0.6 to 0.7 times the calls of one alone like that; waiting here they make 1.07 times
as many (`scripts/bench tools`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Turns:
    """A lock for a `with` block that its holder may take again, and let go of for a while (`outside`)."""

    __slots__ = ("_depth", "_holder", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder = 0
        self._depth = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._holder != me:
            self._lock.acquire()
            self._holder = me
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._holder = 0
            self._lock.release()

    @contextmanager
    def outside(self) -> Iterator[None]:
        """Somebody else has the turn inside this block: for whatever may take long, and for code that is not ours."""
        me, depth = threading.get_ident(), self._depth
        if self._holder != me:
            yield
            return
        self._holder = self._depth = 0
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
            self._holder, self._depth = me, depth
