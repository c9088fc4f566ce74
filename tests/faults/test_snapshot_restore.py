"""Whatever kills a snapshot, a restore, a fork or their recovery, a workspace is what it was or what it was to become.

Killed at a durable step, or failed by a full disk, a broken one or a lack of descriptors: the next use finds the old
state or the new one exactly, the store whole, the container running and thawed, nothing left behind; what failed says
so by an error of ours, and works the next time.

Steps are sampled here; `scripts/soak-faults` goes through all of them (WS_EVERY_FAULT=1).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from injection import DURABLE, MOUNTING, Outcome, Point, run_injected, spread, trace_points

from lived_in import change, check_store, distrust, held, is_thawed, leftovers, lose_power, outside, remove_all, shell
from tree_picture import Picture
from ws.engine.base import Engine
from ws.layout import Home
from ws.manager import Manager
from ws.merging import plan_merge
from ws.workspace import Workspace

FROZEN = Point("setns", 1)  # of a snapshot: whether somebody works in it is asked while everybody is frozen
EVERY = "WS_EVERY_FAULT" in os.environ

# Errors go out by `writev`, which no fault is injected into. 3 is an error of ours, 1 any other.
CHILD = """
import os, sys, traceback
from ws.errors import WorkspaceError
home, engine, verb, *words = sys.argv[1:]
try:
    if verb in ("fork", "recover"):
        from ws.manager import Manager
        with Manager(home=home, engine=engine) as manager:
            if verb == "fork":
                manager.fork("victim", words[0], new_name="child").close()
    else:
        from ws.layout import open_home
        from ws.workspace import open_workspace
        import ws.bases, ws.restores, ws.sealing, ws.snapshots
        with open_workspace(open_home(home), "victim", None) as box:
            if verb != "nothing":
                getattr(box, verb)(*words)
except WorkspaceError as error:
    os.writev(2, [f"{error.code}: {error}".encode(errors="replace")])
    os._exit(3)
except BaseException:
    os.writev(2, [traceback.format_exc().encode(errors="replace")])
    os._exit(1)
