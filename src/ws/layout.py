"""What is on disk under WS_HOME: where things lie, and the records that say what they are.

    format                      version of this layout
    boot                        the boot in which records were last compared with what belongs to them (`rebooted`)
    reserved/N                  files that only a removal may use, on a disk that is full (`reserve`)
    workspaces/ID/record.json   WorkspaceRecord; its rename is the commit point of most operations
    workspaces/ID/lock          flock: exclusive to change the workspace, shared to start a command in it
    workspaces/ID/turn          flock: held by the one snapshot, restore, fork or removal under way
    workspaces/ID/kept/         backups and trash of its tools: outside of the tree, so that no restore takes them away
    workspaces/ID/events.jsonl  what its tools did
    workspaces/ID/memory.json   what a dialect remembers between calls: the session of a persistent shell
    workspaces/ID/stacks/N      Stack: the layers of snapshot N, as long as they are there (`stacks`)
    workspaces/ID/applies/N     ApplyRecord: what an apply replaced on the host, to undo it (`apply_records`)
    workspaces/ID/looked        the tree that a diff, an apply or an export saw last: the collector spares it
    names/NAME                  symlink to ID; making it claims the name
    bases/KEY/                  data (the immutable tree) and info.json (`bases`)
    layers/LAYER/               an upper, or what was one until it was sealed (`layers`)
    store/                      the bare git repository of all snapshots
    imports/KEY                 stat caches of imported sources
    runtimes/KEY/               what is mounted into containers to run the shim
    run/KEY/                    a container's run directory; the shim's socket is in it
    users/KEY                   the ids of a name of an image (`users`)
    pool/KEY/                   warm containers of one configuration (`pool`)
    engines/                    sockets and logs of engine services that ws started
    pending/ID                  Intent: an operation under way, flocked by whoever carries it out
    staging/PID.START.RANDOM    what a process is building; rubbish once that process is gone

Paths are pure functions. Records are frozen dataclasses, read and written without pydantic, because
`ws exec` reads one on its way and has no 60 ms to spend on imports.
"""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ws import durable, home_format, reserve
from ws.errors import StateError, StateUnusable
from ws.process_identity import boot_id, process_start
from ws.record_fields import construct, is_component
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

__all__ = [
    "FORMAT",
    "MAX_MARKS",
    "ContainerRecord",
    "EngineName",
    "History",
    "Home",
    "Ids",
    "Intent",
    "Mark",
    "NetworkName",
    "Operation",
    "Options",
    "State",
    "Unsettled",
    "WorkspaceRecord",
    "boot_id",
    "default_home",
    "new_id",
    "open_home",
    "process_start",
    "read_name",
    "resolve_name",
]

T = TypeVar("T")

FORMAT = home_format.FORMAT
MAX_MARKS = 32


def default_home() -> str:
    """WS_HOME, else $XDG_STATE_HOME/ws, else ~/.local/state/ws."""
    chosen = os.environ.get("WS_HOME")
    if chosen:
        return os.path.abspath(chosen)
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "ws")


