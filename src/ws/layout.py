"""What is on disk under WS_HOME: where things lie, and how a WS_HOME begins.

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

Paths are pure functions. The records themselves are in `workspace_record`, and can be had from here.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass

from ws import durable, home_format, reserve
from ws.errors import StateUnusable
from ws.process_identity import boot_id, process_start
from ws.record_fields import is_component
from ws.record_types import EngineName, NetworkName, Operation, State
from ws.workspace_record import (
    MAX_MARKS,
    ContainerRecord,
    History,
    Ids,
    Intent,
    Mark,
    Options,
    Unsettled,
    WorkspaceRecord,
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

FORMAT = home_format.FORMAT


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
