"""The records of workspaces, read and written. One that cannot be read is told by its name, and hides no other.

What a damaged record needs nobody knows, so all that it may need stays until the workspace is removed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NamedTuple

from ws import durable
from ws.errors import StateError
from ws.layout import Home, WorkspaceRecord


def read_record(home: Home, workspace_id: str) -> WorkspaceRecord | None:
    """The record, or None when there is no such workspace (any more).

    A record is replaced whole, by a rename: the same inode with the same times has the same bytes, and they are taken
    apart once, or never when they were written by this process. Every tool call comes here twice.
    Raises StateError when it is damaged.
    """
    path = home.record(workspace_id)
    try:
        known = _records.get(path)
        if known is not None and known.identity == _identity(os.stat(path)):
            return known.record
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            opened = os.fstat(fd)
            data = os.read(fd, opened.st_size + 1)
        finally:
            os.close(fd)
        record = known.record if known is not None and known.data == data else WorkspaceRecord.from_bytes(data)
    except (FileNotFoundError, NotADirectoryError):
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
    return next((name for name in names if os.readlink(home.name(name)) == workspace_id), None)
