"""The records of a WS_HOME: what a workspace is, what a process is doing to it, and how both are written down.

Records are frozen dataclasses, read and written without pydantic, because `ws exec` reads one on its way and has no
60 ms to spend on imports. Every field is checked by the rule of its type (`record_types`) when it is read.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ws.errors import StateError
from ws.home_format import FORMAT
from ws.process_identity import boot_id, process_start
from ws.record_fields import construct
from ws.record_files import parse_json
from ws.record_types import (
    RULES,
    Component,
    Count,
    EngineName,
    MarkKind,
    Moment,
    NetworkName,
    Operation,
    OptionalComponent,
    OptionalTreeId,
    OriginName,
    State,
    TreeId,
    UserId,
)

T = TypeVar("T")

MAX_MARKS = 32


def _fields(record: Any) -> dict[str, Any]:
    """The fields of a record for json, which asks again for those within; `asdict` would copy all of it, in 1 ms."""
    return {name: getattr(record, name) for name in record.__slots__}


@dataclass(frozen=True, slots=True)
class Ids:
    """The workspace's user as the container sees it, and as the host does."""

    uid: UserId
    gid: UserId
    host_uid: UserId
    host_gid: UserId


@dataclass(frozen=True, slots=True)
class Options:
    """What the container of a workspace may have."""

    image: str
    network: NetworkName = "none"
    memory_bytes: int = 2 << 30
    cpus: float = 2.0
    pids: int = 512
    disk_bytes: int | None = None
    env: dict[str, str] = dataclasses.field(default_factory=dict)
    read_write_root: bool = False
    runtime: str | None = None


@dataclass(frozen=True, slots=True)
class ContainerRecord:
    """A container that was started; pid and start time tell whether it still is the same process."""

    key: Component  # of its run directory
    id: str
    pid: int
    started: int  # field 22 of /proc/PID/stat
    boot: str  # /proc/sys/kernel/random/boot_id: pids mean nothing after a reboot
    device: int = 0  # of the overlay that it should see; 0 without one
    warm: bool = False  # it was in the pool, and was given this workspace
    covered: int = 0  # overlays of this workspace below that one

    def alive(self) -> bool:
        """Whether its first process is still that process. One read of /proc, no engine."""
        return process_start(self.pid) == self.started and boot_id() == self.boot


@dataclass(frozen=True, slots=True)
class Unsettled:
    """A safety snapshot that is on disk as layers and not yet in git: a restore does not wait for the hashing."""

    number: Count
    base: Component
    layers: tuple[Component, ...]
    tree: TreeId  # of the base and those layers that are hashed
    unhashed: Count  # layers from the top that are not
    parent: Count
    restored: Count  # what was restored right after it
    message: str
    created_ns: int


@dataclass(frozen=True, slots=True)
class Mark:
    """A restore or a fork, as the log tells it beside the snapshots."""

    kind: MarkKind
    number: Count  # the snapshot that was restored, or forked from
    made_ns: int
    name: str = ""  # of the fork


@dataclass(frozen=True, slots=True)
class History:
    """Where a workspace stands in its line of snapshots, which are numbered from 1; 0 is the base."""

    head: Count = 0  # the snapshot it was last at
    count: Count = 0  # the newest there is
    undo: Count | None = None  # the snapshot that `ws undo` would restore
    unhashed: Count = 0  # sealed layers, from the top, that no snapshot has yet: a crash between seal and commit
    unsettled: tuple[Unsettled, ...] = ()
    marks: tuple[Mark, ...] = ()  # the last ones, oldest first

    @classmethod
    def from_fields(cls, fields: Any) -> History:
        """Raises StateError."""
        if not isinstance(fields, dict):
            raise StateError("the history is not a JSON object")
        waiting = tuple(_made(Unsettled, entry) for entry in _listed(fields.pop("unsettled", ())))
        marks = tuple(_made(Mark, entry) for entry in _listed(fields.pop("marks", ())))
        return construct(cls, fields, RULES, unsettled=waiting, marks=marks)

    def marked(self, mark: Mark) -> History:
        """With one more mark, and without the oldest when they are too many."""
        return dataclasses.replace(self, marks=(*self.marks, mark)[-MAX_MARKS:])


@dataclass(frozen=True, slots=True)
class Intent:
    """What a process set out to do to a workspace: enough for another one to finish or undo it."""

    workspace_id: Component
    operation: Operation
    engine: EngineName
    key: OptionalComponent = ""  # of the container it is about to make
    name: OptionalComponent = ""  # that it is about to claim, or to give up

    def to_bytes(self) -> bytes:
        return json.dumps(_fields(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Intent:
        """Raises StateError."""
        try:
            return _made(cls, parse_json(data))
        except ValueError as error:
            raise StateError(f"an intent cannot be read: {error}") from None


@dataclass(frozen=True, slots=True)
class WorkspaceRecord:
    """All that ws knows of a workspace; replaced whole, never edited in place."""

    id: Component
    name: Component
    state: State
    engine: EngineName
    created_at: Moment
    base: Component
    tree: TreeId
    upper: Component
    ids: Ids
    options: Options
    source: str | None = None
    exclude: tuple[str, ...] = ()
    layers: tuple[Component, ...] = ()
    container: ContainerRecord | None = None
    expires_at: Moment | None = None
    image_id: str = ""
    image_env: dict[str, str] = dataclasses.field(default_factory=dict)
    history: History = History()
    origin_tree: OptionalTreeId = ""  # what the workspace began as: its base
    source_tree: OptionalTreeId = ""  # what the source was when it was imported: the middle of a three-way apply
    applied_tree: OptionalTreeId = ""  # the same after an apply: what was applied, and of the rest what was before
    forked_from: OriginName | None = None  # ID/N
    skipped: tuple[str, ...] = ()  # what of the source was left out, as PATH: REASON

    def stands_on(self, waiting: Unsettled) -> bool:
        """Whether what is below the upper is that safety snapshot, and nothing else."""
        return (self.history.head, self.base, self.layers) == (waiting.number, waiting.base, waiting.layers)

    def to_bytes(self) -> bytes:
        return json.dumps({"format": FORMAT, **_fields(self)}, default=_fields).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> WorkspaceRecord:
        """Raises StateError when the bytes are not a record this version wrote."""
        try:
            fields = parse_json(data)
        except ValueError as error:
            raise StateError(f"the record cannot be read: {error if data else 'it is empty'}") from None
        if not isinstance(fields, dict):
            raise StateError("the record is not a JSON object")
        if fields.pop("format", None) != FORMAT:
            raise StateError("the record has another format")
        fields.pop("applied_git_tree", None)  # of older versions; applied_tree has it all
        container = fields.pop("container", None)
        record = construct(
            cls,
            fields,
            RULES,
            ids=_made(Ids, fields.pop("ids", None)),
            history=History.from_fields(fields.pop("history", None)),
            options=_made(Options, fields.pop("options", None)),
            container=None if container is None else _made(ContainerRecord, container),
        )
        if record.history.unhashed > len(record.layers):
            raise StateError("the record counts more layers than it names")
        return record


def _made(cls: type[T], fields: Any) -> T:
    return construct(cls, fields, RULES)


def _listed(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise StateError("a list of the history is not a list")
    return value
