"""The engines' own command line as a peer: containers with the same options as ours, and a command in them."""

from __future__ import annotations

import time

from bench.measure import run
from bench.stage import engine_cli, like_ours
from ws.manager import Manager

TRIES = 10


class EnginePeer:
    """`podman run -d` or `docker run -d`, with what ws asks for; what it made is removed at the end."""

    def __init__(self, manager: Manager) -> None:
        engine = manager.engine()
        self._cli = engine_cli(engine)
        self._remove = ["rm", "-f", *(["-t", "0"] if engine.name == "podman" else [])]
        with manager.create(remove_on_exit=True) as box:
            self._options = like_ours(engine, box.record())
        self._made: list[str] = []

    def __enter__(self) -> EnginePeer:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def run(self) -> str:
        container = run(*self._cli, "run", "-d", *self._options, "sleep", "600").stdout.decode().strip()
        self._made.append(container)
        return container

    def run_and_exec(self) -> None:
        run(*self._cli, "exec", self.run(), "true")

    def remove(self) -> None:
        """Not measured. To podman a mount is busy while other containers come and go; it is asked again then."""
        while self._made:
            for attempt in range(TRIES):
                try:
                    run(*self._cli, *self._remove, self._made[-1])
                    break
                except RuntimeError:
                    if attempt == TRIES - 1:
                        raise
                    time.sleep(0.3)
            self._made.pop()
