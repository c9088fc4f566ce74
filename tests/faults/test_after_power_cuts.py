"""What a power cut leaves of single files, made by hand: recovery reads the rest from the record.

The cuts themselves are tried in `test_power_cuts`; these are the cases that it found, each by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lived_in import outside
from ws import layers, layout, process_identity
from ws.engine.processes import kill_all
from ws.layout import Intent
from ws.manager import Manager
from ws.rebooted import mend_after_boot
from ws.workspace import Workspace


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Workspace]:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("content")
    with Manager(home=str(tmp_path / "home"), engine="none") as manager:
        box = manager.create(str(source), name="box")
        yield box
        box.remove()


@pytest.fixture
def another_boot(box: Workspace, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine was started again after the workspace was made: its processes ended, its records stayed."""
    container = box.record().container
    assert container is not None
    kill_all(container.pid)
    box.close()
    monkeypatch.setattr(process_identity, "_boot_id", "00000000-0000-0000-0000-000000000000")
    yield
    box.remove()  # within that boot: what was started in it counts as dead in any other


def home_of(box: Workspace) -> layout.Home:
    return box._home


@pytest.mark.parametrize("bytes_left", [b"", b"\0" * 97, b'{"workspace_id": "o'], ids=["empty", "zeros", "torn"])
def test_an_intent_without_its_bytes_is_settled(box: Workspace, bytes_left: bytes) -> None:
    home = home_of(box)
    Path(home.pending(box.id)).write_bytes(bytes_left)
    with Manager(home=home.root, engine="none") as manager:
        assert os.listdir(home.at("pending")) == []
        with manager.open("box") as found:
            found.snapshot("works again")


def test_an_intent_without_its_bytes_and_a_record_was_a_create(box: Workspace) -> None:
    home = home_of(box)
    os.mkdir(home.workspace("unborn"))
    os.symlink("unborn", home.name("unborn"))
    Path(home.pending("unborn")).write_bytes(b"")
    with Manager(home=home.root, engine="none") as manager:
        assert [info.name for info in manager.list()] == ["box"]
    assert os.listdir(home.at("names")) == ["box"]
    assert os.listdir(home.at("workspaces")) == [box.id]


def test_an_intent_of_another_workspace_removes_nothing(box: Workspace) -> None:
    """Without a journal, the name of a lost intent may lead to the bytes of an older one."""
    home = home_of(box)
    Path(home.pending("another")).write_bytes(Intent(box.id, "remove", "none").to_bytes())
    with Manager(home=home.root, engine="none") as manager:
        assert [info.name for info in manager.list()] == ["box"]
        with manager.open("box") as found:
            assert b"file" in outside(found)
    assert os.listdir(home.at("pending")) == []


@pytest.mark.usefixtures("another_boot")
def test_a_boot_gives_back_names_locks_and_marks(box: Workspace) -> None:
    home, record = home_of(box), box.record()
    users = os.path.join(home.layer(record.upper), "users")
    for path in (home.name("box"), home.lock(box.id), home.turn(box.id), os.path.join(users, box.id)):
        os.unlink(path)
    os.rmdir(users)
    Path(users).write_text("an inode that was reused")
    with Manager(home=home.root, engine="none") as manager, manager.open("box") as found:
        assert layers.remove_unused_layers(home) == []
        assert b"file" in outside(found)
        found.snapshot("works again")


@pytest.mark.usefixtures("another_boot")
def test_records_are_compared_once_in_a_boot(box: Workspace) -> None:
    home = home_of(box)
    os.unlink(home.name("box"))
    assert mend_after_boot(home) == ["restored what a power cut took of box"]
    os.unlink(home.name("box"))
    assert mend_after_boot(home) == []
    os.symlink(box.id, home.name("box"))


def test_a_layer_whose_users_are_no_directory_is_removed_and_stops_nothing(box: Workspace) -> None:
    home = home_of(box)
    os.makedirs(home.at("layers", "torn", "data"))
    Path(home.at("layers", "torn", "users")).write_text("an inode that was reused")
    assert layers.remove_unused_layers(home) == ["torn"]
    assert os.listdir(home.at("layers")) == [box.record().upper]
