"""How results look: JSON, tables, facts, and progress bars.

A table is plain text in columns, complete in a pipe and coloured on a terminal. A progress bar goes to stderr, only
when that is a terminal, and only when the work takes longer than half a second: what is quick should not flicker.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from ws.cli import interrupts
from ws.cli.text import decodable, escape, paint

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

BAR_DELAY_S = 0.5
STATUS_COLOURS = {"running": "green", "stopped": "yellow", "removing": "dim", "damaged": "red"}


def print_json(value: Any) -> None:
    """One JSON value on stdout, valid for every reader whatever the names in it hold."""
    print(json.dumps(_printable(value), indent=2))


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return decodable(value)
    if isinstance(value, Mapping):
        return {decodable(str(key)): _printable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(item) for item in value]
    return value


def print_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], *, colour: Callable[[int, str], str | None] | None = None
) -> None:
    """Rows under a header, two spaces between columns. `colour` names one for the cell of a column, or none."""
    lines = [list(header), *([escape(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    for number, line in enumerate(lines):
        shown = []
        for column, cell in enumerate(line):
            padded = cell if column == len(line) - 1 else cell.ljust(widths[column])
            name = "bold" if number == 0 else colour(column, cell) if colour else None
            shown.append(paint(padded, name, sys.stdout) if name else padded)
        print("  ".join(shown).rstrip())


def print_facts(facts: Sequence[tuple[str, str]]) -> None:
    """Names and values, one a line."""
    width = max((len(name) for name, _ in facts), default=0)
    for name, value in facts:
        print(f"{paint(name.ljust(width), 'bold', sys.stdout)}  {escape(value)}")


class ProgressBar:
    """A progress callback `(phase, done, total)` that shows a bar once the work has taken half a second.

    The bar is drawn by a timer, so work that reports nothing for a while is seen to be under way as well. It is gone
    when the block ends: what remains on the terminal is the result. When a signal ends the block, what remains is the
    `fate`: one sentence on what became of the work.
    """

    def __init__(self, phase: str, fate: interrupts.Fate) -> None:
        self._fate = fate
        self._lock = threading.Lock()
        self._state = (phase, 0, 0)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._timer: threading.Timer | None = None
        self._work = contextlib.ExitStack()

    def __enter__(self) -> ProgressBar:
        self._work.enter_context(interrupts.at_work())
        if sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            self._timer = threading.Timer(BAR_DELAY_S, self._show)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._take_away()
            if kind is not None and issubclass(kind, KeyboardInterrupt | SystemExit):
                interrupts.tell(self._fate)
        finally:
            self._work.close()

    def _take_away(self) -> None:
        if self._timer is None:
            return
        self._timer.cancel()
        self._timer.join()  # a bar that is just being drawn is drawn, then taken away
        with self._lock:
            if self._bar is not None:
                self._bar.stop()

    def __call__(self, phase: str, done: int, total: int) -> None:
        with self._lock:
            self._state = (phase, done, total)
            self._update()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        with self._lock:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=Console(stderr=True),
                transient=True,
            )
            self._task = self._bar.add_task("", total=None)
            self._bar.start()
            self._update()

    def _update(self) -> None:
        if self._bar is not None and self._task is not None:
            phase, done, total = self._state
            self._bar.update(self._task, description=escape(phase), completed=done, total=total or None)