os._exit(0)
"""


@dataclass
class Patient:
    """A workspace to operate on, and the engine it runs in."""

    manager: Manager
    box: Workspace

    @property
    def home(self) -> Home:
        return self.manager.home

    @property
    def engine(self) -> str:
        return self.box.record().engine

    def run(self, point: Point, fault: str, verb: str, *words: str, lasting: bool = False) -> Outcome:
        return run_injected(
            CHILD, [self.home.root, self.engine, verb, *words], point=point, fault=fault, lasting=lasting
        )

    def kill(self, point: Point, verb: str, *words: str) -> Outcome:
        return self.run(point, "signal=KILL", verb, *words)

    def points(self, calls: str, about: int, verb: str, *words: str) -> list[Point]:
        """Where to fail: at calls that the verb makes, not those of starting Python; some of them, evenly spread."""
        self.mess_up(0)
        arguments = [self.home.root, self.engine]
        start = trace_points(CHILD, [*arguments, "nothing"], calls=calls)
        points = trace_points(CHILD, [*arguments, verb, *words], calls=calls, skip=start)
        if self.engine != "podman":
            about = (about + 2) // 3  # the engines differ in how a container starts, not in what is tested here
        return points if EVERY else spread(points, about)

    def check_settled(self, where: str) -> None:
        """The next ws command has put everything right."""
        with Manager(home=self.home.root, engine=self.manager.engine().name):
            pass
        assert is_thawed(self.box), where
        assert leftovers(self.home) == [], where
        container = self.box.record().container
        assert container is not None
        assert container.alive(), where
        assert shell(self.box, "echo runs") == "runs\n", where

    def mess_up(self, number: int) -> Picture:
        """Something to lose."""
        change(self.box, "damage", number, 3)
        shell(self.box, "chmod -R u+rwx counter dir 2>/dev/null || true; rm -rf counter dir")
        shell(self.box, f"mkdir dir; echo {number} | tee counter > dir/file")
        return outside(self.box)

    def have_merged(self) -> None:
        """Whether it pays to merge layers is asked before anybody is frozen, and that would be the first `setns`."""
        while plan_merge(self.box.record().layers):
            shell(self.box, "echo more >> merged")
            self.box.snapshot("merged")


@pytest.fixture(scope="module")
def patient(engine: Engine, default_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Patient]:
    with Manager(home=str(tmp_path_factory.mktemp("home")), engine=engine.name) as manager:
        with manager.create(name="victim") as box:
            change(box, "grow", 1, 25)
            yield Patient(manager, box)
        remove_all(manager)


def test_a_first_snapshot_killed_at_any_step_is_there_or_not(patient: Patient) -> None:
    """The base is published with it, by a reference of its own."""
    before = patient.mess_up(0)
    for number in range(12, 40):
        outcome = patient.kill(Point(("fsync", "rename")[number % 2], number // 2), "snapshot", "first")
        patient.check_settled(f"killed at {outcome.point}")
        assert outside(patient.box) == before
        taken = patient.box.snapshots()
        assert [snapshot.kind for snapshot in taken] in ([], ["base"], ["base", "snapshot"])
        if len(taken) == 2:
            break  # from here on it would be a second one
    patient.box.snapshot("again")
    numbers = [snapshot.number for snapshot in patient.box.snapshots()]
    assert numbers == list(range(len(numbers)))
    check_store(patient.home)


@pytest.mark.parametrize("way", ["sealed", "held"])
def test_a_snapshot_killed_at_any_step_is_there_or_not(patient: Patient, way: str) -> None:
    box = patient.box
    killed = 0
    with held(box) if way == "held" else nobody():
        points = patient.points(f"{DURABLE},{MOUNTING},getdents64,flistxattr", 18, "snapshot")
    for point in points:
        before = patient.mess_up(point.number)
        known = len(box.snapshots())
        with held(box) if way == "held" else nobody():
            outcome = patient.kill(point, "snapshot", "killed")
            patient.check_settled(f"killed at {point}")
            if way == "held":
                assert shell(box, "pgrep -c sleep || true") == "1\n", "whoever worked in it works on"
        assert outside(box) == before, point
        new = box.snapshots()[known:]
        assert len(new) <= 1 if outcome.killed else len(new) == 1, point
        again = box.snapshot("again")
        assert [snapshot.tree for snapshot in new] in ([], [again.tree]), point
        killed += outcome.killed
    assert killed > 3
    check_store(patient.home)


@pytest.mark.parametrize("source", ["layers", "git"])
def test_a_restore_killed_at_any_step_happened_or_did_not(patient: Patient, source: str) -> None:
    box = patient.box
    good = patient.mess_up(1000)
    target = box.snapshot("good")
    found: set[str] = set()
    for point in patient.points(f"{DURABLE},{MOUNTING}", 20 if source == "layers" else 10, "restore", target.commit):
        if source == "git":
            good = patient.mess_up(1000 + point.number)
            target = box.snapshot("good")
        bad = patient.mess_up(2000 + point.number)
        if source == "git":
            distrust(patient.home, box, target.number)
        outcome = patient.kill(point, "restore", target.commit)
        patient.check_settled(f"killed at {point}")
        now = outside(box)
        if now == good:
            found.add("new")
            box.undo()
            assert outside(box) == bad, f"undone after {point}"
        else:
            found.add("old")
            assert outcome.killed
            assert now == bad, f"killed at {point}"
        box.restore(target)
        assert outside(box) == good
    assert found == {"old", "new"} or patient.engine != "podman"  # of docker's few points all may lie before the switch
    check_store(patient.home)


def test_an_undo_killed_at_any_step_happened_or_did_not(patient: Patient) -> None:
    box = patient.box
    good = patient.mess_up(3000)
    target = box.snapshot("good")
    bad = patient.mess_up(3001)
    box.restore(target)
    for point in patient.points(f"{DURABLE},{MOUNTING}", 8, "undo"):
        if outside(box) != good:
            box.restore(target)
            bad = patient.mess_up(3002)
            box.restore(target)
        patient.kill(point, "undo")
        patient.check_settled(f"killed at {point}")
        assert outside(box) in (good, bad), f"killed at {point}"


def test_a_fork_killed_at_any_step_is_whole_or_gone(patient: Patient) -> None:
    box = patient.box
    before = patient.mess_up(4000)
    target = box.snapshot("to be forked")
    killed = 0
    arguments = [patient.home.root, patient.engine, "fork", target.commit]
    points = trace_points(CHILD, arguments, calls=f"{DURABLE},{MOUNTING}")
    patient.manager.remove("child")
    if not EVERY:
        points = spread(points, 10 if patient.engine == "podman" else 4)
    for point in points:
        outcome = patient.kill(point, "fork", target.commit)
        killed += outcome.killed
        patient.check_settled(f"killed at {point}")
        names = {info.name for info in patient.manager.list()}
        assert names <= {"victim", "child"}
        if "child" in names:
            with patient.manager.open("child") as child:
                assert outside(child) == before, point
                child.remove()
        else:
            assert outcome.killed
        assert outside(box) == before, point
        assert len(patient.manager.engine().list(patient.home.root)) == 1, point
        assert leftovers(patient.home) == [], point
    assert killed > 0


@pytest.mark.parametrize(
    ("verb", "cut"),
    [
        ("snapshot", Point("move_mount", 1)),
        ("snapshot", FROZEN),
        ("restore", Point("umount2", 1)),
        ("restore", Point("move_mount", 1)),
    ],
    ids=str,
)
def test_a_recovery_killed_again_and_again_arrives(patient: Patient, verb: str, cut: Point) -> None:
    box = patient.box
    good = patient.mess_up(5000)
    target = box.snapshot("good")
    kills = 0
    for call in ("fsmount", "rename", "unlink"):
        patient.have_merged()
        bad = patient.mess_up(5001)
        with held(box) if cut == FROZEN else nobody():
            assert patient.kill(cut, verb, target.commit if verb == "restore" else "killed").killed
            for number in itertools.count(1):
                if not patient.kill(Point(call, number), "recover").killed:
                    break
                kills += 1
            patient.check_settled(f"{verb} cut at {cut}, recovery killed at {call}")
        assert outside(box) in ((good, bad) if verb == "restore" else (bad,))
        box.restore(target)
        assert outside(box) == good
    assert kills > 0, "there was something to recover"


@contextlib.contextmanager
def nobody() -> Iterator[None]:
    """Nobody works in the workspace."""
    yield


def test_two_that_come_after_a_crash_do_not_get_in_each_others_way(patient: Patient) -> None:
    """One recovers, the other goes on without, or waits; at the end it is done once."""
    box = patient.box
    patient.have_merged()
    before = patient.mess_up(5400)
    with held(box):
        for _ in range(4):
            assert patient.kill(FROZEN, "snapshot", "killed").killed
            words = [sys.executable, "-c", CHILD, patient.home.root, patient.engine, "recover"]
            both = [subprocess.Popen(words, stderr=subprocess.PIPE, text=True) for _ in range(2)]
            for process in both:
                assert process.wait(60) == 0, process.communicate()[1]
                process.communicate()
            patient.check_settled("by two at once")
    assert outside(box) == before


def test_a_handle_that_lives_on_settles_what_died_beside_it(patient: Patient) -> None:
    """No manager is opened: the dead left everything frozen, and the first command through an old handle thaws it."""
    box = patient.box
    patient.have_merged()
    before = patient.mess_up(5500)
    with held(box):
        assert patient.kill(FROZEN, "snapshot", "killed").killed
        assert not is_thawed(box)
        assert shell(box, "echo runs") == "runs\n"
        assert patient.kill(FROZEN, "snapshot", "killed").killed
        box.snapshot("after the dead")
    assert patient.kill(Point("move_mount", 1), "restore", "base").killed
    box.undo()
    assert outside(box) == before
    assert leftovers(patient.home) == []


def test_what_a_dead_snapshot_had_sealed_survives_a_restore_and_a_power_cut(patient: Patient) -> None:
    """Two layers that no snapshot has yet, one of which removes what lies in lost ones, are all there is to undo to."""
    box = patient.box
    patient.mess_up(5600)
    shell(box, "mkdir lost && touch lost/a lost/b lost/c")
    target = box.snapshot("target")
    shell(box, "rm lost/a; echo 1 > first")
    assert patient.kill(Point("move_mount", 1), "snapshot", "killed").killed
    shell(box, "rm -r lost/b; echo 2 > second")
    before = outside(box)
    assert box.record().history.unhashed == 1
    box.restore(target)
    lose_power(patient.home, box, upper=True)
    box.undo()
    assert outside(box) == before
    newest = box.snapshots()[-1]
    assert newest.kind == "safety"
    box.restore(newest)
    assert outside(box) == before


FAULTS = [
    ("ENOSPC", "write,fsync,rename,renameat2,mkdir"),
    ("EIO", "fsync,syncfs,rename,renameat2"),
    ("EIO", "read,pread64"),
    ("EMFILE", "openat"),
    ("ENOMEM", MOUNTING),
]


@pytest.mark.parametrize("lasting", [False, True], ids=["once", "lasting"])
@pytest.mark.parametrize(("error", "calls"), FAULTS, ids=[f"{error}-{calls.split(',')[0]}" for error, calls in FAULTS])
def test_a_full_or_broken_disk_fails_whole(patient: Patient, error: str, calls: str, lasting: bool) -> None:
    box = patient.box
    good = patient.mess_up(6000)
    target = box.snapshot("good")
    for verb, hold in [("snapshot", False), ("snapshot", True), ("restore", False)]:
        words = [target.commit] if verb == "restore" else ["under a fault"]
        with held(box) if hold else nobody():
            points = patient.points(calls, 3 if verb == "restore" else 2, verb, *words)
        for point in points:
            bad = patient.mess_up(6100 + point.number)
            known = len(box.snapshots())
            where = f"{verb}, {error} at {point}"
            with held(box) if hold else nobody():
                outcome = patient.run(point, f"error={error}", verb, *words, lasting=lasting)
                assert outcome.status in (0, 3), f"{where}: {outcome.stderr}"
                patient.manager.prune()
                patient.check_settled(f"{where}: {outcome.stderr}")
            now = outside(box)
            if verb == "snapshot":
                assert now == bad, where
                new = box.snapshots()[known:]
                assert len(new) <= 1, where
                assert new or outcome.status == 3, where
                assert [snapshot.tree for snapshot in new] in ([], [box.snapshot("again").tree]), where
            else:
                assert now in (good, bad), where
                assert now == good if outcome.status == 0 else True, where
                box.restore(target)
                assert outside(box) == good, where
    check_store(patient.home)
