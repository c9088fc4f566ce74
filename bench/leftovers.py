"""What one WS_HOME has on the machine: mounts, networks, containers, processes, directories, and our own descriptors.

Others work on the machine at the same time; what is theirs is no concern of ours.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection
from pathlib import Path

from ws.manager import Manager
from ws.workspace import Workspace

SETTLE_S = 10.0  # an engine's own clean-up runs on for a moment after the container is gone
RESERVATIONS = "/var/lib/cni"
PARTS = ("workspaces", "names", "run", "pending", "staging")


def marks_of(box: Workspace) -> set[str]:
    """What traces of a workspace's container are known by: its id, and where its network namespace is mounted."""
    container = box.record().container
    assert container is not None
    namespace = f" {os.readlink(f'/proc/{container.pid}/ns/net')} "
    mounts = _read("/proc/self/mountinfo").decode(errors="replace").splitlines()
    return {container.id, *(line.split(" ")[4] for line in mounts if namespace in line)}


def leftovers(manager: Manager, containers: Collection[str] = ()) -> dict[str, set[str]]:
    """By kind. What has a mark of `containers` is ours; so is a process that names the home, or has it mounted."""
    root = manager.home.root
    # The name of the home is unique; its path is not what mountinfo shows where /tmp is a filesystem of its own.
    marks = [root.encode(), *(container.encode() for container in containers)]
    mark = os.path.join(os.path.basename(os.path.dirname(root)), os.path.basename(root)).encode()
    return {
        "mounts": {
            line.decode()
            for line in _read("/proc/self/mountinfo").splitlines()
            if mark in line or any(each in line for each in marks[1:])
        },
        "networks": _reservations(marks[1:]),
        "containers": {state.id for state in manager.engine().list(root)},
        "processes": {_title(pid) for pid in os.listdir("/proc") if pid.isdigit() and _ours(pid, marks, mark)},
        "descriptors": _descriptors(),
        "directories": {
            f"{part}/{name}"
            for part in PARTS
            if os.path.isdir(os.path.join(root, part))
            for name in os.listdir(os.path.join(root, part))
        },
    }


def left_since(before: dict[str, set[str]], manager: Manager, containers: Collection[str]) -> dict[str, list[str]]:
    """What is there now and was not before, once the engine has had time to clean up; empty if nothing."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        after = leftovers(manager, containers)
        left = {kind: sorted(after[kind] - before[kind]) for kind in after if after[kind] - before[kind]}
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def _ours(pid: str, marks: list[bytes], mounted: bytes) -> bool:
    if int(pid) == os.getpid():
        return False
    words = _read(f"/proc/{pid}/cmdline")
    if any(mark in words for mark in marks):
        return True
    # A container's own namespace shows its run directory and its overlay; the host's shows nothing of ours.
    same = _namespace(pid) == _namespace("self")
    return not same and mounted in _read(f"/proc/{pid}/mountinfo")


def _reservations(marks: list[bytes]) -> set[str]:
    """What podman's network plugins keep of a container: its addresses, and with what its network was made."""
    paths = (os.path.join(directory, name) for directory, _, names in os.walk(RESERVATIONS) for name in names)
    return {path for path in paths if any(mark in os.fsencode(path) + _read(path) for mark in marks)}


def _title(pid: str) -> str:
    return f"{pid} {_read(f'/proc/{pid}/cmdline')[:80].replace(bytes(1), b' ').decode(errors='replace')}"


def _namespace(pid: str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt")
    except OSError:
        return ""


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # the process has ended meanwhile
        return b""


def _descriptors() -> set[str]:
    """What each descriptor of this process leads to, with a number for those that lead to the same."""
    seen: dict[str, int] = {}
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{number}")
        except OSError:  # the directory's own descriptor
            continue
        kind = target if target.startswith("/") else target.split(":")[0]
        seen[kind] = seen.get(kind, 0) + 1
    return {f"{kind}#{count}" for kind, times in seen.items() for count in range(times)}
