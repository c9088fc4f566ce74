"""Streams over the memory backend: readers share the bytes of a node, writers hold theirs until they become one."""

from __future__ import annotations

import io
from collections.abc import Callable

from ws.fs.streams import Reader, Writer


class MemoryReader(Reader):
    """The bytes of a node; BytesIO shares them."""

    __slots__ = ("_stream",)

    def __init__(self, path: str, data: bytes, chunk_size: int) -> None:
        super().__init__(path, len(data), chunk_size)
        self._stream = io.BytesIO(data)

    def _pread(self, size: int, offset: int) -> bytes:
        self._stream.seek(offset)
        return self._stream.read(size)

    def _release(self) -> None:
        self._stream.close()


class MemoryWriter(Writer):
    """Bytes that are `put` when the stream is closed; when it is not, `give_up` takes back what was made for them."""

    __slots__ = ("_buffer", "_give_up", "_put")

    def __init__(self, path: str, start: bytes, *, put: Callable[[bytes], None], give_up: Callable[[], None]) -> None:
        super().__init__(path)
        self._put = put
        self._give_up = give_up
        self._buffer = io.BytesIO()
        self._buffer.write(start)

    def _append(self, data: bytes | bytearray | memoryview) -> None:
        self._buffer.write(data)

    def _commit(self) -> None:
        self._put(self._buffer.getvalue())
        self._buffer.close()

    def _abandon(self) -> None:
        self._give_up()
        self._buffer.close()
