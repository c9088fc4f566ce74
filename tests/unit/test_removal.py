"""`rm` removes whatever there is of a workspace, or says what stands in the way; it never removes another one."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import damage
from cli_stage import warm_home
from ws.errors import StateError, WorkspaceNotFound
from ws.layout import Home, Intent
from ws.manager import Manager
from ws.records import read_record, write_record

PARTS = ("names", "workspaces", "layers", "run", "pending", "staging")


@pytest.fixture
def manager(tmp_path: Path, session_home: str) -> Iterator[Manager]:
    home = warm_home(tmp_path / "home", session_home)
    with Manager(home=str(home), engine="none") as manager:
        yield manager
        for info in manager.list():
            manager.remove(info.id)
        assert {part: os.listdir(manager.home.at(part)) for part in PARTS} == {part: [] for part in PARTS}


def make(manager: Manager, name: str) -> str:
    box = manager.create(name=name)
    box.close()
    return box.id


def gone(home: Home, workspace_id: str, name: str) -> bool:
    return not any(os.path.lexists(path) for path in (home.workspace(workspace_id), home.name(name)))


def _lose(*parts: str) -> Callable[[Home, str], None]:
    def lose(home: Home, workspace_id: str) -> None:
        for part in parts:
            os.unlink(os.path.join(home.workspace(workspace_id), part))

    return lose


def _hurt(part: str, kind: str) -> Callable[[Home, str], None]:
    def hurt(home: Home, workspace_id: str) -> None:
        damage.DAMAGES[kind](os.path.join(home.workspace(workspace_id), part))

    return hurt


def _leave_intent(data: bytes) -> Callable[[Home, str], None]:
    return lambda home, workspace_id: Path(home.pending(workspace_id)).write_bytes(data) and None


def _directory_for_intent(home: Home, workspace_id: str) -> None:
    os.makedirs(os.path.join(home.pending(workspace_id), "inner"))


def _half_removed(home: Home, workspace_id: str) -> None:
    """As a removal leaves it that failed right after its commit point and had its name taken already."""
    record = read_record(home, workspace_id)
    assert record is not None
    fields = json.loads(record.to_bytes())
    write_record(home, type(record).from_bytes(json.dumps({**fields, "state": "removing"}).encode()))
    os.unlink(home.name(record.name))


def _link_is_a_directory(home: Home, workspace_id: str) -> None:
    os.unlink(home.name("victim"))
    os.makedirs(os.path.join(home.name("victim"), "inner"))


STATES: dict[str, Callable[[Home, str], None]] = {
    "no turn": _lose("turn"),
    "no lock": _lose("lock"),
    "no locks": _lose("turn", "lock"),
    "turn is a directory": _hurt("turn", "directory"),
    "lock is a fifo": _hurt("lock", "fifo"),
    "lock is a link": _hurt("lock", "link"),
    "no record": _lose("record.json"),
    "record is a directory": _hurt("record.json", "directory"),
    "record is a fifo": _hurt("record.json", "fifo"),
    "record of brackets": _hurt("record.json", "brackets"),
    "record of other types": _hurt("record.json", "types"),
    "intent is empty": _leave_intent(b""),
    "intent of brackets": _leave_intent(damage.BRACKETS),
    "intent of another": _leave_intent(Intent("other", "remove", "none").to_bytes()),
    "intent is a directory": _directory_for_intent,
    "half removed": _half_removed,
    "link is a directory": _link_is_a_directory,
}


@pytest.mark.parametrize("state", STATES)
def test_a_workspace_is_removed_in_any_state(manager: Manager, state: str) -> None:
    other, victim = make(manager, "other"), make(manager, "victim")
    STATES[state](manager.home, victim)
    with Manager(home=manager.home.root, engine="none") as another:  # as the next command does
        another.remove("victim")
    assert gone(manager.home, victim, "victim")
    assert not os.path.lexists(manager.home.pending(victim))
    assert [info.id for info in manager.list()] == [other]
    with manager.open("other") as box:
        assert box.exec(["echo", "lives"]).stdout == "lives\n"


def test_a_removal_that_was_cut_short_is_finished_by_the_next_rm_and_reported(manager: Manager) -> None:
    victim = make(manager, "victim")
    _half_removed(manager.home, victim)
    intent = Intent(victim, "remove", "none", name="victim")
    Path(manager.home.pending(victim)).write_bytes(intent.to_bytes())
    with Manager(home=manager.home.root, engine="none") as another:
        assert another.find_removable("victim") == ("victim", "victim")
        another.remove("victim")
        assert gone(manager.home, victim, "victim")
    with Manager(home=manager.home.root, engine="none") as another, pytest.raises(WorkspaceNotFound):
        another.remove("victim")


def test_the_record_of_another_workspace_is_refused_and_removed_without_harm_to_it(manager: Manager) -> None:
    other, victim = make(manager, "other"), make(manager, "victim")
    shutil.copyfile(manager.home.record(other), manager.home.record(victim))
    with pytest.raises(StateError, match=f"it is the record of {other}"):
        manager.open("victim")
    assert {info.id: info.status for info in manager.list()} == {other: "running", victim: "damaged"}
    manager.remove("victim")
    assert gone(manager.home, victim, "victim")
    with manager.open("other") as box:
        assert box.exec(["true"]).exit_code == 0


@pytest.mark.parametrize("target", ["the other", "outside", "file", "nothing"])
def test_a_wrong_link_leads_to_no_other_workspace_and_is_written_again(manager: Manager, target: str) -> None:
    other, victim = make(manager, "other"), make(manager, "victim")
    link = manager.home.name("victim")
    os.unlink(link)
    if target == "the other":
        os.symlink(other, link)
    elif target == "outside":
        os.symlink("../../outside", link)
    elif target == "file":
        Path(link).touch()
    with manager.open("victim") as box:
        assert box.id == victim
    assert os.readlink(link) == victim
    manager.remove("victim")
    assert [info.id for info in manager.list()] == [other]


def test_a_name_that_damage_holds_can_be_given_to_a_new_workspace(manager: Manager) -> None:
    os.makedirs(os.path.join(manager.home.name("fresh"), "inner"))
    made = make(manager, "fresh")
    assert os.readlink(manager.home.name("fresh")) == made
