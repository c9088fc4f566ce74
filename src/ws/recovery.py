"""After a crash: finish or undo, and collect what nobody owns.

Recovery is a pure function of what is on disk and what the engine reports, so it may itself be killed and run again.
An operation that died left its Intent in `pending/`, unlocked; a living one holds the lock. Every ws command looks
there first, which costs one `listdir` when there is nothing to do.

    create   there is a record: it happened. Otherwise remove the container, the directory and the name.
    remove   the record says removing: finish.
    fill     the container waits in the pool: it happened. Otherwise remove it.
    start    the workspace is as it was; remove a container that the record does not name.
    snapshot, restore
             the record is the old one or the new; thaw what was frozen, drop layers that no record came to name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ws import durable, reserve
from ws.containers import EngineFor, create_upper, end_container, remove_by_key
from ws.engine import RUN
from ws.errors import NotFound, StateError, WorkspaceError
from ws.layers import (
    forget_doubtful_stacks,
    is_present,
    is_trusted,
    layers_of,
    note_boot,
    release_layers,
    remove_unused_layers,
)
from ws.layout import EngineName, Home, Intent, WorkspaceRecord, new_id, process_start
from ws.rebooted import mend_after_boot
from ws.records import name_of, read_record, read_records, write_record
from ws.removing import remove_tree
from ws.sealing import LOCK_TIMEOUT_S, is_frozen, put_right, thaw
from ws.stacks import needed_layers

if TYPE_CHECKING:
    from ws.engine.base import ContainerState, Engine

ENGINES: tuple[EngineName, ...] = ("podman", "docker", "none")


def recover(home: Home, engine_for: EngineFor) -> list[str]:
    """Settle what the dead left behind; returns a line for each thing done. Never fails a living operation.

    What needs an engine that does not answer stays for the next time.
    """
    done = mend_after_boot(home)
    for name in _entries(home.at("pending")):
        with contextlib.suppress(OSError), reserve.using(home.reserved):
            done += _settle(home, engine_for, name)
    for name in _entries(home.at("staging")):
        with contextlib.suppress(OSError):
            pid, _, rest = name.partition(".")
            start = rest.partition(".")[0]
            if not (pid.isdigit() and str(process_start(int(pid))) == start):
                remove_tree(home.at("staging", name))
                done.append(f"removed unfinished {name}")
    return done


def recover_workspace(home: Home, engine_for: EngineFor, workspace_id: str) -> None:
    """Settle what a dead operation left of one workspace, for whoever is about to use it; one `stat` when nothing.

    A handle may outlive the processes beside it by days, and theirs may have died with the workspace frozen.
    """
    if os.path.exists(home.pending(workspace_id)):
        with contextlib.suppress(OSError):
            _settle(home, engine_for, workspace_id)


def _entries(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _settle(home: Home, engine_for: EngineFor, name: str) -> list[str]:
    path = home.at("pending", name)
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return []  # somebody is at work, or recovers it already
        if not os.path.exists(path) or not os.path.samestat(os.fstat(fd), os.stat(path)):
            return []
        if name.startswith("."):  # died before the intent had its name: nothing was begun
            os.unlink(path)
            return []
        try:
            intent = _read_intent(home, name, os.pread(fd, 65536, 0))
            line = _finish_or_undo(home, engine_for, intent)
            remove_unused_layers(home)
        except WorkspaceError as error:
            return [f"{name}: {error}"]  # the intent stays
        os.unlink(path)
        return [line]
    finally:
        os.close(fd)


def _read_intent(home: Home, name: str, data: bytes) -> Intent:
    """The intent in a file of `pending/`. One that cannot be read is replaced by what its name and the record tell.

    Most intents are not synced. After a power cut the name of one may be on disk without its bytes: empty, zeros, or
    without a journal the bytes of another intent that was removed before. Without a record the workspace was being
    created, or it is a container for the pool; the container died with the machine, and `ws prune` finds by its label
    what the engine still lists. With a record, what the record says holds.
    """
    try:
        intent = Intent.from_bytes(data)
        if intent.workspace_id != name:
            raise StateError("an intent of another workspace")
        return intent
    except StateError:
        record = read_record(home, name)
        if record is None:
            return Intent(name, "create", "none", name=name_of(home, name) or "")
        return Intent(name, "snapshot", record.engine)


def _finish_or_undo(home: Home, engine_for: EngineFor, intent: Intent) -> str:
    record = read_record(home, intent.workspace_id)
    if intent.operation == "create" and record is None:
        _remove_container_by_key(home, engine_for, intent)
        discard_unborn(home, intent.workspace_id, intent.name)
        return f"removed {intent.workspace_id}, whose creation was cut short"
    if intent.operation == "fill":
        from ws.pool import waiting_containers

        if intent.key not in waiting_containers(home):
            _remove_container_by_key(home, engine_for, intent)
        return "settled the filling of a pool that was cut short"
    if intent.operation == "remove" or (record is not None and record.state == "removing"):
        discard(home, engine_for, intent.workspace_id, record)
        return f"finished the removal of {intent.workspace_id}"
    if intent.operation in ("snapshot", "restore") and record is not None:
        try:
            put_right(home, record.id)
        finally:
            _thaw_unless_paused(engine_for, record)
        _sweep_store(home)
        return f"settled a {intent.operation} of {record.name} that was cut short"
    if intent.key and not (record and record.container and record.container.key == intent.key):
        _remove_container_by_key(home, engine_for, intent)
        return f"removed a container begun for {intent.workspace_id}"
    return f"{intent.workspace_id} is as it should be"


def _thaw_unless_paused(engine_for: EngineFor, record: WorkspaceRecord) -> None:
    """Thaw what the dead operation froze; a container that its engine calls paused was paused by hand, and stays so.

    The engines record their own pause and do not see a freeze of ours. One that does not answer is not waited for: a
    workspace that stays frozen is worse than one that runs although it was paused.
    """
    if record.container is None or not is_frozen(record):
        return
    with contextlib.suppress(WorkspaceError):
        state = engine_for(record.engine, record.options.runtime).find(record.container.id)
        if state is not None and state.paused:
            return
    thaw(record, only_ours=False)


def _sweep_store(home: Home) -> None:
    from ws.store.repository import Store
    from ws.store.sweeping import sweep

    with Store(home.store) as store:
        sweep(store)


def _remove_container_by_key(home: Home, engine_for: EngineFor, intent: Intent) -> None:
    if intent.key:
        remove_by_key(home, engine_for(intent.engine), intent.key)


def discard(
    home: Home, engine_for: EngineFor, workspace_id: str, record: WorkspaceRecord | None
) -> WorkspaceError | None:
    """Take a workspace away: container, name, files. Idempotent; returns the engine's trouble, if it had any.

    Commit point: the record that says `removing`. From there on it is gone for everybody but recovery.
    """
    trouble: WorkspaceError | None = None
    if record is not None:
        if record.state != "removing":
            write_record(home, replace(record, state="removing"))
        trouble = end_container(home, engine_for, record)
        _sync_base(home, record.base)
        if record.history.count:
            _drop_refs(home, workspace_id)
    discard_unborn(home, workspace_id, record.name if record else "")
    return trouble


def _sync_base(home: Home, key: str) -> None:
    """The base stays for the workspaces to come, also after a reboot. It is synced once: the first removal waits."""
    from ws.syncing import ensure_synced

    ensure_synced(home, only_base=key)


def remove_damaged(home: Home, engine_for: EngineFor, workspace_id: str) -> WorkspaceError | None:
    """Take a workspace away whose record cannot be read: the containers that have it are found by label and by mount.

    Idempotent; returns the trouble of an engine that may have one. Raises Busy.
    Commit point: the rename of its directory; before it, another `ws rm` begins again.
    """
    name = name_of(home, workspace_id) or ""
    with contextlib.ExitStack() as held:
        for lock in (home.turn(workspace_id), home.lock(workspace_id)):
            with contextlib.suppress(NotFound):  # more is damaged than the record
                held.enter_context(durable.locked(lock, timeout_s=LOCK_TIMEOUT_S, what=f"workspace {workspace_id}"))
        trouble = _end_containers_of(home, engine_for, workspace_id)
        _drop_refs(home, workspace_id)
        discard_unborn(home, workspace_id, name)
        durable.unlink(home.pending(workspace_id))  # of an operation that died, and that nobody can finish
    return trouble


def _end_containers_of(home: Home, engine_for: EngineFor, workspace_id: str) -> WorkspaceError | None:
    ended = 0
    trouble: WorkspaceError | None = None
    for engine_name in ENGINES:
        try:
            engine = engine_for(engine_name)
            for listed in engine.list(home.root):
                if _has_workspace(engine, listed, workspace_id):
                    engine.remove(listed.id)
                    remove_tree(home.run(listed.key))
                    ended += 1
        except WorkspaceError as error:
            trouble = error
    return None if ended else trouble


def _has_workspace(engine: Engine, listed: ContainerState, workspace_id: str) -> bool:
    """Whether a container is a workspace's; one that came from the pool says so only by what is mounted in it."""
    if listed.workspace_id:
        return listed.workspace_id == workspace_id
    state = engine.find(listed.id)
    return state is not None and _mounted_from(state.pid, f"{RUN}/kept").endswith(f"/workspaces/{workspace_id}/kept")


