"""What every container gets and does not get, before any engine's dialect: the plan that adapters translate.

No capabilities, no new privileges, our seccomp profile, a read-only root, no network, and nothing of the
host's environment; the adapters say so in their own words. What they share is here: environment, mounts,
limits, labels. The image has no say: its entrypoint, working directory, volumes and health check are
replaced.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from dataclasses import dataclass

from ws.engine.base import (
    HOME,
    LABEL_HOME,
    LABEL_IDS,
    LABEL_KEY,
    LABEL_WORKSPACE,
    RUN,
    RUNTIME,
    WORKSPACE,
    ContainerSpec,
)
from ws.errors import InvalidRequest
from ws.subordinate_ids import FIRST

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
CPU_PERIOD_US = 100_000

# An image may set these for its own programs; in the shim they would bend our interpreter and its loader.
# Commands get them back: the manager passes `ImageFacts.env` on.
UNSET = (
    "LD_PRELOAD",
    "LD_LIBRARY_PATH",
    "LD_AUDIT",
    "LD_BIND_NOW",
    "LD_DEBUG",
    "GLIBC_TUNABLES",
    "GCONV_PATH",
    "LOCPATH",
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONMALLOC",
    "PYTHONUTF8",
    "PYTHONOPTIMIZE",
    "PYTHONINSPECT",
    "PYTHONWARNINGS",
)

_NOFILE = 65_536
# Signals that wait, POSIX timers, bytes of POSIX message queues: counted by user, and once more for the owner of the
# container's user namespace, who is root on podman and the user themselves rootless. So a container has a share.
_SIGPENDING = 4_096
_MSGQUEUE_BYTES = 102_400  # one queue of the usual size
_SHARE = 8
_PID_MAX = 4_194_304  # the kernel's PID_MAX_LIMIT: as good as no limit
_NUMBERS = {
    "nofile": resource.RLIMIT_NOFILE,
    "nproc": resource.RLIMIT_NPROC,
    "sigpending": resource.RLIMIT_SIGPENDING,
    "msgqueue": resource.RLIMIT_MSGQUEUE,
}
_SHM_BYTES = 64 << 20
_MOUNT_POINT_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Tmpfs:
    path: str
    size_bytes: int
    mode: int
    owned: bool = False  # by the workspace's user, where the engine can say so
    executable: bool = True


@dataclass(frozen=True, slots=True)
class Bind:
    source: str
    path: str
    writable: bool
    executable: bool


@dataclass(frozen=True, slots=True)
class Ulimit:
    name: str  # as in setrlimit(2), lower case, without RLIMIT_
    value: int


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """A container in words that both engines have."""

    name: str
    hostname: str
    user: str
    env: dict[str, str]
    labels: dict[str, str]
    tmpfs: tuple[Tmpfs, ...]
    binds: tuple[Bind, ...]
    ulimits: tuple[Ulimit, ...]
    cpu_quota_us: int


def plan_container(spec: ContainerSpec, *, hard_limits: dict[str, int]) -> ContainerPlan:
    """Everything about the container that does not depend on the engine. Raises InvalidRequest.

    `hard_limits` are those of the engine's own process: without CAP_SYS_RESOURCE a runtime cannot raise them,
    and podman lowers its NPROC to the kernel's pid_max, below that of the shell which started it.
    """
    options = spec.options
    for path in (spec.runtime_dir, spec.run_dir):
        if not os.path.isdir(path):
            raise InvalidRequest(f"{path} is not a directory", hint="it is mounted into the container")
    for name in options.env:
        if not name or "=" in name or "\0" in name:
            raise InvalidRequest(f"{name!r} cannot be the name of an environment variable")
    half = options.memory_bytes // 2
    return ContainerPlan(
        name=f"ws-{spec.key}",
        hostname=spec.workspace_id or spec.key,
        user=f"{spec.ids.uid}:{spec.ids.gid}",
        env={"HOME": HOME, "LANG": "C.UTF-8", **options.env},
        labels={
            LABEL_HOME: spec.home,
            LABEL_WORKSPACE: spec.workspace_id,
            LABEL_KEY: spec.key,
            LABEL_IDS: str(spec.ids.host_uid - spec.ids.uid),
        },
        # Pages of a tmpfs count against the container's memory; the sizes only keep one from eating it all.
        tmpfs=(
            Tmpfs("/tmp", half, 0o1777),
            Tmpfs(HOME, half, 0o700, owned=True),
            # Not the engine's own: podman mounts it on the host, and removing then fails with EBUSY at times.
            Tmpfs("/dev/shm", min(_SHM_BYTES, half), 0o1777, executable=False),
            Tmpfs(WORKSPACE, _MOUNT_POINT_BYTES, 0o755),
        ),
        binds=(
            Bind(spec.runtime_dir, RUNTIME, writable=False, executable=True),
            Bind(spec.run_dir, RUN, writable=True, executable=False),
        ),
        ulimits=(
            Ulimit("nofile", min(_NOFILE, hard_limits["nofile"])),
            Ulimit("nproc", min(_nproc(spec), hard_limits["nproc"])),
            Ulimit("sigpending", min(_SIGPENDING, hard_limits["sigpending"] // _SHARE)),
            Ulimit("msgqueue", min(_MSGQUEUE_BYTES, hard_limits["msgqueue"] // _SHARE)),
            Ulimit("core", 0),
        ),
        cpu_quota_us=max(1_000, int(options.cpus * CPU_PERIOD_US)),
    )


def _nproc(spec: ContainerSpec) -> int:
    """Processes of a user: as many as the container may have, where no other container has that user.

    With ids in common it is as good as no limit, and the pids are limited by cgroup alone.
    """
    return spec.options.pids if spec.ids.host_uid - spec.ids.uid >= FIRST else _PID_MAX


def first_id(labels: Mapping[str, str]) -> int:
    """The host id of a container's id 0, by its labels; 0 when they do not say."""
    said = labels.get(LABEL_IDS, "")
    return int(said) if said.isdigit() else 0


def read_hard_limits(pid: int | None = None) -> dict[str, int]:
    """Hard limits of a process, no higher than our own; ours alone when it cannot be read."""
    limits = {name: _finite(resource.getrlimit(number)[1]) for name, number in _NUMBERS.items()}
    if pid:
        names = {
            "Max open files": "nofile",
            "Max processes": "nproc",
            "Max pending signals": "sigpending",
            "Max msgqueue size": "msgqueue",
        }
        try:
            with open(f"/proc/{pid}/limits", encoding="ascii") as file:
                for line in file:
                    name = names.get(line[:26].strip())
                    word = line[26:].split()[1] if name else ""
                    if name and word.isdigit():
                        limits[name] = min(limits[name], int(word))
        except OSError:
            pass
    return limits


def _finite(value: int) -> int:
    return _PID_MAX if value == resource.RLIM_INFINITY else value
