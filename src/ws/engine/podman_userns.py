"""The user namespace of rootless podman, entered by this very process.

Mounting an overlay takes root, at least in a user namespace. An ordinary user has one with podman, kept alive by
podman's pause process. Its ids are needed too: images and workspaces have files of many owners.

`enter` joins it by `setns`: no exec and no child, so the pid that the caller of ws has stays ws, and signals, exit
statuses and timeouts work as they do for root.

    user namespace     podman's, where the caller is root
    mount namespace    a new copy of the caller's own: every path means what it means to the caller. Podman's is a copy
                       from when its pause process started; mounts that are newer are missing there unless / is shared

Containers and their mounts belong to podman's service, which runs in podman's mount namespace: `in_podmans_mounts`.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import struct
import subprocess
from collections.abc import Callable, Iterator
from typing import TypeVar

from ws import overlay
from ws.errors import EngineUnavailable, KernelRefused
from ws.layout import process_start

PAUSE = "WS_PODMAN_PAUSE"  # "PID START" of podman's pause process, for this process and its children
IDS_NEEDED = 65_536
NO_IDS_HINT = (
    "as root: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER, with ids that no other user has; "
    "then `podman system migrate`"
)
_CLONE_NEWNS = 0x20000
_CLONE_NEWUSER = 0x10000000
_NS_GET_OWNER_UID = 0xB704
_PR_SET_DUMPABLE = 4
_PAUSE_NAMES = ("podman pause", "podman", "catatonit")
_START_S = 30.0

T = TypeVar("T")


def enter(podman: str) -> None:
    """Make this process root in podman's user namespace, with the caller's own mounts.

    Only while the process has one thread. Raises EngineUnavailable when podman cannot make the namespace, it lacks
    ids, or the kernel refuses; the process is of no use for workspaces then.
    """
    uid, gid = os.geteuid(), os.getegid()
    with contextlib.ExitStack() as held:
        pid = find_pause(uid)
        joined = pid
        if joined is None:
            joined = held.enter_context(_held_namespace(podman))
            pid = _find_by_namespace(joined, uid)
        _join(joined)
    overlay.in_user_namespace.cache_clear()
    # Exec would have made it so: without it /proc/self is not ours to read.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1)
    # As `podman unshare` sets them: without them a podman that we start takes itself for one of real root.
    os.environ["_CONTAINERS_USERNS_CONFIGURED"] = "done"
    os.environ["_CONTAINERS_ROOTLESS_UID"] = str(uid)
    os.environ["_CONTAINERS_ROOTLESS_GID"] = str(gid)
    if pid is not None:
        os.environ[PAUSE] = f"{pid} {process_start(pid)}"


def find_pause(uid: int) -> int | None:
    """Podman's pause process of a user, as its pid file says; None when there is none, or it is another process."""
    for directory in _runtime_directories(uid):
        try:
            with open(os.path.join(directory, "libpod", "tmp", "pause.pid"), encoding="ascii") as file:
                pid = int(file.read(32))
        except (OSError, ValueError):
            continue
        if _is_pause(pid, uid):
            return pid
    return None


def in_podmans_mounts(action: Callable[[], T]) -> T:
    """Run `action`, which starts a process, where podman's own processes see their mounts.

    Where this process did not come through `enter`, or the pause process is gone: as it is.
    """
    pid = noted_pause()
    return action() if pid is None else overlay.in_mount_namespace(pid, action)


def noted_pause() -> int | None:
    """The pause process whose user namespace this process, or one that started it, entered; None when it is gone."""
    pid, _, started = os.environ.get(PAUSE, "").partition(" ")
    return int(pid) if pid.isdigit() and str(process_start(int(pid))) == started else None


def missing_ids(pid: int) -> str | None:
    """What a process's user namespace lacks for images and workspaces, in words; None when it lacks nothing.

    Raises OSError when the process is gone.
    """
    for kind in ("user", "group"):
        with open(f"/proc/{pid}/{kind[0]}id_map", encoding="ascii") as file:
            ranges = sorted((int(first), int(count)) for first, _, count in (line.split() for line in file))
        covered = 0
        for first, count in ranges:
            if first > covered:
                break
            covered = max(covered, first + count)
        if covered < IDS_NEEDED:
            return f"podman's user namespace has {covered} {kind} id{'s' * (covered != 1)}, {IDS_NEEDED} are needed"
    return None


def _runtime_directories(uid: int) -> list[str]:
    """Where podman puts its files of this boot, in the order in which it looks."""
    named = os.environ.get("XDG_RUNTIME_DIR")
    temporary = os.environ.get("TMPDIR") or "/tmp"
    return [named] if named else [f"/run/user/{uid}", os.path.join(temporary, f"podman-run-{uid}")]


def _is_pause(pid: int, uid: int) -> bool:
    """Whether a process is podman's pause process: pids are used again, and a file in /tmp may be another user's."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            if file.read().rstrip("\n") not in _PAUSE_NAMES:
                return False
        return _owner_of_namespace(pid) == uid and not _is_own_namespace(pid, "user")
    except OSError:
        return False


def _owner_of_namespace(pid: int) -> int:
    namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = fcntl.ioctl(namespace, _NS_GET_OWNER_UID, struct.pack("I", 0))
    finally:
        os.close(namespace)
    return int(struct.unpack("I", found)[0])


def _is_own_namespace(pid: int, kind: str) -> bool:
    return os.stat(f"/proc/{pid}/ns/{kind}").st_ino == os.stat(f"/proc/self/ns/{kind}").st_ino


def _join(pid: int) -> None:
    try:
        namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        lacking = missing_ids(pid)
    except OSError as error:
        raise EngineUnavailable(
            f"podman's user namespace is gone: {error.strerror}", hint="run the command again"
        ) from error
    try:
        if lacking is not None:
            raise EngineUnavailable(lacking, hint=NO_IDS_HINT)
        overlay.setns(namespace, _CLONE_NEWUSER)
        overlay.unshare(_CLONE_NEWNS)
    except KernelRefused as error:
        raise EngineUnavailable(
            f"podman's user namespace cannot be entered: {error.message}",
            hint="the process must have one thread only, and the kernel must allow user namespaces",
        ) from error
    finally:
        os.close(namespace)


@contextlib.contextmanager
def _held_namespace(podman: str) -> Iterator[int]:
    """A process in podman's namespaces, by its pid, while the block runs. Podman makes its pause process for it."""
    words = [podman, "unshare", "/bin/sh", "-c", "echo $$ && exec cat"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            line = child.stdout.readline()
            if not line.strip().isdigit():
                said = child.stderr.read().decode(errors="replace").strip()
                raise EngineUnavailable(f"`podman unshare` fails: {said or 'it wrote nothing'}", hint=NO_IDS_HINT)
            yield int(line)
        finally:
            child.stdin.close()  # cat ends
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_START_S)
            child.kill()


def _find_by_namespace(holder: int, uid: int) -> int | None:
    """The pause process that shares a process's mount namespace, wherever podman notes its pid."""
    noted = find_pause(uid)
    if noted is not None:
        return noted
    wanted = os.stat(f"/proc/{holder}/ns/mnt").st_ino
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and os.stat(f"/proc/{name}/ns/mnt").st_ino == wanted and _is_pause(int(name), uid):
                return int(name)
    return None