def _drop_refs(home: Home, workspace_id: str) -> None:
    from ws.store.references import drop_refs
    from ws.store.repository import Store

    with Store(home.store) as store:
        drop_refs(store, workspace_id)


def discard_unborn(home: Home, workspace_id: str, name: str) -> None:
    """Take away what is on disk of a workspace besides its container, whether a record names it or not."""
    if name:
        with contextlib.suppress(OSError):
            if os.readlink(home.name(name)) == workspace_id:
                durable.unlink(home.name(name))
    # Also those that an operation cut short had not come to name: users are the truth, records follow.
    release_layers(home, layers_of(home, workspace_id), workspace_id)
    directory = home.workspace(workspace_id)
    if os.path.exists(directory):
        staged = home.staging()
        durable.rename(directory, staged)
        remove_tree(staged)


def find_remains(home: Home) -> list[str]:
    """What a power cut left of workspaces without a record, and of which no intent tells: paths under WS_HOME."""
    found = [f"workspaces/{each}" for each in _entries(home.at("workspaces")) if _is_unborn(home, each)]
    for name in _entries(home.at("names")):
        with contextlib.suppress(OSError):
            if _is_unborn(home, os.readlink(home.name(name))):
                found.append(f"names/{name}")
    return found


def _is_unborn(home: Home, workspace_id: str) -> bool:
    # In this order: a creation has its intent before its directory, and its record before the intent goes.
    return not os.path.exists(home.pending(workspace_id)) and not os.path.exists(home.record(workspace_id))


