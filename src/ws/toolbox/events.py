"""What the tools did, one JSON line each: start, then end or error.

A line is written with one `write` to a file opened for appending, so that lines of several processes never
mix, and the file is opened anew for each, so that it may be renamed away at any time. Past `max_bytes` it is
renamed to `NAME.1` by whoever notices. Losing a line to a full disk does not fail the call, whose work is
done by then.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ws import durable
from ws.errors import StateError
from ws.record_fields import PLAIN_RULES, construct, is_moment, one_of
from ws.record_files import MISSING, damaged, parse_json, read_state_file, type_of
from ws.record_types import Moment

EventKind = Literal["start", "end", "error"]

MAX_VALUE_CHARS = 200
_MAX_LINE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Event:
    """One line of the log. `call` ties the lines of a call together; `at` is seconds since 1970."""

    event: EventKind
    call: str
    tool: str
    at: Moment
    arguments: Mapping[str, Any] = field(default_factory=dict)
    dialect: str = "standard"
    tier: str = ""
    duration_ms: float | None = None
    bytes: int | None = None
    lines: int | None = None
    truncated: bool = False
    files_touched: tuple[str, ...] = ()
    bytes_written: int = 0
    snapshot: str | None = None
    code: str | None = None
    message: str = ""

    def to_json(self) -> str:
        """ASCII, so that no name or message can send an escape sequence to a terminal."""
        fields = ((name, getattr(self, name)) for name in Event.__slots__)
        told = {name: value for name, value in fields if value or isinstance(value, int | float)}
        return json.dumps(told, default=repr)  # what was sent as arguments may be anything

    @classmethod
    def from_json(cls, text: str) -> Event:
        """Raises ValueError when the line is malformed."""
        fields = parse_json(text.encode(errors="replace"))
        if not isinstance(fields, dict):
            raise ValueError("not an event: no JSON object")
        known = {name: value for name, value in fields.items() if name in cls.__slots__}
        try:
            return construct(cls, known, _RULES)
        except StateError as error:
            raise ValueError(f"not an event: {error.message}") from None


_RULES = {
    **PLAIN_RULES,
    "EventKind": one_of(EventKind),
    "Moment": is_moment,
    "Mapping[str, Any]": lambda value: isinstance(value, dict),
}

Subscriber = Callable[[Event], None]


def shorten(arguments: Mapping[str, Any], *, limit: int = MAX_VALUE_CHARS) -> dict[str, Any]:
    """Arguments for a log: long values cut, with their length in their place."""

    def short(value: Any) -> Any:
        if isinstance(value, str) and len(value) > limit:
            return f"{value[:limit]}… ({len(value)} characters)"
        if isinstance(value, list | tuple):
            cut = [short(item) for item in value[:20]]
            return [*cut, f"… ({len(value)} items)"] if len(value) > 20 else cut
        if isinstance(value, dict):
            return {str(key): short(item) for key, item in value.items()}
        return value

    return {name: short(value) for name, value in arguments.items()}


class EventLog:
    """A file of events that several processes append to."""

    def __init__(self, path: str, *, max_bytes: int = 16 << 20) -> None:
        self.path = path
        self._max_bytes = max_bytes

    def append(self, event: Event) -> None:
        line = event.to_json().encode("ascii") + b"\n"
        fd = self._open_to_append()
        try:
            os.write(fd, line)
            if os.fstat(fd).st_size > self._max_bytes:
                self._rotate(fd)
        finally:
            os.close(fd)

    def _open_to_append(self) -> int:
        """The log, made if it is not there, or if damage has put something else in its place."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(self.path, flags, 0o600)
            if stat.S_ISREG(os.fstat(fd).st_mode):
                return fd
            os.close(fd)
        except OSError as error:
            if error.errno not in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
                raise
        durable.write_file(self.path, b"", sync=False)
        return os.open(self.path, flags, 0o600)

    def _rotate(self, fd: int) -> None:
        """Rename the file away once, however many processes find it full at the same time."""
        fcntl.flock(fd, fcntl.LOCK_EX)
        try:
            if os.path.samestat(os.fstat(fd), os.stat(self.path)):
                os.rename(self.path, self.path + ".1")
        except FileNotFoundError:
            pass  # another process has just renamed it

    def read(self) -> Iterator[Event]:
        """What the log holds now, oldest first; malformed lines are passed over.

        Raises StateError when the file is no file, or larger than a log of ours.
        """
        for path in (self.path + ".1", self.path):
            try:
                data = read_state_file(path, max_bytes=4 * self._max_bytes)
            except MISSING:
                continue
            yield from _events(data.split(b"\n"))

    def follow(
        self, *, until: Callable[[], bool] = lambda: False, poll_s: float = 0.2, from_start: bool = True
    ) -> Iterator[Event]:
        """Events as they come, for ever, or until `until` says so; a renamed log is read to its end first."""
        reader = _Tail(self.path, from_start=from_start)
        try:
            while True:
                stop = until()
                yield from _events(reader.lines())
                if stop:
                    return
                time.sleep(poll_s)
        finally:
            reader.close()


def _events(lines: Iterable[bytes]) -> Iterator[Event]:
    for line in lines:
        try:
            yield Event.from_json(line.decode("utf-8", "replace"))
        except ValueError:
            continue


class _Tail:
    """Whole lines that have been added to a file since the last look."""

    def __init__(self, path: str, *, from_start: bool) -> None:
        self._path = path
        self._fd = -1
        self._rest = b""
        self._from_start = from_start

    def lines(self) -> Iterator[bytes]:
        while True:
            if self._fd < 0 and not self._open():
                return
            while chunk := os.read(self._fd, 65_536):
                *whole, self._rest = (self._rest + chunk).split(b"\n")
                self._rest = self._rest[-_MAX_LINE_BYTES:]
                yield from whole
            if self._is_current():
                return
            self.close()  # it was renamed, and nothing is left to read in it

    def _open(self) -> bool:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise damaged(self._path, f"it cannot be read: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            self.close()
            raise damaged(self._path, f"it is {type_of(self._path)}, not a file")
        if not self._from_start:
            os.lseek(self._fd, 0, os.SEEK_END)
        self._from_start = True
        self._rest = b""
        return True

    def _is_current(self) -> bool:
        try:
            return os.path.samestat(os.fstat(self._fd), os.stat(self._path))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Events:
    """Where a router reports to: a log, if there is one, and whoever subscribed."""

    def __init__(self, log: EventLog | None = None) -> None:
        self.log = log
        self._subscribers: list[Subscriber] = []

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with every event from now on; the function returned ends that."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    @property
    def watched(self) -> bool:
        """Whether somebody subscribed."""
        return bool(self._subscribers)

    def emit(self, event: Event) -> None:
        if self.log is not None:
            try:
                self.log.append(event)
            except OSError:
                pass  # see the head of this module
        for subscriber in tuple(self._subscribers):
            subscriber(event)
