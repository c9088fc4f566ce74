"""A second process for a scan, because the interpreter runs one thread of Python at a time.

A plain child started by exec, not by fork: the caller may have threads, such as the one that draws its
progress bar. It is given descriptors of the directories, reads the directories it is told, puts their
objects into a pack of its own, and hands that over at the end. Messages are marshalled plain values behind
a length; both ends are this very version of ws. When either end dies the other one sees the end of its pipe
and stops.
"""

from __future__ import annotations

import contextlib
import dataclasses
import marshal
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ws.errors import StateError, WorkspaceError, all_errors
from ws.store.gathering import Contents, Row
from ws.store.packs import PackWriter, new_pack_path
from ws.store.reading import DirectoryReader, Result, Rules
from ws.store.repository import Store
from ws.store.vouching import THOROUGH_BYTES

_START = "import sys; sys.path.insert(0, {path!r}); from ws.store.crew import work; work(*map(int, sys.argv[1:6]))"

BATCH = 8  # directories handed over at once

Job = tuple[int, bytes, list[Row]]  # number, path, cached rows


def may_help() -> bool:
    """Whether there is a second core for a second process."""
    return len(os.sched_getaffinity(0)) > 1


class Helper:
    """The second process, from the first one's side."""

    def __init__(
        self, store: Store, rules: Rules, source: int, copy: int | None = None, earlier: int | None = None
    ) -> None:
        jobs_read, jobs_write = os.pipe2(os.O_CLOEXEC)
        done_read, done_write = os.pipe2(os.O_CLOEXEC)
        lent = [fd for fd in (source, copy, earlier) if fd is not None]
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        descriptors = (
            jobs_read,
            done_write,
            source,
            -1 if copy is None else copy,
            -1 if earlier is None else earlier,
        )
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START.format(path=package), *map(str, descriptors)],
                pass_fds=[jobs_read, done_write, *lent],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C at the terminal is for the first process, which ends this one
            )
        except BaseException:
            os.close(jobs_write)
            os.close(done_read)
            raise
        finally:
            os.close(jobs_read)
            os.close(done_write)
        self._jobs = jobs_write
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        # Results are taken off the pipe at once: two processes that write to each other would wait for ever.
        self._thread = threading.Thread(target=self._listen, args=(done_read,), daemon=True)
        self._thread.start()
        self.outstanding = 0
        self._pack = new_pack_path(store.pack_directory)
        plain = [tuple(value) if isinstance(value, tuple) else value for value in dataclasses.astuple(rules)]
        self._send((store.path, plain, self._pack))

    def give(self, jobs: Sequence[Job]) -> None:
        self._send(list(jobs))
        self.outstanding += 1

    def take(self, *, wait: bool) -> list[tuple[int, Result | None]]:
        """Finished jobs by their numbers; nothing when none is finished and we do not wait."""
        return [(number, Result(*fields) if fields else None) for number, fields in self._take(wait)]

    def take_contents(self, *, wait: bool) -> list[tuple[int, Contents | None]]:
        """The same, where it reads a layer."""
        return [(number, Contents(*fields) if fields else None) for number, fields in self._take(wait)]

    def _take(self, wait: bool) -> list[tuple[int, Any]]:
        try:
            message = self._done.get(block=wait)
        except queue.Empty:
            return []
        if message is None:
            raise StateError("the second process of the scan died", hint="is memory short? Try again")
        if message[0] == "error":
            _, code, text, hint = message
            raise all_errors().get(code, WorkspaceError)(text, hint=hint)
        self.outstanding -= 1
        results: list[tuple[int, Any]] = message[1]
        return results

    def finish(self, writer: PackWriter) -> None:
        """Take over all that the second process stored."""
        self._send(None)
        message = self._done.get()
        if message is None or message[0] != "pack":
            raise StateError("the second process of the scan died", hint="is memory short? Try again")
        _, path, ids, offsets, crcs, end = message
        if not ids:
            return
        columns = array("Q"), array("I")
        columns[0].frombytes(offsets)
        columns[1].frombytes(crcs)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            writer.absorb(fd, [ids[at : at + 20] for at in range(0, len(ids), 20)], *columns, end)
        finally:
            os.close(fd)
            os.unlink(path)

    def close(self) -> None:
        os.close(self._jobs)
        self._process.kill()
        self._process.wait()
        self._thread.join()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._pack)  # it was killed over it

    def _listen(self, fd: int) -> None:
        with contextlib.suppress(OSError), os.fdopen(fd, "rb") as pipe:
            while (message := _receive(pipe)) is not None:
                self._done.put(message)
        self._done.put(None)

    def _send(self, message: Any) -> None:
        data = marshal.dumps(message)
        try:
            _write_all(self._jobs, struct.pack(">Q", len(data)) + data)
        except BrokenPipeError:
            pass  # it died; the end of its other pipe says so


def work(jobs: int, done: int, source: int, copy: int, earlier: int) -> None:
    """The second process: until the end of `jobs`, or the first error."""
    os.umask(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the end of the pipe, or SIGKILL, is what ends us
    with os.fdopen(jobs, "rb") as pipe:
        path, rules, pack = _receive(pipe)
        with Store(path) as store:
            # The first process holds the lock of the store for both.
            store.bound_checks(THOROUGH_BYTES)
            writer = PackWriter(store.pack_directory, store.contains, judge=store, path=pack)
            rules = Rules(*rules)
            reader = DirectoryReader(
                writer, rules, source, copy if copy >= 0 else None, earlier if earlier >= 0 else None
            )
            try:
                _serve(pipe, done, writer, _gathering(reader) if rules.layer else reader.read)
            except WorkspaceError as error:
                _answer(done, ("error", error.code, error.message, error.hint))
            finally:
                reader.close()
                writer.abort()


Read = Callable[[bytes, Mapping[bytes, Row]], Result | Contents | None]


def _gathering(reader: DirectoryReader) -> Read:
    def gather(path: bytes, cached: Mapping[bytes, Row]) -> Contents | None:
        here = reader.gather(path, cached)
        return here.contents() if here else None

    return gather


def _serve(pipe: Any, done: int, writer: PackWriter, read: Read) -> None:
    while True:
        batch = _receive(pipe, b"gone")
        if batch == b"gone":
            return  # the first process died: what we wrote is rubbish
        if batch is None:
            break
        results = []
        for number, path, rows in batch:
            result = read(path, {row[0]: row for row in rows})
            results.append((number, tuple(result) if result else None))
        _answer(done, ("results", results))
    path = writer.seal()
    _answer(
        done,
        (
            "pack",
            path,
            b"".join(writer.ids),
            writer.offsets.tobytes(),
            writer.crcs.tobytes(),
            writer.size_bytes,
        ),
    )


def _answer(fd: int, message: Any) -> None:
    data = marshal.dumps(message)
    _write_all(fd, struct.pack(">Q", len(data)) + data)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _receive(pipe: Any, gone: Any = None) -> Any:
    head = pipe.read(8)
    if len(head) < 8:
        return gone
    size = struct.unpack(">Q", head)[0]
    data = pipe.read(size)
    return marshal.loads(data) if len(data) == size else gone
