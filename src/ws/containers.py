"""A workspace's container: made, given its overlay, found again, ended.

The container holds nothing of value: the files are in the upper and the layers on the host, so it may die at any
time and another takes its place. Order when one starts: run directory → container → shim answers → overlay attached
→ (caller) record. What a crash leaves in between is named by the caller's Intent and removed by recovery.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from ws import durable, id_slots, idmaps, layers, overlay
from ws.engine import RUN, RUNTIME, WORKSPACE
from ws.errors import Busy, ContainerDied, EngineError, WorkspaceError
from ws.layout import (
    ContainerRecord,
    EngineName,
    Home,
    Ids,
    Options,
    WorkspaceRecord,
    boot_id,
    process_start,
)
from ws.removing import remove_tree

if TYPE_CHECKING:
    from ws.engine.base import ContainerState, Engine

START_DEADLINE_S = 30.0
MAX_COVERED = 24  # overlays below the one in sight: each keeps some kilobytes of the kernel's memory
SOCKET = "shim.sock"


class EngineFor(Protocol):
    """How operations come by an engine: only when they need one, and by the name in a record."""

    def __call__(self, name: EngineName | None = None, runtime: str | None = None) -> Engine: ...


def root_of(home: Home, record: WorkspaceRecord) -> str:
    """The workspace's root as its own commands see it: without a container, a plain directory on the host."""
    return os.path.join(home.layer(record.upper), "data") if record.engine == "none" else WORKSPACE


def create_upper(home: Home, record: WorkspaceRecord, layer: str) -> None:
    """A new, empty upper over the workspace's layers; without a container, a copy of the whole base."""
    path = layers.create_layer(home, layer, record.id, like=below_upper(home, record))
    if record.engine == "none":
        from ws.engine.processes import run_to_end

        base = os.path.join(home.base(record.base), "data")
        data = os.path.join(path, "data")
        run_to_end(["cp", "-a", "--reflink=auto", f"{base}/.", data])
        durable.sync_filesystem(data)  # the record is about to name these very files, and nothing can rebuild them


def below_upper(home: Home, record: WorkspaceRecord) -> str:
    """The directory whose root the workspace's root is, as long as the upper says nothing of its own."""
    return os.path.join(home.layer(record.layers[0]) if record.layers else home.base(record.base), "data")


def mount_plan(home: Home, record: WorkspaceRecord, idmap: int | None = None) -> overlay.MountPlan:
    """The overlay of a workspace: its layers from the newest down, then the base, and its upper."""
    sealed = (os.path.join(home.layer(layer), "data") for layer in record.layers)
    return overlay.MountPlan(
        lowers=(*sealed, os.path.join(home.base(record.base), "data")),
        upper=home.layer(record.upper),
        userxattr=overlay.in_user_namespace(),
        idmap=idmap,
        top=home.root,
    )


def build_overlay(home: Home, record: WorkspaceRecord, container: ContainerRecord) -> tuple[int, int]:
    """The workspace's overlay for its container, attached nowhere: its descriptor, which the caller closes, its device.

    Raises ContainerDied, KernelRefused.
    """
    with idmaps.opened(home, container.key, container.pid, record.ids) as idmap:
        mount = mount_plan(home, record, idmap).execute()
    return mount, os.fstat(mount).st_dev


def attach_overlay(home: Home, record: WorkspaceRecord, container: ContainerRecord) -> int:
    """Give a container its workspace, in place of what it may have there; the overlay's device.

    Raises Busy when a process works in what is there.
    """
    if record.engine == "none":
        return 0
    _uncover(record, container.pid)
    mount, device = build_overlay(home, record, container)
    try:
        overlay.attach(mount, container.pid, WORKSPACE)
    finally:
        os.close(mount)
    return device


def _uncover(record: WorkspaceRecord, pid: int) -> None:
    if not overlay.detach(pid, WORKSPACE):
        raise Busy(f"a process holds an earlier state of {record.name}", hint=f"`ws restore {record.name}` ends it")


def start_container(home: Home, engine: Engine, record: WorkspaceRecord, key: str) -> ContainerRecord:
    """Make a container named by `key` and bring the workspace up in it; on failure nothing of it is left.

    Raises what the engine raises, ContainerDied when the shim did not come up, KernelRefused for the overlay.
    """
    state = launch(
        home, engine, key=key, ids=record.ids, options=record.options, root=root_of(home, record), owner=record.id
    )
    try:
        return occupy(home, record, key, state)
    except BaseException:
        abandon(home, engine, state.id, key)
        raise


