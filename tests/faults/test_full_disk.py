"""On a disk that is really full nothing is lost, everything says so, and removing things always works.

Full of bytes, of inodes, or of both.

A filesystem of its own, small and without a reserve, holds WS_HOME; the container fills it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cli_stage import Stage
from lived_in import check_store, is_thawed, leftovers, outside, remove_all, shell
from ws.errors import WorkspaceError
from ws.layout import EngineName
from ws.manager import Manager
from ws.records import write_record
from ws.removing import remove_tree
from ws.reserve import FILES
from ws.workspace import Workspace

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")]

SIZE_MB = 400


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path, "-m", "0")


@pytest.fixture
def disk_of_few_inodes(tmp_path: Path) -> Iterator[Path]:
    yield from mounted(tmp_path, "-m", "0", "-N", "4096")


def mounted(tmp_path: Path, *options: str) -> Iterator[Path]:
    image, place = tmp_path / "disk.img", tmp_path / "disk"
    place.mkdir()
    with open(image, "wb") as file:
        file.truncate(SIZE_MB << 20)
    subprocess.run(["mkfs.ext4", "-q", *options, str(image)], check=True)
    done = subprocess.run(["mount", "-o", "loop", str(image), str(place)], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"no loop device: {done.stderr.decode()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def fill(box: Workspace, disk: Path) -> None:
    """Take the last block there is, with what cannot be stored as holes or by compressing it."""
    for size in ("1M", "1k"):
        box.exec(["sh", "-c", f"dd if=/dev/urandom of=big bs={size} oflag=append conv=notrunc; sync"], timeout=120)
    assert os.statvfs(disk).f_bavail < 8


def test_a_workspace_that_fills_the_disk_loses_nothing(small_disk: Path, engine_name: EngineName) -> None:
    with Manager(home=str(small_disk / "home"), engine=engine_name) as manager:
        with manager.create(name="full") as box:
            shell(box, "echo precious > precious; mkdir d; echo 1 > d/f")
            good, before = box.snapshot("good"), outside(box)
            shell(box, "echo more > more")
            fill(box, small_disk)
            full = outside(box)
            for attempt in (lambda: box.snapshot("too much"), lambda: box.restore(good), lambda: box.fork(good)):
                with pytest.raises(WorkspaceError) as caught:
                    attempt()
                assert caught.value.hint
                assert outside(box) == full
                assert is_thawed(box)
                assert leftovers(manager.home) == []
            shell(box, "rm big; sync")
            later = box.snapshot("there is room again")
            box.restore(good)
            assert outside(box) == before
            box.restore(later)
            assert shell(box, "cat precious more") == "precious\nmore\n"
            check_store(manager.home)
            fill(box, small_disk)
        remove_all(manager)
        assert os.statvfs(small_disk).f_bavail > 0


EATER = """
import os, sys, time
what, number = sys.argv[1], 0
big = open("big", "wb", buffering=0) if "bytes" in what else None
while True:
    number += 1
    try:
        if big:
            try:
                big.write(os.urandom(1 << 20))
            except OSError:
                big.write(os.urandom(512))
    except OSError:
        pass
    try:
        if "inodes" in what:
            for each in range(50):
                open(f"{number}.{each}", "x").close()
    except OSError:
        time.sleep(0.0005)
"""


@contextlib.contextmanager
def eaten(box: Workspace, disk: Path, what: str) -> Iterator[None]:
    """A process in the container takes all there is, and whatever becomes free, until the workspace is gone."""

    def used_up() -> bool:
        room = os.statvfs(disk)
        return ("inodes" not in what or room.f_favail == 0) and ("bytes" not in what or room.f_bavail < 64)

    with box.terminal(["python3", "-c", EATER, what]):
        deadline = time.monotonic() + 120
        while not used_up():
            assert time.monotonic() < deadline, os.statvfs(disk)
            time.sleep(0.05)
        yield


@pytest.mark.parametrize("what", ["inodes", "bytes", "bytes and inodes"])
def test_everything_can_be_removed_while_a_container_takes_all_that_becomes_free(
    disk_of_few_inodes: Path, engine_name: EngineName, what: str
) -> None:
    disk = disk_of_few_inodes
    stage = Stage(disk / "home", engine_name)
    with Manager(home=str(stage.home), engine=engine_name) as manager:
        with manager.create(name="kept") as kept, manager.create(name="old") as old:
            shell(kept, "echo 1 > file")
            kept.snapshot("one")
            commits = len(kept.snapshots())
            shell(old, "echo 1 > file")
            old.snapshot("one")
        write_record(manager.home, replace(manager.create(name="short").record(), expires_at=1.0))
        damaged = manager.create(name="damaged")
        Path(manager.home.record(damaged.id)).write_text("{")
        eater = manager.create(name="eater")
        with contextlib.suppress(WorkspaceError), eaten(eater, disk, what):
            listed = stage.run("ls")
            assert listed.returncode == 0, listed.stderr
            for words in (("gc",), ("prune",), ("gc", "--dry-run"), ("prune", "--dry-run")):
                done = stage.run(*words)
                assert done.returncode in (0, 7), (words, done.stderr)
                assert b"unexpected" not in done.stderr, (words, done.stderr)
                assert done.returncode == 0 or b"hint:" in done.stderr, (words, done.stderr)
            assert "short" not in names(manager)
            for name in ("old", "damaged"):
                done = stage.run("rm", name)
                assert (done.returncode, done.stdout) == (0, f"{name}\n".encode()), done.stderr
                assert name not in names(manager)
            done = stage.run("rm", "eater")
            assert (done.returncode, done.stdout) == (0, b"eater\n"), done.stderr
        assert names(manager) == {"kept"}
        assert os.statvfs(disk).f_favail > 500
        assert len(os.listdir(manager.home.reserved)) == FILES
        assert len(kept.snapshots()) == commits
        assert shell(kept, "cat file") == "1\n"
        kept.snapshot("there is room again")
        check_store(manager.home)
        for box in (kept, eater, damaged):
            box.close()
        remove_all(manager)
        assert leftovers(manager.home) == []


def names(manager: Manager) -> set[str]:
    return {info.name for info in manager.list()}


def test_a_home_of_an_earlier_version_gets_its_reserve_with_the_next_removal(tmp_path: Path) -> None:
    with Manager(home=str(tmp_path / "home"), engine="none") as manager:
        remove_tree(manager.home.reserved)
        Path(manager.home.at("reserve")).write_bytes(bytes(1 << 20))
        manager.create().remove()
        assert len(os.listdir(manager.home.reserved)) == FILES
