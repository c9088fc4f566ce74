"""A diff of the live workspace freezes no longer and costs no more than a snapshot of the same state.

Both are measured in one run on the same files, best of some rounds. The limits are generous, for a loaded machine: they
would have caught the diff that read the upper while everything was frozen, which took ten times as long.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lived_in import remove_all
from ws.engine.base import Engine
from ws.manager import Manager
from ws.workspace import Workspace

FILES = 10_000
ROUNDS = 2
MAX_TIMES = 3.0  # of the time and of the memory of a snapshot
MAX_FROZEN_S = 0.05  # 10,000 files that are read while everything is frozen take 0.1 s on a quiet machine

WRITE = f"""
import os
for d in range({FILES // 500}):
    os.makedirs(f"ROUND/d{{d}}")
    for f in range(500):
        with open(f"ROUND/d{{d}}/f{{f}}", "w") as file:
            file.write(f"ROUND {{d}} {{f}}\\n" * 8)
"""

# A process of its own, for its peak of memory. The time in `stilled` is the time in which everything is frozen.
CHILD = """
import contextlib, json, resource, sys, time
from ws import sealing
from ws.manager import Manager

frozen = []
stilled = sealing.stilled

@contextlib.contextmanager
def timed(record):
    with stilled(record) as freezer:
        began = time.perf_counter()
        try:
            yield freezer
        finally:
            frozen.append(time.perf_counter() - began)

sealing.stilled = timed
with Manager(home=sys.argv[1], engine=sys.argv[2]) as manager, manager.open(sys.argv[3]) as box:
    began = time.perf_counter()
    if sys.argv[4] == "diff":
        assert len(box.diff("base").changes) > 1000
    else:
        box.snapshot("measured")
    took = time.perf_counter() - began
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(json.dumps({"took_s": took, "frozen_s": sum(frozen), "peak_kib": peak}))
"""


@pytest.fixture
def manager(engine: Engine, default_image: str, tmp_path: Path) -> Iterator[Manager]:
    with Manager(home=str(tmp_path / "home"), engine=engine.name) as manager:
        yield manager
        remove_all(manager)


def measure(manager: Manager, box: Workspace, verb: str, number: int) -> dict[str, float]:
    done = box.exec(["python3", "-c", WRITE.replace("ROUND", f"{verb}{number}")])
    assert done.exit_code == 0, done.stderr
    words = [sys.executable, "-c", CHILD, manager.home.root, box.record().engine, box.id, verb]
    found: dict[str, float] = json.loads(subprocess.run(words, capture_output=True, check=True).stdout)
    return found


def test_a_diff_costs_no_more_than_a_snapshot_of_the_same_state(manager: Manager) -> None:
    best: dict[str, dict[str, float]] = {}
    boxes = {verb: manager.create(name=verb) for verb in ("diff", "snapshot")}
    for number in range(ROUNDS):
        for verb, box in boxes.items():
            found = measure(manager, box, verb, number)
            known = best.setdefault(verb, found)
            best[verb] = {name: min(known[name], value) for name, value in found.items()}
    for box in boxes.values():
        box.close()
    diff, snapshot = best["diff"], best["snapshot"]
    assert diff["frozen_s"] <= max(MAX_FROZEN_S, MAX_TIMES * snapshot["frozen_s"]), best
    assert diff["took_s"] <= MAX_TIMES * snapshot["took_s"], best
    assert diff["peak_kib"] <= MAX_TIMES * snapshot["peak_kib"], best
