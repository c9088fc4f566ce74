"""A record that counts snapshots that are not there: what looks for one is as fast as ever, and the next is numbered
after those that there are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ws.manager import Manager
from ws.records import write_record
from ws.workspace import Workspace

DAMAGED = (1 << 31) - 2
QUICK_S = 20.0  # two thousand million looks would take hours


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Workspace]:
    with Manager(home=str(tmp_path / "home"), engine="none") as manager, manager.create(remove_on_exit=True) as box:
        for name in ("one", "two"):
            box.fs.write(name, name)
            box.snapshot(name, tag=name)
        record = box.record()
        write_record(manager.home, replace(record, history=replace(record.history, count=DAMAGED)))
        yield box


def test_a_lookup_is_quick(box: Workspace) -> None:
    began = time.monotonic()
    assert box.plan_restore().target.name == "two"
    assert box.plan_restore("@1").target.name == "one"
    assert not box.diff()
    assert time.monotonic() - began < QUICK_S


def test_the_next_snapshot_follows_the_newest_there_is(box: Workspace) -> None:
    box.fs.write("three", "three")
    assert box.snapshot("three").number == 3
    assert box.record().history.count == 3
    assert [one.number for one in box.snapshots()] == [0, 1, 2, 3]


def test_a_collection_is_quick_and_spares_what_may_be_needed(box: Workspace) -> None:
    began = time.monotonic()
    with Manager(home=box._home.root, engine="none") as manager:
        assert manager.gc().spared == (box.name,)
        assert not manager.verify().sound
    assert time.monotonic() - began < QUICK_S
    assert [one.tag for one in box.snapshots()] == [None, "one", "two"]
