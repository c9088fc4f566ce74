"""The records of workspaces, read and written. One that cannot be read is reported by its name, and hides no other.

What a damaged record needs is not known, so all that it may need stays until the workspace is removed.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from typing import NamedTuple

from ws import durable
from ws.errors import LimitExceeded, StateError
from ws.layout import Home, WorkspaceRecord, read_name
from ws.record_fields import is_component
from ws.record_files import MAX_RECORD_BYTES, MISSING, read_with_status


def read_record(home: Home, workspace_id: str) -> WorkspaceRecord | None:
    """The record, or None when there is no such workspace (any more).

    A record is replaced whole, by a rename: the same inode with the same times has the same bytes, and they are taken
    apart once, or never when they were written by this process. Every tool call comes here twice.
    Raises StateError when it is damaged, or is the record of another workspace.
    """
    path = home.record(workspace_id)
    try:
        known = _records.get(path)
        if known is not None and known.identity == _identity(os.stat(path, follow_symlinks=False)):
            return known.record
        data, opened = read_with_status(path)
        record = known.record if known is not None and known.data == data else WorkspaceRecord.from_bytes(data)
        if record.id != workspace_id:
            raise StateError(f"it is the record of {record.id}")
    except MISSING:
        _records.pop(path, None)
        return None
    except StateError as error:
        hint = f"`ws rm {workspace_id}` removes it, whatever it holds"
        raise StateError(f"workspace {workspace_id} is damaged: {error.message}", hint=hint) from error
    _remember(path, _Known(_identity(opened), data, record))
    return record


class _Known(NamedTuple):
    """A record as it was read or written last, by the bytes and by the file that held them."""

    identity: tuple[int, ...]
    data: bytes
    record: WorkspaceRecord


_records: dict[str, _Known] = {}
_MAX_RECORDS = 256


def _identity(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _remember(path: str, known: _Known) -> None:
    if len(_records) >= _MAX_RECORDS:
        _records.clear()
    _records[path] = known


def write_record(home: Home, record: WorkspaceRecord, *, sync: bool = True) -> None:
    """Replace the record. Commit point: the rename inside `durable.write_file`."""
    path, data = home.record(record.id), record.to_bytes()
    if len(data) > MAX_RECORD_BYTES:  # it could not be read again
        raise LimitExceeded(f"the record of {record.name} is larger than {MAX_RECORD_BYTES} bytes")
    durable.write_file(path, data, sync=sync)
    _remember(path, _Known((), data, record))


@dataclass(frozen=True, slots=True)
class Damaged:
    """A workspace whose record cannot be read."""

    id: str
    name: str  # of the link that leads to it, else its id
    problem: str


def read_records(home: Home) -> tuple[list[WorkspaceRecord], list[Damaged]]:
    """The records of all workspaces, in whatever state, and those that cannot be read."""
    found: list[WorkspaceRecord] = []
    damaged: list[Damaged] = []
    for workspace_id in os.listdir(home.at("workspaces")):
        try:
            record = read_record(home, workspace_id)
        except (StateError, OSError) as error:
            damaged.append(Damaged(workspace_id, name_of(home, workspace_id) or workspace_id, str(error)))
            continue
        if record is not None:
            found.append(record)
    return found, damaged


def name_of(home: Home, workspace_id: str) -> str | None:
    """The name that leads to a workspace, where its record does not say. Looks at all names there are."""
    names = os.listdir(home.at("names"))
    return next((name for name in names if read_name(home, name) == workspace_id), None)


def find_workspace(home: Home, name: str, *, removing: bool = False) -> str | None:
    """The id of the workspace of that name or id, also where the link of the name is damaged; None when there is none.

    A link counts when the workspace it leads to has that name, or has a record that cannot be read. Otherwise every
    record is looked at, and a link that was missing or wrong is written again. With `removing`, also a workspace that
    is half removed, or has lost its record.
    """
    if not is_component(name):
        return None
    target = read_name(home, name)
    if target is not None and _may_be_called(home, target, name):
        return target
    if os.path.lexists(home.record(name)):
        return name
    wanted = ("ready", "removing") if removing else ("ready",)
    found = next((each for each in read_records(home)[0] if each.name == name and each.state in wanted), None)
    if found is None:
        lost = target if target is not None else name
        return lost if removing and _is_lost(home, lost) else None
    if found.state == "ready":
        with contextlib.suppress(OSError):
            _link_name(home, name, found.id)
    return found.id


def _may_be_called(home: Home, workspace_id: str, name: str) -> bool:
    try:
        record = read_record(home, workspace_id)
    except (StateError, OSError):
        return True
    return record is not None and record.name == name


def _is_lost(home: Home, workspace_id: str) -> bool:
    """Whether a workspace has lost its record, and is not about to get its first one."""
    there, record, intent = map(
        os.path.lexists, (home.workspace(workspace_id), home.record(workspace_id), home.pending(workspace_id))
    )
    return there and not record and not intent


def _link_name(home: Home, name: str, workspace_id: str) -> None:
    temporary = home.staging()
    os.symlink(workspace_id, temporary)
    try:
        durable.rename_over(temporary, home.name(name))
    except OSError:
        os.unlink(temporary)
        raise
