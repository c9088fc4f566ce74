"""Stopping a container's processes by signals, where it has no cgroup of its own: a rootless one without cgroup v2.

SIGSTOP cannot be caught, a process with one pending cannot fork (copy_process restarts the call), and a first process
takes it from outside of its namespace. So after two looks at all processes of the namespace that find every thread
stopped, nothing of the container runs. What a cgroup does better: whoever comes through the engine in that very moment
runs, a parent may be told that its child was stopped, and a process that somebody had stopped by hand goes on after a
crash of ours.

Parents are stopped before their children and go on after them, so that they seldom notice. The first process is the
first and the last: while it is stopped somebody is at it, or died over it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass

from ws.errors import Busy, ContainerDied, KernelRefused
from ws.freezer import DEADLINE_S, GONE, forget_held, held_here, is_held_here, wait_until

PATIENCE_S = 0.2  # a parent in vfork waits, unstoppable, for a child that is stopped: let both go on and try again
_STILL = frozenset("TtZX")
_DEAD = frozenset("ZX")


@dataclass(frozen=True, slots=True)
class SignalFreezer:
    """The processes of one pid namespace, by the first of them."""

    pid: int
    namespace: tuple[int, int]

    @classmethod
    def of(cls, pid: int) -> SignalFreezer:
        """Raises ContainerDied, or KernelRefused for a process that shares our own namespace."""
        try:
            namespace = _namespace(pid)
        except OSError as error:
            if error.errno not in GONE:
                raise KernelRefused(f"/proc/{pid}/ns/pid: {error.strerror}", errno=error.errno or 0) from error
            raise ContainerDied(f"process {pid} is gone") from error
        if namespace == _namespace(os.getpid()):
            raise KernelRefused(
                f"process {pid} has neither a cgroup nor a pid namespace of its own",
                hint="`ws doctor` says which cgroups there are",
            )
        return cls(pid, namespace)

    def processes(self) -> list[int]:
        """Their pids as we see them, the first one first. Raises ContainerDied when it is gone."""
        try:
            pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
        except OSError as error:
            raise KernelRefused(f"/proc: {error.strerror}", errno=error.errno or 0) from error
        found = [pid for pid in pids if pid != self.pid and self._has(pid) and not _states(pid) <= _DEAD]
        if not self._has(self.pid):
            raise ContainerDied(f"process {self.pid} is gone")
        return [self.pid, *found]

    @contextlib.contextmanager
    def stopped(self, *, deadline_s: float = DEADLINE_S) -> Iterator[None]:
        """Nothing runs inside this block. Raises Busy, ContainerDied, KernelRefused; then everything runs.

        Raises FrozenAlready before anything is changed.
        """
        with held_here(self):
            stopped = self._stop(deadline_s)
            try:
                yield
            finally:
                self._continue(stopped)

    def stopped_here(self) -> bool:
        return is_held_here(self)

    def freeze(self, *, deadline_s: float = DEADLINE_S) -> None:
        """Stop every process and wait until all are. Raises Busy when one cannot be, and lets them go on."""
        self._stop(deadline_s)

    def thaw(self) -> None:
        """Let all of them go on; harmless when they do, or are no more.

        Not only those that are seen stopped: a SIGSTOP may be on its way from a process of ws that has died since. To
        the kernel a SIGCONT also takes back a SIGSTOP that is pending.
        """
        with contextlib.suppress(ContainerDied):
            self._continue(self.processes())
        forget_held(self)

    def frozen(self) -> bool:
        return all(_states(pid) <= _STILL for pid in self.processes())

    def freezing(self) -> bool:
        """Whether the first process is stopped, or will be as soon as it runs again."""
        # In this order: the kernel makes a process stopped before it says that the signal is no longer pending.
        return _stop_pending(self.pid) or "T" in _states(self.pid)

    def kill_others(self, keep: int) -> int:
        """End every process but `keep`; returns how many. They are stopped first: none escapes by forking."""
        with self.stopped():
            doomed = [pid for pid in self.processes() if pid != keep]
            for pid in doomed:
                self._signal(pid, signal.SIGKILL)
        wait_until(
            lambda: not set(doomed) & set(self.processes()), DEADLINE_S, "a process of the workspace does not end"
        )
        return len(doomed)

    def _stop(self, deadline_s: float) -> list[int]:
        """Stop all; returns those that ran, in the order in which they were stopped."""
        deadline = time.monotonic() + deadline_s
        while True:
            stopped: list[int] = []
            try:
                if self._stop_within(PATIENCE_S, stopped):
                    return stopped
            except BaseException:
                self._continue(stopped)
                raise
            self._continue(stopped)
            if time.monotonic() > deadline:
                raise Busy(
                    "the container's processes cannot be stopped",
                    hint="see what it waits for: `ws exec NAME -- ps aux`",
                )
            time.sleep(PATIENCE_S / 20)

    def _stop_within(self, patience_s: float, stopped: list[int]) -> bool:
        until = time.monotonic() + patience_s
        quiet_looks = 0
        while quiet_looks < 2:
            running = [pid for pid in self.processes() if not _states(pid) <= _STILL]
            quiet_looks = 0 if running else quiet_looks + 1
            for pid in running:
                if pid not in stopped:
                    stopped.append(pid)
                    self._signal(pid, signal.SIGSTOP)
            if running and time.monotonic() > until:
                return False
            if running:
                time.sleep(0.0005)
        return True

    def _continue(self, pids: list[int]) -> None:
        """By pid: what is stopped does not end, and the way back must not need a descriptor that may be lacking."""
        for pid in reversed(pids):
            if self._has(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    def _signal(self, pid: int, number: signal.Signals) -> None:
        """By a descriptor: a pid may mean another process by the time a signal is sent."""
        try:
            fd = os.pidfd_open(pid)
        except OSError as error:
            if error.errno in GONE:
                return
            raise KernelRefused(f"process {pid}: {error.strerror}", errno=error.errno or 0) from error
        try:
            if self._has(pid):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(fd, number)
        finally:
            os.close(fd)

    def _has(self, pid: int) -> bool:
        try:
            return _namespace(pid) == self.namespace
        except OSError:
            return False  # gone, or another user's: those of the container are ours to look at


def _namespace(pid: int) -> tuple[int, int]:
    found = os.stat(f"/proc/{pid}/ns/pid")
    return found.st_dev, found.st_ino


def _stop_pending(pid: int) -> bool:
    """Whether a SIGSTOP was sent to a process that it has not acted upon; on a busy machine that takes a while."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            masks = [int(line.split()[1], 16) for line in file if line.startswith((b"SigPnd:", b"ShdPnd:"))]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(mask & 1 << (signal.SIGSTOP - 1) for mask in masks)


def _states(pid: int) -> frozenset[str]:
    """The letters of all threads; none when the process is gone."""
    found = set()
    gone = contextlib.suppress(FileNotFoundError, ProcessLookupError)
    with gone:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with gone, open(f"/proc/{pid}/task/{thread}/stat", "rb") as file:
                found.add(chr(file.read().rpartition(b") ")[2][0]))
    return frozenset(found)
