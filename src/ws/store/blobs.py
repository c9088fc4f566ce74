"""Blobs on their way into the pack of a snapshot: stored as they are while they are few, else compressed on two cores.

Compressing 2 MB takes some 10 ms, a fifth of a snapshot of 100 files. What is kept between two steps of an agent is
little, and the collector compresses it when it looks at it next: up to some megabytes it goes to disk as it is. An
installation is more: then two threads share the work, and meet only where they take the next blob, for ISA-L and zlib
let go of the interpreter's lock. (To compress in one thread while the other reads does not pay: each of the many short
calls of the reader hands the lock over, and waits to have it back.)
"""

from __future__ import annotations

from collections.abc import Callable

from ws.aside import Aside

_BATCH_BYTES = 4 << 20

Part = bytes | memoryview
Item = tuple[int, bytes]
Done = tuple[int, bytes, list[Part]]  # the key, the blob, its zlib stream in parts


class Blobs:
    """Turns blobs into zlib streams, `wrap`ped while there is one batch of them, `deflate`d from then on."""

    def __init__(self, wrap: Callable[[bytes], list[Part]], deflate: Callable[[bytes], bytes]) -> None:
        self._wrap, self._deflate = wrap, deflate
        self._few = True
        self._waiting: list[Item] = []
        self._waiting_bytes = 0

    def put(self, key: int, data: bytes) -> list[Done]:
        """One more; when many are waiting, all of them with their streams, in any order."""
        self._waiting.append((key, data))
        self._waiting_bytes += len(data)
        if self._waiting_bytes <= _BATCH_BYTES:
            return []
        self._few = False
        return self.finish()

    def finish(self) -> list[Done]:
        """What is left, with the streams."""
        waiting = sorted(self._waiting, key=lambda item: len(item[1]))
        self._waiting, self._waiting_bytes = [], 0
        if self._few:
            return [(key, data, self._wrap(data)) for key, data in waiting]
        done: list[Done] = []

        def work() -> None:
            while True:
                try:
                    key, data = waiting.pop()
                except IndexError:
                    return
                done.append((key, data, [self._deflate(data)]))

        other = Aside(work)
        try:
            work()
        finally:
            other.wait()
        return done
