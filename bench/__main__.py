"""`scripts/bench [GROUP…] [--quick] [--json FILE] [--plots]`: measure, print a table, write JSON and plots.

`scripts/bench --from A.json B.json [--plots] [--readme]` measures nothing: it shows earlier runs as one.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import time
from pathlib import Path

from rich.console import Console

from bench.machine import machine
from bench.measure import Figure
from bench.plots import write_plots
from bench.report import Report, read_reports, show, with_table
from bench.stage import ENGINES, Stage

ROOT = Path(__file__).parents[1]
PLOTS = ROOT / "docs" / "bench"
GROUPS = {
    # First, before the others remove their trees: see `imports`. (A module cannot be called by a word of the language.)
    "import": "imports",
    "create": "create",
    "pool": "pool",
    "exec": "exec",
    "tools": "tools",
    "snapshot": "snapshot",
    "restore": "restore",
    "fork": "fork",
    "memory": "memory",
    "many": "many",
    "churn": "churn",
    "leaks": "leaks",
    "scaling": "scaling",
}


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="scripts/bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("groups", nargs="*", metavar="GROUP", help=f"all of them, or some: {', '.join(GROUPS)}")
    made.add_argument("--quick", action="store_true", help="fewer rounds and smaller trees; under three minutes")
    made.add_argument("--engine", action="append", choices=ENGINES, help="measure on this engine only")
    made.add_argument("--json", metavar="FILE", type=Path, help="also write what was found here")
    made.add_argument("--from", dest="earlier", nargs="+", metavar="FILE", type=Path, help="show earlier runs instead")
    made.add_argument("--plots", action="store_true", help="also write the curves, docs/bench/*.svg")
    made.add_argument("--readme", action="store_true", help="also put the table into the README")
    return made


def main() -> int:
    arguments = parser().parse_args()
    unknown = sorted(set(arguments.groups) - set(GROUPS))
    if unknown:
        parser().error(f"no group is called {', '.join(unknown)}; there are {', '.join(GROUPS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ended early, it still removes what it made
    console = Console(width=None if sys.stdout.isatty() else 180)
    report = read_reports(arguments.earlier) if arguments.earlier else _measure(arguments, Console(stderr=True))
    report.figures.sort(key=lambda figure: list(GROUPS).index(figure.group))
    show(report, console)
    if arguments.json:
        report.write(arguments.json)
    if arguments.plots:
        for path in write_plots(report.points, PLOTS):
            console.print(f"wrote {path.relative_to(ROOT)}", style="dim")
    if arguments.readme:
        readme = ROOT / "README.md"
        readme.write_text(with_table(readme.read_text(), report))
    return 0


def _measure(arguments: argparse.Namespace, progress: Console) -> Report:
    with Stage(quick=arguments.quick, engines=arguments.engine or ENGINES) as stage:
        report = Report(machine(stage))
        for name in arguments.groups or GROUPS:
            begin = time.monotonic()
            for entry in importlib.import_module(f"bench.{GROUPS[name]}").measure(stage):
                if isinstance(entry, Figure):
                    report.figures.append(entry)
                    progress.print(f"  {name}: {entry.name}: {entry.ours:.3g} {entry.unit}", style="dim")
                else:
                    report.points.append(entry)
                report.remarks = _remarks(stage)
                if arguments.json:
                    report.write(arguments.json)  # at once: what takes long may be ended early
            progress.print(f"{name} took {time.monotonic() - begin:.0f} s", style="dim")
    return report


def _remarks(stage: Stage) -> list[str]:
    remarks = [f"{peer} was not measured: {reason}" for peer, reason in stage.missing.items()]
    if stage.quick:
        remarks.append(
            f"--quick: {stage.files:,} files where the figures are asked for on 50,000, so that a ratio to git says "
            "little; the second engine in create and exec only"
        )
    return remarks


if __name__ == "__main__":
    sys.exit(main())
