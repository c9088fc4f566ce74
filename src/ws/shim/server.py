"""The shim: PID 1 of a workspace's container (a plain process for engine `none`); listens, dispatches, reaps.

**Threads.** The main thread accepts, reaps orphans and empties pipes that nobody reads any more; it never
waits for a client. Each connection is served by a worker, and one worker is always idle: when a fork bomb
has used up the container's processes, there is still somebody to take the call that ends it. Children are
spawned and waited for by workers alone, so that the main thread's `waitpid(-1, __WNOTHREAD)` finds orphans
and nothing else.

**Who may connect.** As PID 1 we serve only peers from outside of our pid namespace: the kernel shows those
with pid 0. A process in the container is refused at once, so it can neither use up the connections nor
speak for the host.

**Operations.** `ROOMS` maps the first part of an operation's name to the module that has it, imported on
first use; that module's `OPS` maps whole names to handlers. A handler gets a `Request`: `params`, `body` (the
bytes that came with it), `chunks()` (body and then the rest of an uploaded stream), `send(data)` (a piece of
the reply's stream), `server.root`. It returns a dict, or a dict and up to 1 MiB of bytes; what it raises
crosses as an error (`faults`). A client that goes away shows as PeerGone out of `chunks` and `send`; let it
through.

**Light.** No modules but what is listed here until they are needed, nothing under the root held open, cwd
`/`: the overlay below `/workspace` can be detached whenever no command runs.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal without enum
import _thread
import os
import select
import sys
import time
from _queue import SimpleQueue
from _socket import AF_UNIX, SO_PEERCRED, SOCK_STREAM, SOL_SOCKET
from _socket import socket as Socket

from ws.errors import OperationNotSupportedError, ProtocolError
from ws.shim.faults import describe_error
from ws.shim.place import rg_command
from ws.shim.self_defence import OomScore, become_undumpable
from ws.shim.wire import FRAME_TIMEOUT_S, VERSION, Connection, PeerGone, field, optional

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any, Final, NoReturn

    Handler = Callable[["Request"], "dict[str, Any] | tuple[dict[str, Any], bytes]"]

ROOMS: Final = {
    "exec": "ws.shim.running",
    "fs": "ws.shim.files",
    "kill_all": "ws.shim.running",
    "session": "ws.shim.running",
    "streams": "ws.shim.streams",
    "tool": "ws.shim.tooling",
}

MAX_CONNECTIONS: Final = 128
IDLE_TIMEOUT_S: Final = 600.0  # of a client between two requests, or two steps of a stream
_WNOTHREAD: Final = 0x20000000
_MAX_LEFTOVERS: Final = 64
_LEFTOVER_PAUSE_S: Final = 0.05


class Request:
    """One request while it is served."""

    __slots__ = ("_ended", "body", "connection", "id", "op", "params", "server")

    def __init__(self, server: Server, connection: Connection, header: dict[str, Any], body: bytes) -> None:
        self.server = server
        self.connection = connection
        self.id = field(header, "id", int)
        self.op = field(header, "op", str)
        self.params: dict[str, Any] = field(header, "params", dict)
        self.body = body
        self._ended = not optional(header, "more", bool)

    def chunks(self) -> Iterator[bytes]:
        """The request's stream, piece by piece. Raises PeerGone when it breaks off."""
        if self.body:
            yield self.body
        while not self._ended:
            header, body = self.connection.receive(deadline=time.monotonic() + IDLE_TIMEOUT_S)
            kind = field(header, "kind", str)
            if field(header, "id", int) != self.id or kind not in ("data", "end"):
                raise ProtocolError("a stream was interrupted by another frame")
            self._ended = kind == "end"
            if body:
                yield body

    def send(self, data: bytes | memoryview, **fields: Any) -> None:
        """A piece of the reply's stream, at most 1 MiB. Raises PeerGone when nobody is there to read it."""
        self.reply("data", fields, data)

    def reply(self, kind: str, fields: dict[str, Any], body: bytes | memoryview = b"") -> None:
        deadline = time.monotonic() + IDLE_TIMEOUT_S
        self.connection.send({"id": self.id, "kind": kind, **fields}, body, deadline=deadline)


