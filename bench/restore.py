"""Restores against `git reset --hard && git clean -fdx` with an external git dir: same tree, same damage."""

from __future__ import annotations

import os
from collections.abc import Iterator

from bench.changes import changed_files, damaged, same_files
from bench.measure import Entry, compare, interleaved
from bench.stage import Stage
from ws.manager import Manager
from ws.workspace import Workspace


def measure(stage: Stage) -> Iterator[Entry]:
    peer = stage.git(stage.files)
    rounds = stage.rounds(15, 4)
    for manager in stage.few:
        engine = manager.engine().name
        with manager.create(stage.tree(stage.files), remove_on_exit=True) as box:
            box.snapshot()
            peer.commit()
            taken = interleaved(
                {"ours": box.restore, "peer": peer.restore}, lambda n: damaged(box, peer, n), rounds=rounds, sync=True
            )
            yield compare(
                "restore",
                f"100 files damaged, a directory deleted on {engine}",
                taken["ours"],
                "git reset --hard && clean -fdx",
                taken["peer"],
                want="faster",
                factor=100,
                note=f"{stage.files} real files; ours with the safety snapshot",
            )
            yield from _flat(stage, manager, box, engine, rounds)


def _flat(stage: Stage, manager: Manager, box: Workspace, engine: str, rounds: int) -> Iterator[Entry]:
    tree = stage.tree(stage.files // 10)
    files = same_files(tree, 100)
    with manager.create(tree, remove_on_exit=True) as little:
        for each in (box, little):  # git has all that restores put off: both begin alike
            each.snapshot()

        def prepare(number: int) -> None:
            changed_files(box, files, f"flat{number}")
            changed_files(little, files, f"flat{number}")
            os.sync()  # else the first would write out what is the other's

        taken = interleaved({"big": box.restore, "small": little.restore}, prepare, rounds=rounds, sync=True)
    yield compare(
        "restore",
        f"flat: tree ten times larger on {engine}",
        taken["big"],
        "a tenth of it",
        taken["small"],
        want="at_most",
        factor=1.5,
    )
