"""An attacker for race tests: a process of its own that exchanges two names as fast as the kernel lets it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

_ATTACKER = """
import ctypes, os, sys
renameat2 = ctypes.CDLL(None).renameat2
first, second = map(os.fsencode, sys.argv[1:3])
parent = os.getppid()
print("ready", flush=True)
while os.getppid() == parent:
    for _ in range(1000):
        renameat2(-100, first, -100, second, 2)
"""

CANARY = "OUTSIDE-CANARY"


def rounds(few: int) -> int:
    """How often an attack is tried: a few times in the suite, at least WS_ATTACK_ROUNDS times where that is set."""
    return max(few, int(os.environ.get("WS_ATTACK_ROUNDS", "0")))


def turns(least: int, enough: Callable[[], bool], *, patience_s: float = 30.0) -> Iterator[int]:
    """Rounds of an attack: at least so many, and more until `enough`: on a busy machine the attacker may sleep on."""
    deadline, number = time.monotonic() + patience_s, 0
    while number < least or (not enough() and time.monotonic() < deadline):
        yield number
        number += 1


@dataclass(frozen=True)
class Arena:
    """A root, a directory outside it, and two names in the root that the attacker exchanges."""

    root: Path
    outside: Path
    real: Path
    decoy: Path

    def outside_now(self) -> dict[str, str]:
        """Everything outside, with what it holds: must never change."""
        return {
            str(path.relative_to(self.outside)): path.read_text() if path.is_file() else "/"
            for path in sorted(self.outside.rglob("*"))
        }


@contextlib.contextmanager
def arena(*, link: str) -> Iterator[Arena]:
    """`dir` with files, `decoy` a link to a directory outside with files of the same names. In memory: speed."""
    top = Path(tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else None))
    try:
        root, outside = top / "root", top / "outside"
        for directory in (root / "dir" / "sub", outside / "sub"):
            directory.mkdir(parents=True)
        for name in ("file", "sub/file"):
            (root / "dir" / name).write_text("inside\n")
            (outside / name).write_text(f"{CANARY}\n")
        target = str(outside) if link == "absolute" else "../outside"
        (root / "decoy").symlink_to(target)
        yield Arena(root, outside, root / "dir", root / "decoy")
    finally:
        shutil.rmtree(top)


@contextlib.contextmanager
def exchanging(first: Path, second: Path) -> Iterator[None]:
    """Two names exchange what they stand for, over and over, while the block runs."""
    process = subprocess.Popen([sys.executable, "-c", _ATTACKER, str(first), str(second)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        yield
        assert process.poll() is None, "the attacker gave up"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def exchange(first: Path, second: Path) -> None:
    """Exchange two names once."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(first), -100, os.fsencode(second), 2) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
