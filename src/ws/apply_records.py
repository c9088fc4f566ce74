"""What an apply replaced or deleted on the host, kept so that it can be undone.

The scan that every apply begins with has stored the content of the whole target directory already. So a record of an
apply is the id of that tree, the id of the tree that the apply makes of it, and what trees do not keep (`host_facts`).
The collector spares both trees as long as there is a record.

    workspaces/ID/applies/N     the n-th apply of a workspace that changed something; the newest ones are kept

A record is written before the first file of the host is touched, and removed when its apply was undone, or failed and
took everything back. They go with the workspace.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ws import durable
from ws.errors import StateError
from ws.host_facts import Original
from ws.layout import Home
from ws.record_files import MISSING, parse_json, read_state_file
from ws.removing import remove_tree

KEPT = 16  # records of a workspace
_MAX_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class ApplyRecord:
    """One apply: the target directory, the trees of it before and after, and the base of the next three-way merge."""

    number: int
    target: str
    before: str
    after: str
    base_before: str  # `applied_tree` of the workspace's record before and after; empty: not the source
    base_after: str
    made_at: float
    originals: Mapping[bytes, Original] = field(default_factory=dict)

    def trees(self) -> set[str]:
        return {self.before, self.after, self.base_before, self.base_after} - {""}

    def to_bytes(self) -> bytes:
        fields = {name: getattr(self, name) for name in self.__slots__}
        fields["originals"] = {os.fsdecode(path): one.to_json() for path, one in self.originals.items()}
        return json.dumps(fields).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> ApplyRecord:
        """Raises StateError."""
        try:
            fields: dict[str, Any] = parse_json(data)
            given = fields.pop("originals")
            originals = {os.fsencode(path): Original.from_json(value) for path, value in given.items()}
            record = cls(originals=originals, **fields)
            words = (record.target, record.before, record.after, record.base_before, record.base_after)
            if type(record.number) is not int or not all(isinstance(word, str) for word in words):
                raise ValueError("a field has the wrong type")
            if not all(len(bytes.fromhex(tree)) == 20 for tree in record.trees()):
                raise ValueError("a tree has no id")
            return record
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(f"the record of an apply cannot be read: {error}") from error


def _path(home: Home, workspace_id: str, number: int) -> str:
    return os.path.join(home.applies(workspace_id), str(number))


def list_numbers(home: Home, workspace_id: str) -> list[int]:
    """The applies of a workspace that are recorded, oldest first."""
    try:
        names = os.listdir(home.applies(workspace_id))
    except MISSING:
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit() and len(name) < 10)


def read_apply(home: Home, workspace_id: str, number: int) -> ApplyRecord:
    """Raises StateError when it is damaged, FileNotFoundError."""
    path = _path(home, workspace_id, number)
    record = ApplyRecord.from_bytes(read_state_file(path, max_bytes=_MAX_BYTES))
    if record.number != number:
        raise StateError(f"{path} is the record of another apply")
    return record


@durable.state_usable()
def write_apply(home: Home, workspace_id: str, record: ApplyRecord) -> None:
    """Commit point: the rename of the file; durable on return. Raises StateUnusable when the disk refuses."""
    durable.ensure_directory(home.applies(workspace_id))
    durable.write_file(_path(home, workspace_id, record.number), record.to_bytes())


def next_number(home: Home, workspace_id: str) -> int:
    return max(list_numbers(home, workspace_id), default=0) + 1


def forget_apply(home: Home, workspace_id: str, number: int) -> None:
    remove_tree(_path(home, workspace_id, number))
    durable.sync_directory(home.applies(workspace_id))


def forget_oldest(home: Home, workspace_id: str) -> None:
    """Keep the newest records only."""
    for number in list_numbers(home, workspace_id)[:-KEPT]:
        remove_tree(_path(home, workspace_id, number))


def needed_trees(home: Home, workspace_id: str) -> set[str]:
    """The trees that the collector has to spare. A damaged record cannot be undone, and needs none."""
    needed: set[str] = set()
    for number in list_numbers(home, workspace_id):
        with contextlib.suppress(StateError, FileNotFoundError):
            needed |= read_apply(home, workspace_id, number).trees()
    return needed
