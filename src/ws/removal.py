"""Removing a workspace, also from a disk that is full.

A removal writes a little before it frees anything: its Intent, and the record that says `removing`. On a full disk
both are made of reserved files (`reserve`). What still does not fit has the rest of the reserve let go of.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import TypeVar

from ws import durable, reserve
from ws.containers import EngineFor
from ws.discard import discard, remove_damaged
from ws.errors import NotFound, StateError, StateUnusable, WorkspaceError
from ws.layout import Home, Intent
from ws.records import read_record
from ws.recovery import begin, recover_workspace
from ws.sealing import LOCK_TIMEOUT_S

T = TypeVar("T")


def remove_workspace(home: Home, engine_for: EngineFor, workspace_id: str, name: str) -> WorkspaceError | None:
    """Take a workspace away with all its files, in whatever state it is: half removed, damaged, without a record.

    Returns the trouble of the engine, if it still has the container, or of the store, if it still has the snapshots.

    Commit point: the record that says `removing`; a crash after it is finished by the next ws command. Idempotent.
    Raises Busy, StateUnusable for a disk that is broken, or so full that the reserve is used up.
    """
    return freeing(home, lambda: _remove(home, engine_for, workspace_id), f"{name} cannot be removed")


def freeing(home: Home, work: Callable[[], T], complaint: str) -> T:
    """Do work that frees room, with the reserve at its disposal; afterwards the reserve is filled again.

    Raises StateUnusable with the complaint when the disk refuses.
    """
    try:
        with reserve.using(home.reserved):
            try:
                return work()
            except (OSError, StateUnusable) as error:
                # A directory that has to grow cannot be made of a reserved file.
                if not _is_full(error) or not _release(home):
                    raise
            return work()
    except (OSError, StateUnusable) as error:
        raise _unusable(complaint, error) from error
    finally:
        if reserve.is_low(home.reserved):
            reserve.fill(home.reserved)


def _release(home: Home) -> bool:
    old = False
    with contextlib.suppress(OSError):
        os.unlink(home.at("reserve"))  # one file of earlier versions
        old = True
    return reserve.release(home.reserved) or old


def _remove(home: Home, engine_for: EngineFor, workspace_id: str) -> WorkspaceError | None:
    try:
        record = read_record(home, workspace_id)
    except (StateError, OSError):
        return remove_damaged(home, engine_for, workspace_id)
    if record is None:
        lost = os.path.lexists(home.workspace(workspace_id))
        return remove_damaged(home, engine_for, workspace_id) if lost else None
    what = f"workspace {record.name}"
    try:
        with (
            durable.locked(home.turn(workspace_id), timeout_s=LOCK_TIMEOUT_S, what=what),
            durable.locked(home.lock(workspace_id), timeout_s=LOCK_TIMEOUT_S, what=what),
        ):
            return _remove_locked(home, engine_for, workspace_id)
    except NotFound:
        return None  # another process removed it meanwhile


def _remove_locked(home: Home, engine_for: EngineFor, workspace_id: str) -> WorkspaceError | None:
    recover_workspace(home, engine_for, workspace_id)
    record = read_record(home, workspace_id)
    if record is None:
        return None  # an earlier removal was cut short, and has just been finished
    intent = Intent(workspace_id=workspace_id, operation="remove", engine=record.engine, name=record.name)
    with begin(home, engine_for, intent, timeout_s=LOCK_TIMEOUT_S, sync=True) as announced:
        try:
            return discard(home, engine_for, workspace_id, read_record(home, workspace_id))
        except (WorkspaceError, OSError):
            announced.leave()  # a full or broken disk; the next ws command goes on
            raise
        except BaseException:
            if _is_begun(home, workspace_id):
                announced.leave()
            raise


def _is_begun(home: Home, workspace_id: str) -> bool:
    """Whether a removal that was interrupted is past its commit point."""
    try:
        record = read_record(home, workspace_id)
    except (StateError, OSError):
        return True
    return record is None or record.state == "removing"


def _is_full(error: BaseException) -> bool:
    cause = error if isinstance(error, OSError) else error.__cause__
    return isinstance(cause, OSError) and cause.errno in reserve.FULL


def _unusable(complaint: str, error: BaseException) -> BaseException:
    if isinstance(error, WorkspaceError) and not _is_full(error):
        return error
    cause = error if isinstance(error, OSError) else error.__cause__
    why = cause.strerror if isinstance(cause, OSError) else str(error)
    return StateUnusable(f"{complaint}: {why}", hint="free some space, then try again")
