"""Sealing: what changed since the last snapshot becomes a layer, and a new empty upper goes on top.

Whoever holds the workspace's turn may seal. When nobody works in the workspace, a new overlay with one more layer is
built, the record is switched to it (the commit point), and it is put over the old one. The old one stays below,
unseen: the end of an overlay syncs the filesystem of its upper, which takes a second after an `npm install` and longer
when others write. A snapshot need not wait for that, git has its own sync. Now and then the covered ones are taken off.

Other processes are frozen meanwhile: one that began to work in the workspace in between would go on writing into what
has just been sealed. When one works in it already, nothing is sealed, and the caller reads the upper while all are
frozen.

A crash between the record and the new overlay leaves the old one in sight; every use compares the overlay's device
with the record first (`containers.ready`). Frozen processes are thawed by recovery, after the overlay is right.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import replace

from ws import containers, durable, layers, overlay
from ws.engine import WORKSPACE
from ws.errors import ContainerDied, WorkspaceError, WorkspaceNotFound
from ws.freezer import Freezer, FrozenAlready, freezer_of
from ws.layout import Home, WorkspaceRecord, new_id
from ws.records import read_record, write_record
from ws.removing import remove_any
from ws.stacks import needed_layers

LOCK_TIMEOUT_S = 30.0


def untouched(home: Home, record: WorkspaceRecord) -> bool:
    """Whether nothing at all was written since the last seal: an empty upper whose root was not touched either."""
    data = os.path.join(home.layer(record.upper), "data")
    with os.scandir(data) as entries:
        if next(entries, None) is not None:
            return False
    below = containers.below_upper(home, record)
    ours, theirs = os.stat(data), os.stat(below)
    return (
        (ours.st_mode, ours.st_uid, ours.st_gid, ours.st_mtime_ns)
        == (theirs.st_mode, theirs.st_uid, theirs.st_gid, theirs.st_mtime_ns)
        and overlay.shown_xattrs(data) == overlay.shown_xattrs(below)
    )  # fmt: skip


@contextlib.contextmanager
def stilled(record: WorkspaceRecord) -> Iterator[Freezer | None]:
    """Nothing of the workspace runs inside this block, nor begins to.

    The shim is told by our lock, but whoever comes by `podman exec` is not: he would find the old overlay just before
    it is covered, and write into what is sealed. In a frozen cgroup he waits.
    """
    container = record.container
    if record.engine == "none" or container is None or not container.alive():
        yield None
        return
    frozen = contextlib.ExitStack()
    try:
        freezer = freezer_of(container.pid)
        frozen.enter_context(freezer.stopped())
    except ContainerDied:
        yield None
        return
    except FrozenAlready:
        raise containers.paused(record) from None
    with frozen:
        yield freezer


def check_not_paused(record: WorkspaceRecord) -> None:
    """Raises Busy when the container was paused by hand: what a crash of ws left was thawed with its intent."""
    if is_frozen(record):
        raise containers.paused(record)


def looks_idle(record: WorkspaceRecord) -> bool:
    """Whether nobody works in the workspace just now; of one that is not stilled, somebody may begin to."""
    container = record.container
    try:
        return container is None or not container.alive() or overlay.is_idle(container.pid, WORKSPACE)
    except ContainerDied:
        return True


def seal(home: Home, record: WorkspaceRecord, below: WorkspaceRecord) -> WorkspaceRecord | None:
    """Turn the upper into a layer; the new record, or None when a process works in the workspace.

    `below` is the record itself, or has a base and layers that are fewer and show the same. The caller holds the
    workspace's lock exclusively and has stilled it. Commit point: the record that names the new upper.
    """
    container = record.container if record.container and record.container.alive() else None
    if container and not containers.may_cover(container):
        return None
    upper = new_id()
    sealed = replace(
        record,
        base=below.base,
        layers=(record.upper, *below.layers),
        upper=upper,
        history=replace(record.history, unhashed=below.history.unhashed + 1),
    )
    mount = -1
    try:
        containers.create_upper(home, sealed, upper)
        if container:
            mount, device = containers.build_overlay(home, sealed, container)
            sealed = replace(sealed, container=containers.covering(container, device))
        write_record(home, sealed)
        if container:
            overlay.attach(mount, container.pid, WORKSPACE)
    except BaseException:
        with contextlib.suppress(WorkspaceError, OSError):
            put_right(home, record.id)
        raise
    finally:
        if mount >= 0:
            os.close(mount)
    return sealed


@contextlib.contextmanager
def exclusive(home: Home, known: WorkspaceRecord, *, timeout_s: float = LOCK_TIMEOUT_S) -> Iterator[WorkspaceRecord]:
    """The workspace's lock, exclusively, and the record as it is under it. Raises Busy, NotFound."""
    with durable.locked(home.lock(known.id), timeout_s=timeout_s, what=f"workspace {known.name}"):
        record = read_record(home, known.id)
        if record is None:
            raise WorkspaceNotFound(f"workspace {known.name} is gone")
        yield record


def put_right(home: Home, workspace_id: str) -> None:
    """Put right what an operation left that failed or died: what the record on disk says holds, and nothing else.

    The overlay of the record goes on if it is off, processes that this process froze run again, layers that neither
    the record nor a stack names are released, temporary files go. The caller has the workspace's intent. Idempotent.
    A container that was paused by hand stays paused.
    """
    record = read_record(home, workspace_id)
    if record is None or record.state != "ready":
        return
    try:
        _attach_again(home, record)
    finally:
        thaw(record, only_ours=True)
    layers.release_layers(home, layers.layers_of(home, record.id) - needed_layers(home, record), record.id)
    layers.remove_unused_layers(home)  # of which the name of the last user is gone already
    forget_old_scans(home, record)
    for directory in (home.workspace(record.id), os.path.dirname(home.stack(record.id, 0))):
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(directory):
                if name.endswith(".tmp"):
                    remove_any(os.path.join(directory, name))


def _attach_again(home: Home, record: WorkspaceRecord) -> None:
    container = record.container
    if container is not None and container.alive() and not containers.ready(record):
        with contextlib.suppress(ContainerDied):
            device = containers.attach_overlay(home, record, container)
            write_record(home, replace(record, container=replace(container, device=device, covered=0)))


def forget_old_scans(home: Home, record: WorkspaceRecord) -> None:
    """Remove the stat caches of uppers that the workspace has no more."""
    for name in os.listdir(home.workspace(record.id)):
        if name.startswith("scan-") and name != f"scan-{record.upper}":
            remove_any(os.path.join(home.workspace(record.id), name))


def is_frozen(record: WorkspaceRecord) -> bool:
    """Whether the processes of a workspace are frozen, or being frozen, by ws or by an engine's pause."""
    freezer = _freezer(record)
    try:
        return freezer is not None and freezer.freezing()
    except ContainerDied:
        return False


def thaw(record: WorkspaceRecord, *, only_ours: bool) -> None:
    """Thaw the processes of a workspace; with `only_ours`, only when this process froze them and did not thaw them.

    Otherwise the caller knows that a process of ws froze them, and not the user by an engine's pause.
    """
    freezer = _freezer(record)
    if freezer is not None and (freezer.stopped_here() or not only_ours):
        freezer.thaw()


def _freezer(record: WorkspaceRecord) -> Freezer | None:
    container = record.container
    if record.engine == "none" or container is None or not container.alive():
        return None
    try:
        return freezer_of(container.pid)
    except ContainerDied:
        return None
