"""A WS_HOME on one engine, and `ws` run on it as a process, as a person would."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ws.engine.choose import open_engine
from ws.layout import EngineName, Home, open_home
from ws.remote.runtime import ensure_runtime

PARTS = ("workspaces", "names", "run", "pending", "staging")
DEADLINE_S = 60.0


def warm_home(home: Path, session_home: str) -> Path:
    """A new WS_HOME that has its runtime already: gathering one takes a second, and is judged elsewhere."""
    ensure_runtime(Home(session_home))
    open_home(str(home))
    subprocess.run(["cp", "-a", f"{session_home}/runtimes/.", home / "runtimes"], check=True)
    return home


@dataclass(frozen=True)
class Stage:
    """A WS_HOME on one engine, and the command line to use it with."""

    home: Path
    engine: EngineName

    @property
    def env(self) -> dict[str, str]:
        return {**os.environ, "WS_HOME": str(self.home), "WS_ENGINE": self.engine, "COLUMNS": "100"}

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-m", "ws", *words], env=self.env, **options)

    def run(self, *words: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if data is None else {"input": data}
        return subprocess.run(
            [sys.executable, "-m", "ws", *words], env=self.env, capture_output=True, timeout=DEADLINE_S, **given
        )

    def data(self, *words: str) -> Any:
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def names(self) -> list[str]:
        return [info["name"] for info in self.data("ls")]

    def containers(self) -> list[str]:
        engine = open_engine(self.engine, home=str(self.home))
        try:
            engine.check()
            return [state.id for state in engine.list(str(self.home))]
        finally:
            engine.close()

    def left(self) -> list[str]:
        found = [f"{part}/{name}" for part in PARTS for name in os.listdir(self.home / part)]
        return found + self.containers()
