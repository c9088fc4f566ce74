"""Host ids for one container: 65,536 of the range that ws reserves, which no other container of this machine has.

    /run/ws/ids/lock     flock: held while a slot is chosen
    /run/ws/ids/FIRST    who has the slot whose first host id is FIRST: boot, process, run directory

A slot is taken while the process that is named in it lives, or the container's run directory is there: the run
directory is made before the container and removed after it. So nothing has to be released, and what a killed process
leaves is free again. The directory is one for all WS_HOMEs of the machine, and is empty after a reboot.
"""

from __future__ import annotations

import json
import os

from ws import durable
from ws.errors import LimitExceeded, StateUnusable
from ws.layout import boot_id, process_start
from ws.record_files import read_cached_json
from ws.subordinate_ids import SLOT_IDS, IdSpan, reserve_span

DIRECTORY = "/run/ws/ids"
_LOCK = "lock"


def take_slot(run_dir: str, *, avoid: tuple[int, ...] = (), directory: str = DIRECTORY, etc: str = "/etc") -> int:
    """The first host id of a slot for the container of a run directory that the caller is about to make.

    `avoid` are first ids of ranges that files on disk have: no container may have those as its own. Commit point: the
    slot's file. Raises LimitExceeded when all are taken, StateUnusable when the directory cannot be used.
    """
    span, _ = reserve_span(etc)
    lock = _open_directory(directory)
    with durable.locked(lock, what="the host ids of containers"):
        for first in _candidates(span, run_dir):
            clear = all(first + SLOT_IDS <= other or other + SLOT_IDS <= first for other in avoid)
            if clear and not _taken(os.path.join(directory, str(first))):
                _write(directory, first, run_dir, os.getpid())
                return first
    raise LimitExceeded(
        f"all {span.slots} ranges of host ids are in use", hint="remove workspaces: `ws rm`, `ws pool drain`"
    )


def keep_slot(first: int, run_dir: str, pid: int, *, directory: str = DIRECTORY) -> bool:
    """Name the first process of the container that has the slot; False when another container has it by now.

    For a container that was started: from then on the slot is taken as long as the process lives, whatever becomes of
    the run directory, and after a reboot the slot of one that was stopped is claimed again.
    """
    with durable.locked(_open_directory(directory), what="the host ids of containers"):
        path = os.path.join(directory, str(first))
        if _taken(path) and _read(path).get("run") != run_dir:
            return False
        _write(directory, first, run_dir, pid)
        return True


def _open_directory(directory: str) -> str:
    """The path of the lock, in a directory that only root may enter."""
    lock = os.path.join(directory, _LOCK)
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        if os.stat(directory).st_uid != os.geteuid():
            raise StateUnusable(f"{directory} belongs to another user", hint="remove it")
        if not os.path.exists(lock):
            durable.create_lock_file(lock)
    except OSError as error:
        raise StateUnusable(f"{directory} cannot be used: {error.strerror}") from error
    return lock


def _candidates(span: IdSpan, run_dir: str) -> list[int]:
    """All slots, from one that depends on the run directory: a slot is seldom used again soon."""
    begin = hash(run_dir) % span.slots
    order = (*range(begin, span.slots), *range(begin))
    return [span.first + number * SLOT_IDS for number in order]


def _taken(path: str) -> bool:
    if not os.path.exists(path):
        return False
    known = _read(path)
    if known.get("boot") != boot_id():
        return False
    pid, started = known.get("pid"), known.get("started")
    if isinstance(pid, int) and started is not None and process_start(pid) == started:
        return True
    return os.path.exists(str(known.get("run")))


def _read(path: str) -> dict[str, object]:
    """What a slot's file says; nothing when it cannot be read, as after a crash of the machine."""
    return read_cached_json(path) or {}


def _write(directory: str, first: int, run_dir: str, pid: int) -> None:
    known = {"boot": boot_id(), "pid": pid, "started": process_start(pid), "run": run_dir}
    durable.write_file(os.path.join(directory, str(first)), json.dumps(known).encode(), sync=False)
