"""A hundred workspaces made and removed, every fourth with a network: what of ours is there that was not before."""

from __future__ import annotations

from collections.abc import Iterator

from bench.leftovers import left_since, leftovers, marks_of
from bench.measure import Entry, under
from bench.stage import Stage


def measure(stage: Stage) -> Iterator[Entry]:
    number = stage.rounds(100, 8)
    for manager in stage.few:
        containers: set[str] = set()
        with manager.create(remove_on_exit=True) as first:  # starts services and fills caches
            first.exec(["true"])
        before = leftovers(manager, containers)
        for round_ in range(number):
            network = "bridge" if round_ % 4 == 0 else "none"
            with manager.create(network=network, remove_on_exit=True) as box:
                box.exec(["true"])
                containers |= marks_of(box)
        left = left_since(before, manager, containers)
        name = f"left after {number} workspaces on {manager.engine().name}"
        yield under("leaks", name, float(sum(map(len, left.values()))), 0, "things", note=str(left) if left else "")
