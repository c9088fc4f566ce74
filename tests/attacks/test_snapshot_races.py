"""Whoever moves things about while a snapshot is taken or a workspace removed gains nothing.

B3–B6 of the hardening list. Processes of the workspace exchange directories for links, files for FIFOs, and let files
grow, as fast as the kernel lets them. In a container they are frozen for the look, or cannot reach what is looked at;
without one the look notices, and fails by an error of ours. Never is anything from outside in the store, never does
anything wait for ever, and never is anything outside removed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from swapping import CANARY, arena, exchanging

from lived_in import check_store, remove_all, shell
from ws.engine.base import Engine
from ws.engine.images import DEFAULT_IMAGE, build_image
from ws.errors import SnapshotFailed
from ws.layout import default_home
from ws.manager import Manager
from ws.removing import remove_tree
from ws.workspace import Workspace

# Runs in the container's /workspace, or in the plain directory of a workspace without one.
SETUP = """
import os, sys
outside = sys.argv[1]
os.makedirs('real/sub')
for name in ('real/file', 'real/sub/file', 'plain', 'other', 'growing'):
    open(name, 'w').write('inside')
os.symlink(outside, 'decoy'); os.symlink('../../../../../../../../../..' + outside, 'relative')
os.symlink(outside + '/file', 'link'); os.mkfifo('fifo')
"""
ATTACK = """
import ctypes, os, sys, threading
renameat2 = ctypes.CDLL(None).renameat2
pairs = [(b'real', b'decoy'), (b'real', b'relative'), (b'plain', b'link'), (b'other', b'fifo')]
growing = os.open('growing', os.O_WRONLY | os.O_APPEND)
print('ready', flush=True)
while True:
    for first, second in pairs:
        for _ in range(100):
            renameat2(-100, first, -100, second, 2)
    if os.fstat(growing).st_size < 64 << 20:
        os.write(growing, b'x' * 65536)
"""


@pytest.fixture(scope="module")
def manager(any_engine: Engine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    if any_engine.name != "none":
        build_image(any_engine, home=default_home(), reference=DEFAULT_IMAGE)
    with Manager(home=str(tmp_path_factory.mktemp("home")), engine=any_engine.name) as manager:
        yield manager
        remove_all(manager)


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    path = tmp_path / "outside"
    (path / "sub").mkdir(parents=True)
    (path / "file").write_text(CANARY)
    (path / "sub" / "file").write_text(CANARY)
    return path


@contextlib.contextmanager
def attacked(box: Workspace, outside: Path) -> Iterator[None]:
    """Everything in the workspace moves while the block runs."""
    engine = box.record().engine
    python = sys.executable if engine == "none" else "python3"
    made = box.exec([python, "-c", SETUP, str(outside)])
    assert made.exit_code == 0, made.stderr
    if engine == "none":
        process = subprocess.Popen([python, "-c", ATTACK], cwd=box.root, stdout=subprocess.PIPE)
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"ready\n"
            yield
            assert process.poll() is None, "the attacker gave up"
        finally:
            process.kill()
            process.wait()
            process.stdout.close()
        return
    with box.terminal([python, "-uc", ATTACK]) as terminal:
        seen = b""
        deadline = time.monotonic() + 20
        while b"ready" not in seen:
            assert time.monotonic() < deadline, seen
            seen += terminal.read(wait_s=1.0) or b""
        yield


def everything_stored(manager: Manager) -> bytes:
    """Every object of the store, one after the other."""
    git = ["git", "--git-dir", manager.home.store, "cat-file", "--batch-all-objects", "--batch"]
    return subprocess.run(git, capture_output=True, check=True).stdout


def test_no_snapshot_holds_what_lies_outside(manager: Manager, outside: Path) -> None:
    """B4, B5, B6: thirty snapshots of a workspace in which nothing stays what it is."""
    with manager.create(name="moving") as box:
        taken = []
        with attacked(box, outside):
            for number in range(30 if box.record().engine != "none" else 10):
                began = time.monotonic()
                try:
                    taken.append(box.snapshot(str(number)))
                except SnapshotFailed:
                    assert box.record().engine == "none", "who is frozen does not move"
                assert time.monotonic() - began < 20
        check_store(manager.home)
        assert CANARY.encode() not in everything_stored(manager)
        for snapshot in taken[:: max(1, len(taken) // 4)]:
            box.restore(snapshot)
            names = set(shell(box, "ls -A").split())
            assert names == {"real", "decoy", "relative", "plain", "link", "fifo", "other", "growing"}
        box.remove()
    assert (outside / "file").read_text() == (outside / "sub" / "file").read_text() == CANARY


def test_removing_a_workspace_removes_nothing_else(manager: Manager, outside: Path) -> None:
    """B3: whatever is exchanged for a link to elsewhere while everything is being deleted."""
    for number in range(4):
        box = manager.create(name=f"doomed{number}")
        with attacked(box, outside):
            box.remove()
            if manager.engine().name != "none":
                break  # its processes went first
    assert sorted(path.name for path in outside.rglob("*")) == ["file", "file", "sub"]
    assert (outside / "sub" / "file").read_text() == CANARY


@pytest.mark.parametrize("link", ["absolute", "relative"])
def test_a_tree_is_removed_without_following_what_is_swapped_into_it(link: str) -> None:
    """B3, from outside any engine: the walk itself, under an attacker who exchanges a directory and a link in it."""
    for _ in range(60):
        with arena(link=link) as place:
            for number in range(20):
                (place.real / f"d{number}" / "e").mkdir(parents=True)
            before = place.outside_now()
            with exchanging(place.real, place.decoy):
                remove_tree(str(place.root))
            assert place.outside_now() == before
            assert not os.path.exists(place.root)
            os.mkdir(place.root)
