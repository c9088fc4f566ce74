"""Scripted faults without touching the product: strace fails or kills a child at the n-th system call of a kind.

strace counts each kind of call in each thread by itself. So a run that goes well is traced first, and says which calls
there are to fail: a `Point` each.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from guest import Guest

# What makes state true, one way or another. The at-forms are what glibc and Python use.
DURABLE = (
    "fsync,syncfs,fdatasync,rename,renameat,renameat2,link,linkat,symlink,symlinkat,mkdir,mkdirat,unlink,unlinkat,rmdir"
)
SIGNALS = {"INT": signal.SIGINT, "TERM": signal.SIGTERM, "HUP": signal.SIGHUP}
# What takes an overlay off a container and puts another on.
MOUNTING = "umount2,move_mount,fsmount,fsopen,setns"


@dataclass(frozen=True)
class Point:
    """The n-th call of a kind."""

    call: str
    number: int

    def __str__(self) -> str:
        return f"{self.call} {self.number}"


@dataclass(frozen=True)
class Outcome:
    point: Point
    killed: bool
    status: int
    stdout: str
    stderr: str


def trace_points(
    script: str, arguments: Sequence[str], *, calls: str, skip: Sequence[Point] = (), user: Guest | None = None
) -> list[Point]:
    """The calls that Python code makes when nothing goes wrong, in their order, without those of `skip`.

    `user` is the one who runs it, if not this process's own.
    """
    seen: Counter[tuple[str, str]] = Counter()
    found: dict[Point, None] = {}
    with tempfile.NamedTemporaryFile("r", errors="replace", dir=user and user.home) as log:
        if user:
            os.chown(log.name, user.uid, user.uid)
        done = _strace(["-o", log.name], script, arguments, calls, user)
        assert done.returncode == 0, done.stderr
        for thread, call in re.findall(r"^(\d+) +(\w+)\(", log.read(), re.M):
            seen[thread, call] += 1
            found[Point(call, seen[thread, call])] = None
    return [point for point in found if point not in set(skip)]


def spread(points: Sequence[Point], about: int) -> list[Point]:
    """Some of them, evenly, the first and the last among them; all when `about` is 0."""
    if not about or about >= len(points):
        return list(points)
    if about == 1:
        return [points[len(points) // 2]]
    return [points[round(i * (len(points) - 1) / (about - 1))] for i in range(about)]


def run_injected(
    script: str,
    arguments: Sequence[str],
    *,
    point: Point,
    fault: str,
    lasting: bool = False,
    user: Guest | None = None,
) -> Outcome:
    """Run Python code with one fault: `signal=KILL`, `error=ENOSPC`, …; `lasting`: and every later such call."""
    inject = f"inject={point.call}:{fault}:when={point.number}{'+' if lasting else ''}"
    done = _strace(["-o", "/dev/null", "-e", inject], script, arguments, point.call, user)
    return Outcome(point, done.returncode in (-9, 137), done.returncode, done.stdout, done.stderr)


def kill_at_each(
    script: str, arguments: Sequence[str], points: Sequence[Point], *, about: int = 0
) -> Iterator[Outcome]:
    """Kill at each of these points, or at some. The caller checks after each, and makes the next one possible."""
    for point in spread(points, about):
        yield run_injected(script, arguments, point=point, fault="signal=KILL")


def _strace(
    options: Sequence[str], script: str, arguments: Sequence[str], calls: str, user: Guest | None = None
) -> subprocess.CompletedProcess[str]:
    words = ["strace", "-f", "-qq", "-e", f"trace={calls}", *options, sys.executable, "-c", script, *arguments]
    quiet = {"PYTHONDONTWRITEBYTECODE": "1"}  # compiled modules are renamed into their place, too
    if user:
        return user.run(*words, deadline_s=120, env=quiet)
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=120,
        check=False,
        env={**os.environ, **quiet},
    )
