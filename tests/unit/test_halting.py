"""The law: where a container has no cgroup of its own, signals stop all of it, for one instant and without loss."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ws.errors import Busy, ContainerDied, KernelRefused
from ws.freezer import FrozenAlready, freezer_of, held_here
from ws.halting import SignalFreezer

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="a pid namespace takes root")

PTRACE_SEIZE, PTRACE_INTERRUPT, PTRACE_DETACH = 0x4206, 0x4207, 17
WALL = 0x40000000

# The first process of a namespace reaps, and goes on after a stop, as the shim does.
FIRST = """
import os, signal, subprocess, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for script in sys.argv[1:]:
    subprocess.Popen(["sh", "-c", script])
print("ready", flush=True)
while True:
    signal.pause()
"""


@contextlib.contextmanager
def namespace_of(*scripts: str) -> Iterator[SignalFreezer]:
    words = ["unshare", "-p", "-f", "--kill-child", sys.executable, "-c", FIRST, *scripts]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "ready\n"
            first = int(Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()[0])
            found = freezer_of(first)
            assert isinstance(found, SignalFreezer), "a process without a cgroup of its own is stopped by signals"
            yield found
        finally:
            holder.kill()


def appears(path: Path) -> None:
    deadline = time.monotonic() + 10
    while not path.exists() or path.stat().st_size == 0:
        assert time.monotonic() < deadline
        time.sleep(0.005)


def grows(path: Path, *, for_s: float = 0.1) -> bool:
    before = path.stat().st_size
    time.sleep(for_s)
    return path.stat().st_size != before


def test_nothing_runs_inside_and_everything_afterwards_however_fast_it_forks(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    with namespace_of(*[f"while :; do (echo x >> {file}); done"] * 3) as freezer:
        appears(file)
        for _ in range(5):
            with freezer.stopped():
                assert freezer.frozen()
                assert freezer.freezing()
                assert not grows(file)
            assert not freezer.freezing()
            assert grows(file)


def test_threads_stop_too(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    program = (
        "import threading, os\n"
        f"def work():\n    fd = os.open({str(file)!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)\n"
        "    while True:\n        os.write(fd, b'x')\n"
        "for _ in range(4):\n    threading.Thread(target=work).start()\n"
    )
    (tmp_path / "program").write_text(program)
    with namespace_of(f"exec {sys.executable} {tmp_path / 'program'}") as freezer:
        appears(file)
        with freezer.stopped():
            assert not grows(file)
        assert grows(file)


def test_what_somebody_had_stopped_stays_stopped(tmp_path: Path) -> None:
    file, pid_file = tmp_path / "lines", tmp_path / "pid"
    with namespace_of(f"echo $$ > {pid_file}; while :; do echo x >> {file}; done") as freezer:
        appears(file)
        (worker,) = (pid for pid in freezer.processes() if pid != freezer.pid)
        os.kill(worker, signal.SIGSTOP)
        while Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[0] != "T":
            time.sleep(0.001)  # a signal arrives when it arrives
        with freezer.stopped():
            pass
        assert not grows(file)
        os.kill(worker, signal.SIGCONT)
        assert grows(file)


def test_what_a_crash_left_stopped_is_found_and_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    with namespace_of(f"while :; do (echo x >> {file}); done") as freezer:
        appears(file)
        freezer.freeze()
        assert not grows(file)
        later = freezer_of(freezer.pid)
        assert later.freezing()
        later.thaw()
        assert not later.freezing()
        assert grows(file)


def test_a_container_that_was_stopped_by_hand_stays_stopped(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    with namespace_of(f"while :; do (echo x >> {file}); done") as freezer:
        appears(file)
        os.kill(freezer.pid, signal.SIGSTOP)
        while not freezer.freezing():
            time.sleep(0.001)
        with pytest.raises(FrozenAlready), freezer.stopped():
            pass
        with pytest.raises(FrozenAlready):
            freezer.kill_others(keep=freezer.pid)
        assert freezer.freezing()
        assert not freezer.stopped_here()
        assert len(freezer.processes()) > 1


def test_what_was_not_thawed_after_an_interrupt_is_known(tmp_path: Path) -> None:
    """An interrupt may come between the block and the thaw: the cleanup after it must know that ws froze it."""
    file = tmp_path / "lines"
    with namespace_of(f"while :; do (echo x >> {file}); done") as freezer:
        appears(file)
        holding = held_here(freezer)
        holding.__enter__()
        freezer.freeze()
        assert not holding.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        assert freezer.stopped_here()
        freezer.thaw()
        assert not freezer.stopped_here()
        assert grows(file)


def test_all_but_the_first_are_ended_and_none_escapes_by_forking(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    with namespace_of(*[f"while :; do (echo x >> {file}) & done"] * 2, "sleep 100") as freezer:
        appears(file)
        assert freezer.kill_others(keep=freezer.pid) >= 3
        assert freezer.processes() == [freezer.pid]
        assert not grows(file)


def test_an_error_inside_the_block_lets_everybody_go_on(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    with namespace_of(f"while :; do (echo x >> {file}); done") as freezer:
        appears(file)
        with pytest.raises(Busy), freezer.stopped():
            raise Busy("somebody else")
        assert grows(file)


def test_a_process_that_shares_our_namespace_is_never_stopped() -> None:
    with pytest.raises(KernelRefused) as refused:
        SignalFreezer.of(os.getpid())
    assert refused.value.hint


def test_a_container_that_is_gone_is_a_dead_one() -> None:
    with namespace_of("sleep 100") as freezer:
        os.kill(freezer.pid, signal.SIGKILL)
        while os.path.exists(f"/proc/{freezer.pid}/ns/pid"):
            time.sleep(0.005)
    with pytest.raises(ContainerDied):
        freezer.processes()
    with pytest.raises(ContainerDied):
        SignalFreezer.of(freezer.pid)
    freezer.thaw()


def test_a_stop_that_is_still_on_its_way_is_found_and_taken_back(tmp_path: Path) -> None:
    """A process of ws may die between its SIGSTOP and the moment at which the kernel has stopped the container.

    A tracer holds the first process: what is sent to it stays pending, as for one that waits for a processor.
    """
    with namespace_of() as container:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.ptrace(PTRACE_SEIZE, container.pid, 0, 0) == 0, os.strerror(ctypes.get_errno())
        try:
            assert libc.ptrace(PTRACE_INTERRUPT, container.pid, 0, 0) == 0
            os.waitpid(container.pid, WALL)
            os.kill(container.pid, signal.SIGSTOP)
            assert container.freezing()
            container.thaw()
            assert not container.freezing()
        finally:
            libc.ptrace(PTRACE_DETACH, container.pid, 0, 0)
        time.sleep(0.1)
        assert not container.freezing()
