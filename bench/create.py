"""A cold create, to the first command's result, against the engine's own run and exec with the same options."""

from __future__ import annotations

from collections.abc import Iterator

from bench.containers import EnginePeer
from bench.measure import ENGINE_PAUSE_S, Entry, compare, side_by_side
from bench.stage import Stage
from ws.manager import Manager


def measure(stage: Stage) -> Iterator[Entry]:
    for manager in stage.managers:
        yield _cold(manager, stage.rounds(20, 4))


def _cold(manager: Manager, rounds: int) -> Entry:
    engine = manager.engine().name
    made: list[str] = []

    def ours() -> None:
        with manager.create() as box:
            made.append(box.id)
            assert box.exec(["true"]).exit_code == 0

    try:
        with EnginePeer(manager) as peer:
            taken = side_by_side(
                {"ours": ours, "peer": peer.run_and_exec}, rounds=rounds, warmup=1, pause_s=ENGINE_PAUSE_S
            )
    finally:
        for name in made:
            manager.remove(name)
    return compare(
        "create",
        f"cold create to first result on {engine}",
        taken["ours"],
        f"{engine} run -d + exec",
        taken["peer"],
        want="at_most",
        factor=1.25,
    )
