"""Small line charts on log axes, as SVG written by hand: a few kilobytes, and readable on light and on dark pages.

Each line is labelled at its right end, so that no legend is needed; ours is drawn in the one strong colour.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 800, 410
LEFT, TOP, BOTTOM = 64, 78, 52
LABEL_GAP = 17
LETTER = 7.9  # the width of one in a label, in the widest font that a page may choose

STYLE = """
text{font:13px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;fill:#57606a}
.title{font-size:17px;font-weight:600;fill:#1f2328}
.sub{font-size:12.5px}
.grid{stroke:#d0d7de;stroke-width:1;stroke-opacity:.6}
.axis{stroke:#8c959f;stroke-width:1}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.ours .line{stroke-width:3}
.ours text{font-weight:600}
.lead{stroke:#8c959f;stroke-width:1;fill:none;stroke-opacity:.5}
"""
OURS = (  # light, dark
    ("#0969da", "#58a6ff"),
    ("#8250df", "#bc8cff"),
    ("#1b7c83", "#39c5cf"),
    ("#1a7f37", "#3fb950"),
    ("#bf3989", "#f778ba"),
)
PEERS = (
    ("#bc4c00", "#f0883e"),
    ("#6e7781", "#9198a1"),
    ("#9a6700", "#d29922"),
    ("#a40e26", "#ff7b72"),
    ("#57606a", "#8b949e"),
)


@dataclass(frozen=True)
class Line:
    label: str
    points: tuple[tuple[float, float], ...]
    ours: bool = False


@dataclass(frozen=True)
class Chart:
    title: str
    subtitle: str
    x_label: str
    lines: Sequence[Line]
    y_format: Callable[[float], str]


class _Scale:
    """A log axis: where a value stands, and which decades are within."""

    def __init__(self, values: Sequence[float], begin: float, end: float, *, decades: bool) -> None:
        low, high = min(values), max(values)
        if decades or low == high:  # whole decades, so that every axis has at least two ticks
            low, high = 10 ** math.floor(math.log10(low) + 1e-9), 10 ** math.ceil(math.log10(high) - 1e-9)
            high = max(high, low * 10)
        self.low, self.high, self.begin, self.end = low, high, begin, end

    def __call__(self, value: float) -> float:
        share = math.log10(value / self.low) / math.log10(self.high / self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        first, last = math.floor(math.log10(self.low) + 1e-9), math.ceil(math.log10(self.high) - 1e-9)
        return [10.0**power for power in range(first, last + 1) if self.low <= 10.0**power <= self.high * 1.001]


def render(chart: Chart) -> str:
    """The chart as one SVG document."""
    lines = sorted(chart.lines, key=lambda line: not line.ours)
    right = WIDTH - 26 - LETTER * max(len(_label(chart, line)) for line in lines)
    across = _Scale([x for line in lines for x, _ in line.points], LEFT, right, decades=False)
    up = _Scale([y for line in lines for _, y in line.points], HEIGHT - BOTTOM, TOP, decades=True)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img" aria-label="{escape(chart.title)}">',
        f"<style>{STYLE.strip()}{_colours(lines)}</style>",
        f'<text class="title" x="20" y="28">{escape(chart.title)}</text>',
        f'<text class="sub" x="20" y="48">{escape(chart.subtitle)}</text>',
        *_axes(chart, lines, across, up),
        *_drawn(chart, lines, across, up),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _colours(lines: Sequence[Line]) -> str:
    """Direct rules for light, overridden for dark: renderers without media queries then show the light ones."""
    light, dark = [], []
    ours, peers = iter(OURS), iter(PEERS)
    for number, line in enumerate(lines):
        bright, dim = next(ours if line.ours else peers)
        for colour, rules in ((bright, light), (dim, dark)):
            rules.append(f".l{number} .line{{stroke:{colour}}}.l{number} circle,.l{number} text{{fill:{colour}}}")
    grounds = "text{fill:#9198a1}.title{fill:#e6edf3}.grid{stroke:#30363d}.axis{stroke:#6e7681}"
    return f"\n{''.join(light)}\n@media (prefers-color-scheme:dark){{{grounds}{''.join(dark)}}}"


def _axes(chart: Chart, lines: Sequence[Line], across: _Scale, up: _Scale) -> list[str]:
    parts = []
    for value in up.ticks():
        y = up(value)
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{across.end:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(chart.y_format(value))}</text>')
    for value in sorted({x for line in lines for x, _ in line.points}):
        x = across(value)
        parts.append(f'<path class="axis" d="M{x:.1f} {HEIGHT - BOTTOM}v5"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{value:,.0f}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{across.end:.1f}"/>')
    middle = (LEFT + across.end) / 2
    parts.append(f'<text x="{middle:.1f}" y="{HEIGHT - 12}" text-anchor="middle">{escape(chart.x_label)}</text>')
    return parts


def _drawn(chart: Chart, lines: Sequence[Line], across: _Scale, up: _Scale) -> list[str]:
    ends = [up(line.points[-1][1]) for line in lines]
    labels = _spread(ends)
    parts = []
    for number, line in reversed(list(enumerate(lines))):  # ours last, so on top
        places = [(across(x), up(y)) for x, y in line.points]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
        end, y = places[-1]
        parts.append(f'<g class="l{number}{" ours" if line.ours else ""}"><path class="line" d="M{path}"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2"/>' for x, y in places]
        if abs(labels[number] - y) > 3:
            parts.append(f'<path class="lead" d="M{end + 5:.1f} {y:.1f}L{end + 14:.1f} {labels[number]:.1f}"/>')
        parts.append(f'<text x="{end + 17:.1f}" y="{labels[number] + 4:.1f}">{escape(_label(chart, line))}</text></g>')
    return parts


def _label(chart: Chart, line: Line) -> str:
    return f"{line.label} · {chart.y_format(line.points[-1][1])}"


def _spread(places: Sequence[float]) -> list[float]:
    """The same heights, moved apart until no two labels overlap."""
    order = sorted(range(len(places)), key=lambda index: places[index])
    moved = list(places)
    for _ in range(200):
        for above, below in itertools.pairwise(order):
            short = LABEL_GAP - (moved[below] - moved[above])
            if short > 0:
                moved[above] -= short / 2
                moved[below] += short / 2
    return moved


def milliseconds(value: float) -> str:
    """A duration in the unit that reads best."""
    if value >= 1000:
        return f"{value / 1000:.3g} s"
    return f"{value:.3g} ms" if value < 100 else f"{value:.0f} ms"


def megabytes(value: float) -> str:
    return f"{value / 1024:.3g} GiB" if value >= 1024 else f"{value:.3g} MiB"
