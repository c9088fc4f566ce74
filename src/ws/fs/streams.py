"""Streams: reading in chunks, decoding by line, and the convenience methods that stand on both.

A backend brings a `Reader` that can read at an offset and a writer; everything else here is the same for all
of them. Nothing buffers more than a chunk or a line. A reader never goes past the size that the file had when
it was opened, so a file that grows for ever is still read in finite time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Self

from ws.errors import InvalidRequest
from ws.fs.protocol import (
    CHUNK_BYTES,
    ByteReader,
    ByteWriter,
    FileStat,
    GrepMatch,
    GrepQuery,
    GrepReport,
    Limits,
    WholeFile,
    WriteMode,
    WriteResult,
)

WRITE_MODES = ("create", "overwrite", "append")
CLOSED = "I/O operation on closed file"


class Reader(ABC):
    """A ByteReader over whatever `_pread` reads from."""

    __slots__ = ("_chunk_size", "_closed", "_path", "_position", "_size")

    def __init__(self, path: str, size: int, chunk_size: int) -> None:
        self._path = path
        self._size = size
        self._chunk_size = chunk_size
        self._position = 0
        self._closed = False

    @abstractmethod
    def _pread(self, size: int, offset: int) -> bytes:
        """At least one of `size` bytes at `offset`, none only where the file has ended."""

    @abstractmethod
    def _release(self) -> None:
        """Let go of what the stream holds; called once."""

    @property
    def path(self) -> str:
        return self._path

    @property
    def size(self) -> int:
        return self._size

    @property
    def position(self) -> int:
        self._check_open()
        return self._position

    @property
    def closed(self) -> bool:
        return self._closed

    def read(self, size: int = -1, /) -> bytes:
        self._check_open()
        left = max(0, self._size - self._position)
        wanted = left if size < 0 else min(size, left)
        if not wanted:
            return b""
        data = self._pread(wanted, self._position)
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = 0, /) -> int:
        self._check_open()
        if whence not in (0, 1, 2):
            raise ValueError(f"invalid whence ({whence}, should be 0, 1 or 2)")
        position = offset + (0, self._position, self._size)[whence]
        if position < 0:
            raise ValueError(f"negative seek position {position}")
        self._position = position
        return position

    def chunks(self, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        if size <= 0:
            raise ValueError(f"a chunk has at least one byte, not {size}")
        while chunk := self.read(size):
            yield chunk

    def __iter__(self) -> Iterator[bytes]:
        return self.chunks(self._chunk_size)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._release()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(CLOSED)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Writer(ABC):
    """A ByteWriter over `_append`, `_commit` and `_abandon`."""

    __slots__ = ("_bytes_written", "_closed", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._bytes_written = 0
        self._closed = False

    @abstractmethod
    def _append(self, data: bytes | bytearray | memoryview) -> None:
        """Take the whole of `data`."""

    @abstractmethod
    def _commit(self) -> None:
        """Make what was taken the file."""

    @abstractmethod
    def _abandon(self) -> None:
        """Leave no trace; called after a failed commit too."""

    @property
    def path(self) -> str:
        return self._path

    @property
    def bytes_written(self) -> int:
        return self._bytes_written

    @property
    def closed(self) -> bool:
        return self._closed

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        self._check_open()
        size = data.nbytes if isinstance(data, memoryview) else len(data)
        self._append(data)
        self._bytes_written += size
        return size

    def write_all(self, chunks: Iterable[bytes], /) -> int:
        return sum(self.write(chunk) for chunk in chunks)

    def seek(self, offset: int, whence: int = 0, /) -> int:  # noqa: ARG002 - the protocol's signature
        self._check_open()
        raise OSError(29, "Illegal seek", self._path)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._commit()
        except BaseException:
            self._abandon()
            raise

    def discard(self) -> None:
        if not self._closed:
            self._closed = True
            self._abandon()

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(CLOSED)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


def byte_lines(chunks: Iterable[bytes], *, max_line_bytes: int | None = None) -> Iterator[bytes]:
    """The lines of a stream with their endings; only `\\n` ends a line. Memory: one line and one chunk.

    With `max_line_bytes`, what a line has beyond that many bytes (and the rest of a chunk) is dropped.
    """
    pieces: list[bytes] = []
    held = 0
    for chunk in chunks:
        lines = chunk.split(b"\n")
        if max_line_bytes is None or held < max_line_bytes:
            pieces.append(lines[0])
            held += len(lines[0])
        if len(lines) == 1:
            continue
        yield b"".join(pieces) + b"\n"
        for line in lines[1:-1]:
            yield line + b"\n"
        pieces = [lines[-1]] if lines[-1] else []
        held = len(lines[-1])
    if pieces:
        yield b"".join(pieces)


class Utf8Reader:
    """A TextReader over any ByteReader."""

    __slots__ = ("_lines", "_number", "_offset", "_source")

    def __init__(self, source: ByteReader, *, max_line_bytes: int | None = None) -> None:
        self._source = source
        self._lines = byte_lines(source, max_line_bytes=max_line_bytes)
        self._offset = 0
        self._number = 0

    @property
    def path(self) -> str:
        return self._source.path

    @property
    def encoding(self) -> str:
        return "utf-8"

    @property
    def line_number(self) -> int:
        return self._number

    @property
    def closed(self) -> bool:
        return self._source.closed

    def readline(self) -> str:
        return self.decode(self.next_line())

    def decode(self, line: bytes) -> str:
        """The text of the line that `next_line` has just returned."""
        start = self._offset - len(line)
        try:
            return line.decode("utf-8")
        except UnicodeDecodeError as error:
            reason = f"{error.reason} (byte {start + error.start} of {self.path!r}, line {self._number})"
            raise UnicodeDecodeError("utf-8", line, error.start, error.end, reason) from None

    def skip(self, lines: int) -> int:
        """Pass over lines without decoding them; returns how many there were."""
        for done in range(lines):
            if not self.next_line():
                return done
        return lines

    def next_line(self) -> bytes:
        """The bytes of a line, none at the end."""
        if self._source.closed:
            raise ValueError(CLOSED)
        line = next(self._lines, b"")
        if line:
            self._offset += len(line)
            self._number += 1
        return line

    def read(self) -> str:
        return "".join(self)

    def lines(self, *, strip: bool = False) -> Iterator[str]:
        while line := self.readline():
            yield line.rstrip() if strip else line

    def __iter__(self) -> Iterator[str]:
        return self.lines()

    def close(self) -> None:
        self._source.close()

    def __enter__(self) -> Self:
        if self._source.closed:
            raise ValueError(CLOSED)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Convenience(ABC):
    """The methods that every backend has for free once it can open streams and search."""

    @property
    @abstractmethod
    def limits(self) -> Limits:
        """See `Filesystem`."""

    @abstractmethod
    def open_read(self, path: str, *, chunk_size: int = CHUNK_BYTES) -> ByteReader:
        """See `Filesystem`."""

    @abstractmethod
    def open_write(self, path: str, mode: WriteMode = "overwrite", create_parents: bool = True) -> ByteWriter:
        """See `Filesystem`."""

    @abstractmethod
    def stat(self, path: str, *, follow_symlinks: bool = True) -> FileStat:
        """See `Filesystem`."""

    @abstractmethod
    def search(self, query: GrepQuery) -> GrepReport:
        """See `Filesystem`."""

    @abstractmethod
    def set_mode(self, path: str, mode: int) -> None:
        """See `Filesystem`."""

    @abstractmethod
    def set_modified(self, path: str, modified_ns: int) -> None:
        """See `Filesystem`."""

    def put(self, path: str, chunks: Iterable[bytes], *, permissions: int, modified_ns: int) -> None:
        """A file as it is elsewhere: its bytes, permissions and time. Its directory must exist. Raises as `open_write`.

        Commit point: the rename.
        """
        with self.open_write(path, "overwrite", False) as writer:
            writer.write_all(chunks)
        self.set_mode(path, permissions)
        self.set_modified(path, modified_ns)

    def open_text(self, path: str, encoding: str = "utf-8") -> Utf8Reader:
        check_encoding(encoding)
        return Utf8Reader(self.open_read(path))

    def read_bytes(self, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        check_page(offset, limit)
        with self.open_read(path) as reader:
            left = max(0, reader.size - offset)
            wanted = left if limit is None else min(left, limit)
            self._check_size(path, wanted, "read_bytes")
            reader.seek(offset)
            return reader.read(wanted)

    def read_whole(self, path: str) -> WholeFile:
        content = self.read_bytes(path)
        status = self.stat(path)
        return WholeFile(content, status.mode, round(status.modified_at.timestamp() * 1e6) * 1000)

    def read(self, path: str, offset: int = 0, limit: int | None = None, encoding: str = "utf-8") -> str:
        check_page(offset, limit)
        check_encoding(encoding)
        with self.open_read(path) as source:
            # No line is held beyond the cap, whether it is skipped or refused.
            reader = Utf8Reader(source, max_line_bytes=self.limits.max_content_bytes + 1)
            if limit is None and not offset:
                self._check_size(path, source.size, "read")
            reader.skip(offset)
            lines: list[str] = []
            size = 0
            while (limit is None or len(lines) < limit) and (line := reader.next_line()):
                size += len(line)
                self._check_size(path, size, "read")
                lines.append(reader.decode(line))
            return "".join(lines)

    def write_bytes(
        self, path: str, content: bytes, mode: WriteMode = "overwrite", create_parents: bool = True
    ) -> WriteResult:
        check_bytes(path, content)
        self._check_size(path, len(content), "write_bytes")
        with self.open_write(path, mode, create_parents) as writer:
            writer.write(content)
        return WriteResult(writer.path, len(content), mode)

    def write(self, path: str, content: str, mode: WriteMode = "overwrite", create_parents: bool = True) -> WriteResult:
        if not isinstance(content, str):
            raise InvalidRequest(
                f"the content for {path!r} is {type(content).__name__}, not text", hint="use write_bytes"
            )
        try:
            data = content.encode("utf-8")
        except UnicodeEncodeError as error:
            raise InvalidRequest(f"the content for {path!r} is not UTF-8: {error.reason}") from None
        return self.write_bytes(path, data, mode, create_parents)

    def add(self, path: str, content: bytes) -> None:
        self.write_bytes(path, content, "create")

    def grep(
        self, pattern: str, path: str = ".", glob: str | None = None, max_matches: int | None = None
    ) -> tuple[GrepMatch, ...]:
        return self.search(GrepQuery(pattern, path, glob, max_matches=max_matches)).matches

    def _check_size(self, path: str, size: int, method: str) -> None:
        cap = self.limits.max_content_bytes
        if size > cap:
            raise InvalidRequest(
                f"{path!r}: {size:,} bytes in one piece, {method} holds at most {cap:,}",
                hint="stream with open_read or open_write, or ask for a part with offset and limit",
            )


def check_encoding(encoding: str) -> None:
    """Raises InvalidRequest for anything but UTF-8."""
    if encoding.lower().replace("_", "-") not in ("utf-8", "utf8"):
        raise InvalidRequest(f"encoding {encoding!r} is not supported", hint="text is UTF-8; use bytes for the rest")


def check_bytes(path: str, content: object) -> None:
    """Raises InvalidRequest for content that is no bytes."""
    if not isinstance(content, bytes | bytearray | memoryview):
        raise InvalidRequest(f"the content for {path!r} is {type(content).__name__}, not bytes", hint="use write")


def check_page(offset: int, limit: int | None) -> None:
    """Raises InvalidRequest for a part of a file that cannot be."""
    if offset < 0 or (limit is not None and limit < 0):
        raise InvalidRequest(f"offset {offset} and limit {limit} must not be negative")


def check_chunk_size(size: int) -> int:
    """Raises InvalidRequest for a chunk size that is no positive number."""
    if not isinstance(size, int) or isinstance(size, bool) or size < 1:
        raise InvalidRequest(f"chunk_size is {size!r}; it must be a whole number of at least 1")
    return size


def check_write_mode(mode: str) -> None:
    """Raises InvalidRequest for a mode that is none."""
    if mode not in WRITE_MODES:
        raise InvalidRequest(f"{mode!r} is not a write mode", hint=f"one of {', '.join(WRITE_MODES)}")
