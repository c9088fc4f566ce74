"""Processes that a test started and left: those whose executable lies below a directory of the test.

The shim of the engine `none` runs from the runtime in its WS_HOME, so one that outlives its test shows here. What runs
in a container has another root, and is the concern of the engine's labels.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

GRACE_S = 5.0  # a process that was killed is gone when its parent or init has collected it


def processes_below(directory: str) -> dict[int, str]:
    """The processes whose executable lies below a directory, each with the path of its executable."""
    inside = directory.rstrip("/") + "/"
    found: dict[int, str] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError):  # it ended, or it is a thread of the kernel
                executable = os.readlink(f"/proc/{name}/exe")
                if executable.startswith(inside):
                    found[int(name)] = executable
    return found


def end_left_processes(directory: str) -> list[str]:
    """Kill what is still running from below a directory; a line for each of them. Empty when there was nothing."""
    deadline = time.monotonic() + GRACE_S
    while left := processes_below(directory):
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return [f"{pid}: {executable}" for pid, executable in sorted(left.items())]
