"""The Filesystem protocol inside the container: the same code as on a host directory, over the workspace's root.

    fs.METHOD      body: {"arguments", "rules"} in JSON; the reply's body: what the method returns, in rows (`fs.rows`)
    fs.read_bytes  the reply's body is the bytes; fs.write_bytes and fs.put have the content behind the arguments
    fs.open_read   → result with path, size and all bytes of a small file, which is closed by then; else
                   → opened with the first of them; then for each ← read (at, size) → data, until ← end → result
    fs.open_write  → opened; ← data …, end → result: the rename has happened. A connection that breaks off
                   before `end` leaves what was there before.

Arguments are JSON in ASCII, so that a name which is no UTF-8 travels as the surrogates that stand for its bytes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from json import dumps
from typing import TYPE_CHECKING, Any, Final

from ws.errors import ProtocolError
from ws.fs.rows import entry_row, glob_row, read_query, report_row, stat_row
from ws.shim.abandonment import Watch
from ws.shim.places import place_of
from ws.shim.server import IDLE_TIMEOUT_S
from ws.shim.streams import Held
from ws.shim.wire import MAX_BODY_BYTES, field
from ws.tools.results import decode_params

if TYPE_CHECKING:
    from ws.fs.host import HostFilesystem
    from ws.shim.server import Handler, Request

FIRST_BYTES: Final = 64 << 10


def _asked(request: Request) -> tuple[HostFilesystem, dict[str, Any], bytes]:
    """The filesystem that the request is about, its arguments, and the bytes behind them."""
    size = field(request.params, "head", int)
    asked = decode_params(request.body[:size])
    content = request.body[size:]
    request.body = b""  # so that `chunks` begins with what follows
    return place_of(request.server, asked.get("rules")).filesystem, asked["arguments"], content


def reply_bytes(request: Request, data: bytes) -> tuple[dict[str, Any], bytes]:
    """A result of any length: what does not fit its frame goes before it."""
    view = memoryview(data)
    while len(view) > MAX_BODY_BYTES:
        request.send(view[:MAX_BODY_BYTES])
        view = view[MAX_BODY_BYTES:]
    return {}, bytes(view)


def _method(name: str, encode: Callable[[Any], Any]) -> Handler:
    def handle(request: Request) -> tuple[dict[str, Any], bytes]:
        filesystem, arguments, _ = _asked(request)
        result = getattr(filesystem, name)(**arguments)
        return reply_bytes(request, dumps(encode(result)).encode("ascii"))

    return handle


def glob(request: Request) -> tuple[dict[str, Any], bytes]:
    filesystem, arguments, _ = _asked(request)
    with Watch(request.connection.fileno()):
        found = [glob_row(match) for match in filesystem.glob(**arguments)]
    return reply_bytes(request, dumps(found).encode("ascii"))


def _rows(encode: Callable[[Any], list[Any]]) -> Callable[[Sequence[Any]], list[Any]]:
    return lambda found: [encode(item) for item in found]


def _as_it_is(value: object) -> object:
    return value


def search(request: Request) -> tuple[dict[str, Any], bytes]:
    filesystem, arguments, _ = _asked(request)
    with Watch(request.connection.fileno()):
        report = filesystem.search(read_query(arguments["query"]))
    return reply_bytes(request, dumps(report_row(report)).encode("ascii"))


def read_bytes(request: Request) -> tuple[dict[str, Any], bytes]:
    filesystem, arguments, _ = _asked(request)
    return reply_bytes(request, filesystem.read_bytes(**arguments))


def write_bytes(request: Request) -> tuple[dict[str, Any], bytes]:
    filesystem, arguments, content = _asked(request)
    result = filesystem.write_bytes(content=content, **arguments)
    return {}, dumps(result.path).encode("ascii")


def put(request: Request) -> tuple[dict[str, Any], bytes]:
    filesystem, arguments, content = _asked(request)
    filesystem.put(chunks=(content,), **arguments)
    return {}, b""


def open_read(request: Request) -> tuple[dict[str, Any], bytes]:
    filesystem, arguments, _ = _asked(request)
    reader = filesystem.open_read(**arguments)
    with Held(reader, reader.path, reader.close) as held:
        head = dumps([reader.path, reader.size]).encode("ascii")
        fields = {"head": len(head)}
        first = head + reader.read(FIRST_BYTES)
        if reader.size <= FIRST_BYTES:
            return fields, first
        request.reply("opened", fields, first)
        while True:
            header, _ = request.connection.receive(deadline=time.monotonic() + IDLE_TIMEOUT_S)
            kind = field(header, "kind", str)
            if field(header, "id", int) != request.id or kind not in ("read", "end"):
                raise ProtocolError("a stream was interrupted by another frame")
            if kind == "end":
                return {}, b""
            with held.using():
                reader.seek(field(header, "at", int))
                data = reader.read(min(field(header, "size", int), MAX_BODY_BYTES))
            request.send(data)


def open_write(request: Request) -> tuple[dict[str, Any], bytes]:
    filesystem, arguments, _ = _asked(request)
    facts = arguments.pop("facts", None)
    # Unnamed: a snapshot may be taken meanwhile, and the container may end; neither is to find half a file.
    writer = filesystem.open_write(**arguments, unnamed=True)
    # `discard` after `close` does nothing: what was committed stays.
    with Held(writer, writer.path, writer.discard) as held:
        if facts is not None:
            writer.become(**facts)
        request.reply("opened", {}, dumps(writer.path).encode("ascii"))
        for chunk in request.chunks():
            with held.using():
                writer.write(chunk)
        with held.using():
            writer.close()
    return {}, b""


OPS: Final[dict[str, Handler]] = {
    "fs.exists": _method("exists", _as_it_is),
    "fs.stat": _method("stat", stat_row),
    "fs.list": _method("list", _rows(entry_row)),
    "fs.scan": _method("scan", _rows(stat_row)),
    "fs.resolve": _method("resolve", _as_it_is),
    "fs.read_link": _method("read_link", _as_it_is),
    "fs.glob": glob,
    "fs.search": search,
    "fs.delete": _method("delete", _as_it_is),
    "fs.unlink": _method("unlink", _as_it_is),
    "fs.rmdir": _method("rmdir", _as_it_is),
    "fs.mkdir": _method("mkdir", _as_it_is),
    "fs.move": _method("move", _as_it_is),
    "fs.copy": _method("copy", _as_it_is),
    "fs.make_link": _method("make_link", _as_it_is),
    "fs.set_mode": _method("set_mode", _as_it_is),
    "fs.set_modified": _method("set_modified", _as_it_is),
    "fs.read_bytes": read_bytes,
    "fs.write_bytes": write_bytes,
    "fs.put": put,
    "fs.open_read": open_read,
    "fs.open_write": open_write,
}
