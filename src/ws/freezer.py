"""The processes of a container: who they are, stop them all, let them go, end them.

Frozen processes do not run, so what is read of the workspace is of one instant, and a list of processes stays true
until it is used. It is done by the kernel's own files of the container's cgroup: the engines' pause takes 137 ms
through podman's command line and makes them refuse other calls meanwhile; a write to the freezer takes less than one.
A container that has no cgroup of its own, as a rootless one without cgroup v2, is stopped by signals (`halting`).
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from ws import durable
from ws.errors import Busy, ContainerDied, KernelRefused

DEADLINE_S = 10.0
_AT_ONCE_S = 0.0003  # nearly always they are stopped by then, and to sleep takes longer than it says
PATIENCE_S = 0.5  # of one attempt; a process in an uninterruptible call may well take that long

# What says that a cgroup or process is no more. Anything else, such as too few descriptors, says nothing of the kind:
# taking a living container for a dead one would seal an upper that is still written to.
GONE = (errno.ENOENT, errno.ENODEV, errno.ESRCH)


class FrozenAlready(Exception):
    """The processes are frozen already: paused by hand, for reasons that ws does not know. Callers translate it."""


# What this process has frozen, or is about to freeze. An interrupt may come before the thaw: the cleanup after it
# (`sealing.put_right`) thaws what is in here, and nothing that was paused by hand.
_stopped_here: set[Freezer] = set()


class Freezer(Protocol):
    """What can be done to all processes of a container at once."""

    def __hash__(self) -> int: ...

    def processes(self) -> list[int]: ...
    def stopped(self, *, deadline_s: float = DEADLINE_S) -> contextlib.AbstractContextManager[None]: ...
    def freeze(self, *, deadline_s: float = DEADLINE_S) -> None: ...
    def thaw(self) -> None: ...
    def frozen(self) -> bool: ...
    def freezing(self) -> bool: ...
    def stopped_here(self) -> bool: ...
    def kill_others(self, keep: int) -> int: ...


@dataclass(frozen=True, slots=True)
class CgroupFreezer:
    """One cgroup that can be frozen: `freezer.state` on version 1, `cgroup.freeze` on version 2."""

    path: str
    unified: bool

    def usable(self) -> bool:
        """Whether it is there, and ours to freeze."""
        return os.access(self._control, os.W_OK)

    def processes(self) -> list[int]:
        """Their pids on the host. Raises ContainerDied when the cgroup is gone."""
        try:
            return [int(pid) for pid in durable.read_file(os.path.join(self.path, "cgroup.procs")).split()]
        except OSError as error:
            raise self._trouble("cgroup.procs", error) from error

    @contextlib.contextmanager
    def stopped(self, *, deadline_s: float = DEADLINE_S) -> Iterator[None]:
        """Nothing runs inside this block. Raises Busy, ContainerDied, KernelRefused; then everything runs.

        Raises FrozenAlready before anything is changed. The control file is open before anything is frozen: the thaw
        needs no descriptor that may then be lacking.
        """
        control = self._open_control()
        try:
            with held_here(self):
                try:
                    self._hold(control, deadline_s)
                    yield
                finally:
                    self._let_go(control)
        finally:
            os.close(control)

    def stopped_here(self) -> bool:
        return is_held_here(self)

    def _open_control(self) -> int:
        try:
            return os.open(self._control, os.O_WRONLY | os.O_CLOEXEC)
        except OSError as error:
            raise self._trouble(os.path.basename(self._control), error) from error

    def _hold(self, control: int, deadline_s: float) -> None:
        """Freeze all of them, again and again if need be.

        A process that the engine brings in while the others freeze may wait for one of them, which version 1 never
        resolves by itself; its document says to ask again, and to let go in between is what runc does as well.
        """
        deadline = time.monotonic() + deadline_s
        while True:
            try:
                os.write(control, b"1" if self.unified else b"FROZEN")
            except OSError as error:
                raise self._trouble(os.path.basename(self._control), error) from error
            left = deadline - time.monotonic()
            try:
                wait_until(self.frozen, min(PATIENCE_S, left), "the container's processes cannot be frozen")
                return
            except Busy:
                if left <= PATIENCE_S:
                    raise
            self._let_go(control)
            time.sleep(0.01)

    def _let_go(self, control: int) -> None:
        """Frozen for good is the worst that can be left behind: one failure is not believed."""
        for last in (False, False, True):
            try:
                os.write(control, b"0" if self.unified else b"THAWED")
                return
            except OSError as error:
                if error.errno in GONE:  # the cgroup went with the last of its processes
                    return
                if last:
                    raise self._trouble(os.path.basename(self._control), error) from error

    def freeze(self, *, deadline_s: float = DEADLINE_S) -> None:
        """Stop every process and wait until all are stopped. Raises Busy when one cannot be, and thaws again.

        A process in an uninterruptible call (a slow disk, a hung NFS server) cannot be frozen until it returns.
        """
        control = self._open_control()
        try:
            self._hold(control, deadline_s)
        except BaseException:
            self.thaw()
            raise
        finally:
            os.close(control)

    def thaw(self) -> None:
        """Let them run again; harmless when they already do, or are no more."""
        with contextlib.suppress(ContainerDied):
            self._write("0" if self.unified else "THAWED")
        forget_held(self)

    def frozen(self) -> bool:
        if not self.unified:
            return self._read("freezer.state").strip() == "FROZEN"
        return "frozen 1" in self._read("cgroup.events").splitlines()

    def freezing(self) -> bool:
        """Whether somebody asked for it: what a crash between freeze and thaw leaves."""
        if not self.unified:
            return self._read("freezer.state").strip() != "THAWED"
        return self._read("cgroup.freeze").strip() == "1"

    def kill_others(self, keep: int) -> int:
        """End every process but `keep`; returns how many. Nothing escapes by forking: they are frozen first.

        On return they are gone, not dying: none holds a mount any more.
        """
        with self.stopped():
            doomed = [pid for pid in self.processes() if pid != keep]
            for pid in doomed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        wait_until(
            lambda: not set(doomed) & set(self.processes()), DEADLINE_S, "a process of the workspace does not end"
        )
        return len(doomed)

    def _read(self, name: str) -> str:
        try:
            return durable.read_file(os.path.join(self.path, name)).decode("ascii")
        except OSError as error:
            raise self._trouble(name, error) from error

    def _write(self, value: str) -> None:
        try:
            with open(self._control, "w", encoding="ascii") as file:
                file.write(value)
        except OSError as error:
            raise self._trouble(os.path.basename(self._control), error) from error

    @property
    def _control(self) -> str:
        return os.path.join(self.path, "cgroup.freeze" if self.unified else "freezer.state")

    @staticmethod
    def _trouble(name: str, error: OSError) -> ContainerDied | KernelRefused:
        if error.errno in GONE:
            return ContainerDied("the container's cgroup is gone")
        return KernelRefused(f"{name}: {error.strerror}", errno=error.errno or 0)


@contextlib.contextmanager
def held_here(freezer: Freezer) -> Iterator[None]:
    """Note that this process freezes, for as long as the block takes; kept when the block fails without a thaw.

    Raises FrozenAlready.
    """
    if freezer.freezing():
        raise FrozenAlready
    _stopped_here.add(freezer)
    try:
        yield
    except BaseException:
        with contextlib.suppress(ContainerDied, KernelRefused):
            if freezer.freezing():
                raise
        _stopped_here.discard(freezer)
        raise
    _stopped_here.discard(freezer)


def is_held_here(freezer: Freezer) -> bool:
    """Whether this process froze it and did not come to thaw it."""
    return freezer in _stopped_here


def forget_held(freezer: Freezer) -> None:
    """It was thawed."""
    _stopped_here.discard(freezer)


def freezer_of(pid: int) -> Freezer:
    """What stops the container whose first process this is. Raises ContainerDied, KernelRefused where nothing can.

    On hybrid layouts the version 1 freezer is the one the engines put containers in.
    """
    mounts, ours, theirs = cgroup_mounts(), cgroups_of("self"), cgroups_of(str(pid))
    for controller in ("freezer", ""):
        # A container without a cgroup of its own is in that of whoever started it: freezing that would freeze us.
        if controller in theirs and controller in mounts and theirs[controller] not in ("/", ours.get(controller)):
            found = CgroupFreezer(mounts[controller] + theirs[controller], unified=controller == "")
            if found.usable():
                return found
    from ws.halting import SignalFreezer  # rarely needed, and every command comes through here

    return SignalFreezer.of(pid)


def cgroups_of(pid: str) -> dict[str, str]:
    """The cgroup of a process for each version 1 controller, and under "" for version 2. Raises ContainerDied."""
    try:
        lines = os.fsdecode(durable.read_file(f"/proc/{pid}/cgroup")).rstrip("\n").split("\n")
    except OSError as error:
        if error.errno not in GONE:
            raise KernelRefused(f"/proc/{pid}/cgroup: {error.strerror}", errno=error.errno or 0) from error
        raise ContainerDied(f"process {pid} is gone") from error
    entries = (line.split(":", 2) for line in lines)
    return {controller: path for _, controllers, path in entries for controller in controllers.split(",")}


@functools.cache
def cgroup_mounts() -> dict[str, str]:
    """Where each version 1 controller is mounted, and under "" the version 2 tree.

    Asked once: a machine has many mounts, and reading them all takes half a millisecond.
    """
    mounts: dict[str, str] = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            kind, _, options = right.split(" ", 2)
            if kind == "cgroup2":
                mounts.setdefault("", left.split(" ")[4])
            elif kind == "cgroup":
                for option in options.rstrip("\n").split(","):
                    mounts.setdefault(option, left.split(" ")[4])
    return mounts


def wait_until(condition: Callable[[], bool], deadline_s: float, complaint: str) -> None:
    begun = time.monotonic()
    deadline = begun + deadline_s
    pause_s = 0.0002
    while not condition():
        now = time.monotonic()
        if now > deadline:
            raise Busy(complaint, hint="see what it waits for: `ws exec NAME -- ps aux`")
        if now < begun + _AT_ONCE_S:
            os.sched_yield()  # they may be waiting for this very processor
            continue
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.02)
