"""Processes of the host: one that outlives us, and the end of one with all that came of it.

A pid alone names nothing for long: a process is its pid and when it began (`layout.process_start`).

ws may be a library in a program that ignores SIGCHLD, or that reaps every child with waitpid(-1). Then the status of a
child is lost, and `subprocess` reports 0. So a status that counts comes through a pipe, written by a shell in between
(`WITH_STATUS`), and what outlives us is not our child (`spawn_detached`).
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from ws.layout import process_start


def with_status(argv: Sequence[str], descriptor: int) -> list[str]:
    """The words that run a command and write its exit status, as a shell has it, to a descriptor that they inherit."""
    return ["/bin/sh", "-c", 'fd="$1"; shift; "$@"; echo "$?" >"/proc/self/fd/$fd"', "sh", str(descriptor), *argv]


def run_to_end(argv: Sequence[str]) -> None:
    """Run a program whose output does not matter. Raises OSError with what it said when it fails."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        try:
            done = subprocess.run(
                with_status(argv, writer),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                pass_fds=(writer,),
                env={**os.environ, "LC_ALL": "C"},
                check=False,
            )
        finally:
            os.close(writer)
        if read_status(reader) != 0:
            said = done.stderr.decode(errors="replace").strip()
            full = os.strerror(errno.ENOSPC) in said
            raise OSError(errno.ENOSPC if full else errno.EIO, said or f"{argv[0]} failed")
    finally:
        os.close(reader)


def read_status(reader: int) -> int | None:
    """What `with_status` wrote, once no process has the other end; None when the shell itself was killed."""
    os.set_blocking(reader, False)
    try:
        text = os.read(reader, 16)
    except BlockingIOError:
        return None
    return int(text) if text.strip().isdigit() else None


def spawn_detached(argv: Sequence[str], *, log: str, env: Mapping[str, str]) -> int:
    """Start a process that outlives us, in its own session, and return its pid. Raises OSError.

    A shell stands between, so that it is init's child and not ours: we could not reap it for as long as it
    lives. A background job of a shell leads no process group, so `setsid` needs no fork and keeps the pid.
    """
    script = 'cd / && exec 9>&1 && { setsid "$@" 9>&- </dev/null >>"$0" 2>&1 & echo $! >&9; }'
    done = subprocess.run(
        ["/bin/sh", "-c", script, log, *argv], env=dict(env), stdout=subprocess.PIPE, check=False, timeout=10
    )
    if done.returncode != 0 or not done.stdout.strip().isdigit():
        raise OSError(f"cannot start {argv[0]}")
    return int(done.stdout)


def kill_all(pid: int, *, started: int | None = None, within_s: float = 5.0) -> bool:
    """Kill a process and all its descendants, with their sessions; False when some outlive the deadline.

    With `started`, only if it still is that process. Rounds, because a process may fork while we look.
    """
    if started is not None and process_start(pid) != started:
        return True
    doomed = {pid: process_start(pid)}
    deadline = time.monotonic() + within_s
    pause_s = 0.001
    while True:
        _add_kin(doomed)
        alive = [each for each, began in doomed.items() if began is not None and process_start(each) == began]
        if not alive:
            return True
        if time.monotonic() >= deadline:
            return False
        for each in alive:
            try:
                os.kill(each, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(pause_s)
        pause_s = min(pause_s * 2, 0.05)


def find_by_argument(argument: str) -> list[int]:
    """The processes that have exactly this among their arguments."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    if argument.encode() in file.read().split(b"\0"):
                        found.append(int(name))
            except OSError:
                continue
    return found


def _add_kin(doomed: dict[int, int | None]) -> None:
    """Their descendants, and all who are in a session that one of them leads."""
    kin: dict[int, tuple[int, int, int]] = {}
    for name in os.listdir("/proc"):
        fields = _stat(int(name)) if name.isdigit() else None
        if fields is not None:
            kin[int(name)] = int(fields[1]), int(fields[3]), int(fields[19])
    grown = True
    while grown:
        grown = False
        for pid, (parent, session, started) in kin.items():
            if pid not in doomed and (parent in doomed or session in doomed):
                doomed[pid] = started
                grown = True


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the third on: the second, the name, may hold anything."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
