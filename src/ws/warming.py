"""Filling the pool and emptying it: containers made before they are wanted, and removed when nobody will want them."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ws import containers, durable
from ws.containers import EngineFor
from ws.engine import WORKSPACE
from ws.errors import InvalidRequest
from ws.layout import ContainerRecord, EngineName, Home, Intent, boot_id, new_id, process_start
from ws.pool import (
    FILLING,
    Configuration,
    check_size,
    configuration_keys,
    ensure_pool,
    forget_pool,
    is_filling,
    lock_entry,
    read_configuration,
    read_entry,
    waiting_keys,
)
from ws.remote.runtime import current_key
from ws.removing import remove_tree

if TYPE_CHECKING:
    from ws.engine.base import Engine

FILL_TIMEOUT_S = 600.0
_AT_ONCE = 4  # engines do most of a start one after the other: more at once only wait for each other

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True)
class PoolInfo:
    """The containers of one configuration, for lists."""

    key: str
    engine: EngineName
    image: str  # as it was asked for
    image_id: str
    user: str
    network: str
    memory_bytes: int
    cpus: float
    pids: int
    ready: int
    stale: int  # ended, or with a shim that this ws does not use
    filling: bool


def fill(
    home: Home,
    engine_for: EngineFor,
    configuration: Configuration,
    size: int,
    *,
    image: str,
    progress: Progress | None = None,
) -> int:
    """Bring the pool of a configuration to a size; how many were made. Stale ones are replaced.

    Commit point of each: the rename of its entry. A crash leaves an Intent, and the next ws command removes what was
    begun. Raises InvalidRequest, Busy, and what the engine raises; those made by then stay.
    """
    check_size(size)
    if configuration.engine == "none":
        raise InvalidRequest("engine none has no containers to keep warm", hint="choose podman or docker")
    ensure_pool(home, configuration, image)
    lock = os.path.join(home.pool(configuration.key), FILLING)
    made = 0
    while True:
        with durable.locked(lock, timeout_s=FILL_TIMEOUT_S, what="the pool"):
            sweep(home, engine_for, image=image)
            missing = size - len(waiting_keys(home, configuration.key))
            if missing > 0:
                _make_several(home, engine_for, configuration, missing, progress)
                made += missing
        # One that was taken while we let go, by somebody who saw us at work and left it to us.
        if len(waiting_keys(home, configuration.key)) >= size:
            return made


def _make_several(
    home: Home, engine_for: EngineFor, configuration: Configuration, count: int, progress: Progress | None
) -> None:
    from concurrent.futures import ThreadPoolExecutor, as_completed

    engine = engine_for(configuration.engine, configuration.options.runtime)
    with ThreadPoolExecutor(min(count, _AT_ONCE)) as workers:
        made = [workers.submit(_make, home, engine, configuration) for _ in range(count)]
        try:
            for number, each in enumerate(as_completed(made)):
                each.result()
                if progress:
                    progress("warming", number + 1, count)
        except BaseException:
            workers.shutdown(cancel_futures=True)
            raise


def _make(home: Home, engine: Engine, configuration: Configuration) -> None:
    key = new_id()
    intent = Intent(workspace_id=f"pool-{key}", operation="fill", engine=engine.name, key=key)
    with durable.intent(home.pending(intent.workspace_id), intent.to_bytes(), sync=False):
        state = containers.launch(
            home, engine, key=key, ids=configuration.ids, options=configuration.options, root=WORKSPACE, owner=""
        )
        try:
            started = process_start(state.pid) or 0
            waiting = ContainerRecord(key=key, id=state.id, pid=state.pid, started=started, boot=boot_id())
            entry = os.path.join(home.pool(configuration.key), key)
            durable.write_file(entry, json.dumps(dataclasses.asdict(waiting)).encode(), sync=False)
        except BaseException:
            containers.abandon(home, engine, state.id, key)
            raise


def look(home: Home) -> list[PoolInfo]:
    """The pool as it is, from its files alone: no engine is asked."""
    infos = []
    for name in configuration_keys(home):
        known = read_configuration(home, name)
        if known is None:
            continue
        configuration, image = known
        options = configuration.options
        entries = [read_entry(os.path.join(home.pool(name), key)) for key in waiting_keys(home, name)]
        ready = sum(1 for entry in entries if entry and _is_fresh(configuration, entry))
        infos.append(
            PoolInfo(
                key=name,
                engine=configuration.engine,
                image=image,
                image_id=configuration.image_id,
                user=f"{configuration.ids.uid}:{configuration.ids.gid}",
                network=options.network,
                memory_bytes=options.memory_bytes,
                cpus=options.cpus,
                pids=options.pids,
                ready=ready,
                stale=len(entries) - ready,
                filling=is_filling(home, name),
            )
        )
    return infos


def drain(
    home: Home,
    engine_for: EngineFor,
    *,
    image: str | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
) -> int:
    """Remove the containers that wait, of one image or all; how many. Those that are being taken are left.

    A `dry_run` only counts. Raises what the engine raises; what was not removed by then waits on.
    """
    known = (read_configuration(home, name) for name in configuration_keys(home))
    meant = [each[0] for each in known if each is not None and image in (None, each[1], each[0].image_id)]
    chosen = [(configuration, key) for configuration in meant for key in waiting_keys(home, configuration.key)]
    if dry_run:
        return len(chosen)
    removed = 0
    for number, (configuration, key) in enumerate(chosen):
        if progress:
            progress("draining", number, len(chosen))
        removed += _remove(home, engine_for, configuration, key)
    for configuration in meant:
        forget_pool(home, configuration.key)
    return removed


def sweep(
    home: Home,
    engine_for: EngineFor,
    *,
    image: str | None = None,
    engine: EngineName | None = None,
    dry_run: bool = False,
) -> list[str]:
    """Remove stale containers, of one engine or all: ended, of another ws, or, where `image` is given, of an image it
    no longer names. Their ids. Raises what the engine raises.
    """
    removed = []
    for name in configuration_keys(home):
        known = read_configuration(home, name)
        if known is None or engine not in (None, known[0].engine):
            continue
        configuration, asked_for = known
        replaced = image == asked_for and _image_id(engine_for, configuration, image) != configuration.image_id
        for key in waiting_keys(home, name):
            entry = read_entry(os.path.join(home.pool(name), key))
            stale = entry is None or replaced or not _is_fresh(configuration, entry)
            if stale and (dry_run or _remove(home, engine_for, configuration, key)):
                removed.append(entry.id if entry else key)
        if not dry_run and (replaced or configuration.runtime != current_key()):
            forget_pool(home, name)
    return removed


def _image_id(engine_for: EngineFor, configuration: Configuration, image: str) -> str:
    return engine_for(configuration.engine, configuration.options.runtime).image(image).id


def _is_fresh(configuration: Configuration, entry: ContainerRecord) -> bool:
    return entry.alive() and configuration.runtime == current_key()


def _remove(home: Home, engine_for: EngineFor, configuration: Configuration, key: str) -> bool:
    """Remove a container that waits, unless somebody takes it in this instant. Commit point: the entry's unlink."""
    entry = os.path.join(home.pool(configuration.key), key)
    fd = lock_entry(entry)
    if fd is None:
        return _remove_damaged(entry)
    try:
        container = read_entry(entry)
        if container is not None:
            engine_for(configuration.engine, configuration.options.runtime).remove(container.id)
        remove_tree(home.run(key))
        remove_tree(entry)
    finally:
        os.close(fd)
    return True


def _remove_damaged(entry: str) -> bool:
    """Remove what is no file and lies in the place of an entry: it names no container that could be removed with it.

    Its container is found by its label (`ws prune`).
    """
    if not os.path.lexists(entry) or (os.path.isfile(entry) and not os.path.islink(entry)):
        return False
    remove_tree(entry)
    return True
