"""The pool: containers that run already, for workspaces to come.

A container gets its workspace after it has started, by an overlay that is attached from outside. So it can be made
before anybody wants it, and what is left to do at a create is a mount and a record.

    pool/CONFIGURATION/configuration.json   what its containers are made with
    pool/CONFIGURATION/filling              flock: held by the one who fills
    pool/CONFIGURATION/KEY                  a container that waits; flocked by whoever is about to take it

A container in the pool has run nothing but our shim, is used once, and stands in only for one of its own
configuration: engine, image by its id, user, limits, network, runtime. Variables are not part of it, commands bring
their own. There is no daemon: whoever took one may leave a process behind that makes the next (`refill`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ws import containers, durable
from ws.containers import EngineFor
from ws.engine.processes import spawn_detached
from ws.errors import InvalidRequest, NotFound, StateError, WorkspaceError
from ws.layout import ContainerRecord, EngineName, Home, Ids, Options, WorkspaceRecord, new_id
from ws.record_fields import construct
from ws.record_files import read_cached_json
from ws.record_types import RULES
from ws.remote.runtime import current_key

if TYPE_CHECKING:
    from ws.engine.base import ContainerState

MAX_SIZE = 1000
FILLING = "filling"
CHECK_S = 2.0  # for a shim that has waited to answer; it takes a fifth of a millisecond
_CONFIGURATION = "configuration.json"


@dataclass(frozen=True, slots=True)
class Configuration:
    """What makes one container as good as another."""

    engine: EngineName
    image_id: str
    ids: Ids
    options: Options  # with the image by its id, and without variables
    runtime: str  # the key of the runtime directory: which shim it has

    @property
    def key(self) -> str:
        return hashlib.sha256(json.dumps(dataclasses.asdict(self), sort_keys=True).encode()).hexdigest()[:12]


def configuration_of(engine: EngineName, image_id: str, ids: Ids, options: Options) -> Configuration:
    """The configuration of a container, however it was asked for."""
    return Configuration(engine, image_id, ids, replace(options, image=image_id, env={}), current_key())


# -- take --------------------------------------------------------------------------------------------------------


class Claim:
    """Where a workspace's container comes from: a warm one, which is ours alone now, or a new one under a new key."""

    def __init__(self, warm: ContainerRecord | None = None, entry: str = "") -> None:
        self.key = warm.key if warm else new_id()
        self._warm = warm
        self._entry = entry

    def start(self, home: Home, engine_for: EngineFor, record: WorkspaceRecord) -> ContainerRecord:
        """The workspace in its container. One from the pool that does not answer is replaced by a new one.

        Commit point of the taking: the entry's unlink; the caller's Intent names the container from before it.
        """
        if self._warm is not None:
            os.unlink(self._entry)
            try:
                containers.wait_ready(home, self.key, self._warm.pid, timeout_s=CHECK_S)
                return replace(containers.occupy(home, record, self.key, _state(self._warm)), warm=True)
            except WorkspaceError:
                engine = engine_for(record.engine, record.options.runtime)
                containers.abandon(home, engine, self._warm.id, self.key)
        return containers.start_container(home, engine_for(record.engine, record.options.runtime), record, self.key)

    def undo(self, home: Home, engine_for: EngineFor, record: WorkspaceRecord) -> None:
        """Remove what a start that failed has left, found by its key; one that still waits in the pool goes on waiting.

        Raises what the engine raises. An interrupt may come between a container and the variable that names it.
        """
        if self._warm is not None and os.path.exists(self._entry):
            return
        if os.path.exists(home.run(self.key)):  # made before the container, removed after it
            containers.remove_by_key(home, engine_for(record.engine, record.options.runtime), self.key)


def _state(waiting: ContainerRecord) -> ContainerState:
    from ws.engine.base import ContainerState

    return ContainerState(waiting.id, waiting.key, "", running=True, paused=False, pid=waiting.pid, exit_code=None)


@contextlib.contextmanager
def claim(home: Home, record: WorkspaceRecord) -> Iterator[Claim]:
    """A container for a workspace, to be started within the block; one that was not started goes on waiting."""
    with contextlib.ExitStack() as held:
        yield _find(home, record, held) or Claim()


def _find(home: Home, record: WorkspaceRecord, held: contextlib.ExitStack) -> Claim | None:
    if record.engine == "none":
        return None
    configuration = configuration_of(record.engine, record.image_id, record.ids, record.options).key
    for key in waiting_keys(home, configuration):
        entry = os.path.join(home.pool(configuration), key)
        container = read_entry(entry)
        if container is None or not container.alive():
            continue  # for `fill` and `prune` to remove: that takes an engine
        fd = lock_entry(entry)
        if fd is not None:
            held.callback(os.close, fd)
            return Claim(container, entry)
    return None


def lock_entry(entry: str) -> int | None:
    """The descriptor of an entry that nobody else has or gets; None when somebody was faster."""
    try:
        fd = os.open(entry, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # taken, or damaged
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(entry)):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return None


# -- keep it filled ----------------------------------------------------------------------------------------------


def refill(home: Home, record: WorkspaceRecord, size: int | None) -> None:
    """Have the pool of a workspace's configuration filled in the background; `size` None: WS_POOL, else not at all.

    By a process of its own: it outlives a `ws create`, and does not slow a long-lived caller down. It is not our child:
    the program that ws is embedded in may reap its children itself. One at a time: a process that fills already counts
    again before it ends. The workspace is there by now, so what the disk or the kernel refuses here is not raised.
    """
    size = check_size(size)
    if not size or record.engine == "none":
        return
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        _start_filling(home, record, size)