class Server:
    """What all requests share."""

    def __init__(self, root: str, run_dir: str, base_env: dict[bytes, bytes]) -> None:
        self.root = root
        self.run_dir = run_dir
        self.base_env = base_env
        self.started_at = time.monotonic()
        self.is_init = os.getpid() == 1
        self._handlers: dict[str, Handler] = {"ping": _ping}
        self._queue: SimpleQueue[Connection] = SimpleQueue()
        self._lock = _thread.allocate_lock()
        self._workers = 0
        self._serving = 0
        self._leftovers: list[int] = []  # the main thread's own
        self._adopted: list[int] = []  # on their way to it
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)

    # the main thread

    def run(self, listener: Socket) -> NoReturn:
        """Serve until SIGTERM."""
        # What PID 1 has no handler for, nobody in its container can send it. Python's own is for people.
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        for number in (_signal.SIGCHLD, _signal.SIGTERM):
            _signal.signal(number, lambda *_: None)  # the wakeup descriptor says which came
        _signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        self._start_worker()
        rest_until = 0.0  # leftovers are looked at now and then, or a chatty daemon would keep us busy
        while True:
            poll = select.poll()
            poll.register(listener.fileno(), select.POLLIN)
            poll.register(self._wake_read, select.POLLIN)
            now = time.monotonic()
            timeout_ms = None
            if self._leftovers and now < rest_until:
                timeout_ms = (rest_until - now) * 1000
            else:
                for descriptor in self._leftovers:
                    poll.register(descriptor, select.POLLIN)
            for descriptor, _events in poll.poll(timeout_ms):
                if descriptor == listener.fileno():
                    self._accept(listener)
                elif descriptor == self._wake_read:
                    self._woken()
                else:
                    self._empty(descriptor)
                    rest_until = now + _LEFTOVER_PAUSE_S

    def _woken(self) -> None:
        signals = os.read(self._wake_read, 4096)
        if _signal.SIGTERM in signals:
            self._stop()
        while self._adopted:
            self._leftovers.append(self._adopted.pop())
        while len(self._leftovers) > _MAX_LEFTOVERS:
            os.close(self._leftovers.pop(0))
        try:
            while os.waitpid(-1, os.WNOHANG | _WNOTHREAD)[0]:
                pass
        except ChildProcessError:
            pass

    def _stop(self) -> NoReturn:
        if not self.is_init:  # the end of PID 1 is the end of its whole namespace; here it is up to us
            from ws.tools.spawning import end_session, live

            for leader in list(live):
                end_session(leader)
        os._exit(0)

    def _accept(self, listener: Socket) -> None:
        try:
            descriptor, _ = listener._accept()  # type: ignore[attr-defined]
        except OSError:
            time.sleep(0.01)  # out of descriptors: whoever asks again finds us
            return
        socket = Socket(fileno=descriptor)
        connection = Connection(socket)
        if not self._is_welcome(socket):
            connection.close()
        elif not self._hand_over(connection):
            _tell_busy(connection)
        elif self._workers <= self._serving:
            self._start_worker()  # the next idle one, after this client got his

    def _is_welcome(self, socket: Socket) -> bool:
        credentials = socket.getsockopt(SOL_SOCKET, SO_PEERCRED, 12)
        pid, uid = (int.from_bytes(credentials[at : at + 4], sys.byteorder) for at in (0, 4))
        return pid == 0 if self.is_init else uid in (0, os.getuid())

    def _hand_over(self, connection: Connection) -> bool:
        if self._serving >= MAX_CONNECTIONS:
            return False
        if self._workers <= self._serving and not self._start_worker():
            return False
        with self._lock:
            self._serving += 1
        self._queue.put(connection)
        return True

    def _start_worker(self) -> bool:
        try:
            _thread.start_new_thread(self._work, ())
        except RuntimeError:
            return False  # no more processes: those that there are go on
        with self._lock:
            self._workers += 1
        return True

    def _empty(self, descriptor: int) -> None:
        from ws.tools.commands import discard

        if not discard(descriptor):
            self._leftovers.remove(descriptor)
            os.close(descriptor)

    # workers

    def adopt(self, descriptors: list[int]) -> None:
        """Take over pipes that a daemon still writes to: closed, its next line of output would kill it."""
        self._adopted.extend(descriptors)
        try:
            os.write(self._wake_write, b"\0")
        except BlockingIOError:
            pass  # it is about to look anyway

    def _work(self) -> None:
        while True:
            connection = self._queue.get()
            try:
                self._serve(connection)
            except BaseException:  # noqa: BLE001 - one connection's end, `Abandoned` too; the worker goes on
                pass
            connection.close()
            with self._lock:
                self._serving -= 1
                surplus = self._workers > self._serving + 2
                if surplus:
                    self._workers -= 1
            if surplus:
                return

    def _serve(self, connection: Connection) -> None:
        last = 0
        while True:
            try:
                header, body = connection.receive(deadline=time.monotonic() + IDLE_TIMEOUT_S)
                number = field(header, "id", int)
                if "op" not in header and number == last:
                    continue  # the rest of a stream whose request was answered early
                if field(header, "v", int) != VERSION:
                    raise ProtocolError(f"this shim speaks version {VERSION} of the protocol")
                request = Request(self, connection, header, body)
            except ProtocolError as error:
                _answer(connection, last, error)
                return
            last = number
            if not self._serve_one(request):
                return

    def _serve_one(self, request: Request) -> bool:
        """Answer; False when the connection is of no more use."""
        try:
            result = self._find(request.op)(request)
            fields, body = result if isinstance(result, tuple) else (result, b"")
            request.reply("result", {"result": fields}, body)
        except PeerGone:
            raise
        except ProtocolError as error:
            _answer(request.connection, request.id, error)
            return False
        except Exception as error:  # noqa: BLE001 - PID 1 outlives whatever a handler does
            _answer(request.connection, request.id, error)
        return True

    def _find(self, op: str) -> Handler:
        handler = self._handlers.get(op)
        if handler is None:
            module = ROOMS.get(op.partition(".")[0])
            if module is not None:
                __import__(module)
                handler = sys.modules[module].OPS.get(op)
            if handler is None:
                raise OperationNotSupportedError(f"the shim has no operation {op[:40]!r}")
            self._handlers[op] = handler
        return handler


