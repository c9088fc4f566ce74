"""Creates from the pool against the engine's own run and exec, with the base cached.

The pool is filled before the rounds and not in between: what is measured is taking a warm container, and not how much a
machine of few cores suffers from making the next one meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

from bench.containers import EnginePeer
from bench.measure import ENGINE_PAUSE_S, Entry, Timing, compare, interleaved, timed, under
from bench.stage import Stage
from ws.manager import Manager

AT_ONCE = 8


def measure(stage: Stage) -> Iterator[Entry]:
    for manager in stage.few:
        try:
            yield from _warm(stage, manager, stage.rounds(40, 4))
            yield from _at_once(stage, manager, stage.rounds(8, 1), stage.rounds(1, 0))
        finally:
            manager.drain_pool()


def _warm(stage: Stage, manager: Manager, rounds: int) -> Iterator[Entry]:
    engine = manager.engine().name
    tree = stage.tree(500)
    made: list[str] = []
    alone: list[float] = []

    def ours() -> None:
        box, seconds = timed(lambda: manager.create(tree))
        with box:
            made.append(box.id)
            alone.append(seconds)
            assert box.exec(["true"]).exit_code == 0

    with EnginePeer(manager) as peer:

        def prepare(_: int) -> None:
            # A pool for all rounds would measure a machine with that many containers; one is as warm.
            _before_a_round(manager, made, peer, 1)

        taken = interleaved(
            {"ours": ours, "peer": peer.run_and_exec}, prepare, rounds=rounds, warmup=2, pause_s=ENGINE_PAUSE_S
        )
        _remove(manager, made)
    note = "500 real files, base cached"
    name = f"warm create to first result on {engine}"
    peer_name = f"{engine} run -d + exec"
    yield compare("pool", name, taken["ours"], peer_name, taken["peer"], want="faster", factor=15, note=note)
    yield under(
        "pool",
        name,
        taken["ours"].p50,
        25,
        "ms",
        p99=taken["ours"].p99,
        peer=peer_name,
        peer_value=taken["peer"].p50,
        rounds=rounds,
    )
    warm = Timing.of(alone[2:], warmup=2)
    yield under(
        "pool",
        f"warm create alone on {engine}",
        warm.p50,
        12,
        "ms",
        p99=warm.p99,
        peer=peer_name,
        peer_value=taken["peer"].p50,
        rounds=rounds,
        note=note,
    )


def _at_once(stage: Stage, manager: Manager, rounds: int, warmup: int) -> Iterator[Entry]:
    """Eight threads, one create each; the p99 is over all of them."""
    engine = manager.engine().name
    tree = stage.tree(500)
    made: list[str] = []
    ours: list[float] = []
    theirs: list[float] = []

    def create() -> float:
        box, seconds = timed(lambda: manager.create(tree))
        box.close()
        made.append(box.id)
        return seconds

    with EnginePeer(manager) as peer, ThreadPoolExecutor(AT_ONCE) as threads:

        def all_at_once(one: Callable[[], float]) -> list[float]:
            return [future.result() for future in [threads.submit(one) for _ in range(AT_ONCE)]]

        for number in range(rounds + warmup):
            _before_a_round(manager, made, peer, AT_ONCE)
            seconds, peers = all_at_once(create), all_at_once(lambda: timed(peer.run)[1])
            if number >= warmup:
                ours += seconds
                theirs += peers
        _remove(manager, made)
    together, beside = Timing.of(ours), Timing.of(theirs)
    yield under(
        "pool",
        f"{AT_ONCE} warm creates at once on {engine}, p99",
        together.p99,
        100,
        "ms",
        p99=together.p99,
        peer=f"{AT_ONCE} × {engine} run -d at once, p99",
        peer_value=beside.p99,
        rounds=together.rounds,
        note=f"p50 {together.p50:.1f} ms against {beside.p50:.1f} ms",
    )


def _before_a_round(manager: Manager, made: list[str], peer: EnginePeer, number: int) -> None:
    _remove(manager, made)
    peer.remove()
    manager.fill_pool(number)


def _remove(manager: Manager, made: list[str]) -> None:
    for name in made:
        assert manager.open(name).info().warm, "the pool was empty: this create was a cold one"
        manager.remove(name)
    made.clear()
