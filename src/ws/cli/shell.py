"""A terminal of ours tied to one in the workspace.

Ours is raw while it lasts, so that every key, Ctrl-C too, is the business of the terminal inside. Whatever ends it, the
shell, a signal, a dead container or a closed window, ours is set back as it was before anything else is written.
"""

from __future__ import annotations

import contextlib
import os
import sys
import termios
import tty
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ws.cli.execution import status_of
from ws.errors import InvalidRequest

if TYPE_CHECKING:
    from ws.workspace import Workspace

_STDIN, _STDOUT = 0, 1


def check_terminal(name: str) -> None:
    """Raises InvalidRequest when there is no terminal to tie."""
    if not (os.isatty(_STDIN) and os.isatty(_STDOUT)):
        raise InvalidRequest("ws shell needs a terminal", hint=f"`ws exec {name} -- CMD` runs a command without one")


def attend(workspace: Workspace, argv: Sequence[str] | None, *, workdir: str | None, env: Mapping[str, str]) -> int:
    """Run a command, by default the best shell the image has, on a terminal there, shown here; returns its status."""
    size = os.get_terminal_size(_STDIN)
    terminal = workspace.terminal(
        argv,
        rows=size.lines or 24,
        columns=size.columns or 80,
        workdir=workdir,
        # Of this machine's environment only what kind of terminal this is.
        env={"TERM": os.environ.get("TERM", "xterm"), **env},
    )
    with terminal, _raw(_STDIN):
        sys.stdout.flush()
        return status_of(terminal.relay(_STDIN, _STDOUT))


@contextlib.contextmanager
def _raw(fd: int) -> Iterator[None]:
    before = termios.tcgetattr(fd)
    try:
        tty.setraw(fd, termios.TCSANOW)  # keeps what was typed ahead
        yield
    finally:
        # At once, not when the output has drained: a terminal that was stopped or hung up never drains.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(fd, termios.TCSANOW, before)