def _start_filling(home: Home, record: WorkspaceRecord, size: int) -> None:
    configuration = configuration_of(record.engine, record.image_id, record.ids, record.options)
    if is_filling(home, configuration.key):
        return
    ensure_pool(home, configuration, record.options.image)
    # -P: in the directory of an untrusted project, `-m ws` must not find the project's own ws.py.
    words = [sys.executable, "-P", "-m", "ws", "pool", "fill", "--like", configuration.key, "--size", str(size)]
    places = [os.path.dirname(os.path.dirname(__file__)), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    found_by = {"WS_HOME": home.root, "PYTHONPATH": os.pathsep.join(filter(None, places))}
    spawn_detached(words, log=os.devnull, env={**os.environ, **found_by})


def check_size(size: int | None) -> int:
    """How many containers to keep warm: as said, else WS_POOL, else none. Raises InvalidRequest."""
    text = str(size) if size is not None else os.environ.get("WS_POOL", "").strip() or "0"
    if not text.isdigit() or int(text) > MAX_SIZE:
        where = "WS_POOL" if size is None else "the size of the pool"
        raise InvalidRequest(f"{where} is a number from 0 to {MAX_SIZE}, not {text!r}")
    return int(text)


def is_filling(home: Home, key: str) -> bool:
    """Whether somebody fills the pool of a configuration at this moment."""
    return durable.is_locked(os.path.join(home.pool(key), FILLING))


# -- what there is -----------------------------------------------------------------------------------------------


def waiting_containers(home: Home) -> dict[str, ContainerRecord]:
    """Every container of the pool, by its key."""
    found = {}
    for name in configuration_keys(home):
        for key in waiting_keys(home, name) if read_configuration(home, name) else ():
            entry = read_entry(os.path.join(home.pool(name), key))
            if entry is not None:
                found[key] = entry
    return found


def damaged_entries(home: Home) -> list[str]:
    """What of the pool cannot be read, a line for each file."""
    unreadable = []
    for name in configuration_keys(home):
        entries = [os.path.join(home.pool(name), key) for key in waiting_keys(home, name)]
        unreadable += [entry for entry in entries if read_entry(entry) is None and os.path.lexists(entry)]
        if read_configuration(home, name) is None and os.path.lexists(home.pool(name)):
            unreadable.append(os.path.join(home.pool(name), _CONFIGURATION))
    return [f"{path} is damaged or missing" for path in unreadable]


def configuration_keys(home: Home) -> list[str]:
    return sorted(_listed(home.at("pool")))


def waiting_keys(home: Home, configuration: str) -> list[str]:
    """The containers of a configuration that wait, by their keys."""
    return [name for name in _listed(home.pool(configuration)) if "." not in name and name != FILLING]


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []


def read_entry(path: str) -> ContainerRecord | None:
    """A container that waits; None when it was taken, or cannot be read."""
    fields = read_cached_json(path)
    try:
        entry = None if fields is None else construct(ContainerRecord, fields, RULES)
    except StateError:
        return None
    return entry if entry is not None and entry.key == os.path.basename(path) else None


def read_configuration(home: Home, key: str) -> tuple[Configuration, str] | None:
    """What the containers of a pool are made with, and the image's name as it was asked for; None when damaged."""
    fields = read_cached_json(os.path.join(home.pool(key), _CONFIGURATION))
    if fields is None or fields.pop("format", None) != 1:
        return None
    image = fields.pop("image", None)
    try:
        ids = construct(Ids, fields.pop("ids", None), RULES)
        options = construct(Options, fields.pop("options", None), RULES)
        configuration = construct(Configuration, fields, RULES, ids=ids, options=options)
    except StateError:
        return None
    # The key is made of all that is in it, so another one means damage.
    return (configuration, image) if isinstance(image, str) and configuration.key == key else None


def find_configuration(home: Home, key: str) -> tuple[Configuration, str]:
    """A configuration of the pool and the image it was asked for by, from the beginning of its key. Raises NotFound."""
    found = [name for name in configuration_keys(home) if name.startswith(key)]
    known = read_configuration(home, found[0]) if len(found) == 1 else None
    if known is None:
        raise NotFound(f"the pool has no one configuration {key!r}", hint="`ws pool ls` shows what there is")
    return known


def ensure_pool(home: Home, configuration: Configuration, image: str) -> None:
    """The directory of a configuration, which says what its containers are made with, and by which name of an image."""
    directory = home.pool(configuration.key)
    durable.ensure_directory(home.at("pool"))
    durable.ensure_directory(directory)
    described = {"format": 1, "image": image, **dataclasses.asdict(configuration)}
    durable.write_file(os.path.join(directory, _CONFIGURATION), json.dumps(described, indent=1).encode(), sync=False)
    durable.create_lock_file(os.path.join(directory, FILLING))


def forget_pool(home: Home, key: str) -> None:
    """Take a configuration away that nothing waits for and nothing can be made with any more."""
    directory = home.pool(key)
    with contextlib.suppress(OSError):
        if not waiting_keys(home, key) and not is_filling(home, key):
            os.unlink(os.path.join(directory, _CONFIGURATION))
            os.unlink(os.path.join(directory, FILLING))
            os.rmdir(directory)
