"""The law: a progress bar is for a terminal and for work over half a second, and is gone when the work is done."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys

import pytest

WORK = """
import sys, time
from ws.cli.render import ProgressBar
with ProgressBar("starting", "") as bar:
    for done in range(1, 11):
        bar("importing \\x1b[7m", done * 10, 100)
        time.sleep(float(sys.argv[1]) / 10)
print("result", file=sys.stderr)
"""


def shown(seconds: float, **environment: str) -> str:
    """What a terminal gets to see of work that takes so long."""
    master, slave = pty.openpty()
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", **environment}
    with subprocess.Popen([sys.executable, "-c", WORK, str(seconds)], stderr=slave, stdin=slave, env=env) as process:
        os.close(slave)
        seen = b""
        try:
            while select.select([master], [], [], 30)[0]:
                seen += os.read(master, 65536)
        except OSError:  # EIO: nobody has the terminal any more
            pass
        os.close(master)
        assert process.wait(30) == 0
    return seen.decode()


def test_slow_work_shows_a_bar_that_is_gone_at_the_end() -> None:
    seen = shown(1.5)
    assert "importing \\x1b[7m" in seen
    assert "/100" in seen
    *_, last = seen.split("\x1b[2K")  # the last thing before the result is that the line was cleared
    assert last == "result\r\n"


@pytest.mark.parametrize(("seconds", "term"), [(0.1, "xterm"), (1.0, "dumb")])
def test_quick_work_and_simple_terminals_show_none(seconds: float, term: str) -> None:
    assert shown(seconds, TERM=term) == "result\r\n"


def test_a_pipe_gets_no_bar() -> None:
    done = subprocess.run([sys.executable, "-c", WORK, "1.0"], capture_output=True, timeout=60)
    assert (done.stdout, done.stderr) == (b"", b"result\n")
