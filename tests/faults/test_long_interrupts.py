"""The law: a signal in the middle of long work is answered at once, in words, and what was begun is undone in a second.

At moments of the clock, to the whole process group, as a terminal sends Ctrl-C.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest

from cli_stage import Stage, warm_home
from lived_in import is_thawed, leftovers, remove_all, shell
from ws.engine.base import Engine
from ws.manager import Manager
from ws.workspace import Workspace

BACK_S = 1.0
SLACK = 4  # a machine that does other things too


@pytest.fixture(scope="module")
def stage(engine: Engine, default_image: str, session_home: str, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    home = warm_home(tmp_path_factory.mktemp("long") / "home", session_home)
    return Stage(home, engine.name)


def interrupted(stage: Stage, number: signal.Signals, after_s: float, *words: str) -> tuple[int, str, float, float]:
    """Status, stderr, and the seconds from the signal to the first word and to the end; status 0: it was faster."""
    process = stage.start(
        *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True
    )
    assert process.stderr is not None
    try:
        process.wait(after_s)
    except subprocess.TimeoutExpired:
        pass
    begun = time.monotonic()
    if process.poll() is None:
        os.killpg(process.pid, number)
    select.select([process.stderr], [], [], 30)
    told_s = time.monotonic() - begun
    _, stderr = process.communicate(timeout=60)
    return process.returncode, stderr.decode(), told_s, time.monotonic() - begun


def check_answer(stage: Stage, number: signal.Signals, at: list[float], *words: str, fate: str) -> int:
    cut = 0
    for after_s in at:
        status, stderr, told_s, back_s = interrupted(stage, number, after_s, *words)
        where = f"{number.name} after {after_s} s: {status}, {back_s:.2f} s\n{stderr}"
        assert "Traceback" not in stderr, where
        if "stopping…" not in stderr:
            assert status in (0, 128 + number), where  # it was over, or had not begun
            continue
        cut += 1
        assert status == 128 + number, where
        assert fate in stderr or "the snapshot was taken" in stderr, where
        assert told_s < BACK_S * SLACK / 2, where
        assert back_s < BACK_S * SLACK, where
    return cut


FILES = """
import os
for directory in range(200):
    os.mkdir(f"{directory}")
    for number in range(200):
        open(f"{directory}/{number}", "w").write(f"{directory} {number}" * 20)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda each: each.name)
@pytest.mark.parametrize("what", ["many files", "one large file"])
def test_a_large_snapshot_stops_at_once_and_keeps_nothing(stage: Stage, number: signal.Signals, what: str) -> None:
    with Manager(home=str(stage.home), engine=stage.engine) as manager:
        with manager.create(name="large", remove_on_exit=True) as box:
            made = ["python3", "-c", FILES] if what == "many files" else ["sh", "-c", "head -c 500M /dev/urandom > big"]
            assert box.exec(made, timeout=120).exit_code == 0
            count = len(box.snapshots())
            cut = check_answer(stage, number, [0.6, 1.2, 2.0], "snapshot", "large", fate="nothing was kept")
            assert cut, "none was interrupted in time"
            check_whole(manager, box)
            assert len(box.snapshots()) <= count + 4 - cut + 1
        remove_all(manager)


def check_whole(manager: Manager, box: Workspace) -> None:
    with Manager(home=manager.home.root, engine=manager.engine().name):
        pass
    assert leftovers(manager.home) == []
    assert is_thawed(box)
    assert shell(box, "echo runs") == "runs\n"


def test_a_large_create_stops_at_once_and_keeps_nothing(stage: Stage, tmp_path: Path) -> None:
    for directory in range(100):
        (tmp_path / f"{directory}").mkdir()
        for number in range(200):
            (tmp_path / f"{directory}" / f"{number}").write_text(f"{directory} {number}")
    words = ("create", str(tmp_path), "--name", "made")
    assert check_answer(stage, signal.SIGINT, [0.5, 1.0, 1.5], *words, fate="nothing was kept")
    with Manager(home=str(stage.home), engine=stage.engine) as manager:
        for info in manager.list():
            assert info.name == "made"
            manager.remove("made")
        assert manager.engine().list(manager.home.root) == []
        assert leftovers(manager.home) == []
