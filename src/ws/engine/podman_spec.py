"""A container in libpod's words: the body of its create request.

Everything is said, also what is podman's default today: containers.conf can change any default.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Any

from ws.engine import seccomp
from ws.engine.base import ContainerSpec
from ws.engine.confinement import CPU_PERIOD_US, UNSET, ContainerPlan
from ws.layout import Ids

ID_COUNT = 65_536
_FIRST_ID = 200_000
_REMOTE_ID = 1_900_000_000  # systemd's table of ids has this region as nobody's


@dataclass(frozen=True, slots=True)
class IdRange:
    """The first host ids of the range that ids 0..65535 of a container are mapped to."""

    uid: int
    gid: int


def read_id_range() -> IdRange:
    """The range for new workspaces: the one of the user `containers`, as podman's own convention has it, else one
    that no user of this machine was given: who has it as subordinate ids could kill our processes.
    """
    return IdRange(_choose_first("/etc/subuid"), _choose_first("/etc/subgid"))


def _choose_first(path: str) -> int:
    given: list[tuple[int, int]] = []
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                name, _, rest = line.strip().partition(":")
                first, _, count = rest.partition(":")
                if not (first.isdigit() and count.isdigit()):
                    continue
                if name == "containers" and int(count) >= ID_COUNT:
                    return int(first)
                given.append((int(first), int(first) + int(count)))
    except OSError:
        pass
    taken = any(first < _FIRST_ID + ID_COUNT and end > _FIRST_ID for first, end in given)
    return _REMOTE_ID if taken else _FIRST_ID


def range_of(ids: Ids) -> IdRange:
    """The range a workspace was made with; the machine's may have changed since."""
    return IdRange(ids.host_uid - ids.uid, ids.host_gid - ids.gid)


def plan_create(spec: ContainerSpec, plan: ContainerPlan, *, rootless: bool, limits: Container[str]) -> dict[str, Any]:
    """The body of POST /libpod/containers/create. Rootless, the user namespace is podman's own.

    `limits` are the cgroup controllers that may be used: to name another fails the start.
    """
    options = spec.options
    body: dict[str, Any] = {
        "name": plan.name,
        "image": options.image,
        "hostname": plan.hostname,
        "labels": plan.labels,
        "entrypoint": [spec.command[0]],
        "command": list(spec.command[1:]),
        "work_dir": "/",
        "user": plan.user,
        "env": plan.env,
        "unsetenv": list(UNSET),
        "env_host": False,
        "httpproxy": False,
        "terminal": False,
        "stdin": False,
        "cap_add": [],
        "cap_drop": ["all"],
        "no_new_privileges": True,
        "privileged": False,
        "seccomp_profile_path": seccomp.PROFILE,
        "read_only_filesystem": not options.read_write_root,
        "mounts": _mounts(plan),
        "image_volume_mode": "ignore",
        "netns": {"nsmode": _network(options.network, rootless=rootless)},
        "ipcns": {"nsmode": "none"},
        "pidns": {"nsmode": "private"},
        "utsns": {"nsmode": "private"},
        "cgroupns": {"nsmode": "private"},
        "r_limits": [{"type": limit.name.upper(), "soft": limit.value, "hard": limit.value} for limit in plan.ulimits],
        "restart_policy": "no",
        "healthconfig": {"Test": ["NONE"]},
        "log_configuration": {"driver": "none"},
        "sdnotifyMode": "ignore",
        "systemd": "false",
        "init": False,
        "remove": False,
        # What a container writes outside the workspace dies with it: its layer needs no syncing.
        "volatile": True,
    }
    # Rootless too: a namespace of the container's own has limits of its own, with the ids of podman's one inside.
    ids = range_of(spec.ids)
    body["userns"] = {"nsmode": "private"}
    body["idmappings"] = {
        "UIDMap": [{"container_id": 0, "host_id": ids.uid, "size": _id_count("uid", rootless=rootless)}],
        "GIDMap": [{"container_id": 0, "host_id": ids.gid, "size": _id_count("gid", rootless=rootless)}],
    }
    resources = {
        "pids": {"limit": options.pids},
        "memory": {"limit": options.memory_bytes, "swap": options.memory_bytes},
        "cpu": {"quota": plan.cpu_quota_us, "period": CPU_PERIOD_US},
    }
    body["resource_limits"] = {name: limit for name, limit in resources.items() if name in limits}
    return body


def _id_count(kind: str, *, rootless: bool) -> int:
    """How many ids a container has: rootless no more than the user was given, as far as they follow each other."""
    if not rootless:
        return ID_COUNT
    known = 0
    with open(f"/proc/self/{kind}_map", encoding="ascii") as file:
        for first, _, count in sorted(tuple(map(int, line.split())) for line in file):
            if first == known:
                known += count
    return min(ID_COUNT, known)


def _mounts(plan: ContainerPlan) -> list[dict[str, Any]]:
    mounts: list[dict[str, Any]] = []
    for tmpfs in plan.tmpfs:
        options = ["rw", "nosuid", "nodev", "exec" if tmpfs.executable else "noexec"]
        # podman refuses uid= on a tmpfs: open to all until `settle_directories` hands it over.
        mode = 0o1777 if tmpfs.owned else tmpfs.mode
        options += [f"size={tmpfs.size_bytes}", f"mode={mode:o}"]
        mounts.append(
            {"type": "tmpfs", "source": "tmpfs", "destination": tmpfs.path, "options": options},
        )
    for bind in plan.binds:
        options = ["bind", "rprivate", "nosuid", "nodev", "rw" if bind.writable else "ro"]
        options.append("exec" if bind.executable else "noexec")
        mounts.append(
            {"type": "bind", "source": bind.source, "destination": bind.path, "options": options},
        )
    return mounts


def _network(name: str, *, rootless: bool) -> str:
    if name == "none":
        return "none"
    return "slirp4netns" if rootless else "bridge"
