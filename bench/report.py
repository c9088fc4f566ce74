"""A run as a table, as JSON, and several of them as one."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.measure import Figure, Point
from bench.plots import points_of_sample
from bench.published import PUBLISHED


@dataclass
class Report:
    """What one run, or several, found."""

    machine: dict[str, Any]
    figures: list[Figure] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def write(self, path: Path) -> None:
        document = {
            "machine": self.machine,
            "figures": [figure.as_json() for figure in self.figures],
            "points": [point.as_json() for point in self.points],
            "remarks": self.remarks,
            "published": [vars(each) for each in PUBLISHED],
        }
        path.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")


def read_reports(paths: Iterable[Path]) -> Report:
    """Several runs as one; of a figure that is in two of them the later file's counts."""
    merged = Report({})
    figures: dict[tuple[str, ...], Figure] = {}
    points: dict[tuple[str, str, float], Point] = {}
    for path in paths:
        document = json.loads(path.read_text())
        merged.machine |= document.get("machine", {})
        merged.remarks += [remark for remark in document.get("remarks", []) if remark not in merged.remarks]
        for entry in document.get("figures", []):
            figure = Figure(**_known(Figure, entry))
            figures[figure.group, figure.name, figure.target, figure.peer] = figure
        for entry in document.get("points", []):
            point = Point(**_known(Point, entry))
            points[point.plot, point.line, point.x] = point
        for sample in document.get("samples", []):
            for point in points_of_sample(sample):
                points[point.plot, point.line, point.x] = point
    merged.figures, merged.points = list(figures.values()), list(points.values())
    return merged


def _known(kind: type, entry: dict[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in entry.items() if name in names}


# -- on the terminal -----------------------------------------------------------------------------------------


def show(report: Report, console: Console) -> None:
    table = Table(title="ws, side by side with its peers in one run: medians", title_justify="left")
    for column in HEAD:
        table.add_column(column, justify="right" if column in ("ours", "p99", "ratio") else "left")
    colours = {"met": "[green]met[/]", "missed": "[red]missed[/]"}
    group = ""
    for figure in report.figures:
        if group and figure.group != group:
            table.add_section()
        first, group = figure.group if figure.group != group else "", figure.group
        cells = _cells(figure)
        table.add_row(first, *cells[1:-1], colours.get(cells[-1], cells[-1]))
    console.print(table)
    for figure in report.figures:
        if figure.note:
            console.print(f"  {figure.name}: {figure.note}", style="dim")
    for remark in report.remarks:
        console.print(f"  {remark}", style="dim")
    console.print(_stated(report.machine), style="dim")
    console.print(_published())


def _published() -> Table:
    table = Table(title="Published by others, as quoted: other machines, not measured here", title_justify="left")
    for column in ("system", "operation", "as quoted"):
        table.add_column(column)
    for each in PUBLISHED:
        table.add_row(each.system, each.operation, f"{each.milliseconds:g} ms")
    return table


# -- in the README -------------------------------------------------------------------------------------------

HEAD = ("group", "figure", "ours", "p99", "peer", "ratio", "asked for", "")
SHORT = ("", "figure", "peer", "asked for", "podman", "", "docker", "")
ENGINE = re.compile(r",? on (podman|docker)\b")


BEGIN, END = "<!-- the figures: scripts/bench --from … --readme -->", "<!-- to here -->"


def with_table(readme: str, report: Report) -> str:
    """The README with the table of this report between its two marks."""
    before, rest = readme.split(BEGIN)
    return f"{before}{BEGIN}\n\n{as_markdown(report)}\n{END}{rest.split(END)[1]}"


def as_markdown(report: Report) -> str:
    """What was asked for, a row for each figure and a column for each engine; the machine; what others published."""
    lines = [_row(SHORT), _row(["---"] * len(SHORT))]
    lines += [_row(cells) for cells in _by_engine([figure for figure in report.figures if figure.met is not None])]
    lines += ["", _stated(report.machine) + ".", ""]
    lines += [*(f"- {remark}" for remark in report.remarks), ""] if report.remarks else []
    lines += ["Published by others, as quoted; other machines, not measured here:", ""]
    lines += [_row(("system", "operation", "as quoted")), _row(["---"] * 3)]
    lines += [_row((each.system, each.operation, f"{each.milliseconds:g} ms")) for each in PUBLISHED]
    return "\n".join(lines) + "\n"


def _by_engine(figures: Sequence[Figure]) -> list[tuple[str, ...]]:
    rows: dict[tuple[str, str, str, str], dict[str, Figure]] = {}
    for figure in figures:
        found = ENGINE.search(figure.name)
        engine = found[1] if found else "podman"
        name, peer = ENGINE.sub("", figure.name).replace("*", r"\*"), figure.peer.replace(engine, "engine's")
        rows.setdefault((figure.group, name, peer, figure.target), {})[engine] = figure
    return [
        (*key, *(cell for engine in ("podman", "docker") for cell in _short(found.get(engine))))
        for key, found in rows.items()
    ]


def _short(figure: Figure | None) -> tuple[str, str]:
    if figure is None:
        return "", ""
    against = f" : {_number(figure.peer_value)}" if figure.peer_value is not None else ""
    ratio = f" = {_number(figure.ratio)}×" if figure.ratio is not None else ""
    return f"{_number(figure.ours)}{against} {figure.unit}{ratio}", "met" if figure.met else "**missed**"


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _cells(figure: Figure) -> tuple[str, ...]:
    return (
        figure.group,
        figure.name,
        f"{_number(figure.ours)} {figure.unit}",
        _number(figure.p99) if figure.p99 is not None else "",
        f"{figure.peer} {_number(figure.peer_value)} {figure.unit}" if figure.peer_value is not None else "",
        f"{_number(figure.ratio)}×" if figure.ratio is not None else "",
        figure.target,
        {True: "met", False: "missed", None: ""}[figure.met],
    )


def _number(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _stated(machine: dict[str, Any]) -> str:
    engines = ", ".join(f"{name} {version}" for name, version in machine.get("engines", {}).items())
    return (
        f"{machine.get('cores')} cores, {machine.get('memory_gib')} GiB, {machine.get('system')}, "
        f"Linux {machine.get('kernel')}, WS_HOME on {machine.get('filesystem')}, {engines}, git {machine.get('git')}, "
        f"Python {machine.get('python')}, load {machine.get('load_at_start')} at the start, {machine.get('taken_at')}"
        + (", --quick" if machine.get("quick") else "")
    )
