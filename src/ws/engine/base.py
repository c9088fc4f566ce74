"""The small seam between ws and a container engine.

An engine makes containers that hold nothing but our shim, and takes them away again. It knows nothing of
overlays, snapshots or tools: the overlay is attached from outside afterwards, commands go through the shim.
Every adapter translates its SDK's errors in one place and passes `ws.testing.check_engine`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from ws.engine import HOME as HOME
from ws.engine import RUN as RUN
from ws.engine import RUNTIME as RUNTIME
from ws.engine import WORKSPACE as WORKSPACE
from ws.layout import EngineName, Ids, Options

LABEL_HOME = "ws.home"  # which WS_HOME owns the container: orphans are found by it
LABEL_WORKSPACE = "ws.workspace"  # the workspace's id, or "" in the pool
LABEL_KEY = "ws.key"  # of the run directory
LABEL_IDS = "ws.ids"  # the host id that id 0 of the container stands for; 0 when ids are not shifted


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """What is known of an engine that answered."""

    name: EngineName
    version: str
    runtime: str  # crun, runc, …: the one that works here
    endpoint: str
    rootless: bool
    notes: tuple[str, ...] = ()  # what a user should know: limits not enforced, runtime replaced, …


@dataclass(frozen=True, slots=True)
class ImageFacts:
    id: str
    user: str  # as the image's config has it, "" for none
    env: Mapping[str, str]
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ContainerSpec:
    """One container, wholly described: two with equal specs but for `key` can stand in for each other."""

    key: str  # names the container (`ws-KEY`) and its run directory
    home: str  # the WS_HOME that owns it
    workspace_id: str  # "" for one in the pool
    ids: Ids  # with the host ids that this container has: they may differ from those of its files on disk
    options: Options
    command: tuple[str, ...]  # the shim, by absolute path inside the container
    runtime_dir: str  # on the host, mounted read-only at RUNTIME
    run_dir: str  # on the host, mounted at RUN


@dataclass(frozen=True, slots=True)
class ContainerState:
    id: str
    key: str
    workspace_id: str
    running: bool
    paused: bool
    pid: int  # of its first process on the host; 0 when it does not run, or when docker's `list` does not say
    exit_code: int | None  # None while it runs, and until the engine has noticed that it does not
    home: str = ""  # the WS_HOME that owns it
    first_id: int = 0  # the host id of the container's id 0; 0 when it has none of its own
    oom_killed: bool = False  # as far as the engine noticed; `ws.vitals` knows while it runs


@dataclass(frozen=True, slots=True)
class ExecOutput:
    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    truncated: bool = False  # what is over 8 MiB of a stream was dropped


OnOutput = Callable[[str, bytes], None]  # "stdout" or "stderr", a piece of it
Progress = Callable[[str, int, int], None]  # phase, done, total (0: unknown)


class Engine(Protocol):
    """About ten calls. Each ends within its deadline, or raises EngineUnavailable; none leaves a half."""

    name: EngineName

    def check(self) -> EngineFacts:
        """Reach the engine, starting a service for it where ws does that.

        Raises EngineUnavailable with a hint, within seconds, when it is absent, hung or too old.
        """
        ...

    def host_ids(self, uid: int, gid: int) -> Ids:
        """The ids on the host that a user of a container made here has: root is never host root."""
        ...

    def image(self, reference: str) -> ImageFacts:
        """Facts of a local image. Raises ImageNotFound; never pulls."""
        ...

    def import_image(self, rootfs_tar: str, reference: str, *, progress: Progress | None = None) -> ImageFacts:
        """Make an image from the tar of a root filesystem, with the config of our Containerfile."""
        ...

    def build_image(
        self,
        containerfile: str,
        reference: str,
        *,
        build_args: Mapping[str, str],
        progress: Progress | None = None,
    ) -> ImageFacts:
        """Make an image from a Containerfile that needs no context; its base may be pulled.

        Raises ImageBuildFailed with the end of the build's output.
        """
        ...

    def create(self, spec: ContainerSpec) -> str:
        """Make the container and return its full id; it does not run yet.

        Commit point: the engine's own. A killed caller leaves a container that `list` finds by label.
        """
        ...

    def start(self, container_id: str) -> ContainerState:
        """Run it; on return its first process exists, and it is settled. Raises ContainerDied when it ended at once."""
        ...

    def settle(self, container_id: str) -> ContainerState:
        """Bring one that runs, whoever started it, to what its spec says and an engine cannot do; idempotent.

        Its directories get their owner and modes, with a network link-local addresses are cut off. Raises
        ContainerDied when it does not run, EngineError when the network cannot be cut off: it must not be used then.
        """
        ...

    def find(self, container_id: str) -> ContainerState | None:
        """How it is now, or None when it is gone."""
        ...

    def list(self, home: str | None) -> list[ContainerState]:
        """All containers that this WS_HOME owns, in any state; None: that any does."""
        ...

    def exec(
        self,
        container_id: str,
        argv: Sequence[str],
        *,
        user: str,
        workdir: str = WORKSPACE,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecOutput:
        """Run a command as another user, through the engine itself: the shim has only its own.

        Its input is open and empty for as long as the caller lives: whoever is not to outlive the caller reads it.
        Output goes to `on_output` as it comes; without one it is kept, 8 MiB of each stream. A timeout kills what it
        started and is a result. Raises ContainerDied when the container does not run.
        """
        ...

    def remove(self, container_id: str) -> None:
        """Kill and remove, at once; idempotent."""
        ...

    def close(self) -> None:
        """Let go of connections. What the engine runs goes on."""
        ...
