"""Pruning: workspaces whose time is up, and what crashes left that no operation will come for.

    expired      workspaces that have outlived their `--ttl`
    leftovers    layers without a user, directories and names without a record
    containers   that carry our label and that nothing names, of every engine that answers; stale ones of the pool;
                 those of a WS_HOME that was deleted

An engine that does not answer keeps what it has until the next time, and is told; the others are asked all the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ws import layers
from ws.containers import EngineFor
from ws.discard import ENGINES
from ws.errors import EngineUnavailable, WorkspaceError, WorkspaceNotFound
from ws.layout import EngineName, Home
from ws.listing import list_workspaces
from ws.recovery import collect_remains, find_lost, find_orphans, find_remains
from ws.removing import remove_tree
from ws.syncing import ensure_synced
from ws.warming import look, sweep


@dataclass(frozen=True, slots=True)
class Pruned:
    """What was removed, or would be, and what could not be."""

    workspaces: tuple[str, ...]
    containers: tuple[str, ...]  # as ENGINE ID
    leftovers: tuple[str, ...]  # paths under WS_HOME
    troubles: tuple[WorkspaceError, ...]
    dry_run: bool


def prune(
    home: Home,
    engine_for: EngineFor,
    remove: Callable[[str], WorkspaceError | None],
    *,
    needed: EngineName | None,
    now: float | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Remove what nobody will ask for again. What one part of it fails with is a trouble, and the rest goes on.

    `needed` is the engine that must answer, beside those that workspaces and the pool have.
    Commit point: none for all of it; each workspace, layer and container goes by itself.
    """
    moment = time.time() if now is None else now
    known = list_workspaces(home)
    wanted = {needed, *(info.engine for info in known), *(info.engine for info in look(home))}
    troubles: list[WorkspaceError] = []
    expired = []
    for info in known:
        if info.expires_at is not None and info.expires_at <= moment:
            try:
                trouble = None if dry_run else remove(info.id)
            except WorkspaceNotFound:
                continue  # somebody else did
            except WorkspaceError as error:
                troubles.append(error)
                continue
            expired.append(info.name)
            troubles += [trouble] if trouble else []
    leftovers = [f"layers/{layer}" for layer in layers.unused_layers(home)] + find_remains(home)
    if not dry_run:
        layers.remove_unused_layers(home)
        collect_remains(home)
        ensure_synced(home)
    containers: list[str] = []
    for name in ENGINES:
        try:
            containers += [f"{name} {each[:12]}" for each in _prune_engine(home, engine_for, name, dry_run=dry_run)]
        except EngineUnavailable as error:
            troubles += [error] if name in wanted else []  # one that is not installed is nobody's loss
        except WorkspaceError as error:
            troubles.append(error)
    return Pruned(tuple(expired), tuple(containers), tuple(leftovers), tuple(troubles), dry_run)


def _prune_engine(home: Home, engine_for: EngineFor, name: EngineName, *, dry_run: bool) -> list[str]:
    """The containers of one engine that nobody needs, by their ids."""
    engine = engine_for(name)
    stale = sweep(home, engine_for, engine=name, dry_run=dry_run)
    orphans, lost = find_orphans(home, engine), find_lost(engine)
    for state in () if dry_run else (*orphans, *lost):
        engine.remove(state.id)
    for state in () if dry_run else orphans:
        remove_tree(home.run(state.key))
    return [*stale, *(state.id for state in (*orphans, *lost))]