def launch(
    home: Home, engine: Engine, *, key: str, ids: Ids, options: Options, root: str, owner: str
) -> ContainerState:
    """A container with a shim that answers, and no workspace in it yet; on failure nothing of it is left.

    `owner` is the workspace that it is for, "" in the pool. Raises what the engine raises, ContainerDied.
    """
    from ws.engine.base import ContainerSpec
    from ws.remote.runtime import ensure_runtime, shim_command

    runtime = ensure_runtime(home)
    inner, idmap = (ids, None) if engine.name == "none" else idmaps.own_ids(home, key, ids)
    run_dir = create_run_dir(home, inner, key)
    inside = engine.name != "none"
    command = shim_command(
        RUNTIME if inside else runtime.path,
        socket=os.path.join(RUN if inside else run_dir, SOCKET),
        root=root,
    )
    container_id = ""
    try:
        container_id = engine.create(
            ContainerSpec(
                key=key,
                home=home.root,
                workspace_id=owner,
                ids=inner,
                options=options,
                command=command,
                runtime_dir=runtime.path,
                run_dir=run_dir,
            )
        )
        state = engine.start(container_id)
        wait_ready(home, key, state.pid)
        if idmap is not None:
            id_slots.keep_slot(inner.host_uid - inner.uid, run_dir, state.pid)
            idmaps.keep(home, key, state.pid, idmap)
        return state
    except BaseException:
        abandon(home, engine, container_id, key)
        raise
    finally:
        if idmap is not None:
            os.close(idmap)


def abandon(home: Home, engine: Engine, container_id: str, key: str) -> None:
    """Take away a container that did not come to be used; what an engine keeps is collected by label."""
    with contextlib.suppress(EngineError):
        if container_id:
            engine.remove(container_id)
    remove_tree(home.run(key))


def remove_by_key(home: Home, engine: Engine, key: str) -> None:
    """Remove the container of a key, if there is one, and its run directory. Raises what the engine raises."""
    for state in engine.list(home.root):
        if state.key == key:
            engine.remove(state.id)
    remove_tree(home.run(key))


def create_run_dir(home: Home, ids: Ids, key: str) -> str:
    """A container's run directory, which belongs to its user."""
    run_dir = home.run(key)
    os.mkdir(run_dir, 0o700)
    if os.geteuid() == 0:
        os.chown(run_dir, ids.host_uid, ids.host_gid)
    return run_dir


def wait_ready(home: Home, key: str, pid: int, *, timeout_s: float = START_DEADLINE_S) -> None:
    """Wait for the shim of a container that runs. Raises ContainerDied when it does not answer in time."""
    from ws.remote.channel import Channel

    channel = Channel(home.run(key), peer_pid=pid)
    try:
        channel.wait_ready(time.monotonic() + timeout_s)
    finally:
        channel.close()


def occupy(home: Home, record: WorkspaceRecord, key: str, state: ContainerState) -> ContainerRecord:
    """Give a running container the workspace: what its tools keep, and its overlay.

    Raises Busy when a process works in an overlay that is there.
    """
    device = 0
    with contextlib.ExitStack() as held:
        mounts = []
        idmap = None
        if record.engine != "none":
            idmap = held.enter_context(idmaps.opened(home, key, state.pid, record.ids))
        kept = _give_kept(home, record, key, state.pid, idmap)
        if kept is not None:
            held.callback(os.close, kept)
            mounts.append((kept, f"{RUN}/kept"))
        if record.engine != "none":
            _uncover(record, state.pid)
            mount = mount_plan(home, record, idmap).execute()
            held.callback(os.close, mount)
            device = os.fstat(mount).st_dev
            mounts.append((mount, WORKSPACE))
            overlay.attach_all(mounts, state.pid)
    started = process_start(state.pid)
    if started is None:
        raise ContainerDied("the container ended while it was being set up")
    return ContainerRecord(key=key, id=state.id, pid=state.pid, started=started, boot=boot_id(), device=device)


def _give_kept(home: Home, record: WorkspaceRecord, key: str, pid: int, idmap: int | None) -> int | None:
    """The workspace's backups and trash, to be put beside the shim's socket, where its tools look; None when they are.

    They are the workspace's, not the container's: whichever container it has finds the same, and they go with it.
    """
    kept = home.kept(record.id)
    with contextlib.suppress(FileExistsError):
        os.mkdir(kept, 0o700)  # durable with what is first put into it, or not needed
    if os.geteuid() == 0 and os.stat(kept).st_uid != record.ids.host_uid:
        os.chown(kept, record.ids.host_uid, record.ids.host_gid)
    beside = os.path.join(home.run(key), "kept")
    if record.engine == "none":
        if not os.path.islink(beside):
            os.symlink(kept, beside)
        return None
    # A container cannot take away what is mounted in it; before that, nothing of the workspace runs in it.
    if not os.path.isdir(beside):
        os.mkdir(beside, 0o700)
    try:
        given = os.path.samestat(os.lstat(f"/proc/{pid}/root{RUN}/kept"), os.stat(kept))
    except FileNotFoundError:
        given = False  # its process is gone, which whoever mounts it says
    return None if given else overlay.clone(kept, idmap)


