"""The range of host ids that ws reserves for its containers, as an entry of /etc/subuid and /etc/subgid.

`useradd` gives every new user ranges that no entry has, so an entry keeps later users out of ours. Above 1879048192 are
ids that neither the tools of Debian and Red Hat nor systemd give to anything; a range is chosen there that no other
entry touches, in both files the same. Where /etc cannot be written, the range is used all the same.

The files belong to shadow-utils and are changed as it changes them: under its lock (`/etc/subuid.lock`, a hard link to
a file that holds the pid), a new file renamed over the old. Other lines stay byte for byte.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ws.errors import Busy, LimitExceeded
from ws.layout import process_start

OWNER = "ws-workspaces"  # in the place of a user's name; no login of that name is needed
SLOT_IDS = 65_536
FIRST, END = 1_879_048_192, 2_147_418_112  # END leaves out the last 65,536 below 2**31
_LOCK_S = 10.0
_MAX_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class IdSpan:
    """Host ids from `first`, for `count` containers of 65,536 ids each."""

    first: int
    slots: int

    @property
    def end(self) -> int:
        return self.first + self.slots * SLOT_IDS


def read_span(directory: str = "/etc") -> IdSpan | None:
    """The range that is recorded for ws in both files; None when there is none that ws can use."""
    found = [_own_spans(_read(os.path.join(directory, name))) for name in ("subuid", "subgid")]
    for span in found[0]:
        if span in found[1] and span.slots > 0:
            return span
    return None


def reserve_span(directory: str = "/etc") -> tuple[IdSpan, bool]:
    """The range of ws, recorded now if it was not, and whether it is recorded. Idempotent.

    Commit point: the rename of /etc/subgid; before it the range is recorded for users alone, and the next call
    completes it. Raises LimitExceeded when other entries leave no room, Busy when another program holds the lock.
    """
    known = read_span(directory)
    if known is not None:
        return known, True
    paths = [os.path.join(directory, name) for name in ("subuid", "subgid")]
    try:
        with _shadow_lock(paths[0]), _shadow_lock(paths[1]):
            span = read_span(directory) or _choose(paths)
            for path in paths:
                _append(path, span)
        return span, True
    except Busy:
        raise
    except OSError:  # a read-only /etc, or one that is not ours
        return _choose(paths), False


def _choose(paths: list[str]) -> IdSpan:
    """The longest range that no entry of another owner touches."""
    halves = [span for path in paths for span in _own_spans(_read(path))]
    taken = sorted(each for path in paths for each in _entries(_read(path), others=True))
    for half in halves:  # recorded in one file by a call that was interrupted
        if not any(first < half.end and end > half.first for first, end in taken):
            return half
    best, position = IdSpan(FIRST, 0), FIRST
    for first, end in (*taken, (END, END)):
        free = IdSpan(position, max(0, min(first, END) - position) // SLOT_IDS)
        best = max(best, free, key=lambda span: span.slots)
        position = max(position, -(-end // SLOT_IDS) * SLOT_IDS)
    if best.slots == 0:
        raise LimitExceeded(
            "no host ids are left for workspaces",
            hint=f"other entries in /etc/subuid and /etc/subgid take all ids from {FIRST} to {END}",
        )
    return best


def _own_spans(text: bytes) -> list[IdSpan]:
    return [
        IdSpan(first, (min(end, END) - first) // SLOT_IDS)
        for first, end in _entries(text, others=False)
        if first >= FIRST and first % SLOT_IDS == 0 and min(end, END) > first
    ]


def _entries(text: bytes, *, others: bool) -> list[tuple[int, int]]:
    """The ranges in the file, as first and end; those of ws, or those of all others."""
    found = []
    for line in text.splitlines():
        fields = line.strip().split(b":")
        numeric = len(fields) == 3 and fields[1].isdigit() and fields[2].isdigit()
        if numeric and (fields[0] != OWNER.encode()) == others:
            found.append((int(fields[1]), int(fields[1]) + int(fields[2])))
    return found


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_MAX_BYTES)
    except FileNotFoundError:
        return b""


def _append(path: str, span: IdSpan) -> None:
    """Add the line to the file, unless it is there. Commit point: the rename."""
    text = _read(path)
    if span in _own_spans(text):
        return
    if text and not text.endswith(b"\n"):
        text += b"\n"
    text += f"{OWNER}:{span.first}:{span.slots * SLOT_IDS}\n".encode()
    temporary = f"{path}.{OWNER}.{os.getpid()}"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        with contextlib.suppress(FileNotFoundError):
            before = os.stat(path)
            os.fchown(fd, before.st_uid, before.st_gid)
            os.fchmod(fd, before.st_mode & 0o7777)
        view = memoryview(text)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
        os.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    finally:
        os.close(fd)


@contextlib.contextmanager
def _shadow_lock(path: str) -> Iterator[None]:
    """The lock of shadow-utils on one of its files. Raises Busy, OSError."""
    lock, own = f"{path}.lock", f"{path}.{os.getpid()}.{os.urandom(4).hex()}"
    fd = os.open(own, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, f"{os.getpid()}\0".encode())
    finally:
        os.close(fd)
    deadline = time.monotonic() + _LOCK_S
    try:
        while True:
            try:
                os.link(own, lock)
                break
            except FileExistsError:
                _break_stale(lock)
                if time.monotonic() >= deadline:
                    raise Busy(f"{lock} is held by another program", hint="try again when it has ended") from None
                time.sleep(0.02)
    finally:
        os.unlink(own)
    try:
        yield
    finally:
        os.unlink(lock)


def _break_stale(lock: str) -> None:
    """Remove the lock of a process that is gone, as shadow-utils does."""
    with contextlib.suppress(FileNotFoundError):
        with open(lock, "rb") as file:
            holder = file.read(32).rstrip(b"\0\n ")
        if holder.isdigit() and process_start(int(holder)) is None:
            os.unlink(lock)
