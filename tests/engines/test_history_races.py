"""Several at once on one workspace take turns, or are told that it is busy; whatever else happens, nothing is torn.

H1–H6 of the hardening list: threads and processes that snapshot, restore, undo, fork, run, write, collect and remove;
writers that keep two files in step while snapshots are taken; commands that run into a restore; containers that are
killed or removed by hand in the middle of it.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from lived_in import check_store, held, leftovers, mounted_at, outside, remove_all, shell, whole_tree
from tree_picture import picture
from ws.errors import Busy, NotFound, RestoreFailed, WorkspaceError
from ws.layout import EngineName
from ws.manager import Manager
from ws.merging import plan_merge
from ws.store import commits
from ws.store.repository import Store

SECONDS = float(os.environ.get("WS_RACE_SECONDS", "3"))


@pytest.fixture
def manager(engine_name: EngineName, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    with Manager(home=str(tmp_path_factory.mktemp("home")), engine=engine_name) as manager:
        yield manager
        remove_all(manager)


class Crowd:
    """Threads that do one thing each over and over, until told to stop; what they raised unasked for."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.unexpected: list[BaseException] = []
        self.rounds: dict[str, int] = {}
        self._threads: list[threading.Thread] = []

    def add(self, name: str, action: Callable[[], object], *allowed: type[BaseException]) -> None:
        def run() -> None:
            while not self.stop.is_set():
                try:
                    action()
                    self.rounds[name] = self.rounds.get(name, 0) + 1
                    time.sleep(0.02)
                except allowed:
                    time.sleep(0.02)
                except BaseException as error:  # noqa: BLE001  told by the test
                    self.unexpected.append(error)
                    return

        self._threads.append(threading.Thread(target=run, name=name))

    def __enter__(self) -> Crowd:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), f"{thread.name} does not end"
        assert self.unexpected == []


VERBS = """
import random, sys, time
from ws.errors import Busy, WorkspaceError
from ws.manager import Manager
home, engine, seed, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
chance = random.Random(seed)
done = {}
with Manager(home=home, engine=engine) as manager:
    box = manager.open("shared")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        verb = chance.choice(["snapshot", "restore", "undo", "exec", "write", "diff", "log", "fork", "gc"])
        try:
            if verb == "snapshot":
                box.snapshot(str(seed))
            elif verb == "restore":
                box.restore(chance.choice([None, "base", "~1"]))
            elif verb == "undo":
                box.undo()
            elif verb == "exec":
                box.exec(["sh", "-c", f"echo {seed} >> shared; mkdir -p d{seed}; echo x > d{seed}/f; rm -rf d{seed}"])
            elif verb == "write":
                box.fs.write(f"file{seed}", str(chance.random()), mode="overwrite")
            elif verb == "diff":
                box.diff()
            elif verb == "log":
                box.snapshots()
            elif verb == "gc":
                manager.gc()
            else:
                with box.fork() as other:
                    other.remove()
            done[verb] = done.get(verb, 0) + 1
        except WorkspaceError as error:
            if error.code not in ("busy", "snapshot_not_found", "container_died", "protocol_error"):
                raise
            done[error.code] = done.get(error.code, 0) + 1
    box.close()
print(done)
"""


def test_processes_take_turns_on_one_workspace(manager: Manager) -> None:
    """H1, H2, H6: everything at once from four processes; each ends by itself, with nothing but errors of ours."""
    with manager.create(name="shared") as box:
        shell(box, "echo begin > shared")
        box.snapshot("first")
        arguments = [manager.home.root, manager.engine().name]
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", VERBS, *arguments, str(seed), str(SECONDS)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for seed in range(4)
        ]
        for process in processes:
            output, errors = process.communicate(timeout=240)
            assert process.returncode == 0, errors
            assert "busy" not in output or len(eval(output)) > 1, output
        assert leftovers(manager.home) == []
        assert [info.name for info in manager.list()] == ["shared"]
        last = box.snapshot("last")
        before = outside(box)
        check_store(manager.home)
        chance = random.Random(1)
        for snapshot in chance.sample(box.snapshots(), 3):
            box.restore(snapshot)
        box.restore(last)
        assert outside(box) == before
        assert manager.verify("shared").sound


