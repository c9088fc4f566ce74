"""A fork against a create from a cached base, and against the copy that one would make without ws."""

from __future__ import annotations

from collections.abc import Iterator

from bench.measure import Entry, compare, run, side_by_side
from bench.stage import Stage
from ws.manager import Manager


def measure(stage: Stage) -> Iterator[Entry]:
    for manager in stage.few:
        yield from _forks(stage, manager, stage.rounds(12, 3))


def _forks(stage: Stage, manager: Manager, rounds: int) -> Iterator[Entry]:
    engine = manager.engine().name
    tree = stage.tree(stage.files)
    made: list[str] = []
    with stage.scratch("copies") as copies, manager.create(tree, remove_on_exit=True) as parent:
        kept = parent.snapshot()

        def fork() -> None:
            with parent.fork(kept) as other:
                made.append(other.id)

        def create() -> None:
            with manager.create(tree) as other:
                made.append(other.id)

        def copy() -> None:
            run("cp", "-a", "--reflink=auto", str(tree), str(copies / f"{len(made)}"))

        taken = side_by_side({"fork": fork, "create": create}, rounds=rounds, sync=True)
        beside = side_by_side({"fork": fork, "copy": copy}, rounds=stage.rounds(4, 1), sync=True)
        for name in made:
            manager.remove(name)
    note = f"{stage.files} real files"
    yield compare(
        "fork",
        f"fork on {engine}",
        taken["fork"],
        "create from a cached base",
        taken["create"],
        want="at_most",
        factor=1.1,
        note=note,
    )
    yield compare(
        "fork",
        f"fork with its container on {engine}",
        beside["fork"],
        "cp -a --reflink=auto",
        beside["copy"],
        note=f"{note}; the copy has no container",
    )