@dataclass(frozen=True, slots=True)
class Home:
    """The paths under one WS_HOME."""

    root: str

    def at(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    def workspace(self, workspace_id: str) -> str:
        return self.at("workspaces", workspace_id)

    def record(self, workspace_id: str) -> str:
        return self.at("workspaces", workspace_id, "record.json")

    def lock(self, workspace_id: str) -> str:
        return self.at("workspaces", workspace_id, "lock")

    def turn(self, workspace_id: str) -> str:
        return self.at("workspaces", workspace_id, "turn")

    def kept(self, workspace_id: str) -> str:
        return self.at("workspaces", workspace_id, "kept")

    def events(self, workspace_id: str) -> str:
        return self.at("workspaces", workspace_id, "events.jsonl")

    def memory(self, workspace_id: str) -> str:
        return self.at("workspaces", workspace_id, "memory.json")

    def applies(self, workspace_id: str) -> str:
        return self.at("workspaces", workspace_id, "applies")

    def stack(self, workspace_id: str, number: int) -> str:
        return self.at("workspaces", workspace_id, "stacks", str(number))

    def looked(self, workspace_id: str) -> str:
        return self.at("workspaces", workspace_id, "looked")

    def name(self, name: str) -> str:
        return self.at("names", name)

    def base(self, key: str) -> str:
        return self.at("bases", key)

    def layer(self, layer: str) -> str:
        return self.at("layers", layer)

    def run(self, key: str) -> str:
        return self.at("run", key)

    def pool(self, configuration: str) -> str:
        return self.at("pool", configuration)

    @property
    def reserved(self) -> str:
        return self.at("reserved")

    @property
    def store(self) -> str:
        return self.at("store")

    def staging(self) -> str:
        """A new path to build something at. Its name says who builds: recovery removes what the dead left."""
        pid = os.getpid()
        return self.at("staging", f"{pid}.{process_start(pid)}.{os.urandom(6).hex()}")

    def pending(self, workspace_id: str) -> str:
        return self.at("pending", workspace_id)


_PARTS = (
    "workspaces",
    "names",
    "bases",
    "layers",
    "imports",
    "runtimes",
    "users",
    "run",
    "pool",
    "engines",
    "pending",
    "staging",
)
_FIRST = {*_PARTS, "reserved", "reserve"}  # what the first use makes
_ANOTHER = "set WS_HOME to a directory of its own"


def open_home(root: str | None = None) -> Home:
    """The state directory, made on first use, 0700 because a setuid file made in a container lies in it.

    Raises StateUnusable when it is not ours, not private, not writable, holds something else, or has a newer format,
    and when the clock is past what Python can read.
    Commit point of the first use: the rename of `format`.
    """
    _check_clock()
    home = Home(os.path.abspath(root or default_home()))
    try:
        found = home_format.read_format(home.root, _PARTS)
        look = os.stat(home.root)
    except FileNotFoundError:
        _make_home(home)
        return home
    except OSError as error:
        raise StateUnusable(f"cannot use {home.root}: {error.strerror}") from error
    # Who else may write there may have ws, which is often root, mount and remove what they like.
    _check_owner(home, look)
    if look.st_mode & 0o077:
        raise StateUnusable(f"{home.root} is open to others", hint=f"chmod 700 {home.root}")
    if found is None:
        home_format.repair_format(home.root, _PARTS)
    elif found != FORMAT:
        raise StateUnusable(
            f"{home.root} has format {found}, this ws knows {FORMAT}",
            hint="use the ws that wrote it, or set WS_HOME to another directory",
        )
    return home


def _check_unused(home: Home) -> None:
    """What is there before the first use must be ours alone, and empty but for what a dead first use left."""
    look, found = os.stat(home.root), set(os.listdir(home.root))
    _check_owner(home, look)
    strange = {name for name in found if name not in _FIRST and not name.startswith(".format.")}
    if strange and "format" not in found:  # else somebody was faster
        raise StateUnusable(f"{home.root} is not empty and no WS_HOME: it holds {min(strange)!r}", hint=_ANOTHER)
    if look.st_mode & stat.S_IWOTH:
        raise StateUnusable(f"{home.root} is open to everybody", hint=_ANOTHER)


def _check_clock() -> None:
    """Python keeps the time in nanoseconds, in 64 bits: from the year 2262 on, every question for it is refused."""
    try:
        time.time()
    except OverflowError:
        raise StateUnusable("the clock of this machine is past the year 2262", hint="set the clock") from None


def _check_owner(home: Home, look: os.stat_result) -> None:
    if look.st_uid != os.geteuid():
        raise StateUnusable(f"{home.root} belongs to user {look.st_uid}, not to {os.geteuid()}", hint=_ANOTHER)


def _make_home(home: Home) -> None:
    try:
        _make_private(home.root)
        _check_unused(home)
        os.chmod(home.root, 0o700)
        for part in _PARTS:
            durable.ensure_directory(home.at(part))
        reserve.fill(home.reserved)
        durable.sync_filesystem(home.root)
        durable.write_file(home.at("format"), f"{FORMAT}\n".encode())
    except OSError as error:
        raise StateUnusable(
            f"cannot set up {home.root}: {error.strerror}", hint="set WS_HOME to a directory you can write"
        ) from error


def _make_private(path: str) -> None:
    """A directory, and those above it that are missing, of mode 0700 whatever the umask.

    `os.makedirs` gives those above the umask's mode: with a umask of 0 another user could rename WS_HOME away.
    """
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for each in reversed(missing):
        try:
            os.mkdir(each, 0o700)
        except FileExistsError:  # another process was faster, or it is no directory
            if not os.path.isdir(each):
                raise
            continue
        os.chmod(each, 0o700)


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


def new_id() -> str:
    return os.urandom(6).hex()


def resolve_name(home: Home, name: str) -> str | None:
    """The id behind a name, or None. An id answers to itself. (`records.find_workspace` also reads the record.)"""
    if not is_component(name):
        return None
    target = read_name(home, name)
    return target or (name if os.path.exists(home.record(name)) else None)


def read_name(home: Home, name: str) -> str | None:
    """The id that a name's link leads to; None when there is no link, or it does not lead to an id."""
    try:
        target = os.readlink(home.name(name))
    except (OSError, ValueError):
        return None
    return target if is_component(target) else None
