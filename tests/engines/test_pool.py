"""The law: a container of the pool is as good as a new one, is used once, by one workspace of its own configuration."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cli_stage import Stage, warm_home
from engine_images import ensure_busybox
from workspaces import ids_inside
from ws import pool
from ws.engine.base import Engine
from ws.engine.choose import open_engine
from ws.errors import InvalidRequest, WorkspaceError, WorkspaceExists
from ws.layout import Home
from ws.manager import Manager

PARTS = ("workspaces", "names", "layers", "run", "pending", "staging")
FILL_S = 60.0


@pytest.fixture
def manager(engine: Engine, default_image: str, session_home: str, tmp_path: Path) -> Iterator[Manager]:
    with Manager(home=str(warm_home(tmp_path / "home", session_home)), engine=engine.name) as manager:
        yield manager
        for info in manager.list():
            manager.remove(info.id)
        manager.drain_pool()
        assert manager.engine().list(manager.home.root) == []
        assert [name for part in PARTS for name in os.listdir(manager.home.at(part))] == []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    (path / "file").write_text("from the host\n")
    return path


def ready(manager: Manager) -> int:
    return sum(info.ready for info in manager.list_pool())


def wait_for_pool(manager: Manager, size: int) -> None:
    deadline = time.monotonic() + FILL_S
    while not (ready(manager) == size and not any(info.filling for info in manager.list_pool())):
        assert time.monotonic() < deadline, manager.list_pool()
        time.sleep(0.05)


def test_a_workspace_in_a_warm_container_lacks_nothing_and_the_next_one_is_made_anew(
    manager: Manager, project: Path
) -> None:
    assert manager.fill_pool(1) == 1
    assert manager.fill_pool(1) == 0
    (waiting,) = pool.waiting_containers(manager.home).values()
    with manager.create(project, name="warm", env={"COLOUR": "blue"}) as box:
        assert box.info().warm
        assert box.info().container == waiting.id
        assert ready(manager) == 0
        shown = box.exec(["sh", "-c", "cat file; echo $COLOUR; id -u; pwd; stat -c %u file"]).stdout
        uid, _ = ids_inside(box)
        assert shown == f"from the host\nblue\n{uid}\n/workspace\n{uid}\n"
        kept = box.snapshot("good")
        box.exec(["sh", "-c", "rm file; echo damage > other"])
        box.restore(kept)
        assert box.exec(["sh", "-c", "ls; cat file"]).stdout == "file\nfrom the host\n"
        box.tools.call("delete", path="file")
        assert [entry.path for entry in box.fs.list()] == []
    with manager.create(project) as cold:
        assert not cold.info().warm
        assert cold.exec(["cat", "file"]).stdout == "from the host\n"
    with manager.open("warm") as box:
        box.remove()
    assert manager.engine().find(waiting.id) is None  # never used again


def test_only_its_own_configuration_takes_a_container(manager: Manager, project: Path) -> None:
    manager.fill_pool(1, memory="256m")
    with manager.create(project) as box:
        assert not box.info().warm
    with manager.create(project, memory="256m", network="bridge") as box:
        assert not box.info().warm
    with manager.create(project, memory="256m", user="1234") as box:
        assert not box.info().warm
    with manager.create(project, memory="256m", exclude=["nothing"], ttl="1h") as box:
        assert box.info().warm


def test_one_that_has_ended_is_passed_over_and_replaced(manager: Manager, project: Path) -> None:
    manager.fill_pool(1)
    (waiting,) = pool.waiting_containers(manager.home).values()
    os.kill(waiting.pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while waiting.alive() and time.monotonic() < deadline:
        time.sleep(0.01)
    (info,) = manager.list_pool()
    assert (info.ready, info.stale) == (0, 1)
    with manager.create(project) as box:
        assert not box.info().warm
    assert manager.fill_pool(1) == 1
    assert manager.engine().find(waiting.id) is None
    with manager.create(project) as box:
        assert box.info().warm


def test_one_that_does_not_answer_is_removed_and_the_workspace_gets_a_new_one(manager: Manager, project: Path) -> None:
    manager.fill_pool(1)
    (waiting,) = pool.waiting_containers(manager.home).values()
    os.kill(waiting.pid, signal.SIGSTOP)
    with manager.create(project) as box:
        assert not box.info().warm
        assert box.exec(["cat", "file"]).stdout == "from the host\n"
    assert manager.engine().find(waiting.id) is None
    assert ready(manager) == 0


def test_an_image_that_was_replaced_is_not_used_any_more(manager: Manager, engine: Engine, default_image: str) -> None:
    tag = "localhost/ws-test-pool:latest"
    busybox = ensure_busybox(engine)
    subprocess.run([engine.name, "tag", busybox, tag], check=True, capture_output=True)
    try:
        manager.fill_pool(1, image=tag, user="1000")
        (old,) = pool.waiting_containers(manager.home).values()
        subprocess.run([engine.name, "tag", default_image, tag], check=True, capture_output=True)
        with manager.create(image=tag, user="1000") as box:
            assert not box.info().warm
            assert box.exec(["git", "--version"]).exit_code == 0
        assert manager.fill_pool(1, image=tag, user="1000") == 1
        assert manager.engine().find(old.id) is None
        with manager.create(image=tag, user="1000") as box:
            assert box.info().warm
            assert box.exec(["git", "--version"]).exit_code == 0
            box.remove()
        for info in manager.list():
            manager.remove(info.id)
        manager.drain_pool(tag)
        assert manager.list_pool() == []
    finally:
        subprocess.run([engine.name, "rmi", tag], check=True, capture_output=True)


def test_many_at_once_get_one_each(manager: Manager, project: Path) -> None:
    manager.fill_pool(3)
    with ThreadPoolExecutor(6) as threads:
        boxes = list(threads.map(lambda _: manager.create(project), range(6)))
    assert len({box.info().container for box in boxes}) == 6
    assert sum(box.info().warm for box in boxes) == 3
    assert ready(manager) == 0
    assert [box.exec(["cat", "file"]).stdout for box in boxes] == ["from the host\n"] * 6
    for box in boxes:
        box.close()


def test_a_fork_and_a_workspace_that_lost_its_container_take_one(manager: Manager, project: Path) -> None:
    with manager.create(project, name="parent") as box:
        box.exec(["sh", "-c", "echo mine > made"])
        manager.fill_pool(2)
        with box.fork(name="child") as child:
            assert child.info().warm
            assert child.exec(["cat", "made"]).stdout == "mine\n"
        container = box.info().container
        assert container is not None
        manager.engine().remove(container)
        assert box.exec(["cat", "made"]).stdout == "mine\n"
        assert box.info().warm
    assert ready(manager) == 0


def test_prune_spares_what_waits_and_what_was_taken_and_collects_the_rest(manager: Manager, project: Path) -> None:
    manager.fill_pool(3)
    with manager.create(project, name="taken") as box:
        assert box.info().warm
        lost, kept = pool.waiting_containers(manager.home).values()
        (info,) = manager.list_pool()
        os.unlink(os.path.join(manager.home.pool(info.key), lost.key))
        manager.prune()
        present = {state.id for state in manager.engine().list(manager.home.root)}
        assert present == {kept.id, box.info().container}
        assert box.exec(["cat", "file"]).stdout == "from the host\n"


def test_containers_of_a_home_that_was_deleted_are_removed(
    manager: Manager, engine: Engine, session_home: str, tmp_path: Path
) -> None:
    gone = warm_home(tmp_path / "gone", session_home)
    with Manager(home=str(gone), engine=engine.name) as other:
        other.fill_pool(1)
        (waiting,) = pool.waiting_containers(other.home).values()
    manager.prune()
    assert manager.engine().find(waiting.id) is not None
    shutil.rmtree(gone)
    manager.prune()
    assert manager.engine().find(waiting.id) is None


def test_a_pool_that_is_asked_for_is_kept_filled_in_the_background(manager: Manager, project: Path) -> None:
    with Manager(home=manager.home.root, engine=manager.engine().name, pool=2) as keeper:
        with keeper.create(project) as first:
            assert not first.info().warm
        wait_for_pool(manager, 2)
        with keeper.create(project, name="second") as second:
            assert second.info().warm
        wait_for_pool(manager, 2)
        with keeper.open("second") as second, second.fork() as child:
            assert child.info().warm
        wait_for_pool(manager, 2)


def test_the_command_line_fills_lists_uses_and_drains(manager: Manager, project: Path) -> None:
    stage = Stage(Path(manager.home.root), manager.engine().name)
    assert stage.data("pool", "fill", "--size", "1", "--memory", "128m") == {"made": 1}
    (listed,) = stage.data("pool", "ls")
    assert (listed["ready"], listed["stale"], listed["memory_bytes"]) == (1, 0, 128 << 20)
    assert stage.data("create", str(project), "--memory", "128m")["warm"] is True
    assert stage.data("create", str(project), "--memory", "128m")["warm"] is False
    assert stage.data("pool", "fill", "--like", listed["key"][:6], "--size", "2") == {"made": 2}
    many = stage.data("create", str(project), "--memory", "128m", "--name", "n", "--count", "3")
    assert [info["name"] for info in many] == ["n-1", "n-2", "n-3"]
    assert sorted(info["warm"] for info in many) == [False, True, True]
    assert stage.data("pool", "fill", "--like", listed["key"], "--size", "1") == {"made": 1}
    told = stage.run("pool", "drain", "--dry-run")
    assert (told.stdout, told.stderr) == (b"1\n", b"nothing was removed: --dry-run\n")
    assert stage.data("pool", "drain") == {"removed": 1, "dry_run": False}
    assert stage.data("pool", "ls") == []


def test_many_are_made_or_none(manager: Manager, project: Path) -> None:
    seen: list[tuple[str, int, int]] = []
    made = manager.create_many(project, count=4, name="x", progress=lambda *step: seen.append(step))
    assert [box.name for box in made] == ["x-1", "x-2", "x-3", "x-4"]
    assert [box.exec(["cat", "file"]).stdout for box in made] == ["from the host\n"] * 4
    assert seen[-1] == ("creating", 4, 4)
    for box in made:
        box.close()
    with pytest.raises(WorkspaceExists):
        manager.create_many(project, count=5, name="x")
    os.mkdir(manager.home.name("y-3"))  # what no check beforehand sees, and what cannot be removed
    subprocess.run(["mount", "-t", "tmpfs", "none", manager.home.name("y-3")], check=True)
    try:
        with pytest.raises((WorkspaceError, OSError)):
            manager.create_many(project, count=4, name="y")
    finally:
        subprocess.run(["umount", manager.home.name("y-3")], check=True)
    os.rmdir(manager.home.name("y-3"))
    assert sorted(info.name for info in manager.list()) == ["x-1", "x-2", "x-3", "x-4"]
    with pytest.raises(InvalidRequest):
        manager.create_many(project, count=0)


def test_a_size_that_is_none_is_refused(manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    for size in (-1, 1001):
        with pytest.raises(InvalidRequest, match="from 0 to 1000"):
            manager.fill_pool(size)
    with pytest.raises(InvalidRequest):
        Manager(home=manager.home.root, pool=-1)
    monkeypatch.setenv("WS_POOL", "many")
    with pytest.raises(InvalidRequest, match="WS_POOL"):
        Manager(home=manager.home.root)


def test_without_containers_there_is_no_pool(session_home: str) -> None:
    home = Home(session_home)
    with Manager(home=session_home, engine="none", pool=2) as manager, manager.create(remove_on_exit=True) as box:
        assert not box.info().warm
        with pytest.raises(InvalidRequest, match="none"):
            manager.fill_pool(1)
    assert pool.waiting_containers(home) == {}
    assert open_engine("none", home=session_home).list(None) == []
