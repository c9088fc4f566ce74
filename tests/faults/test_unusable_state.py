"""A WS_HOME that cannot be written is said so before anything is done; a file that cannot be read is named and fails
the snapshot whole (HARDENING G3, G6)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lived_in import shell
from ws.engine.base import Engine
from ws.manager import Manager
from ws.workspace import Workspace

READ_ONLY = 'mount --bind "$WS_HOME" "$WS_HOME" && mount -o remount,bind,ro "$WS_HOME" && exec "$@"'


@pytest.fixture(scope="module")
def manager(engine: Engine, default_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    with Manager(home=str(tmp_path_factory.mktemp("home")), engine=engine.name) as opened:
        yield opened


@pytest.fixture
def box(manager: Manager) -> Iterator[Workspace]:
    with manager.create(name="box") as made:
        shell(made, "echo kept > kept")
        made.snapshot("one")
        shell(made, "echo more > more")
        yield made
        made.remove()


def test_nothing_is_begun_where_nothing_can_be_written(manager: Manager, box: Workspace, tmp_path: Path) -> None:
    home, engine = manager.home.root, manager.engine()
    (tmp_path / "source").mkdir()
    for words in (
        ["create", str(tmp_path / "source")],
        ["create"],
        ["exec", "box", "--", "touch", "made"],
        ["snapshot", "box"],
        ["restore", "box", "base"],
        ["fork", "box"],
        ["diff", "box"],
        ["gc"],
        ["rm", "box"],
    ):
        words = [*words[:1], "--json", *words[1:]]
        done = subprocess.run(
            ["unshare", "-m", "sh", "-c", READ_ONLY, "sh", sys.executable, "-m", "ws", *words],
            env={**os.environ, "WS_HOME": home, "WS_ENGINE": engine.name},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 7, f"{words}: {done.stdout}{done.stderr}"
        # Of several workspaces some may be removed: the result names those that were not.
        error = json.loads(done.stdout)["failed"][0] if words[0] == "rm" else json.loads(done.stderr)["error"]
        assert error["code"] == "state_unusable", words
        assert "Read-only file system" in error["message"], words
        assert "WS_HOME" in error["hint"], words
    assert len(engine.list(home)) == 1
    assert [info.name for info in manager.list()] == ["box"]
    assert shell(box, "cat kept more; ls") == "kept\nmore\nkept\nmore\n"
    assert len(box.snapshots()) == 2


def test_a_file_that_the_disk_does_not_give_fails_the_snapshot_and_is_named(manager: Manager, box: Workspace) -> None:
    shell(box, "mkdir deep; echo x > deep/broken; echo y > fine")
    home, engine = manager.home.root, manager.engine().name
    file = os.path.join(manager.home.layer(box.record().upper), "data", "deep", "broken")
    words = ["-e", "trace=read,pread64", "-P", file, "-e", "inject=read,pread64:error=EIO"]
    done = subprocess.run(
        ["strace", "-f", "-qq", "-o", "/dev/null", *words, sys.executable, "-m", "ws", "snapshot", "box"],
        env={**os.environ, "WS_HOME": home, "WS_ENGINE": engine},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 8, done.stderr
    assert "deep/broken" in done.stderr
    assert "Input/output error" in done.stderr
    assert len(box.snapshots()) == 2
    assert shell(box, "cat deep/broken fine") == "x\ny\n"
    kept = box.snapshot("once it can be read")
    shell(box, "rm -r deep fine")
    box.restore(kept)
    assert shell(box, "cat deep/broken fine") == "x\ny\n"
