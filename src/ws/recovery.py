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
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ws import durable, reserve
from ws.containers import EngineFor, create_upper, remove_by_key
from ws.discard import discard, discard_unborn, mounted_from
from ws.engine import RUN
from ws.errors import Busy, StateError, StateUnusable, WorkspaceError
from ws.layers import (
    forget_doubtful_stacks,
    is_present,
    is_trusted,
    layers_of,
    note_boot,
    release_layers,
    remove_unused_layers,
)
from ws.layout import Home, Intent, WorkspaceRecord, new_id, process_start, read_name
from ws.rebooted import mend_after_boot
from ws.record_files import MISSING, read_state_file
from ws.records import name_of, read_record, read_records, write_record
from ws.removing import remove_tree
from ws.sealing import is_frozen, put_right, thaw
from ws.stacks import needed_layers
from ws.staged import remove_in_background

if TYPE_CHECKING:
    from ws.engine.base import ContainerState, Engine

_PAUSE_S = 0.01
_REMOVAL_S = 1.0  # that a command waits for the removal of what a dead process was building


@dataclass(frozen=True, slots=True)
class Settled:
    """What became of an operation that a dead process left."""

    line: str
    problem: WorkspaceError | None = None  # why it could not be settled; the intent stays
    removed: tuple[str, ...] = ()  # the id and the name of a workspace whose removal was finished


def recover(home: Home, engine_for: EngineFor) -> list[Settled]:
    """Settle what the dead left behind, and say what was done. Never fails a living operation.

    What needs an engine that does not answer stays for the next time.
    """
    done = [Settled(line) for line in mend_after_boot(home)]
    for name in _entries(home.at("pending")):
        with contextlib.suppress(OSError), reserve.using(home.reserved):
            settled = _settle(home, engine_for, name)
            done += [settled] if settled else []
    for name in _entries(home.at("staging")):
        with contextlib.suppress(OSError):
            pid, _, rest = name.partition(".")
            start = rest.partition(".")[0]
            if not (pid.isascii() and pid.isdigit() and str(process_start(int(pid))) == start):
                remove_in_background(home.at("staging", name), _REMOVAL_S)
                done.append(Settled(f"removed unfinished {name}"))
    return done


def recover_workspace(home: Home, engine_for: EngineFor, workspace_id: str) -> WorkspaceError | None:
    """Settle what a dead operation left of one workspace, before it is used: one `lstat` when there is nothing.

    A handle may outlive the processes beside it by days, and one of them may have died with the workspace frozen.
    Returns what kept it from being settled, if anything did.
    """
    if not os.path.lexists(home.pending(workspace_id)):
        return None
    try:
        settled = _settle(home, engine_for, workspace_id)
    except OSError as error:
        return StateUnusable(f"{home.pending(workspace_id)} cannot be settled: {error.strerror}")
    return settled.problem if settled else None


@contextlib.contextmanager
def begin(
    home: Home, engine_for: EngineFor, intent: Intent, *, timeout_s: float = 0.0, sync: bool = False
) -> Iterator[durable.Announced]:
    """Announce an operation on a workspace that exists: the one gate of all of them.

    What a dead process left is settled first, in whichever operation it died. Waits up to `timeout_s` for one that is
    under way. Raises Busy, also when what a dead process left cannot be settled; the message says why.
    """
    deadline = time.monotonic() + timeout_s
    path = home.pending(intent.workspace_id)
    with contextlib.ExitStack() as held:
        while True:
            problem = recover_workspace(home, engine_for, intent.workspace_id)
            if problem is not None:
                raise Busy(
                    f"an operation on it was cut short, and cannot be settled yet: {problem.message}",
                    hint=problem.hint or "the next command tries again",
                )
            try:
                announced = held.enter_context(durable.intent(path, intent.to_bytes(), sync=sync))
                break
            except Busy:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(_PAUSE_S)
        yield announced


def _entries(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _settle(home: Home, engine_for: EngineFor, name: str) -> Settled | None:
    path = home.at("pending", name)
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.ELOOP, errno.ENXIO):
            raise
        return _settled(home, engine_for, name, None)  # no process has announced that
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None  # a process is at work, or recovers it already
        if not os.path.exists(path) or not os.path.samestat(os.fstat(fd), os.stat(path)):
            return None
        if name.startswith("."):  # died before the intent had its name: nothing was begun
            os.unlink(path)
            return None
        return _settled(home, engine_for, name, _read_intent(path, name))
    finally:
        os.close(fd)


