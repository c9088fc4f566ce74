"""SWE-ReX as a peer: from PyPI, into an environment of its own under the cache, so that ws's own is never touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

REQUIREMENTS = ("swe-rex>=1.4,<2", "aiohttp>=3.9,<4")  # its client imports aiohttp and does not ask for it
DRIVER = Path(__file__).with_name("swerex_driver.py")


class SweRexMissing(Exception):
    """It does not install, or does not start, here; the message says why."""


def ensure_environment() -> Path:
    """The interpreter that has SWE-ReX; made on first use. Raises SweRexMissing."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ws-bench"
    place = cache / f"swe-rex-python{sys.version_info.major}.{sys.version_info.minor}"
    python = place / "bin" / "python"
    complete = place / "complete"
    if complete.exists() and complete.read_text() == repr(REQUIREMENTS):
        return python
    shutil.rmtree(place, ignore_errors=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *REQUIREMENTS]
    try:
        for argv in ([sys.executable, "-m", "venv", str(place)], pip):
            subprocess.run(argv, check=True, capture_output=True, timeout=300)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.decode(errors="replace").strip().splitlines() or ["no reason given"]
        raise SweRexMissing(lines[-1]) from error
    except (subprocess.TimeoutExpired, OSError) as error:
        raise SweRexMissing(str(error)) from error
    complete.write_text(repr(REQUIREMENTS))
    return python


class SweRex:
    """The driver, started; each call is one operation and returns the seconds that the driver measured."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            # -P: beside the driver lie modules of ours that have the names of its own.
            [str(ensure_environment()), "-P", str(DRIVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        words = self._line().split()
        self.version, self.server_pid = words[0], int(words[1])

    def __call__(self, mode: str, operation: str, *arguments: str) -> float:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join((mode, operation, *arguments)) + "\n")
        self._process.stdin.flush()
        return float(self._line())

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SweRexMissing(f"its driver ended with status {self._process.wait()}")
        return line

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(30)
