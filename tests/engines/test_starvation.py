"""The law: what one workspace takes of the kernel, no other workspace and no user of the host lacks (issue 10, A7)."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_stage import warm_home
from starving import ASK, HOG, parse
from ws.engine.base import Engine
from ws.manager import Manager
from ws.workspace import Workspace

DEADLINE_S = 60.0
GIVEN = {"inotify", "signals", "timers", "pipes", "queues", "ptys"}


@pytest.fixture
def boxes(engine: Engine, default_image: str, session_home: str, tmp_path: Path) -> Iterator[list[Workspace]]:
    with Manager(home=str(warm_home(tmp_path / "home", session_home)), engine=engine.name) as manager:
        made = [manager.create() for _ in range(2)]
        yield made
        for box in made:
            box.remove()


def let_loose(box: Workspace) -> dict[str, int]:
    """Start the one that takes all, and wait until it has."""
    box.fs.write("hog.py", HOG)
    assert box.exec(["sh", "-c", "nohup python3 hog.py > said 2>&1 &"]).exit_code == 0
    deadline = time.monotonic() + DEADLINE_S
    while "done" not in (said := box.exec(["cat", "said"]).stdout):
        assert time.monotonic() < deadline, said
        time.sleep(0.1)
    return parse(said)


def asked_on_the_host(uid: int) -> dict[str, int]:
    become = (
        f"import ctypes, fcntl, os, signal; os.setgroups([]); os.setresgid(*[{uid}] * 3); os.setresuid(*[{uid}] * 3)\n"
        if uid
        else ""
    )
    done = subprocess.run([sys.executable, "-I", "-c", become + ASK], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return parse(done.stdout)


def test_one_that_takes_all_it_gets_leaves_the_others_theirs(boxes: list[Workspace]) -> None:
    hostile, other = boxes
    before = {uid: asked_on_the_host(uid) for uid in (0, 1000, hostile.record().ids.host_uid)}
    taken = let_loose(hostile)
    assert set(taken) == GIVEN | {"aio"}
    assert all(taken[name] > 0 for name in GIVEN - {"timers"}), (
        taken
    )  # a timer counts as a signal, and those came first
    assert taken["aio"] == 0, "its contexts are counted for the whole machine"
    found = parse(other.exec(["python3", "-c", ASK]).stdout)
    assert {name for name, got in found.items() if got} == GIVEN
    for uid, had in before.items():
        assert asked_on_the_host(uid) == had, f"user {uid} of the host"
        assert all(had[name] for name in GIVEN)


def test_what_one_can_take_is_bounded(boxes: list[Workspace]) -> None:
    taken = let_loose(boxes[0])
    limits = Path("/proc/sys/fs/inotify/max_user_instances").read_text()
    assert taken["inotify"] <= int(limits)
    assert taken["signals"] + taken["timers"] <= 4_096
    assert taken["queues"] <= 2
    assert taken["ptys"] <= 128
    found = boxes[0].exec(["sh", "-c", "cat /proc/self/limits"]).stdout
    limit = {line[:26].strip(): line[26:].split()[:2] for line in found.splitlines()}
    pids = str(boxes[0].record().options.pids)
    assert limit["Max processes"] == [pids, pids]
    assert limit["Max pending signals"] == ["4096", "4096"]
    assert limit["Max msgqueue size"] == ["102400", "102400"]


def test_the_user_namespace_of_a_container_has_limits_of_its_own(boxes: list[Workspace], engine: Engine) -> None:
    shown = boxes[0].exec(["sh", "-c", "grep . /proc/sys/user/*"]).stdout
    limits = {line.rpartition("/")[2].partition(":")[0]: int(line.rpartition(":")[2]) for line in shown.splitlines()}
    if engine.name == "docker":  # it has none: its ids are counted as any user's of the host
        assert limits["max_inotify_instances"] == int(Path("/proc/sys/user/max_inotify_instances").read_text())
        return
    assert {value for name, value in limits.items() if name.endswith("_namespaces")} == {0}
    hosts = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    assert limits["max_inotify_instances"] == max(16, hosts // 8)
