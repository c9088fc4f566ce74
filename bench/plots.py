"""The plots of a report: which lines belong together, and the finding that stands as the title."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Point
from bench.svg import Chart, Line, megabytes, milliseconds, render


@dataclass(frozen=True)
class Plot:
    """A file under docs/bench, of the points with its name.

    `finding` is filled in from the first and the last points of the line `ours`, and of `peer` if there is one: it says
    what was measured, whatever that is. Without those lines the plot's subject stands alone.
    """

    name: str
    subject: str
    x_label: str
    ours: str
    peer: str
    finding: str
    y_format: Callable[[float], str] = milliseconds


BY_TREE = "{growth:.3g}× the files: {ours} takes {our_growth:.2g}× as long, {peer} {peer_growth:.2g}×"
PLOTS = (
    Plot(
        "snapshot-by-tree",
        "Keeping a state with 100 changed files; medians, log axes",
        "files in the tree",
        "ws snapshot",
        "git add + commit",
        BY_TREE,
    ),
    Plot(
        "restore-by-tree",
        "Bringing it back after 100 files were damaged, ours with its safety snapshot; medians, log axes",
        "files in the tree",
        "ws restore",
        "git reset + clean",
        BY_TREE,
    ),
    Plot(
        "fork-by-tree",
        "A second tree to work on, ours with its container; medians, log axes",
        "files in the tree",
        "ws fork, from the pool",
        "cp -a --reflink=auto",
        BY_TREE,
    ),
    Plot(
        "snapshots",
        "Snapshot after snapshot of one changed file of 1 KB; medians, log axes",
        "snapshots taken",
        "ws snapshot, podman",
        "git add + commit",
        "Snapshot number {last:,.0f} takes {our_growth:.2g}× as long as number {first:,.0f}",
    ),
    Plot(
        "many-time",
        "What one operation takes beside so many workspaces; log axes",
        "workspaces alive",
        "snapshot",
        "",
        "With {last:,.0f} workspaces alive a snapshot takes {our_growth:.2g}× as long as with {first:,.0f}",
    ),
    Plot(
        "many-memory",
        "Proportional set size of a shim and its conmon, and what the machine has less; log axes",
        "workspaces alive",
        "shim, each",
        "",
        "An idle workspace among {last:,.0f} takes {last_value} of memory",
        megabytes,
    ),
)


SAMPLED = {
    "create_ms": ("many-time", "ws create, cold", "ms"),
    "exec_ms": ("many-time", "exec", "ms"),
    "snapshot_ms": ("many-time", "snapshot", "ms"),
    "restore_ms": ("many-time", "restore", "ms"),
    "list_ms": ("many-time", "ws ls, all of them", "ms"),
    "shim_mib": ("many-memory", "shim, each", "MiB"),
    "monitor_mib": ("many-memory", "conmon, each", "MiB"),
    "machine_mib": ("many-memory", "all of the machine, each", "MiB"),
}


def points_of_sample(sample: dict[str, float]) -> list[Point]:
    """A sample of `bench.many`, with so many workspaces alive, as points of the two plots about many."""
    return [
        Point(plot, line, sample["workspaces"], sample[key], unit, ours=key not in ("monitor_mib", "machine_mib"))
        for key, (plot, line, unit) in SAMPLED.items()
        if key in sample
    ]


def write_plots(points: Sequence[Point], place: Path) -> Iterator[Path]:
    """One SVG for each plot that has at least two points on a line; the paths written."""
    for plot in PLOTS:
        lines = _lines([point for point in points if point.plot == plot.name and point.y > 0])
        if any(len(line.points) > 1 for line in lines):
            place.mkdir(parents=True, exist_ok=True)
            path = place / f"{plot.name}.svg"
            title = _finding(plot, {line.label: line for line in lines})
            path.write_text(render(Chart(title, plot.subject, plot.x_label, lines, plot.y_format)))
            yield path


def _lines(points: Sequence[Point]) -> list[Line]:
    """Of a point that was measured twice, as git is beside each engine, the first counts."""
    found: dict[str, dict[float, Point]] = {}
    for point in points:
        found.setdefault(point.line, {}).setdefault(point.x, point)
    return [
        Line(name, tuple((x, line[x].y) for x in sorted(line)), ours=any(point.ours for point in line.values()))
        for name, line in found.items()
    ]


def _finding(plot: Plot, lines: dict[str, Line]) -> str:
    if plot.ours not in lines or (plot.peer and plot.peer not in lines):
        return plot.subject
    (first, begin), (last, end) = lines[plot.ours].points[0], lines[plot.ours].points[-1]
    peers = lines.get(plot.peer, lines[plot.ours]).points
    return plot.finding.format(
        ours=plot.ours.partition(",")[0],
        peer=plot.peer.partition(" --")[0],
        first=first,
        last=last,
        last_value=plot.y_format(end),
        growth=last / first,
        our_growth=end / begin,
        peer_growth=peers[-1][1] / peers[0][1],
    )
