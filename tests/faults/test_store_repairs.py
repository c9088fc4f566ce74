"""Killed at any step of a repair, or refused by the disk, the store is as it was or repaired, never worse."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import store_steps
from injection import DURABLE, Point, kill_at_each, run_injected, spread, trace_points

from ws.store import commits, gc
from ws.store.repository import Store
from ws.store.verify import Verifier

COUNT = 6

SCRIPT = f"""
import sys
sys.path[:0] = {[os.path.dirname(os.path.dirname(os.path.dirname(gc.__file__)))]!r}
from ws.errors import WorkspaceError
from ws.store import gc, references
from ws.store.repository import Store
try:
    with Store(sys.argv[1]) as store:
        references.pack_references(store)
        assert not gc.collect(store, counts=lambda: {{"w": {COUNT}}}).lost
except (WorkspaceError, OSError) as error:
    print("error", error)
    sys.exit(3)
"""


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """A store with bad indexes and references, others that are gone, and directories in the place of files."""
    path = tmp_path / "damaged"
    for _ in range(COUNT):
        store_steps.take_snapshot(str(path), "w")
    indexes = sorted((path / "objects/pack").glob("*.idx"))
    os.truncate(indexes[0], 1040)
    indexes[1].unlink()
    indexes[2].unlink()
    indexes[2].mkdir()
    (path / "refs/workspaces/w/2").write_bytes(b"")
    (path / "refs/workspaces/w/3").unlink()
    (path / "refs/workspaces/w/4").unlink()
    (path / "refs/workspaces/w/4").mkdir()
    return path


def check(path: Path) -> None:
    """What a second run makes of it: all that was there is there."""
    with Store(str(path)) as store:
        assert not gc.collect(store, counts=lambda: {"w": COUNT}).lost
        snapshots = commits.list_snapshots(store, "w")
        assert [one.number for one in snapshots] == list(range(COUNT))
        verifier = Verifier(store)
        assert [verifier.check(one.tree) for one in snapshots] == [[]] * COUNT
        assert len(os.listdir(store.pack_directory)) == 2
    subprocess.run(["git", "--git-dir", str(path), "fsck", "--strict"], capture_output=True, check=True)


def points_of(damaged: Path, working: Path, calls: str) -> list[Point]:
    shutil.copytree(damaged, working)
    points = trace_points(SCRIPT, [str(working)], calls=calls)
    shutil.rmtree(working)
    return points


@pytest.mark.timeout(400)
def test_killed_at_any_step_of_a_repair(damaged: Path, tmp_path: Path) -> None:
    working = tmp_path / "working"
    points = points_of(damaged, working, DURABLE)
    assert len(points) > 10
    for point in spread(points, 24):
        shutil.copytree(damaged, working)
        (outcome,) = kill_at_each(SCRIPT, [str(working)], [point])
        assert outcome.killed, f"{point}: {outcome.stderr}"
        check(working)
        shutil.rmtree(working)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("calls", "fault"), [("rename,renameat2", "error=ENOSPC"), ("fsync", "error=EIO")])
def test_refused_by_the_disk_at_any_step_of_a_repair(damaged: Path, tmp_path: Path, calls: str, fault: str) -> None:
    working = tmp_path / "working"
    for point in spread(points_of(damaged, working, calls), 8):
        shutil.copytree(damaged, working)
        outcome = run_injected(SCRIPT, [str(working)], point=point, fault=fault)
        assert outcome.status in (0, 3), f"{point}: {outcome.stderr}"
        check(working)
        shutil.rmtree(working)
