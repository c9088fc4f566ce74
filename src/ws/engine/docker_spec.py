"""A container in docker's words: the body of its create request.

docker has no namespace of its own for a container's users: the user must not be root, and has in the container the id
that it has on the host. Its bind mounts take no nosuid, nodev or noexec; no-new-privileges and the device cgroup stand
in for the first two.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ws.engine import seccomp
from ws.engine.base import ContainerSpec
from ws.engine.confinement import CPU_PERIOD_US, UNSET, ContainerPlan, Tmpfs

_VOLUME_BYTES = 16 << 20


def plan_create(
    spec: ContainerSpec, plan: ContainerPlan, *, volumes: Iterable[str], runtime: str | None
) -> dict[str, Any]:
    """The body of POST /containers/create. `volumes` are those the image declares."""
    options = spec.options
    with open(seccomp.PROFILE, encoding="ascii") as file:
        profile = file.read()
    return {
        "Image": options.image,
        "Hostname": plan.hostname,
        "Labels": plan.labels,
        "Entrypoint": [spec.command[0]],
        "Cmd": list(spec.command[1:]),
        "WorkingDir": "/",
        "User": f"{spec.ids.host_uid}:{spec.ids.host_gid}",
        # A bare name takes the image's variable away.
        "Env": [f"{name}={value}" for name, value in plan.env.items()]
        + [name for name in UNSET if name not in plan.env],
        "Healthcheck": {"Test": ["NONE"]},
        "StopSignal": "SIGKILL",
        "Tty": False,
        "OpenStdin": False,
        "HostConfig": {
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges", f"seccomp={profile}"],
            "Privileged": False,
            "ReadonlyRootfs": not options.read_write_root,
            "NetworkMode": options.network,
            "IpcMode": "none",
            "CgroupnsMode": "private",
            "Mounts": [
                {
                    "Type": "bind",
                    "Source": bind.source,
                    "Target": bind.path,
                    "ReadOnly": not bind.writable,
                    "BindOptions": {"Propagation": "rprivate"},
                }
                for bind in plan.binds
            ],
            "Tmpfs": _tmpfs(spec, plan, volumes),
            "Memory": options.memory_bytes,
            "MemorySwap": options.memory_bytes,
            # Not NanoCpus: docker refuses more of them than the machine has.
            "CpuPeriod": CPU_PERIOD_US,
            "CpuQuota": plan.cpu_quota_us,
            "PidsLimit": options.pids,
            "Ulimits": [{"Name": limit.name, "Soft": limit.value, "Hard": limit.value} for limit in plan.ulimits],
            "RestartPolicy": {"Name": "no"},
            "LogConfig": {"Type": "none"},
            "AutoRemove": False,
            "Init": False,
            **({"Runtime": runtime} if runtime else {}),
        },
    }


def _tmpfs(spec: ContainerSpec, plan: ContainerPlan, volumes: Iterable[str]) -> dict[str, str]:
    """Ours, and one over each volume of the image: docker would make an unlimited directory on the host."""
    taken = {bind.path for bind in plan.binds}
    mounts = {path: Tmpfs(path, _VOLUME_BYTES, 0o1777) for path in volumes if path not in taken}
    mounts |= {tmpfs.path: tmpfs for tmpfs in plan.tmpfs}
    return {path: _options(tmpfs, spec) for path, tmpfs in mounts.items()}


def _options(tmpfs: Tmpfs, spec: ContainerSpec) -> str:
    words = ["rw", "nosuid", "nodev", "exec" if tmpfs.executable else "noexec"]
    words += [f"size={tmpfs.size_bytes}", f"mode={tmpfs.mode:o}"]
    if tmpfs.owned:
        words += [f"uid={spec.ids.host_uid}", f"gid={spec.ids.host_gid}"]
    return ",".join(words)
