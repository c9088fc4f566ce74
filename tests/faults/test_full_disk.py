"""On a disk that is really full nothing is lost, everything says so, and removing things always works.

A filesystem of its own, small and without a reserve, holds WS_HOME; the container fills it.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lived_in import check_store, is_thawed, leftovers, outside, remove_all, shell
from ws.errors import WorkspaceError
from ws.layout import EngineName
from ws.manager import Manager
from ws.workspace import Workspace

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")]

SIZE_MB = 400


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    image, place = tmp_path / "disk.img", tmp_path / "disk"
    place.mkdir()
    with open(image, "wb") as file:
        file.truncate(SIZE_MB << 20)
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True)
    mounted = subprocess.run(["mount", "-o", "loop", str(image), str(place)], capture_output=True, check=False)
    if mounted.returncode != 0:
        pytest.skip(f"no loop device: {mounted.stderr.decode()}")
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
