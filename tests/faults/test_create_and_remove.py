"""Killed at any durable step of create or remove, the next ws command finds a workspace whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from injection import DURABLE, Point, kill_at_each, run_injected, spread, trace_points

from ws import pool
from ws.layout import EngineName
from ws.manager import Manager

pytestmark = pytest.mark.rootless

CREATE = "import sys, ws; ws.Manager(home=sys.argv[1], engine=sys.argv[2]).create(name='victim').close()"
REMOVE = "import sys, ws; ws.Manager(home=sys.argv[1], engine=sys.argv[2]).remove('victim')"
FILL = "import sys, ws; ws.Manager(home=sys.argv[1], engine=sys.argv[2]).fill_pool(1)"
PARTS = ("workspaces", "names", "layers", "run", "pending", "staging")


@pytest.fixture
def home(engine_name: EngineName, tmp_path: Path) -> Iterator[str]:
    path = str(tmp_path / "home")
    with Manager(home=path, engine=engine_name) as manager:  # the empty base and the runtime are made once
        manager.create(name="first").remove()
    yield path
    with Manager(home=path, engine=engine_name) as manager:
        for info in manager.list():
            manager.remove(info.id)
        assert manager.engine().list(path) == []


def some(number: int, engine_name: EngineName) -> int:
    """How many points to try: a few, fewer on docker, whose containers take longer; all of them in the long run."""
    if os.environ.get("WS_EVERY_FAULT"):
        return 0
    return number if engine_name == "podman" else max(2, number // 3)


def left(home: str) -> list[str]:
    return [f"{part}/{name}" for part in PARTS for name in os.listdir(os.path.join(home, part))]


def test_a_create_killed_at_any_step_is_whole_or_gone(home: str, engine_name: EngineName) -> None:
    killed = 0
    points = trace_points(CREATE, [home, engine_name], calls=DURABLE)
    with Manager(home=home, engine=engine_name) as manager:
        manager.remove("victim")
    for outcome in kill_at_each(CREATE, [home, engine_name], points, about=some(12, engine_name)):
        killed += outcome.killed
        with Manager(home=home, engine=engine_name) as manager:
            names = [info.name for info in manager.list()]
            containers = manager.engine().list(home)
            where = f"killed at {outcome.point}"
            if names:
                assert names == ["victim"], where
                with manager.open("victim") as box:
                    assert box.exec(["true"]).exit_code == 0, where
                    box.remove()
            else:
                assert outcome.killed, where
                assert containers == [], where
            assert left(home) == [], where
    assert killed > (4 if engine_name == "podman" else 0)


def test_a_remove_killed_at_any_step_is_finished_by_the_next_command(home: str, engine_name: EngineName) -> None:
    killed = 0
    with Manager(home=home, engine=engine_name) as manager:
        manager.create(name="victim").close()
    points = trace_points(REMOVE, [home, engine_name], calls="fsync,rename,renameat2,unlink,unlinkat,rmdir")
    for point in spread(points, some(8, engine_name)):
        with Manager(home=home, engine=engine_name) as manager:
            manager.create(name="victim").close()
        outcome = run_injected(REMOVE, [home, engine_name], point=point, fault="signal=KILL")
        killed += outcome.killed
        with Manager(home=home, engine=engine_name) as manager:
            where = f"killed at {point}"
            for info in manager.list():
                assert info.status == "running", where
                manager.remove(info.id)
            assert manager.engine().list(home) == [], where
            assert left(home) == [], where
    assert killed > (2 if engine_name == "podman" else 0)


def test_a_create_from_the_pool_killed_at_any_step_is_whole_or_gone(home: str, engine_name: EngineName) -> None:
    killed = 0
    with Manager(home=home, engine=engine_name) as manager:
        manager.fill_pool(1)
        points = trace_points(CREATE, [home, engine_name], calls=DURABLE)
        assert manager.open("victim").info().warm
        manager.remove("victim")
    for point in spread(points, some(10, engine_name)):
        with Manager(home=home, engine=engine_name) as manager:
            manager.fill_pool(1)
        outcome = run_injected(CREATE, [home, engine_name], point=point, fault="signal=KILL")
        killed += outcome.killed
        with Manager(home=home, engine=engine_name) as manager:
            for info in manager.list():
                with manager.open(info.id) as box:
                    assert box.exec(["true"]).exit_code == 0, point
                    box.remove()
            manager.prune()
            waiting = pool.waiting_containers(manager.home)
            assert {state.id for state in manager.engine().list(home)} == {each.id for each in waiting.values()}, point
            assert set(left(home)) == {f"run/{key}" for key in waiting}, point
    assert killed > (3 if engine_name == "podman" else 0)
    with Manager(home=home, engine=engine_name) as manager:
        manager.drain_pool()


def test_a_filling_killed_at_any_step_leaves_a_pool_that_works(home: str, engine_name: EngineName) -> None:
    killed = 0
    points = trace_points(FILL, [home, engine_name], calls=DURABLE)
    for point in spread(points, some(6, engine_name)):
        with Manager(home=home, engine=engine_name) as manager:
            manager.drain_pool()
        outcome = run_injected(FILL, [home, engine_name], point=point, fault="signal=KILL")
        killed += outcome.killed
        with Manager(home=home, engine=engine_name) as manager:
            waiting = pool.waiting_containers(manager.home)
            assert {state.id for state in manager.engine().list(home)} == {each.id for each in waiting.values()}, point
            assert set(left(home)) == {f"run/{key}" for key in waiting}, point
            manager.fill_pool(1)
            with manager.create(name="victim") as box:
                assert box.info().warm, point
                box.remove()
    assert killed > (1 if engine_name == "podman" else 0)


@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EMFILE"])
@pytest.mark.parametrize("lasting", ["", "+"])
def test_a_create_that_meets_a_full_or_broken_disk_leaves_nothing(
    home: str, engine_name: EngineName, error: str, lasting: str
) -> None:
    for point in (Point("fsync", 2), Point("rename", 1), Point("rename", 4), Point("mkdir", 3), Point("symlink", 1)):
        outcome = run_injected(CREATE, [home, engine_name], point=point, fault=f"error={error}", lasting=bool(lasting))
        if outcome.status != 0:
            assert outcome.stderr.splitlines()[-1].startswith("ws.errors."), outcome
        with Manager(home=home, engine=engine_name) as manager:
            for info in manager.list():
                manager.remove(info.id)
            assert manager.engine().list(home) == []
        assert left(home) == []
