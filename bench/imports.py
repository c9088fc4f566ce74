"""Importing a source: the first time against `git add -A` into an empty git dir, unchanged against `git status`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from bench.measure import Entry, compare, interleaved, run, side_by_side
from bench.peers import git_words
from bench.stage import Stage
from ws.bases import import_source
from ws.layout import Ids, open_home

IDS = Ids(1000, 1000, 201000, 201000)


def measure(stage: Stage) -> Iterator[Entry]:
    tree = stage.tree(stage.files)
    note = f"{stage.files} real files"
    with stage.scratch("imports") as place:
        yield _first(place, tree, stage.rounds(3, 2), note)
        yield _again(place, tree, stage.rounds(15, 5), note)


def _first(place: Path, tree: Path, rounds: int, note: str) -> Entry:
    def begin(number: int) -> None:
        """Both begin with nothing, in a new place.

        Nothing is removed before the end: for minutes after many files were, an ext4 without a journal looks for
        inodes that were not in use lately (`recently_deleted`). An import took 21 s then, and 6 s without.
        """
        now.append(str(number))
        run("git", "init", "-q", "--bare", str(place / f"git-{number}"))
        os.sync()

    def ours() -> None:
        import_source(open_home(str(place / f"home-{now[-1]}")), str(tree), ids=IDS)

    def peer() -> None:
        run(*git_words(place / f"git-{now[-1]}", tree, "add", "-A"))

    now: list[str] = []
    taken = interleaved({"ours": ours, "peer": peer}, begin, rounds=rounds, warmup=1, sync=True)
    return compare(
        "import", "first import", taken["ours"], "git add -A", taken["peer"], want="at_most", factor=0.6, note=note
    )


def _again(place: Path, tree: Path, rounds: int, note: str) -> Entry:
    opened = open_home(str(place / "home-0"))
    taken = side_by_side(
        {
            "ours": lambda: import_source(opened, str(tree), ids=IDS),
            "peer": lambda: run(*git_words(place / "git-0", tree, "status", "--porcelain")),
        },
        rounds=rounds,
        warmup=2,
    )
    return compare(
        "import",
        "second import, unchanged",
        taken["ours"],
        "git status",
        taken["peer"],
        want="at_most",
        factor=1.5,
        note=note,
    )