def collect_remains(home: Home) -> None:
    """Take away what `find_remains` finds."""
    for path in find_remains(home):
        part, _, name = path.partition("/")
        if part == "workspaces":
            discard_unborn(home, name, "")
        else:
            durable.unlink(home.name(name))


def ensure_whole(home: Home, record: WorkspaceRecord) -> WorkspaceRecord:
    """The record over directories that are there: after a power cut what was not synced is rebuilt from git.

    Only what no snapshot has is taken as the disk has it: the upper, and layers that were sealed and not yet hashed; a
    lost one begins anew. For a workspace whose container does not run; the caller has announced its intent.
    Commit point: the record that names what was rebuilt. Raises StoreDamaged when git cannot give it back.
    """
    from ws.bases import base_key, ensure_base, find_base

    unhashed = record.history.unhashed
    doubtful = [layer for layer in record.layers[unhashed:] if not is_trusted(home, layer)]
    whole = record
    if doubtful or find_base(home, record.base) is None:
        base = ensure_base(home, base_key(record.tree, record.ids), ids=record.ids, announced=True)
        whole = replace(record, base=base.key, layers=record.layers[:unhashed])
    lost = [layer for layer in (record.upper, *record.layers[:unhashed]) if not is_present(home, layer)]
    if lost:
        kept = tuple(layer for layer in whole.layers if layer not in lost)
        history = replace(record.history, unhashed=len(set(record.layers[:unhashed]) - set(lost)))
        upper = new_id() if record.upper in lost else record.upper
        whole = replace(whole, layers=kept, upper=upper, history=history)
        if upper != record.upper:
            create_upper(home, whole, upper)
    for layer in (whole.upper, *whole.layers[: whole.history.unhashed]):
        note_boot(home.layer(layer))
    if whole == record:
        return record
    write_record(home, whole)
    forget_doubtful_stacks(home, record.id)
    release_layers(home, layers_of(home, record.id) - needed_layers(home, whole), record.id)
    return whole


def find_orphans(home: Home, engine: Engine) -> list[ContainerState]:
    """Containers that carry our label and that no workspace, no pool and no living operation names.

    Those that may be of a workspace whose record is damaged are none.
    """
    from ws.pool import waiting_containers  # 10 ms that `ws exec`, which comes through this module, does not have

    present = engine.list(home.root)
    # A container goes from an operation to the pool, to another operation, to a record, and is always named by one of
    # them. Whoever looks at each once may miss it on its way; looking twice where it comes from, one cannot.
    named = _keys_under_way(home)
    named.update(waiting_containers(home))
    named |= _keys_under_way(home)
    records, damaged = read_records(home)
    named.update(record.container.key for record in records if record.container is not None)
    claimed = {each.id for each in damaged} | ({""} if damaged else set())  # one from the pool is labelled with none
    return [state for state in present if state.key not in named and state.workspace_id not in claimed]


def find_lost(engine: Engine) -> list[ContainerState]:
    """Containers whose WS_HOME was deleted: nobody will ever come for them.

    That a path is not there says little: another container may talk to the same engine from another root. That the
    kernel calls the container's own run directory deleted says it all.
    """
    lost = []
    for listed in engine.list(None):
        if listed.home and not os.path.exists(listed.home):
            state = engine.find(listed.id)
            if state is not None and _mounted_from(state.pid, RUN).endswith("//deleted"):
                lost.append(state)
    return lost


def _mounted_from(pid: int, mounted_at: str) -> str:
    """The directory of its filesystem that a process has mounted somewhere; "" when none, or the process is gone."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            fields = line.split(" ")
            if fields[4] == mounted_at:
                return fields[3]
    return ""


def _keys_under_way(home: Home) -> set[str]:
    """The containers that operations are about to make, or to take."""
    keys = set()
    for name in _entries(home.at("pending")):
        with contextlib.suppress(OSError, StateError), open(home.at("pending", name), "rb") as file:
            keys.add(Intent.from_bytes(file.read()).key)
    return keys