def test_nothing_is_written_to_the_old_state_after_a_restore(manager: Manager) -> None:
    """H3: commands that are in the middle of writing end with it; what was kept does not change any more."""
    with manager.create(name="busy") as box:
        target = box.snapshot("empty")
        line = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); echo $i > f$((i % 50)); done"
        crowd = Crowd()
        for number in range(3):
            crowd.add(f"writer {number}", lambda: box.exec(["sh", "-c", line]), WorkspaceError)
        with crowd:
            for _ in range(4):
                time.sleep(0.2)
                box.restore(target)
                record = box.record()
                kept = record.history.unsettled[-1].layers[0] if record.history.unsettled else None
                if kept:
                    data = os.path.join(manager.home.layer(kept), "data")
                    then = picture(data)
                    time.sleep(0.3)
                    assert picture(data) == then
            for info in manager.list():
                manager.remove(info.id)  # ends the writers
            crowd.stop.set()


def test_whoever_comes_through_the_engine_changes_nothing_that_is_sealed(manager: Manager) -> None:
    """`podman exec` knows no lock of ours: it may begin at any instant of a snapshot or a restore."""
    line = "i=0; while [ $i -lt 300 ]; do i=$((i+1)); echo $i > by-hand; done"
    engine = manager.engine()
    with manager.create(name="by-hand") as box:
        container = box.record().container
        assert container is not None
        crowd = Crowd()
        for _ in range(2):
            crowd.add(
                "by hand",
                lambda: engine.exec(container.id, ["sh", "-c", line], user="1000", workdir="/workspace", timeout_s=20),
                WorkspaceError,
            )
        taken = []
        with crowd:
            end = time.monotonic() + SECONDS
            while time.monotonic() < end:
                taken.append(box.snapshot("beside it"))
                if len(taken) % 4 == 0:
                    with contextlib.suppress(RestoreFailed):
                        box.restore(taken[-2])
        for snapshot in taken[:: max(1, len(taken) // 12)]:
            box.restore(snapshot)
            assert whole_tree(manager.home, box) == snapshot.tree
        box.remove()


STEPS = """
import os, sys, time
os.chdir(sys.argv[1])
for n in range(1, 1 << 40):
    for name in ('a', 'b'):
        with open('/workspace/.' + name, 'w') as file:
            file.write(str(n))
        os.rename('/workspace/.' + name, '/workspace/' + name)
        time.sleep(float(sys.argv[2]))
"""


@pytest.mark.parametrize("way", ["held", "sealed"])
def test_a_snapshot_is_one_instant_of_files_that_are_kept_in_step(manager: Manager, way: str) -> None:
    """H4: one counter in two files, the second always behind by a step at most; in every snapshot it is."""
    with manager.create(name="steps") as box:
        shell(box, "echo 0 > a; echo 0 > b")
        place, pause = ("/workspace", "0") if way == "held" else ("/", "0.002")
        with box.terminal(["python3", "-c", STEPS, place, pause], workdir=place):
            wait_until(lambda: int(shell(box, "cat b") or 0) > 3)
            taken = [box.snapshot(str(number)) for number in range(15)]
            wait_until(lambda: step_of(manager, taken[-1].commit, "a") < int(shell(box, "cat a") or 0))
        with Store(manager.home.store) as store:
            sealed = [commits.read_snapshot(store, one.commit).facts["layers"] is not None for one in taken]
        assert not any(sealed) if way == "held" else any(sealed)
        pairs = [(step_of(manager, one.commit, "a"), step_of(manager, one.commit, "b")) for one in taken]
        assert all(first - second in (0, 1) for first, second in pairs), pairs
        assert pairs == sorted(pairs)
        assert pairs[-1][0] > pairs[0][0], "it went on meanwhile"
        box.remove()


def step_of(manager: Manager, commit: str, name: str) -> int:
    git = ["git", "--git-dir", manager.home.store, "cat-file", "blob", f"{commit}:data/{name}"]
    return int(subprocess.run(git, capture_output=True, check=True).stdout)


def wait_until(condition: Callable[[], bool], *, timeout_s: float = 20.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_sessions_that_a_restore_ended_say_so(manager: Manager) -> None:
    with manager.create(name="sessions") as box:
        snapshot = box.snapshot("before")
        begun = box.tools.call("exec_command", cmd="cat", yield_time_ms=100)
        session = begun.data["session_id"]
        with box.terminal(["sh"]) as terminal:
            box.restore(snapshot)
            wait_until(lambda: terminal.read(wait_s=0.2) is None)
            assert terminal.result is not None
            assert terminal.result.exit_code != 0
        told = box.tools.call("write_stdin", session_id=session, chars="x\n", yield_time_ms=100)
        assert told.data.get("exit_code") is not None or told.status == "error", told
        assert shell(box, "echo works") == "works\n"
        box.remove()


def test_layers_are_not_merged_in_vain_while_somebody_works_in_the_workspace(manager: Manager) -> None:
    with manager.create(name="busy") as box:
        while plan_merge(box.record().layers) == 0:
            shell(box, "date +%N > now")
            box.snapshot()
        with held(box):
            shell(box, "date +%N > now")
            before = os.stat(manager.home.at("layers")).st_mtime_ns
            box.snapshot()
            assert os.stat(manager.home.at("layers")).st_mtime_ns == before
        shell(box, "date +%N > now")
        many = len(box.record().layers)
        box.snapshot()
        assert len(box.record().layers) < many
        box.remove()


@pytest.mark.parametrize("way", ["kill", "remove"])
def test_a_container_that_vanishes_in_the_middle_takes_nothing_with_it(manager: Manager, way: str) -> None:
    engine = manager.engine()
    with manager.create(name="mortal") as box:
        shell(box, "echo kept > kept")
        good = box.snapshot("good")
        crowd = Crowd()
        crowd.add("snapshot", lambda: box.snapshot("again"), WorkspaceError)
        crowd.add("restore", lambda: box.restore(good), WorkspaceError)
        crowd.add("exec", lambda: box.exec(["sh", "-c", "date > now"]), WorkspaceError)
        with crowd:
            for _ in range(3):
                time.sleep(0.4)
                container = box.record().container
                if container is not None and way == "kill":
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(container.pid, signal.SIGKILL)
                elif container is not None:
                    with contextlib.suppress(WorkspaceError):
                        engine.remove(container.id)
        assert shell(box, "cat kept") == "kept\n"
        assert leftovers(manager.home) == []
        box.restore(good)
        assert set(os.listdir(mounted_at(box))) == {"kept"}
        assert len(engine.list(manager.home.root)) == 1
        check_store(manager.home)
        box.remove()


def test_removing_a_workspace_ends_whatever_is_done_to_it(manager: Manager) -> None:
    """H5: commands, snapshots and restores under way end by errors of ours, or had happened before."""
    for _ in range(2):
        box = manager.create(name="doomed")
        good = box.snapshot("good")
        crowd = Crowd()
        crowd.add("snapshot", lambda box=box: box.snapshot("more"), WorkspaceError)  # type: ignore[misc]
        crowd.add("restore", lambda box=box, good=good: box.restore(good), WorkspaceError)  # type: ignore[misc]
        crowd.add("exec", lambda box=box: box.exec(["sh", "-c", "echo x >> y"]), WorkspaceError)  # type: ignore[misc]
        with crowd:
            time.sleep(0.3)
            removed = threading.Event()
            deadline = time.monotonic() + 30
            while not removed.is_set():
                assert time.monotonic() < deadline
                try:
                    manager.remove("doomed")
                    removed.set()
                except Busy:
                    time.sleep(0.01)
            crowd.stop.set()
        with pytest.raises(NotFound):
            box.snapshot("after")
        box.close()
    assert manager.engine().list(manager.home.root) == []


def test_a_frozen_look_ends_with_everybody_running(manager: Manager) -> None:
    """Ten snapshots in a row from threads, while a process holds the workspace: it runs on, and each is its own."""
    with manager.create(name="held") as box, held(box):
        crowd = Crowd()
        taken: list[str] = []
        for _ in range(3):
            crowd.add("snapshot", lambda: taken.append(box.snapshot("held").commit), Busy)
        with crowd:
            time.sleep(1.5)
        assert len(set(taken)) == len(taken) > 3
        assert shell(box, "pgrep -c sleep") == "1\n"
        box.remove()
