"""What verbs work on: the state directory, the engines, the workspace of a name.

Light to import: `ws exec` comes through here, so engines and the manager are loaded by what needs them.

Mounting an overlay needs root, at least in a user namespace. An ordinary user has one with podman: `enter_userns`
enters it.
"""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

from ws.cli.text import closest
from ws.errors import WorkspaceNotFound
from ws.layout import Home, open_home

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ws.containers import EngineFor
    from ws.engine.base import Engine
    from ws.layout import EngineName
    from ws.manager import Manager
    from ws.workspace import Workspace


def engine_for(home: Home) -> EngineFor:
    """Engines by name and runtime, made when they are first asked for."""
    made: dict[tuple[str | None, str | None], Engine] = {}

    def find(name: EngineName | None = None, runtime: str | None = None) -> Engine:
        if (name, runtime) not in made:
            from ws.engine.choose import choose_engine

            made[name, runtime] = choose_engine(name, home=home.root, runtime=runtime)
        return made[name, runtime]

    return find


def open_named(name: str) -> Workspace:
    """The workspace of that name, without a manager, after settling what a crash left. Raises WorkspaceNotFound."""
    from ws.workspace import open_workspace

    home, engines = settled_home()
    with named(home, name):
        return open_workspace(home, name, engines)


def settled_home() -> tuple[Home, EngineFor]:
    """The state directory, after settling what a crash left, for verbs that have no 200 ms for a manager."""
    home = open_home()
    engines = engine_for(home)
    if os.listdir(home.at("pending")) or os.listdir(home.at("staging")):
        from ws.recovery import recover

        recover(home, engines)
    return home, engines


@contextmanager
def named(home: Home, name: str) -> Iterator[None]:
    """When there is no workspace of that name, say which one was meant."""
    try:
        yield
    except WorkspaceNotFound:
        raise_not_found(home, name)


def raise_not_found(home: Home, name: str) -> NoReturn:
    near = closest(name, names(home))
    hint = (
        f"did you mean {near!r}? `ws ls` shows them all" if near not in (None, name) else "`ws ls` shows what there is"
    )
    raise WorkspaceNotFound(f"no workspace is called {name!r}", hint=hint) from None


def names(home: Home) -> list[str]:
    """The names of all workspaces, sorted."""
    try:
        return sorted(os.listdir(home.at("names")))
    except FileNotFoundError:
        return []


@contextmanager
def manager(engine: EngineName | None = None) -> Iterator[Manager]:
    """A manager for the length of a verb."""
    from ws.manager import Manager

    opened = Manager(engine=engine)
    try:
        yield opened
    finally:
        opened.close()


def enter_userns(engine: str | None = None) -> None:
    """Make an ordinary user whose engine is podman root in podman's user namespace; this process goes on there.

    Returns when that is not needed, or podman is not installed: then what needs it says so itself. Raises
    EngineUnavailable when it is needed and fails.
    """
    chosen = engine or os.environ.get("WS_ENGINE") or "podman"
    if os.geteuid() == 0 or chosen != "podman":
        return
    from shutil import which

    podman = which("podman")
    if podman is not None:
        from ws.engine import podman_userns

        podman_userns.enter(podman)
