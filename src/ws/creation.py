"""A planned workspace comes into being, or nothing of it is left.

The record says everything before anything is made: a create and a fork differ only in how they come by it.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from ws import containers, durable, filesystem_kinds, layers, pool
from ws.aside import Aside
from ws.containers import EngineFor
from ws.discard import discard, discard_unborn
from ws.errors import Busy, WorkspaceError, WorkspaceExists
from ws.layout import Home, Intent, Options, WorkspaceRecord, read_name
from ws.records import find_workspace, read_record, write_record
from ws.removing import remove_tree
from ws.spec import WorkspaceSpec

STOP_S = 0.8  # that an interrupted create is waited for; what takes longer ends by itself, or is left to recovery


class _Decision:
    """Whether a create may still reach its commit point: the thread that waits for it may be interrupted first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = self._committed = False

    def cancel(self) -> bool:
        """Forbid the commit; whether that was in time."""
        with self._lock:
            self._cancelled = True
            return not self._committed

    def check(self) -> None:
        """Raises Busy when it is cancelled: there is no need to go on."""
        if self._cancelled:
            raise Busy("the create was cancelled")

    @contextlib.contextmanager
    def committing(self) -> Iterator[None]:
        with self._lock:
            self.check()
            yield
            self._committed = True


@durable.state_usable()
def create_workspace(
    home: Home, record: WorkspaceRecord, engine_for: EngineFor, *, pool_size: int | None = None
) -> None:
    """Make what a record describes, in a container of the pool if one waits; then have the pool filled (`refill`).

    The work is done by a thread of its own, because an interrupt (Ctrl-C, an exception that is thrown into the
    caller's thread) may come between any two steps and would leave locks and containers that no variable names. The
    caller's thread only waits. When it is interrupted it forbids the commit; the worker then removes what it made.
    Commit point: the rename of the record; before it there is none. A crash leaves an Intent, and the next ws command
    removes what it names. A power cut may lose the Intent: `ws prune` finds what is without a record.
    Raises WorkspaceExists, and what the engine raises.
    """
    decision = _Decision()
    worker = Aside(lambda: _create(home, record, engine_for, decision))
    try:
        worker.finished()
    except BaseException:
        in_time = decision.cancel()
        worker.finished(STOP_S if in_time else None)
        if not in_time:
            _discard_made(home, engine_for, record)
        raise
    worker.wait()
    pool.refill(home, record, pool_size)


def _discard_made(home: Home, engine_for: EngineFor, record: WorkspaceRecord) -> None:
    """Remove a workspace that is past its commit point, and that its maker was not told of."""
    intent = Intent(record.id, "remove", record.engine)
    with (
        contextlib.suppress(WorkspaceError, OSError),
        durable.intent(home.pending(record.id), intent.to_bytes(), sync=False) as announced,
    ):
        announced.leave()
        discard(home, engine_for, record.id, read_record(home, record.id))
        announced.left = False


def _create(home: Home, record: WorkspaceRecord, engine_for: EngineFor, decision: _Decision) -> None:
    with pool.claim(home, record) as claim:
        intent = Intent(record.id, "create", record.engine, key=claim.key, name=record.name)
        with durable.intent(home.pending(record.id), intent.to_bytes(), sync=False) as announced:
            try:
                _build(home, engine_for, record, claim, decision)
            except BaseException:
                announced.leave()  # until all of it is gone: the engine may not answer
                with contextlib.suppress(WorkspaceError, OSError):
                    durable.unlink(home.record(record.id))
                    claim.undo(home, engine_for, record)
                    discard_unborn(home, record.id, record.name)
                    announced.left = False
                raise


@contextlib.contextmanager
def whole_or_gone(home: Home, workspace_id: str, remove: Callable[[str], object]) -> Iterator[None]:
    """A create that fails or is interrupted inside this block leaves no workspace, also past its commit point.

    The caller puts into the block what makes the workspace and what it still needs to hand it on.
    """
    try:
        yield
    except BaseException:
        if os.path.exists(home.record(workspace_id)):
            with contextlib.suppress(WorkspaceError, OSError):
                remove(workspace_id)
        raise


def _build(home: Home, engine_for: EngineFor, record: WorkspaceRecord, claim: pool.Claim, decision: _Decision) -> None:
    os.mkdir(home.workspace(record.id), 0o700)
    durable.create_lock_file(home.lock(record.id))
    durable.create_lock_file(home.turn(record.id))
    with durable.locked(home.lock(record.id)):
        _claim_name(home, record)
        layers.share_layers(home, record.layers, record.id)  # of a fork; its parent's turn is held
        containers.create_upper(home, record, record.upper)
        decision.check()
        container = claim.start(home, engine_for, record)
        with decision.committing():
            write_record(home, replace(record, container=container))


def _claim_name(home: Home, record: WorkspaceRecord) -> None:
    """The link is durable with the record, whose sync comes after it; where that does not follow, it is synced here."""
    link = home.name(record.name)
    try:
        os.symlink(record.id, link)
    except FileExistsError:
        if _is_taken(home, record.name):
            raise name_taken(record.name) from None
        # The link of a workspace that died between losing its directory and its name, or no link at all.
        remove_tree(link)
        os.symlink(record.id, link)
    if not filesystem_kinds.keeps_order(os.path.dirname(link)):
        durable.sync_directory(os.path.dirname(link))
        durable.sync_directory(os.path.dirname(home.workspace(record.id)))


def _is_taken(home: Home, name: str) -> bool:
    """Whether a workspace has a name; one whose record is damaged has that of the link that leads to it."""
    holder = find_workspace(home, name, removing=True) or read_name(home, name)
    return holder is not None and (os.path.lexists(home.record(holder)) or os.path.lexists(home.pending(holder)))


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
