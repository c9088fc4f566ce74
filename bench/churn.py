"""Many processes at random over one WS_HOME: how much they get done, what is refused, and that nothing is left.

The long run, by itself: `scripts/soak-churn`, which is `python -m bench.churn --seconds 600 --population 200`.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.leftovers import left_since, leftovers
from bench.measure import Entry, Figure, under
from bench.stage import ENGINES, Stage
from ws.manager import Manager

ROOT = Path(__file__).parents[1]


def measure(stage: Stage) -> Iterator[Entry]:
    seconds = stage.rounds(90, 8)
    for manager in stage.few:
        yield from _churn(stage, manager, processes=stage.rounds(8, 4), population=stage.rounds(24, 8), seconds=seconds)


def _churn(stage: Stage, shared: Manager, *, processes: int, population: int, seconds: int) -> Iterator[Entry]:
    engine = shared.engine().name
    manager = stage.manager(engine, home="churn")  # collected at the end, so of its own
    tree = stage.tree(500)
    with manager.create(tree, remove_on_exit=True) as first:  # imports the base, starts services
        first.exec(["true"])
    manager.prune()  # asks every engine, and keeps a connection to each
    before = leftovers(manager)
    begun = [
        _begin(manager.home.root, engine, str(seconds), str(population), str(number), str(tree))
        for number in range(processes)
    ]
    done: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    failed: list[str] = []
    containers: set[str] = set()
    for process in begun:
        found = _finish(process)
        done.update(found["done"])
        refused.update(found["refused"])
        failed += found["failed"]
        containers |= set(found["containers"])
    findings = [f"{finding}" for finding in manager.verify().findings]
    alive = len(manager.list())
    for info in manager.list():
        manager.remove(info.id)
    manager.prune()
    left = left_since(before, manager, containers)
    name = f"churn of {processes} processes on {engine}"
    yield Figure(
        group="churn",
        name=f"{name}, {seconds} s",
        ours=sum(done.values()) / seconds,
        unit="operations/s",
        target="",
        met=None,
        note=f"{_words(done)}; refused: {_words(refused) or 'nothing'}; {alive} workspaces at the end",
    )
    yield under("churn", f"{name}: errors not typed", len(failed), 0, "errors", note="; ".join(failed[:3]))
    yield under("churn", f"{name}: findings of ws verify", len(findings), 0, "findings", note="; ".join(findings[:3]))
    yield under(
        "churn", f"{name}: left", sum(map(len, left.values())), 0, "things", note=str(left)[:400] if left else ""
    )


def _begin(*arguments: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "bench.churner", *arguments]
    return subprocess.Popen(argv, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def _finish(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    stdout, stderr = process.communicate()
    if process.returncode != 0:
        raise RuntimeError(f"a process of the churn ended with {process.returncode}: {stderr.decode()[-500:]}")
    found: dict[str, Any] = json.loads(stdout)
    return found


def _words(counted: Counter[str]) -> str:
    return ", ".join(f"{name} {number}" for name, number in counted.most_common())


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/soak-churn", description=__doc__)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--population", type=int, default=200, help="how many workspaces there are about to be")
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--engine", choices=ENGINES, default="podman")
    arguments = parser.parse_args()
    failed = False
    with Stage(quick=True, engines=[arguments.engine]) as stage:
        if not stage.managers:
            raise SystemExit(f"{arguments.engine} does not work here: {stage.missing[arguments.engine]}")
        for entry in _churn(
            stage,
            stage.managers[0],
            processes=arguments.processes,
            population=arguments.population,
            seconds=arguments.seconds,
        ):
            if isinstance(entry, Figure):
                print(f"{entry.name}: {entry.ours:g} {entry.unit}. {entry.note}")
                failed |= entry.met is False
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
