"""Timing side by side, and the figures that come of it.

Machines are noisy, so nothing is compared across runs: ours and the peers take turns within one loop, after a stated
warm-up, and a figure is the ratio of medians.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeVar

ENGINE_PAUSE_S = 0.25  # conmon and `podman container cleanup` go on for 40 to 170 ms
Action = Callable[[], object]
T = TypeVar("T")


@dataclass(frozen=True)
class Timing:
    """What rounds of one action took, in milliseconds."""

    rounds: int
    p50: float
    p99: float
    least: float
    warmup: int = 1

    @classmethod
    def of(cls, seconds: Sequence[float], *, warmup: int = 1) -> Timing:
        ordered = sorted(value * 1000 for value in seconds)
        return cls(
            rounds=len(ordered),
            p50=statistics.median(ordered),
            p99=ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))],
            least=ordered[0],
            warmup=warmup,
        )


@dataclass(frozen=True)
class Figure:
    """One line of the table: ours, the peer, what is asked for, and whether it is met; None: nothing was asked for."""

    group: str
    name: str
    ours: float
    unit: str
    target: str
    met: bool | None
    peer: str = ""
    peer_value: float | None = None
    ratio: float | None = None
    p99: float | None = None
    peer_p99: float | None = None
    rounds: int | None = None
    warmup: int | None = None
    note: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Point:
    """One point of a line of a plot: `y` at `x`, medians."""

    plot: str
    line: str
    x: float
    y: float
    unit: str
    p99: float | None = None
    rounds: int | None = None
    ours: bool = False

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, plot: str, line: str, x: float, timing: Timing, *, ours: bool = False) -> Point:
        return cls(plot, line, x, timing.p50, "ms", p99=timing.p99, rounds=timing.rounds, ours=ours)


Entry = Figure | Point


def timed(action: Callable[[], T]) -> tuple[T, float]:
    """What it returned, and the seconds it took."""
    begin = time.perf_counter()
    result = action()
    return result, time.perf_counter() - begin


def side_by_side(
    actions: Mapping[str, Action], *, rounds: int, warmup: int = 1, pause_s: float = 0.0, sync: bool = False
) -> dict[str, Timing]:
    """Time several actions in turns. Each is called `warmup` times first, unmeasured.

    An action that returns a float took its own time, in seconds: a peer in another process, without the pipe to it.
    """
    for action in actions.values():
        for _ in range(warmup):
            action()
    return interleaved(
        actions, lambda _: None, rounds=rounds, warmup=0, stated_warmup=warmup, pause_s=pause_s, sync=sync
    )


def interleaved(
    actions: Mapping[str, Action],
    prepare: Callable[[int], object],
    *,
    rounds: int,
    warmup: int = 1,
    stated_warmup: int | None = None,
    pause_s: float = 0.0,
    sync: bool = False,
) -> dict[str, Timing]:
    """Like `side_by_side`, with an unmeasured `prepare(number)` before each round; the first rounds warm up.

    `sync` lets the disk catch up after each action: git leaves its objects to the page cache, and whoever syncs next
    would pay for them. `pause_s` is for an engine's client, which leaves work behind when it returns.
    """
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(rounds + warmup):
        prepare(number)
        for name, action in actions.items():
            begin = time.perf_counter()
            own = action()
            seconds = own if isinstance(own, float) else time.perf_counter() - begin
            if number >= warmup:
                taken[name].append(seconds)
            if sync:
                os.sync()
            time.sleep(pause_s)
    stated = warmup if stated_warmup is None else stated_warmup
    return {name: Timing.of(seconds, warmup=stated) for name, seconds in taken.items()}


def compare(
    group: str,
    name: str,
    ours: Timing,
    peer_name: str,
    peer: Timing,
    *,
    want: Literal["faster", "at_most", "beside"] = "beside",
    factor: float = 0.0,
    note: str = "",
) -> Figure:
    """`faster`: the peer takes at least `factor` times ours. `at_most`: ours takes at most `factor` times the peer.

    `beside`: nothing is asked for, the ratio is how many times faster ours is.
    """
    ratio = ours.p50 / peer.p50 if want == "at_most" else peer.p50 / ours.p50
    target, met = {
        "faster": (f"≥ {factor:g}× faster", ratio >= factor),
        "at_most": (f"≤ {factor:.3g}×", ratio <= factor),
        "beside": ("", None),
    }[want]
    return Figure(
        group=group,
        name=name,
        ours=ours.p50,
        unit="ms",
        target=target,
        met=met,
        peer=peer_name,
        peer_value=peer.p50,
        ratio=ratio,
        p99=ours.p99,
        peer_p99=peer.p99,
        rounds=ours.rounds,
        warmup=ours.warmup,
        note=note,
    )


def under(
    group: str,
    name: str,
    value: float,
    limit: float,
    unit: str,
    *,
    p99: float | None = None,
    peer: str = "",
    peer_value: float | None = None,
    rounds: int | None = None,
    note: str = "",
) -> Figure:
    """A plain limit; a peer's value, where one has the thing, stands beside it."""
    return Figure(
        group=group,
        name=name,
        ours=value,
        unit=unit,
        target=f"≤ {limit:g} {unit}",
        met=value <= limit,
        peer=peer,
        peer_value=peer_value,
        ratio=peer_value / value if peer_value is not None and value else None,
        p99=p99,
        rounds=rounds,
        note=note,
    )


def run(*argv: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """A peer's command, its output kept out of the way; a failure is a failure of the bench."""
    result = subprocess.run(argv, capture_output=True, check=False, **options)
    if result.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {result.stderr.decode(errors='replace').strip()}")
    return result
