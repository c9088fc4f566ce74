"""What the bench found is shown as it was found: nothing is lost in merging, and the plots are small and readable."""

from __future__ import annotations

import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from bench.measure import Figure, Point, Timing, compare
from bench.plots import PLOTS, points_of_sample, write_plots
from bench.report import Report, as_markdown, read_reports, with_table
from bench.svg import LABEL_GAP, Chart, Line, milliseconds, render

SVG = "{http://www.w3.org/2000/svg}"


def figure(name: str, ours: float, *, engine: str = "podman") -> Figure:
    ours_s, peer_s = [ours / 1000] * 3, [1.0] * 3
    peer = f"{engine} exec"
    return compare("exec", f"{name} on {engine}", Timing.of(ours_s), peer, Timing.of(peer_s), want="faster", factor=100)


def curve(line: str, heights: tuple[float, ...], *, ours: bool = False) -> list[Point]:
    return [
        Point("snapshot-by-tree", line, x, y, "ms", ours=ours)
        for x, y in zip((500, 5_000, 50_000), heights, strict=True)
    ]


def test_several_runs_are_one_report_and_of_a_figure_measured_twice_the_later_counts(tmp_path: Path) -> None:
    Report({"cores": 2}, [figure("a", 5), figure("b", 20)], curve("git", (1, 2, 3))).write(tmp_path / "one")
    Report({"cores": 2}, [figure("b", 4), figure("c", 4)], remarks=["no docker"]).write(tmp_path / "two")
    merged = read_reports([tmp_path / "one", tmp_path / "two"])
    assert [(each.name, each.met) for each in merged.figures] == [
        ("a on podman", True),
        ("b on podman", True),
        ("c on podman", True),
    ]
    assert merged.points == curve("git", (1, 2, 3))
    assert merged.remarks == ["no docker"]


def test_a_figure_that_falls_short_is_said_to_be_missed() -> None:
    assert figure("a", 10.1).met is False
    assert figure("a", 9.9).met is True
    table = as_markdown(Report({}, [figure("a", 10.1), figure("a", 9.9, engine="docker")]))
    row = next(line for line in table.splitlines() if line.startswith("| exec"))
    assert "10.1 : 1,000 ms = 99×" in row
    assert row.index("**missed**") < row.index("9.9 : 1,000 ms") < row.index("| met |")


def test_what_others_published_is_in_no_ratio() -> None:
    before, _, quoted = as_markdown(Report({}, [figure("a", 5)])).partition("as quoted")
    assert "DeltaBox" in quoted
    assert "DeltaBox" not in before


def test_a_plot_is_small_valid_and_has_colours_for_dark_pages(tmp_path: Path) -> None:
    points = curve("ws snapshot", (10, 10, 10), ours=True) + curve("git add + commit", (20, 100, 1000))
    (path,) = write_plots(points, tmp_path)
    text = path.read_text()
    assert len(text) < 6_000
    assert "prefers-color-scheme:dark" in text
    words = [node.text or "" for node in ElementTree.fromstring(text).iter(f"{SVG}text")]
    assert "ws snapshot · 10 ms" in words
    assert "git add + commit · 1 s" in words
    assert "100× the files: ws snapshot takes 1× as long, git add + commit 50×" in words


def test_labels_of_lines_that_end_together_do_not_cover_each_other() -> None:
    lines = [Line(f"line {number}", ((1, 10), (10, 100 + number))) for number in range(5)]
    drawn = render(Chart("title", "", "x", lines, milliseconds))
    heights = sorted(float(y) for y in re.findall(r'<text x="[\d.]+" y="([\d.]+)">line', drawn))
    assert len(heights) == 5
    assert min(below - above for above, below in itertools.pairwise(heights)) > LABEL_GAP - 1


def test_a_sample_of_many_workspaces_has_its_place_in_both_plots() -> None:
    found = points_of_sample({"workspaces": 10, "create_ms": 100, "shim_mib": 4, "service_descriptors": 30})
    assert {(point.plot, point.x, point.y) for point in found} == {("many-time", 10, 100), ("many-memory", 10, 4)}
    assert {point.plot for point in found} <= {plot.name for plot in PLOTS}


def test_the_table_in_the_readme_is_that_of_the_report_in_the_documents() -> None:
    kept = Path(__file__).parents[2] / "docs" / "bench" / "figures.json"
    report = read_reports([kept])
    readme = (kept.parents[2] / "README.md").read_text()
    assert with_table(readme, report) == readme, "scripts/bench --from docs/bench/figures.json --readme"
    assert len(report.figures) == len(json.loads(kept.read_text())["figures"]) > 20
    assert {point.plot for point in report.points} <= {plot.name for plot in PLOTS}
