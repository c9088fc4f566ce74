"""Start again from every cut of a recording, and compare with what had been promised by then.

`replay.py RECORDING LOG REPORTED OTHERS RANDOM SEED`: prints a line of JSON for each cut. REPORTED limits the cuts at
the instants at which an operation begins or is reported, where all that was not flushed is lost; OTHERS limits those at
and between flushes; -1 tries all. RANDOM says how many random subsets there are of each interval between two flushes.

Each cut is judged by a child in a mount namespace of its own that has another boot id: to ws the machine was started
again. An ext4 without a journal is checked by e2fsck first, as at boot; the others replay their journal when mounted.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import pickle
import signal
import sys
import tempfile
import traceback
import uuid
from collections.abc import Callable

from lived_in import check_store, leftovers
from power.disk import FILESYSTEMS, IMAGES, Cut, Log, mounted, run, spread
from power.service import engine_here
from power.story import ABSENT, ANY, Promises, Recording, look
from tree_picture import Picture, picture
from ws import process_identity
from ws.errors import WorkspaceError
from ws.layout import EngineName
from ws.manager import Manager
from ws.recovery import collect_remains
from ws.removing import remove_tree

CLONE_NEWNS, CLONE_NEWPID = 0x00020000, 0x20000000
_libc = ctypes.CDLL(None, use_errno=True)
DEADLINE_S = 120


def differences(expected: Picture, found: Picture) -> str:
    paths = sorted(path for path in {*expected, *found} if expected.get(path) != found.get(path))
    return "; ".join(f"{path!r}: {expected.get(path)} became {found.get(path)}" for path in paths[:4])


def judge(recording: Recording, promises: Promises) -> None:
    """Recover, and check everything that was promised. Raises AssertionError or what ws raises."""
    with Manager(home=recording.home, engine=recording.engine) as manager:
        there = {info.name for info in manager.list()}
        for name, allowed in promises.workspaces.items():
            judge_workspace(recording, manager, name, allowed, present=name in there)
        assert there <= set(promises.workspaces), f"not made by any operation: {there - set(promises.workspaces)}"
        judge_source(recording, promises)
        for commit, (name, label) in promises.snapshots.items():
            with manager.open(name) as box:
                box.restore(commit)
                found = look(box)
                assert found == recording.states[label], (
                    f"snapshot {label}: {differences(recording.states[label], found)}"
                )
        report = manager.verify()
        assert report.sound, f"verify: {report}"
        check_store(manager.home)
        for name in there:
            with manager.open(name) as box:
                taken = box.snapshot("after the cut")
                box.restore(taken)
        manager.gc()
        for name in there:
            trouble = manager.remove(name)
            assert trouble is None, f"remove {name}: {trouble}"
        collect_remains(manager.home)  # what `ws prune` does for a create that was cut
        assert leftovers(manager.home) == [], leftovers(manager.home)
        assert os.listdir(manager.home.at("names")) == []


def combine(all_promises: list[Promises]) -> Promises:
    """What holds when all of these do."""

    def common(allowed: list[tuple[str, ...]]) -> tuple[str, ...]:
        bound = [set(each) for each in allowed if ANY not in each]
        return tuple(sorted(set.intersection(*bound))) if bound else (ANY,)

    names = {name for each in all_promises for name in each.workspaces}
    return Promises(
        workspaces={name: common([each.workspaces.get(name, (ABSENT,)) for each in all_promises]) for name in names},
        snapshots={commit: what for each in all_promises for commit, what in each.snapshots.items()},
        source=common([each.source for each in all_promises]),
    )


def judge_workspace(
    recording: Recording, manager: Manager, name: str, allowed: tuple[str, ...], *, present: bool
) -> None:
    if not present:
        assert {ABSENT} & set(allowed), f"workspace {name} is lost; allowed are {allowed}"
        return
    assert set(allowed) - {ABSENT}, f"workspace {name} was removed and is there"
    with manager.open(name) as box:
        found = look(box)
    states = [recording.states[label] for label in allowed if label not in (ABSENT, ANY)]
    if ANY not in allowed:
        assert found in states, f"workspace {name} is neither of {allowed}: {differences(states[-1], found)}"


def judge_source(recording: Recording, promises: Promises) -> None:
    """An apply has one commit point for each path: each is old or new, and once it was reported all are new."""
    found = essence(picture(recording.source))
    states = [essence(recording.states[label]) for label in promises.source if label != ANY]
    for path in {*found, *(path for state in states for path in state)} if states else ():
        if not path.startswith(b".ws-apply-"):
            known = [state.get(path) for state in states]
            assert found.get(path) in known, f"source {path!r}: {found.get(path)}, allowed {known}"


def essence(state: Picture) -> dict[bytes, object]:
    """Type, mode and content; directories have the times of their last change, whatever it was."""
    return {path: (facts[0], facts[1], facts[5]) for path, facts in state.items()}


def isolated(action: Callable[[], None], engine: EngineName) -> str | None:
    """Run in a child with mounts of its own and another boot id; what went wrong, or None.

    Without containers it has process ids of its own too, so that none of its processes outlives it.
    """
    processes = engine == "none"
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        flags = CLONE_NEWNS | (CLONE_NEWPID if processes else 0)
        if _libc.unshare(flags) != 0:
            os._exit(2)
        signal.alarm(DEADLINE_S)
        inner = os.fork()
        if inner == 0:
            os._exit(_judged(action, writing, engine))
        os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]) & 0xFF)
    os.close(writing)
    with open(reading, "rb") as stream:
        problem = stream.read().decode()
    status = os.waitpid(child, 0)[1]
    return (problem or f"the child ended with status {status}") if status else None


def _judged(action: Callable[[], None], writing: int, engine: EngineName) -> int:
    problem = ""
    try:
        os.setsid()
        signal.alarm(DEADLINE_S)
        if engine == "none":
            run("mount", "-t", "proc", "proc", "/proc")
        process_identity._boot_id = str(uuid.uuid4())
        with engine_here(engine):
            action()
    except (AssertionError, WorkspaceError) as error:
        problem = f"{type(error).__name__}: {error}"
    except BaseException:  # noqa: BLE001 - the parent reports it
        problem = traceback.format_exc()
    os.write(writing, problem.encode(errors="replace")[:60_000])
    return 1 if problem else 0


class Replay:
    """The images of a recording's cuts: the part that is flushed grows with the cuts, the rest is put on a copy."""

    def __init__(self, recording: Recording, log: Log, top: str) -> None:
        self._recording, self._log = recording, log
        self._flushed, self._image = os.path.join(top, "flushed"), os.path.join(top, "image")
        self._fd = os.open(self._flushed, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._fd, FILESYSTEMS[recording.filesystem].size_bytes)
        self._applied = 0

    def promises(self, cut: Cut) -> tuple[str, Promises]:
        """All that was promised at any instant at which this image may have been the disk.

        With nothing kept of the writes since the last flush, that is any instant since that flush.
        """
        earliest = cut.flushed if cut.kept == "none" else cut.position
        noted = [(self._log.position(size_bytes), *rest) for size_bytes, *rest in self._recording.promises]
        before = [each for each in noted if each[0] < earliest][-1:]
        during = [each for each in noted if earliest <= each[0] <= cut.position]
        known = before + during
        return known[-1][1], combine([promises for _, _, promises in known])

    def try_cut(self, cut: Cut) -> str | None:
        """What is wrong after this cut; cuts come in the order of the log."""
        assert cut.flushed >= self._applied
        self._log.apply(self._fd, self._applied, cut.flushed)
        self._applied = cut.flushed
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._image)  # a container that is still ending may hold the one before
        run("cp", "--sparse=always", self._flushed, self._image)
        image = os.open(self._image, os.O_RDWR | os.O_CLOEXEC)
        self._log.apply_cut(image, cut)
        os.close(image)

        def action() -> None:
            with mounted(self._image, self._recording.filesystem, self._recording.mount):
                try:
                    judge(self._recording, self.promises(cut)[1])
                finally:
                    self._end_processes()

        return isolated(action, self._recording.engine)

    def _end_processes(self) -> None:
        """A cut that fails leaves workspaces, whose containers would hold the mount."""
        with contextlib.suppress(WorkspaceError, OSError), Manager(home=self._recording.home) as manager:
            for info in manager.list():
                manager.remove(info.id)


def main(recorded: str, log_path: str, at_reports: int, at_others: int, random_cuts: int, seed: int) -> None:
    with open(recorded, "rb") as file:
        recording: Recording = pickle.load(file)  # written by `recording`
    log = Log(log_path)
    start = log.position(recording.start_bytes)
    reported = list(dict.fromkeys(log.cut_at(log.position(size_bytes)) for size_bytes, _, _ in recording.promises))
    others = [cut for cut in log.cuts(start, random_cuts=random_cuts, seed=seed) if cut not in set(reported)]
    chosen = [*spread(reported, at_reports), *spread(others, at_others)]
    cuts = sorted(chosen, key=lambda cut: (cut.flushed, cut.position))
    top = tempfile.mkdtemp(prefix="ws-replay-", dir=IMAGES)
    try:
        replay = Replay(recording, log, top)
        for cut in cuts:
            problem = replay.try_cut(cut)
            print(json.dumps({"cut": str(cut), "during": replay.promises(cut)[0], "problem": problem}), flush=True)
    finally:
        remove_tree(top)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:7]))
