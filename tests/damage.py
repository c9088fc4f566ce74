"""Damage to files of a WS_HOME, and the commands that must bear it; run as a process, because a FIFO may block one.

    python damage.py TEMPLATE WORK FILE DAMAGE…

copies the home TEMPLATE to WORK for each damage, does that to FILE, runs every command of `COMMANDS` in this process
and prints a line of JSON for each: the damage, the words, the status, what stderr had, what stdout had.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable

from ws.removing import remove_tree

DEADLINE_S = 60
BRACKETS = b"[" * 200_000


def _truncate(path: str) -> None:
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) // 2)


def _replace(data: bytes) -> Callable[[str], None]:
    def write(path: str) -> None:
        os.unlink(path)
        with open(path, "wb") as file:
            file.write(data)

    return write


def _other(make: Callable[[str], object]) -> Callable[[str], None]:
    def put(path: str) -> None:
        os.unlink(path)
        make(path)

    return put


def _huge(path: str) -> None:
    os.truncate(path, 1 << 40)


def _full_directory(path: str) -> None:
    os.makedirs(os.path.join(path, "inner"))


def _retyped(path: str) -> None:
    """The same JSON with every value of another type; what is no JSON becomes a list of numbers."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read())
        fields = {name: _other_type(value) for name, value in found.items()}
    except (ValueError, AttributeError, RecursionError):
        fields = {"0": [1, 2, 3]}
    _replace(json.dumps(fields).encode())(path)


def _other_type(value: object) -> object:
    return [1.5, {"a": None}] if isinstance(value, str | int | float | dict) else "text"


DAMAGES: dict[str, Callable[[str], None]] = {
    "empty": _replace(b""),
    "truncated": _truncate,
    "brackets": _replace(BRACKETS),
    "bytes": _replace(b"\xff\xfe\x80" * 50),
    "number": _replace(b"9" * 4000),
    "huge": _huge,
    "types": _retyped,
    "directory": _other(_full_directory),
    "link": _other(lambda path: os.symlink("/etc/passwd", path)),
    "fifo": _other(os.mkfifo),
    "mode": lambda path: os.chmod(path, 0),
    "missing": os.unlink,
}

COMMANDS = (
    ["ls"],
    ["doctor"],
    ["show", "victim"],
    ["log", "victim"],
    ["events", "victim"],
    ["diff", "victim", "--name-status"],
    ["show", "other"],
    ["diff", "other", "--name-status"],
    ["snapshot", "other"],
    ["verify"],
    ["gc"],
    ["pool", "ls"],
    ["prune"],
    ["rm", "victim"],
    ["rm", "other"],
    ["ls"],
)


def run(words: list[str]) -> tuple[int, str, str]:
    """Run a command line in this process; its status, and what it wrote to stderr and to stdout."""
    from ws.cli.main import run as run_words

    errors, results = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(results), contextlib.redirect_stderr(errors):
        status = run_words([*words, "--json"])
    return status, errors.getvalue(), results.getvalue()


def main(template: str, work: str, file: str, names: list[str]) -> None:
    os.environ["WS_HOME"] = work
    for name in names:
        remove_tree(work)
        subprocess.run(["cp", "-a", template, work], check=True)
        path = os.path.join(work, file)
        assert stat.S_ISREG(os.lstat(path).st_mode), path
        DAMAGES[name](path)
        for words in COMMANDS:
            signal.alarm(DEADLINE_S)  # a command that blocks ends this process
            outcome = run(words)
            signal.alarm(0)
            print(json.dumps([name, words, *outcome]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
