"""A planned workspace comes into being, or nothing of it is left.

The record says everything before anything is made: a create and a fork differ only in how they come by it.
"""

from __future__ import annotations

import os
from dataclasses import replace

from ws import containers, durable, layers, pool
from ws.containers import EngineFor
from ws.errors import WorkspaceError, WorkspaceExists
from ws.layout import Home, Intent, Options, WorkspaceRecord
from ws.records import read_record, write_record
from ws.recovery import discard_unborn
from ws.spec import WorkspaceSpec


@durable.state_usable()
def create_workspace(
    home: Home, record: WorkspaceRecord, engine_for: EngineFor, *, pool_size: int | None = None
) -> None:
    """Make what a record describes, in a container of the pool if one waits; then have the pool filled (`refill`).

    Commit point: the rename of the record; before it there is none. A crash leaves an Intent, and the next ws command
    removes what it names. Of a power cut it may not be told: `ws prune` finds what is without a record.
    Raises WorkspaceExists, and what the engine raises.
    """
    with pool.claim(home, record) as claim:
        intent = Intent(record.id, "create", record.engine, key=claim.key, name=record.name)
        with durable.intent(home.pending(record.id), intent.to_bytes(), sync=False) as announced:
            try:
                _build(home, engine_for, record, claim)
            except BaseException:
                try:
                    discard_unborn(home, record.id, record.name)
                except (WorkspaceError, OSError):
                    announced.leave()
                raise
    pool.refill(home, record, pool_size)


def _build(home: Home, engine_for: EngineFor, record: WorkspaceRecord, claim: pool.Claim) -> None:
    os.mkdir(home.workspace(record.id), 0o700)
    durable.create_lock_file(home.lock(record.id))
    durable.create_lock_file(home.turn(record.id))
    with durable.locked(home.lock(record.id)):
        _claim_name(home, record)
        layers.share_layers(home, record.layers, record.id)  # of a fork; its parent's turn is held
        containers.create_upper(home, record, record.upper)
        container = claim.start(home, engine_for, record)
        try:
            write_record(home, replace(record, container=container))
        except BaseException:
            engine = engine_for(record.engine, record.options.runtime)
            containers.abandon(home, engine, container.id, container.key)
            raise


def _claim_name(home: Home, record: WorkspaceRecord) -> None:
    """The link is durable with the record, whose sync comes after it; where that does not follow, it is synced here."""
    link = home.name(record.name)
    try:
        os.symlink(record.id, link)
    except FileExistsError:
        holder = os.readlink(link)
        if read_record(home, holder) or os.path.exists(home.pending(holder)):
            raise name_taken(record.name) from None
        # The link of a workspace that died between losing its directory and its name.
        os.unlink(link)
        os.symlink(record.id, link)
    if not durable.keeps_order(os.path.dirname(link)):
        durable.sync_directory(os.path.dirname(link))
        durable.sync_directory(os.path.dirname(home.workspace(record.id)))


def options_of(spec: WorkspaceSpec, image: str) -> Options:
    """What the container of a workspace may have, as it was asked for."""
    return Options(
        image=image,
        network=spec.network,
        memory_bytes=spec.memory,
        cpus=spec.cpus,
        pids=spec.pids,
        disk_bytes=spec.disk,
        env=dict(spec.env),
        read_write_root=spec.read_write_root,
    )


def name_taken(name: str) -> WorkspaceExists:
    return WorkspaceExists(
        f"a workspace called {name!r} exists already", hint=f"choose another --name, or `ws rm {name}` first"
    )