def _read_intent(path: str, name: str) -> Intent | None:
    """An intent, or None when it is damaged or is that of another workspace."""
    try:
        intent = Intent.from_bytes(read_state_file(path))
    except (StateError, *MISSING):
        return None
    return intent if intent.workspace_id == name else None


def _settled(home: Home, engine_for: EngineFor, name: str, intent: Intent | None) -> Settled:
    try:
        if intent is None:
            settled = _settle_unknown(home, engine_for, name)
        else:
            settled = _finish_or_undo(home, engine_for, intent)
        remove_unused_layers(home)
    except WorkspaceError as error:
        return Settled(f"{name}: {error}", problem=error)  # the intent stays
    remove_tree(home.at("pending", name))
    return settled


def _settle_unknown(home: Home, engine_for: EngineFor, workspace_id: str) -> Settled:
    """Settle an operation whose intent is damaged: the record tells what has to hold, whatever it was.

    Most intents are not synced. After a power cut the name of one may be on disk without its bytes: empty, zeros, or
    without a journal the bytes of another intent that was removed before. Without a record the workspace was being
    created, or it is a container for the pool. Such a container is found by its label (`ws prune`).
    """
    record = read_record(home, workspace_id)
    if record is None:
        discard_unborn(home, workspace_id, name_of(home, workspace_id) or "")
    elif record.state == "removing":
        return _finish_removal(home, engine_for, workspace_id, record)
    else:
        _put_right_and_thaw(home, engine_for, record)
    return Settled(f"settled an operation on {workspace_id} whose intent was damaged")


def _finish_removal(
    home: Home, engine_for: EngineFor, workspace_id: str, record: WorkspaceRecord | None, name: str = ""
) -> Settled:
    discard(home, engine_for, workspace_id, record)
    removed = (workspace_id, record.name if record else name or workspace_id)
    return Settled(f"finished the removal of {workspace_id}", removed=removed)


def _finish_or_undo(home: Home, engine_for: EngineFor, intent: Intent) -> Settled:
    record = read_record(home, intent.workspace_id)
    if intent.operation == "create" and record is None:
        _remove_container_by_key(home, engine_for, intent)
        discard_unborn(home, intent.workspace_id, intent.name)
        return Settled(f"removed {intent.workspace_id}, whose creation was cut short")
    if intent.operation == "fill":
        from ws.pool import waiting_containers

        if intent.key not in waiting_containers(home):
            _remove_container_by_key(home, engine_for, intent)
        return Settled("settled the filling of a pool that was cut short")
    if intent.operation == "remove" or (record is not None and record.state == "removing"):
        return _finish_removal(home, engine_for, intent.workspace_id, record, intent.name)
    if intent.operation in ("snapshot", "restore") and record is not None:
        _put_right_and_thaw(home, engine_for, record)
        return Settled(f"settled a {intent.operation} of {record.name} that was cut short")
    if intent.key and not (record and record.container and record.container.key == intent.key):
        _remove_container_by_key(home, engine_for, intent)
        return Settled(f"removed a container begun for {intent.workspace_id}")
    return Settled(f"{intent.workspace_id} is as it should be")


def _put_right_and_thaw(home: Home, engine_for: EngineFor, record: WorkspaceRecord) -> None:
    try:
        put_right(home, record.id)
    finally:
        _thaw_unless_paused(engine_for, record)
    _sweep_store(home)


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


def find_remains(home: Home) -> list[str]:
    """What a power cut left of workspaces without a record, and of which no intent tells: paths under WS_HOME."""
    found = [f"workspaces/{each}" for each in _entries(home.at("workspaces")) if _is_unborn(home, each)]
    for name in _entries(home.at("names")):
        target = read_name(home, name)
        if target is None or _is_unborn(home, target):
            found.append(f"names/{name}")
    return found


def _is_unborn(home: Home, workspace_id: str) -> bool:
    # In this order: a creation has its intent before its directory, and its record before the intent goes.
    return not os.path.lexists(home.pending(workspace_id)) and not os.path.lexists(home.record(workspace_id))


def collect_remains(home: Home) -> None:
    """Take away what `find_remains` finds."""
    for path in find_remains(home):
        part, _, name = path.partition("/")
        if part == "workspaces":
            discard_unborn(home, name, "")
        else:
            remove_tree(home.name(name))


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
            if state is not None and mounted_from(state.pid, RUN).endswith("//deleted"):
                lost.append(state)
    return lost


def _keys_under_way(home: Home) -> set[str]:
    """The containers that operations are about to make, or to take."""
    intents = (_read_intent(home.at("pending", name), name) for name in _entries(home.at("pending")))
    return {intent.key for intent in intents if intent is not None}
