"""A real shim for tests: its runtime is gathered once a session, and it is started as a plain process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import time
from collections.abc import Iterator

from ws.layout import open_home
from ws.remote.channel import Channel
from ws.remote.runtime import Runtime, ensure_runtime, shim_command
from ws.shim.wire import SOCKET_NAME

ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/", "BASE": "1"}


class Shim:
    """A shim that runs on this host, and a channel to it."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel, run_dir: str, root: str) -> None:
        self.process = process
        self.channel = channel
        self.run_dir = run_dir
        self.root = root

    @property
    def pid(self) -> int:
        return self.process.pid

    def rss_kb(self) -> int:
        return memory_kb(self.pid, "Rss")


def session_runtime(base: str) -> Runtime:
    return ensure_runtime(open_home(os.path.join(base, "home")))


@contextlib.contextmanager
def running_shim(runtime: Runtime, *, run_dir: str | None = None) -> Iterator[Shim]:
    with tempfile.TemporaryDirectory(prefix="ws-shim-") as base:
        run_dir = run_dir or os.path.join(base, "run")
        root = os.path.join(base, "root")
        os.makedirs(run_dir, exist_ok=True)
        os.mkdir(root)
        command = shim_command(runtime.path, socket=os.path.join(run_dir, SOCKET_NAME), root=root)
        process = subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL)
        channel = Channel(run_dir, peer_pid=process.pid)
        try:
            channel.wait_ready(time.monotonic() + 10)
            yield Shim(process, channel, run_dir, root)
        finally:
            channel.close()
            process.terminate()
            process.wait(10)


def memory_kb(pid: int | str, kind: str) -> int:
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(f"{kind}:"))


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until(condition: object, timeout_s: float = 5.0) -> bool:
    """Poll until a callable is true; False when it never was."""
    assert callable(condition)
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.005)
    return False
