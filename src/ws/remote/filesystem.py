"""The Filesystem protocol over a workspace's shim: the work is done inside the container, by `HostFilesystem`.

One request for each operation, and one for a file of up to 64 KiB, opened and read. A larger file keeps a connection
for as long as its stream is open, and is read in windows of up to 1 MiB, the next one asked for while the caller has
this one; so memory is a window or two. A writer sends what it is given as it comes, and nothing is seen of it before
the rename inside, which happens under the workspace's lock.

An open stream does not hold that lock. When the workspace is restored under it, its next step raises OSError (ESTALE);
when the container is gone, ContainerDied. What the shim sends is checked as what a stranger says (`fs.rows`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ws.errors import ProtocolError
from ws.fs.protocol import (
    CHUNK_BYTES,
    WORKSPACE_LIMITS,
    FileEntry,
    FileStat,
    GlobMatch,
    GrepQuery,
    GrepReport,
    Limits,
    WriteMode,
    WriteResult,
)
from ws.fs.rows import (
    limits_row,
    query_row,
    read_entry,
    read_glob,
    read_path,
    read_report,
    read_rows,
    read_stat,
    read_text,
)
from ws.fs.streams import (
    Convenience,
    Reader,
    Writer,
    check_bytes,
    check_chunk_size,
    check_page,
    check_write_mode,
)
from ws.remote.calls import REPLY_TIMEOUT_S, Call
from ws.remote.entering import Door
from ws.shim.wire import MAX_BODY_BYTES, field
from ws.tools.results import decode_value, encode_params

SLOW_TIMEOUT_S: Final = 600.0  # of an operation that may go through a whole tree before it says anything
_WINDOW_BYTES: Final = MAX_BODY_BYTES
_SMALL_BYTES: Final = 64 << 10
_SEND_BYTES: Final = 256 << 10
_ONE_FRAME: Final = MAX_BODY_BYTES - _SMALL_BYTES  # of content, with room for its arguments


class RemoteFilesystem(Convenience):
    """The files of a workspace. Safe for many threads; a stream is for one."""

    def __init__(
        self,
        door: Door,
        *,
        limits: Limits = WORKSPACE_LIMITS,
        read_only: bool = False,
        allowed_paths: Sequence[str] = (),
        restricted_paths: Sequence[str] = (),
    ) -> None:
        self._door = door
        self._limits = limits
        self._read_only = read_only
        self._rules = rules_of(limits, read_only, allowed_paths, restricted_paths)

    @property
    def root(self) -> str:
        return self._door.root

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def limits(self) -> Limits:
        return self._limits

    # streams

    def open_read(self, path: str, *, chunk_size: int = CHUNK_BYTES) -> RemoteReader:
        check_chunk_size(chunk_size)
        call, kind, header, body = self._open("fs.open_read", {"path": path})
        try:
            head = field(header if kind == "opened" else field(header, "result", dict), "head", int)
            shown, size = _opened(body[:head])
        except BaseException:
            call.close()
            raise
        if kind == "result":
            call.close()
        return RemoteReader(shown, size, chunk_size, body[head:], call if kind == "opened" else None)

    def open_write(self, path: str, mode: WriteMode = "overwrite", create_parents: bool = True) -> RemoteWriter:
        check_write_mode(mode)
        return self._open_writer({"path": path, "mode": mode, "create_parents": create_parents})

    def put(self, path: str, chunks: Iterable[bytes], *, permissions: int, modified_ns: int) -> None:
        facts = {"permissions": permissions, "modified_ns": modified_ns}
        rest = iter(chunks)
        begun = bytearray()
        for chunk in rest:
            begun += chunk
            if len(begun) > _ONE_FRAME:
                break
        else:
            self._call("fs.put", {"path": path, **facts}, bytes(begun))
            return
        arguments = {"path": path, "mode": "overwrite", "create_parents": False, "facts": facts}
        with self._open_writer(arguments) as writer:
            writer.write(begun)
            writer.write_all(rest)

    def _open_writer(self, arguments: dict[str, Any]) -> RemoteWriter:
        call, _, _, body = self._open("fs.open_write", arguments, more=True)
        try:
            return RemoteWriter(read_text(decode_value(body)), call, self._door)
        except BaseException:
            call.close()
            raise

    def read_bytes(self, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        check_page(offset, limit)
        return self._call("fs.read_bytes", {"path": path, "offset": offset, "limit": limit})

    def write_bytes(
        self, path: str, content: bytes, mode: WriteMode = "overwrite", create_parents: bool = True
    ) -> WriteResult:
        check_bytes(path, content)
        if len(content) > _ONE_FRAME:
            return super().write_bytes(path, content, mode, create_parents)
        self._check_size(path, len(content), "write_bytes")
        check_write_mode(mode)
        arguments = {"path": path, "mode": mode, "create_parents": create_parents}
        shown = read_text(decode_value(self._call("fs.write_bytes", arguments, content)))
        return WriteResult(shown, len(content), mode)

    # metadata

    def exists(self, path: str) -> bool:
        return self._ask("exists", path=path) is True

    def stat(self, path: str, *, follow_symlinks: bool = True) -> FileStat:
        return read_stat(self._ask("stat", path=path, follow_symlinks=follow_symlinks))

    def list(self, path: str = ".") -> Sequence[FileEntry]:
        return [read_entry(row) for row in read_rows(self._ask("list", path=path))]

    def scan(self, path: str = ".") -> Sequence[FileStat]:
        return [read_stat(row) for row in read_rows(self._ask("scan", path=path))]

    def resolve(self, path: str, *, follow_symlinks: bool = True, whole: bool = False) -> str:
        return read_path(self._ask("resolve", path=path, follow_symlinks=follow_symlinks, whole=whole))

    def read_link(self, path: str) -> str:
        return read_text(self._ask("read_link", path=path))

    def glob(self, pattern: str, path: str = ".") -> Sequence[GlobMatch]:
        return [read_glob(row) for row in read_rows(self._ask("glob", pattern=pattern, path=path))]

    def search(self, query: GrepQuery) -> GrepReport:
        return read_report(self._ask("search", query=query_row(query)))

    # mutations

    def delete(self, path: str, recursive: bool = False) -> None:
        self._ask("delete", path=path, recursive=recursive)

    def unlink(self, path: str) -> None:
        self._ask("unlink", path=path)

    def rmdir(self, path: str) -> None:
        self._ask("rmdir", path=path)

    def mkdir(self, path: str, parents: bool = True, exist_ok: bool = True) -> None:
        self._ask("mkdir", path=path, parents=parents, exist_ok=exist_ok)

    def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        self._ask("move", source=source, destination=destination, overwrite=overwrite)

    def copy(self, source: str, destination: str, overwrite: bool = False) -> None:
        self._ask("copy", source=source, destination=destination, overwrite=overwrite)

    def make_link(self, path: str, target: str) -> None:
        self._ask("make_link", path=path, target=target)

    def set_mode(self, path: str, mode: int) -> None:
        self._ask("set_mode", path=path, mode=mode)

    def set_modified(self, path: str, modified_ns: int) -> None:
        self._ask("set_modified", path=path, modified_ns=modified_ns)

    # requests

    def _head(self, arguments: dict[str, Any]) -> bytes:
        return encode_params(
            {"arguments": arguments, "rules": self._rules} if self._rules else {"arguments": arguments}
        )

    def _ask(self, method: str, **arguments: Any) -> Any:
        return decode_value(self._call(f"fs.{method}", arguments))

    def _call(self, op: str, arguments: dict[str, Any], content: bytes = b"") -> bytes:
        head = self._head(arguments)
        with self._door.enter() as inside:
            return inside.calls.call(op, {"head": len(head)}, head + content, timeout_s=SLOW_TIMEOUT_S).body

    def _open(
        self, op: str, arguments: dict[str, Any], *, more: bool = False
    ) -> tuple[Call, str, dict[str, Any], bytes]:
        """A call and its first answer, which comes under the lock."""
        head = self._head(arguments)
        with self._door.enter() as inside:
            call = inside.calls.begin(op, {"head": len(head)}, head, more=more)
            try:
                kind, header, body = call.receive(deadline=time.monotonic() + REPLY_TIMEOUT_S)
                if kind != "opened" and (more or kind != "result"):
                    raise ProtocolError("the peer sent a frame that the call does not have")
            except BaseException:
                call.close()
                raise
        return call, kind, header, body


class RemoteReader(Reader):
    """A file, or the whole of it where it is small; then there is no call behind it."""

    __slots__ = ("_at", "_call", "_coming", "_failure", "_window")

    def __init__(self, path: str, size: int, chunk_size: int, first: bytes, call: Call | None) -> None:
        super().__init__(path, size, chunk_size)
        self._call = call
        self._window, self._at = first, 0
        self._coming: tuple[int, int] | None = None  # a window that was asked for: where, how long
        self._failure: Exception | None = None

    def _pread(self, size: int, offset: int) -> bytes:
        pieces = []
        while size:
            start = offset - self._at
            piece = self._window[start : start + size] if 0 <= start < len(self._window) else b""
            if not piece:
                if self._call is None or not self._fetch(self._call, offset, size):
                    break
                continue
            pieces.append(piece)
            offset += len(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _fetch(self, call: Call, at: int, wanted: int) -> bool:
        """Have a window that begins at `at`; False where the file has ended."""
        if self._failure is not None:
            raise self._failure
        in_order = at == self._at + len(self._window)
        try:
            coming, self._coming = self._coming, None
            data = None if coming is None else self._receive(call, coming[1])
            if data is None or coming is None or coming[0] != at:
                size = _WINDOW_BYTES if in_order else min(max(wanted, _SMALL_BYTES), _WINDOW_BYTES)
                call.send("read", at=at, size=size)
                data = self._receive(call, size)
            self._window, self._at = data, at
            following = at + len(data)
            if in_order and data and following < self._size:
                call.send("read", at=following, size=_WINDOW_BYTES)
                self._coming = following, _WINDOW_BYTES
        except Exception as error:
            self._failure = error
            raise
        return bool(data)

    def _receive(self, call: Call, size: int) -> bytes:
        kind, _, data = call.receive(deadline=time.monotonic() + REPLY_TIMEOUT_S)
        if kind != "data" or len(data) > size:
            raise ProtocolError("the peer sent a frame that the stream does not have")
        return data

    def _release(self) -> None:
        self._window = b""
        if self._call is not None:
            self._call.close()


class RemoteWriter(Writer):
    """A file that is being sent; small writes are put together."""

    __slots__ = ("_buffer", "_call", "_door")

    def __init__(self, path: str, call: Call, door: Door) -> None:
        super().__init__(path)
        self._call = call
        self._door = door
        self._buffer = bytearray()

    def _append(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data).cast("B")
        if len(self._buffer) + len(view) < _SEND_BYTES:
            self._buffer += view
            return
        self._flush()
        while len(view) >= _SEND_BYTES:
            self._send(view[:MAX_BODY_BYTES])
            view = view[MAX_BODY_BYTES:]
        self._buffer += view

    def _flush(self) -> None:
        if self._buffer:
            self._send(memoryview(bytes(self._buffer)))
            self._buffer.clear()

    def _send(self, data: memoryview) -> None:
        if self._call.answered:  # before the end: it failed
            self._finish()
            self._call.drop()
            raise ProtocolError("the peer finished a stream that is not at its end")
        self._call.send("data", data)

    def _commit(self) -> None:
        self._flush()
        with self._door.enter():
            self._call.send("end")
            self._finish()
        self._call.close()

    def _finish(self) -> None:
        kind, _, _ = self._call.receive(deadline=time.monotonic() + REPLY_TIMEOUT_S)
        if kind != "result":
            raise ProtocolError("the peer sent a frame that the stream does not have")

    def _abandon(self) -> None:
        self._buffer.clear()
        self._call.break_off()


def rules_of(
    limits: Limits, read_only: bool, allowed_paths: Sequence[str], restricted_paths: Sequence[str]
) -> dict[str, Any] | None:
    """What the shim is to hold a request to, in its words; None for the usual rules."""
    rules: dict[str, Any] = {}
    if limits != WORKSPACE_LIMITS:
        rules["limits"] = limits_row(limits)
    if read_only:
        rules["read_only"] = True
    if allowed_paths:
        rules["allowed_paths"] = list(allowed_paths)
    if restricted_paths:
        rules["restricted_paths"] = list(restricted_paths)
    return rules or None


def _opened(data: bytes) -> tuple[str, int]:
    row = read_rows(decode_value(data))
    if len(row) != 2 or type(row[1]) is not int or row[1] < 0:
        raise ProtocolError("the peer opened a file that is none")
    return read_text(row[0]), row[1]
