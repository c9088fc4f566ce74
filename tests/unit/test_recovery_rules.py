"""The rules of recovery and of the switch, each by itself, on workspaces without an engine."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ws import durable, layers, process_identity
from ws.errors import Busy, NotFound
from ws.layout import Home, Intent
from ws.manager import Manager
from ws.recovery import recover
from ws.stacks import Stack
from ws.workspace import Workspace


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("one")
    with Manager(home=str(tmp_path / "home"), engine="none") as manager:
        yield manager
        for info in manager.list():
            manager.remove(info.id)


@pytest.fixture
def box(manager: Manager, tmp_path: Path) -> Workspace:
    return manager.create(str(tmp_path / "source"), name="box")


def file(box: Workspace) -> Path:
    return Path(box.root) / "file"


def test_recovery_leaves_the_intents_of_the_living(manager: Manager) -> None:
    home = manager.home
    os.mkdir(home.workspace("made"))
    with durable.intent(home.pending("made"), Intent("made", "create", "none").to_bytes()):
        assert recover(home, manager.engine) == []
        assert os.path.isdir(home.workspace("made"))
    os.rmdir(home.workspace("made"))


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_a_lock_that_goes_while_it_is_taken_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    """Between the open and the lock a removal takes the file away, or takes it away and another creates one."""
    path = tmp_path / "lock"
    durable.create_lock_file(str(path))
    flock = fcntl.flock

    def remove_and_lock(fd: int, kind: int) -> None:
        path.unlink()
        if replaced:
            path.touch()
        flock(fd, kind)

    monkeypatch.setattr(fcntl, "flock", remove_and_lock)
    with pytest.raises(NotFound), durable.locked(str(path)):
        pytest.fail("it protects nothing")


def test_two_operations_cannot_announce_themselves_at_once(tmp_path: Path) -> None:
    path = str(tmp_path / "intent")
    with durable.intent(path, b"first"):
        with pytest.raises(Busy), durable.intent(path, b"second"):
            pass
        assert Path(path).read_bytes() == b"first"


def test_an_intent_that_was_left_stays(tmp_path: Path) -> None:
    path = str(tmp_path / "intent")
    with durable.intent(path, b"left") as announced:
        announced.leave()
    assert Path(path).read_bytes() == b"left"


def test_recovery_removes_what_the_dead_were_building_and_nothing_else(manager: Manager) -> None:
    home = manager.home
    living, dead, recycled = home.staging(), home.at("staging", "999999999.1.abc"), home.at("staging", "1.1.abc")
    for path in (living, dead, recycled):
        os.mkdir(path)
    recover(home, manager.engine)
    assert os.listdir(home.at("staging")) == [os.path.basename(living)]
    os.rmdir(living)


def test_a_layer_of_an_earlier_boot_counts_only_if_it_was_synced(
    box: Workspace, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, upper = manager.home, box.record().upper
    assert layers.is_trusted(home, upper)
    monkeypatch.setattr(process_identity, "_boot_id", "another")
    assert not layers.is_trusted(home, upper)
    layers.mark_synced(home.layer(upper))
    assert layers.is_trusted(home, upper)


def test_a_layer_goes_with_its_last_user(box: Workspace, manager: Manager) -> None:
    home, upper = manager.home, box.record().upper
    Path(home.layer(upper), "users", "another").touch()
    layers.release_layers(home, [upper], "another")
    assert file(box).read_text() == "one"
    Path(home.layer(upper), "users", "another").touch()
    layers.release_layers(home, [upper], box.id)
    assert os.path.isdir(home.layer(upper))
    layers.release_layers(home, [upper], "another")
    assert not os.path.exists(home.layer(upper))


class Order(list[str]):
    """Which records were written, and when everything was synced."""


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> Order:
    noted = Order()
    sync, replace = durable.sync_filesystem, durable._replace

    def note_sync(path: str) -> None:
        sync(path)
        noted.append("sync")

    def note_replace(temporary: str, path: str) -> None:
        replace(temporary, path)
        if os.path.basename(path) == "record.json":
            noted.append(f"record {os.path.basename(os.path.dirname(path))}")

    monkeypatch.setattr(durable, "sync_filesystem", note_sync)
    monkeypatch.setattr(durable, "_replace", note_replace)
    return noted


def test_a_restore_syncs_all_before_the_record_names_it(
    box: Workspace, order: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = box.snapshot("one")
    monkeypatch.setattr(durable, "syncing_ahead", lambda _: durable.state_usable())  # a sync that does not count
    staged: list[int] = []
    stage = durable.stage_file

    def note_stage(path: str, data: bytes, *, mode: int = 0o600) -> str:
        staged.append(len(order))
        return stage(path, data, mode=mode)

    monkeypatch.setattr(durable, "stage_file", note_stage)
    box.restore(taken)
    assert order[staged[-1] :][:2] == ["sync", f"record {box.id}"]


def test_the_files_of_a_new_workspace_are_synced_before_its_record(
    manager: Manager, order: Order, tmp_path: Path
) -> None:
    box = manager.create(str(tmp_path / "source"), name="box")
    taken = box.snapshot("one")
    box.fork(taken, name="first")  # which builds the base, and syncs that
    order.clear()
    fork = box.fork(taken, name="fork")
    assert order[: order.index(f"record {fork.id}") + 1] == ["sync", f"record {fork.id}"]


def test_a_restore_can_be_undone(box: Workspace) -> None:
    taken = box.snapshot("one")
    file(box).write_text("two")
    box.restore(taken)
    assert file(box).read_text() == "one"
    box.undo()
    assert file(box).read_text() == "two"


def test_a_directory_that_did_not_change_is_the_same_snapshot_again(box: Workspace) -> None:
    """What is kept beside the stat cache is enough to give the snapshot without reading a file."""
    time.sleep(0.1)
    trees = {box.snapshot(str(number)).tree for number in range(3)}
    assert len(trees) == 1


def remember(home: Home, box: Workspace, number: int, stack: Stack) -> None:
    os.makedirs(os.path.dirname(home.stack(box.id, number)), exist_ok=True)
    Path(home.stack(box.id, number)).write_bytes(stack.to_bytes())


def test_a_stack_is_used_only_if_it_is_the_snapshot_s_and_whole(box: Workspace, manager: Manager) -> None:
    home = manager.home
    first = box.snapshot("one")
    base = box.record().base  # holds what the first snapshot does
    file(box).write_text("two")
    second = box.snapshot("two")
    wrong_tree = Stack(tree=first.tree, base=base, layers=())
    layer_lost = Stack(tree=second.tree, base=base, layers=("gone",))
    for stack in (wrong_tree, layer_lost):
        remember(home, box, second.number, stack)
        box.restore(first)
        box.restore(second)
        assert file(box).read_text() == "two"
