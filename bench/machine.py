"""What the figures were taken on."""

from __future__ import annotations

import os
import platform
import subprocess
import time
from pathlib import Path

from bench.stage import Stage


def machine(stage: Stage) -> dict[str, object]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cores": os.cpu_count(),
        "memory_gib": round(memory / 2**30, 1),
        "kernel": platform.release(),
        "system": _system(),
        "filesystem": filesystem_of(stage.place),
        "engines": {manager.engine().name: _version(manager.engine().name) for manager in stage.managers},
        "git": _first_line("git", "--version").removeprefix("git version "),
        "python": platform.python_version(),
        "load_at_start": round(os.getloadavg()[0], 2),
        "quick": stage.quick,
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def filesystem_of(path: Path) -> str:
    """The type of the filesystem that holds `path`: the longest mount point above it."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, point, found, *_ = line.split()
        inside = str(path) == point or str(path).startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, found
    return kind


def _version(engine: str) -> str:
    words = {"podman": "{{.Version}}", "docker": "{{.Server.Version}}"}
    return _first_line(engine, "version", "--format", words[engine])


def _system() -> str:
    try:
        return platform.freedesktop_os_release()["PRETTY_NAME"]
    except (OSError, KeyError):
        return platform.system()


def _first_line(*argv: str) -> str:
    result = subprocess.run(argv, capture_output=True, text=True, check=False)
    return result.stdout.strip().partition("\n")[0] or "unknown"
