"""Records come back as they were written, and a home that is not ours is refused before it is touched."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from ws.errors import StateError, StateUnusable
from ws.layout import (
    MAX_MARKS,
    ContainerRecord,
    History,
    Ids,
    Intent,
    Mark,
    Options,
    WorkspaceRecord,
    boot_id,
    open_home,
    process_start,
    resolve_name,
)
from ws.records import read_record, write_record

RECORD = WorkspaceRecord(
    id="0123456789ab",
    name="demo",
    state="ready",
    engine="podman",
    created_at=1.5,
    base="base",
    tree="7" * 40,
    upper="u1",
    ids=Ids(1000, 1000, 201000, 201000),
    options=Options(image="localhost/x", env={"A": "ä\n"}),
    layers=("l2", "l1"),
    exclude=("*.o",),
    container=ContainerRecord(key="k", id="c", pid=1, started=2, boot="b"),
)


def test_a_record_comes_back_equal(tmp_path: Path) -> None:
    home = open_home(str(tmp_path / "home"))
    os.mkdir(home.workspace(RECORD.id))
    for record in (RECORD, replace(RECORD, container=None, layers=(), expires_at=3.0)):
        write_record(home, record)
        assert read_record(home, record.id) == record


def test_a_record_from_before_it_had_all_its_fields_is_read() -> None:
    fields = json.loads(RECORD.to_bytes())
    del fields["applied_tree"]
    del fields["history"]["marks"]
    fields["applied_git_tree"] = "0" * 40  # of a version that kept two of them
    assert WorkspaceRecord.from_bytes(json.dumps(fields).encode()) == RECORD


def test_of_marks_the_last_ones_are_kept() -> None:
    history = History()
    for number in range(MAX_MARKS + 3):
        history = history.marked(Mark("restore", number, made_ns=number))
    assert [mark.number for mark in history.marks] == list(range(3, MAX_MARKS + 3))
    record = replace(RECORD, history=history)
    assert WorkspaceRecord.from_bytes(record.to_bytes()) == record


@pytest.mark.parametrize(
    "bad", [b"", b"{}", b"[]", b"null", b'{"format": 2}', b"\xff", RECORD.to_bytes()[:-40], RECORD.to_bytes() * 2]
)
def test_a_damaged_record_is_a_typed_error(bad: bytes) -> None:
    with pytest.raises(StateError):
        WorkspaceRecord.from_bytes(bad)


def test_an_intent_comes_back_equal() -> None:
    intent = Intent(workspace_id="a", operation="create", engine="docker", key="k")
    assert Intent.from_bytes(intent.to_bytes()) == intent
    with pytest.raises(StateError):
        Intent.from_bytes(b"{")


def test_the_home_is_private_and_opening_it_again_changes_nothing(tmp_path: Path) -> None:
    home = open_home(str(tmp_path / "deep" / "home"))
    assert os.stat(home.root).st_mode & 0o777 == 0o700
    before = sorted(os.listdir(home.root))
    open_home(home.root)
    assert sorted(os.listdir(home.root)) == before


def test_a_home_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "format").write_text("99\n")
    with pytest.raises(StateUnusable, match="99"):
        open_home(str(tmp_path))


def test_a_directory_that_holds_something_else_is_left_as_it_is(tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "theirs").touch()
    with pytest.raises(StateUnusable, match="theirs") as refused:
        open_home(str(tmp_path))
    assert "WS_HOME" in str(refused.value.hint)
    assert (os.listdir(tmp_path), tmp_path.stat().st_mode & 0o7777) == (["theirs"], 0o1777)
    (tmp_path / "theirs").unlink()
    with pytest.raises(StateUnusable, match="everybody"):
        open_home(str(tmp_path))
    assert (os.listdir(tmp_path), tmp_path.stat().st_mode & 0o7777) == ([], 0o1777)


@pytest.mark.root
def test_a_directory_of_somebody_else_is_left_as_it_is(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives directories away")
    os.chown(tmp_path, 65534, 65534)
    with pytest.raises(StateUnusable, match="65534"):
        open_home(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_an_empty_directory_is_made_private_and_what_a_dead_first_use_left_is_finished(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    for name in ("workspaces", "names"):
        (tmp_path / name).mkdir()
    for name in ("reserve", ".format.0a1b2c3d.tmp"):
        (tmp_path / name).touch()
    assert open_home(open_home(str(tmp_path)).root)
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o701, 0o750, 0o777])
def test_a_home_that_was_opened_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    home = open_home(str(tmp_path / "home"))
    os.chmod(home.root, mode)
    with pytest.raises(StateUnusable, match="open to others") as refused:
        open_home(home.root)
    assert "chmod 700" in str(refused.value.hint)
    assert os.stat(home.root).st_mode & 0o777 == mode


@pytest.mark.root
def test_a_home_that_was_given_away_is_refused(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives directories away")
    home = open_home(str(tmp_path / "home"))
    os.chown(home.root, 65534, 65534)
    with pytest.raises(StateUnusable, match="belongs to user 65534"):
        open_home(home.root)


def test_a_home_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateUnusable):
        open_home(str(tmp_path / "file" / "home"))


def test_names_and_ids_lead_to_the_id(tmp_path: Path) -> None:
    home = open_home(str(tmp_path / "home"))
    os.mkdir(home.workspace(RECORD.id))
    write_record(home, RECORD)
    os.symlink(RECORD.id, home.name("demo"))
    assert resolve_name(home, "demo") == resolve_name(home, RECORD.id) == RECORD.id
    assert resolve_name(home, "nobody") is None


def test_a_process_is_told_from_another_with_its_pid() -> None:
    start = process_start(os.getpid())
    assert start is not None
    live = ContainerRecord(key="", id="", pid=os.getpid(), started=start, boot=boot_id())
    assert live.alive()
    assert not replace(live, started=start + 1).alive()
    assert not replace(live, boot="before the reboot").alive()
    assert process_start(2**22 + 1) is None
