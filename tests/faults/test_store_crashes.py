"""Killed at any step, or refused by the disk, the store is as it was or as it was to become."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tree_picture import picture
from ws import bases
from ws.layout import Ids, open_home
from ws.store import commits
from ws.store.repository import Store
from ws.store.sweeping import sweep
from ws.store.verify import Verifier

IDS = Ids(1000, 1000, os.geteuid(), os.getegid())
PACKAGE = os.path.dirname(os.path.dirname(bases.__file__))

WORK = f"""
import os, sys
sys.path.insert(0, {PACKAGE!r})
from ws import bases
from ws.errors import WorkspaceError
from ws.layout import Ids, open_home
from ws.store import commits, gc
from ws.store.repository import Store
from ws.store.sweeping import sweep
home, project = open_home(sys.argv[1]), sys.argv[2]
ids = Ids(1000, 1000, os.geteuid(), os.getegid())
try:
    base = bases.import_source(home, project, ids=ids)
    with Store(home.store) as store:
        for number in range(2):
            with store.writing() as writer:
                snapshot = commits.add_snapshot(
                    writer, workspace="w", number=commits.next_number(store, "w"), tree=base.tree,
                    created_ns=len(commits.snapshot_ids(store, "w")),
                    tag=None if number else "t" + str(os.getpid()),
                )
                writer.finish()
                commits.publish(store, snapshot)
            print(snapshot.id, flush=True)
        gc.collect(store, lambda: [key.split("-")[0] for key in os.listdir(home.at("bases"))])
except (WorkspaceError, OSError) as error:
    print("error", type(error).__name__, error, flush=True)
    sys.exit(3)
print("done", flush=True)
"""


@pytest.fixture
def prepared(tmp_path: Path) -> Path:
    """A home with some history, and a project that changed since."""
    project = tmp_path / "project"
    (project / "sub").mkdir(parents=True)
    for number in range(5):
        (project / f"sub/{number}").write_text(f"{number}" * 1000)
    assert run(tmp_path, []).returncode == 0
    (project / "sub/1").write_text("changed")
    (project / "sub/new").write_bytes(os.urandom(5 << 20))
    os.rename(tmp_path / "home", tmp_path / "before")
    return tmp_path


def run(top: Path, strace: list[str]) -> subprocess.CompletedProcess[str]:
    command = [*strace, sys.executable, "-c", WORK, str(top / "home"), str(top / "project")]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def injected(calls: str, fault: str) -> Iterator[list[str]]:
    if not shutil.which("strace"):
        pytest.skip("no strace here")
    for number in range(1, 200):
        yield [
            "strace",
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            f"trace={calls}",
            "-e",
            f"inject={calls}:{fault}:when={number}",
        ]


def check(top: Path, said: list[str], *, again: bool) -> None:
    """What was reported is there and whole, what was there before is too, and the rest goes away."""
    home = open_home(str(top / "home"))
    with Store(home.store) as store, Store(str(top / "before/store")) as before:
        sweep(store)
        published = commits.list_snapshots(store, "w")
        ids = [snapshot.id for snapshot in published]
        assert ids[:2] == commits.snapshot_ids(before, "w")
        assert [line for line in said if len(line) == 40] == ids[2 : 2 + sum(len(line) == 40 for line in said)]
        verifier = Verifier(store)
        assert [verifier.check(snapshot.tree) for snapshot in published] == [[]] * len(published)
        assert not [name for name in os.listdir(store.pack_directory) if not name.startswith("pack-")]
        for key in os.listdir(home.at("bases")):
            assert verifier.check(key.split("-")[0]) == []
    done = subprocess.run(
        ["git", "--git-dir", home.store, "fsck", "--strict"], capture_output=True, text=True, check=True
    )
    assert "error" not in done.stderr
    if not again:
        return
    second = run(top, [])  # the same work again succeeds, whatever was left
    assert second.returncode == 0, second.stdout + second.stderr
    base = bases.import_source(home, str(top / "project"), ids=IDS)
    assert picture(base.path, owners=False) == picture(top / "project", owners=False)


@pytest.mark.parametrize("calls", ["rename,renameat2", "fsync", "unlink,unlinkat", "mkdir,mkdirat"])
def test_killed_at_any_step_of_import_snapshot_and_collection(prepared: Path, calls: str) -> None:
    for number, strace in enumerate(injected(calls, "signal=KILL")):
        shutil.copytree(prepared / "before", prepared / "home", symlinks=True)
        done = run(prepared, strace)
        check(prepared, done.stdout.split("\n"), again=number % 4 == 0)
        shutil.rmtree(prepared / "home")
        if "done" in done.stdout:
            return
    pytest.fail("it never came to an end")


@pytest.mark.parametrize(
    ("calls", "fault"),
    [("write,pwrite64", "error=ENOSPC"), ("fsync", "error=EIO"), ("rename", "error=ENOSPC")],
)
def test_refused_by_the_disk_at_any_step(prepared: Path, calls: str, fault: str) -> None:
    for number, strace in enumerate(injected(calls, fault)):
        shutil.copytree(prepared / "before", prepared / "home", symlinks=True)
        done = run(prepared, strace)
        if "done" not in done.stdout:
            assert done.returncode != 0
        check(prepared, done.stdout.split("\n"), again=number % 4 == 0)
        shutil.rmtree(prepared / "home")
        if "done" in done.stdout:
            return
    pytest.fail("it never came to an end")