def may_cover(container: ContainerRecord) -> bool:
    """Whether another overlay may be put over what is there; False when a process works in it.

    Those that are covered already are taken off when they have become many. Their number is in the record: to count
    them in the process's mountinfo takes 0.25 ms.
    """
    if container.covered >= MAX_COVERED:
        return overlay.detach(container.pid, WORKSPACE)
    return overlay.is_idle(container.pid, WORKSPACE)


def covering(container: ContainerRecord, device: int) -> ContainerRecord:
    """The container with one overlay more, after `may_cover`."""
    covered = 0 if container.covered >= MAX_COVERED else container.covered + 1
    return replace(container, device=device, covered=covered)


def make_way(home: Home, container: ContainerRecord) -> bool:
    """Whether another overlay may take the place of the one there; open streams are ended, and fail from then on.

    For whoever is about to replace what is there: a snapshot lets streams go on, and does not come here.
    """
    if may_cover(container):
        return True
    from ws.remote.channel import Channel

    channel = Channel(home.run(container.key), peer_pid=container.pid)
    try:
        channel.close_streams()
    except WorkspaceError:
        return False  # a shim that does not answer has not let go
    finally:
        channel.close()
    return may_cover(container)


def resume(home: Home, engine: Engine, record: WorkspaceRecord) -> ContainerRecord | None:
    """The workspace's own container again, stopped or restarted by hand; None when another has to take its place.

    With a writable root it holds what the user put there, and is started again. One without is replaced: podman, in the
    middle of removing a container that is started meanwhile, forgets it and leaves it running, known to nobody.
    Raises Busy for one that is paused, and what the engine raises.
    """
    known = record.container
    if known is None:
        return None
    state = engine.find(known.id)
    if state is not None and state.paused:
        raise paused(record)
    try:
        if state is not None and state.running:
            state = engine.settle(known.id)
        elif state is not None:
            state = _start_again(home, engine, record, state) if record.options.read_write_root else None
    except EngineError:
        if record.options.read_write_root:
            raise
        state = None
    if state is None:
        end_container(home, lambda *_: engine, record)
        return None
    wait_ready(home, known.key, state.pid)
    return replace(occupy(home, record, known.key, state), warm=known.warm)


def _start_again(home: Home, engine: Engine, record: WorkspaceRecord, state: ContainerState) -> ContainerState:
    """Start a container that was stopped, under the host ids that it was made with. Raises Busy."""
    run_dir = home.run(state.key)
    if state.first_id in (0, record.ids.host_uid - record.ids.uid):
        return engine.start(state.id)
    if not id_slots.keep_slot(state.first_id, run_dir, os.getpid()):  # given away after a reboot
        raise Busy(
            f"another container has the host ids of the container of {record.name}",
            hint="stop the other workspaces of this machine, or `ws export` this one and create it anew",
        )
    started = engine.start(state.id)
    id_slots.keep_slot(state.first_id, run_dir, started.pid)
    return started


def paused(record: WorkspaceRecord) -> Busy:
    """Somebody has stopped the workspace's container by hand, and only they know what for."""
    container = record.container.id[:12] if record.container else ""
    return Busy(
        f"the container of {record.name} is paused", hint=f"{record.engine} unpause {container}, then try again"
    )


def ready(record: WorkspaceRecord) -> bool:
    """Whether the container is the recorded one and sees the recorded overlay; no engine is asked."""
    container = record.container
    if container is None or not container.alive():
        return False
    if record.engine == "none":
        return True
    try:
        return overlay.device_at(container.pid, WORKSPACE) == container.device
    except ContainerDied:
        return False


def end_container(home: Home, engine_for: EngineFor, record: WorkspaceRecord) -> WorkspaceError | None:
    """Remove the container whatever it takes; returns the engine's trouble instead of raising it.

    With no engine to ask, the first process is killed, and with it all others: the container cannot outlive its
    workspace. What the engine remembers of it is collected by label when the engine is back.
    """
    if record.container is None:
        return None
    trouble: WorkspaceError | None = None
    try:
        engine_for(record.engine, record.options.runtime).remove(record.container.id)
    except WorkspaceError as error:
        trouble = EngineError(
            f"{record.engine} may still have container {record.container.id[:12]} of {record.name}: {error.message}",
            hint=f"`ws prune` removes it once {record.engine} answers",
        )
    # No engine to ask, or one that has forgotten a container which still runs.
    if record.container.alive():
        with contextlib.suppress(ProcessLookupError):
            os.kill(record.container.pid, signal.SIGKILL)
    remove_tree(home.run(record.container.key))
    return trouble
