"""Which engine: the one that was asked for, else WS_ENGINE, else the first that works, podman before docker.

`none` isolates nothing and is never chosen silently. SDKs are imported only here and only for the engine that
is tried: they cost some 300 ms, and `ws exec` needs none of them.
"""

from __future__ import annotations

import os

from ws.engine.base import Engine
from ws.errors import EngineUnavailable, InvalidRequest

_NAMES = ("podman", "docker", "none")
_TRIED = ("podman", "docker")


def choose_engine(name: str | None = None, *, home: str, runtime: str | None = None) -> Engine:
    """An engine that answered.

    Raises InvalidRequest for an unknown name, EngineUnavailable saying what was tried and why each failed.
    """
    asked = name or os.environ.get("WS_ENGINE") or None
    if asked is not None:
        engine = open_engine(asked, home=home, runtime=runtime)
        engine.check()
        return engine
    failures: list[str] = []
    hint = None
    for each in _TRIED:
        engine = open_engine(each, home=home, runtime=runtime)
        try:
            engine.check()
            return engine
        except EngineUnavailable as error:
            engine.close()
            failures.append(f"{each}: {error}")
            hint = hint or error.hint
    raise EngineUnavailable(
        "no container engine works here; " + "; ".join(failures),
        hint=f"{hint}; or accept no isolation with --engine none",
    )


def open_engine(name: str, *, home: str, runtime: str | None = None) -> Engine:
    """The adapter of an engine, which need not answer: nothing is asked of it yet."""
    match name:
        case "podman":
            from ws.engine.podman import PodmanEngine

            return PodmanEngine(home, runtime=runtime)
        case "docker":
            from ws.engine.docker import DockerEngine

            return DockerEngine(runtime=runtime)
        case "none":
            from ws.engine.none import NoEngine

            return NoEngine(home)
    raise InvalidRequest(f"{name!r} is not an engine", hint=f"choose one of {', '.join(_NAMES)}")