def _ping(request: Request) -> dict[str, Any]:
    return {
        "version": VERSION,
        "pid": os.getpid(),
        "uptime_s": time.monotonic() - request.server.started_at,
        "python": "{}.{}.{}".format(*sys.version_info),
        "rg": rg_command(sys.prefix) is not None,
    }


def _answer(connection: Connection, number: int, error: Exception) -> None:
    fields = {"id": number, "kind": "error", **describe_error(error)}
    connection.send(fields, deadline=time.monotonic() + FRAME_TIMEOUT_S)


def _tell_busy(connection: Connection) -> None:
    fields = {"code": "busy", "message": "the shim serves as many connections as it can", "hint": "try again"}
    try:
        connection.queue({"id": 0, "kind": "error", **fields})
        connection.flush()
    except PeerGone:
        pass
    connection.close()


def _listen(path: str, *, mode: int) -> Socket:
    """A socket that is connectable from the moment its name appears. Commit point: the rename."""
    directory, name = os.path.split(path)
    os.chdir(directory)  # a socket's address has 108 bytes, a run directory may have more
    temporary = f".{name}.new"
    try:
        os.unlink(temporary)
    except FileNotFoundError:
        pass
    listener = Socket(AF_UNIX, SOCK_STREAM)
    listener.bind(temporary)
    os.chmod(temporary, mode)
    listener.listen(128)
    listener.setblocking(False)
    os.rename(temporary, name)
    os.chdir("/")
    return listener


def _clean_up_inheritance() -> dict[bytes, bytes]:
    """Descriptors, signals and variables that whoever started us left us; returns the variables.

    The environment is read from the kernel: Python adds LC_CTYPE to its own when it finds a C locale.
    """
    for name in os.listdir("/proc/self/fd"):
        try:
            os.set_inheritable(int(name), int(name) <= 2)
        except OSError:
            pass  # the descriptor of this very listing
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    for number in range(1, 32):
        if _signal.getsignal(number) == _signal.SIG_IGN and number not in (_signal.SIGPIPE, _signal.SIGXFSZ):
            _signal.signal(number, _signal.SIG_DFL)  # those two Python ignores itself, and spawn gives back
    descriptor = os.open("/proc/self/environ", os.O_RDONLY | os.O_CLOEXEC)
    data = bytearray()
    while chunk := os.read(descriptor, 1 << 20):
        data += chunk
    os.close(descriptor)
    pairs = (entry.partition(b"=") for entry in bytes(data).split(b"\0") if b"=" in entry)
    return {name: value for name, _, value in pairs if name}


def main(argv: list[str]) -> NoReturn:
    """Serve on a socket, for a root, until told to end."""
    options = dict(zip(argv[::2], argv[1::2], strict=False))
    if len(argv) != 4 or set(options) != {"--socket", "--root"}:
        sys.exit("usage: ws.shim --socket PATH --root DIR")
    server = Server(options["--root"], os.path.dirname(options["--socket"]), _clean_up_inheritance())
    if server.is_init:
        from ws.tools import spawning

        spawning.starting = OomScore()
        become_undumpable()
    listener = _listen(options["--socket"], mode=0o666 if server.is_init else 0o600)
    sys.setswitchinterval(0.001)  # one busy tool must not make the others wait 5 ms for each step
    __import__("ws.shim.running")  # the first request will want it, and comes when the engine has returned
    server.run(listener)
