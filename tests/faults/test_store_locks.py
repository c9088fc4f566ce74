"""All that adds to and removes from the pack directory, against each other: one stops at each of its steps in turn, and
the other runs wholly meanwhile; and all of them at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import store_steps

from ws.store.packs import BLOB
from ws.store.repository import Store
from ws.store.sweeping import sweep

SCRIPT = [sys.executable, os.path.abspath(store_steps.__file__)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A store with a dozen small packs, rubbish, and what writers that died left."""
    path = str(tmp_path / "store")
    for _ in range(12):
        store_steps.take_snapshot(path, "w")
    with Store(path) as store:
        with store.writing() as writer:
            writer.add(BLOB, b"that nothing needs" * 100)
            writer.finish()
        Path(store.pack_directory, "tmp_pack_dead").write_bytes(b"x")
        Path(store.pack_directory, ".pack-x.idx.1234.tmp").write_bytes(b"x")
        os.mkdir(os.path.join(store.pack_directory, "tmp_directory"))
    return path


@pytest.mark.timeout(300)
@pytest.mark.parametrize("other", store_steps.OPERATIONS)
@pytest.mark.parametrize("first", store_steps.OPERATIONS)
def test_one_that_stops_at_any_step_loses_nothing_to_another(path: str, first: str, other: str) -> None:
    command = [*SCRIPT, "steps", path, first, other]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 5, "it has more steps than that"


@pytest.mark.timeout(120)
def test_all_of_them_in_loops_beside_each_other(path: str) -> None:
    jobs = [*store_steps.OPERATIONS, "sweep", "write"]
    running = [
        subprocess.Popen(
            [*SCRIPT, "loop", path, job, f"w{number}", "6"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for number, job in enumerate(jobs)
    ]
    for job, process in zip(jobs, running, strict=True):
        stdout, stderr = process.communicate(timeout=100)
        assert process.returncode == 0, f"{job}: {stderr}"
        assert int(stdout) > 0, f"{job} was never let in"
    store_steps.check(path, [])


@pytest.mark.timeout(120)
def test_killed_beside_a_sweep_again_and_again(path: str) -> None:
    """An operation that dies anywhere leaves nothing that a sweep takes for rubbish and is not."""
    for attempt in range(18):
        operation = ("collect", "write", "consolidate")[attempt % 3]
        process = subprocess.Popen([*SCRIPT, "loop", path, operation, "w", "30"], stdout=subprocess.DEVNULL)
        time.sleep(0.35 + attempt * 0.013)
        process.send_signal(signal.SIGKILL)
        process.wait()
        with Store(path) as store:
            assert sweep(store)
    store_steps.check(path, [])
