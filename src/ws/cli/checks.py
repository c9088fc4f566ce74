"""What `ws doctor` looks at. Each check tries the real thing, changes nothing, and says what to do.

A check is `ok`, a `note` (works, but a user should know), or `bad` (workspaces cannot be made).
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from ws import durable, overlay
from ws.base_directories import damaged_bases
from ws.cli.id_checks import check_host_ids
from ws.cli.text import size
from ws.engine import keyrings
from ws.engine.base import Engine
from ws.engine.choose import choose_engine
from ws.engine.images import DEFAULT_IMAGE
from ws.engine.podman_service import real_uid
from ws.errors import EngineUnavailable, ImageNotFound, KernelRefused, StateError, WorkspaceError
from ws.layout import EngineName, Home, open_home, process_start
from ws.overlay import in_user_namespace
from ws.pool import damaged_entries
from ws.records import read_records
from ws.recovery import find_orphans

Verdict = Literal["ok", "note", "bad"]

_SYS_OPENAT2 = 437
_SET_STRING = 1
_MANY_CONTAINERS = 1000
_SCARCE_BYTES = 1 << 30
_POOR_FILESYSTEMS = {
    "overlay": "overlayfs takes no upper on overlayfs: inside a container, put WS_HOME on a volume",
    "nfs": "overlayfs takes no upper on NFS",
    "nfs4": "overlayfs takes no upper on NFS",
    "vfat": "it has no owners and no xattrs",
    "tmpfs": "it is gone after a reboot",
}


@dataclass(frozen=True, slots=True)
class Check:
    area: str
    name: str
    verdict: Verdict
    detail: str
    hint: str | None = None


def run_checks(no_namespace: EngineUnavailable | None = None) -> list[Check]:
    """Look at everything once. Never raises for what it finds.

    `no_namespace` is why an ordinary user could not enter podman's user namespace.
    """
    checks = list(_state())
    home = _home()
    checks += _kernel(home, no_namespace)
    engines: list[Engine] = []
    troubles = list(_engines(home, engines))
    # One engine is enough: the other's absence is worth a note only.
    checks += [_milder(check) if engines else check for check in troubles]
    try:
        checks += _tools()
        for engine in engines:
            checks.append(_image(engine, chosen=engine.name == (os.environ.get("WS_ENGINE") or engines[0].name)))
        checks += _leftovers(home, engines)
        checks += _records(home)
    finally:
        for engine in engines:
            engine.close()
    return checks


def usable(checks: list[Check]) -> bool:
    return all(check.verdict != "bad" for check in checks)


def _milder(check: Check) -> Check:
    return check if check.verdict == "ok" else Check(check.area, check.name, "note", check.detail, check.hint)


def _home() -> Home | None:
    try:
        return open_home()
    except StateError:
        return None


# -- state -------------------------------------------------------------------------------------------------------


def _state() -> Iterator[Check]:
    try:
        home = open_home()
    except StateError as error:
        yield Check("state", "WS_HOME", "bad", error.message, error.hint)
        return
    if not os.access(home.root, os.W_OK):
        yield Check("state", "WS_HOME", "bad", f"{home.root} cannot be written", "set WS_HOME to another directory")
        return
    yield Check("state", "WS_HOME", "ok", home.root)
    kind = _filesystem(home.root)
    trouble = _POOR_FILESYSTEMS.get(kind)
    yield Check("state", "filesystem", "note" if trouble else "ok", kind, trouble)
    space = os.statvfs(home.root)
    free = space.f_bavail * space.f_frsize
    scarce = free < _SCARCE_BYTES or (space.f_files > 0 and space.f_favail < 10_000)
    yield Check(
        "state",
        "free space",
        "note" if scarce else "ok",
        f"{size(free)}, {space.f_favail:,} inodes" if space.f_files else size(free),
        "`ws ls` shows what could be removed" if scarce else None,
    )


def _filesystem(path: str) -> str:
    """The type of the filesystem that holds a path."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            fields = line.split(" ")
            if fields[2] == wanted:
                return fields[fields.index("-") + 1]
    return "unknown"  # btrfs and friends: the device of a file is not the mount's


# -- kernel ------------------------------------------------------------------------------------------------------


def _kernel(home: Home | None, no_namespace: EngineUnavailable | None) -> Iterator[Check]:
    yield Check("kernel", "Linux", "ok", os.uname().release)
    if _has_openat2():
        yield Check("kernel", "openat2", "ok", "paths are confined by the kernel")
    else:
        yield Check("kernel", "openat2", "note", "missing: paths are walked step by step", "Linux 5.6 has it")
    yield _keyrings()
    if home is None:
        return
    if no_namespace is not None:
        yield Check("kernel", "user namespace", "bad", no_namespace.message, no_namespace.hint)
        return
    if os.geteuid() != 0:
        detail = "an ordinary user cannot mount overlays"
        yield Check("kernel", "mounts", "bad", detail, "install podman, or be root")
        return
    if in_user_namespace():
        detail = f"not root: uid {real_uid()}; ws works in podman's user namespace, and rootless podman is its engine"
        yield Check("kernel", "user namespace", "note", detail)
    with tempfile.TemporaryDirectory(
        dir=home.at("staging"), prefix=f"{os.getpid()}.{process_start(os.getpid())}."
    ) as d:
        yield _lowers(d)
        yield _mount(d)
    verdict, detail, hint = check_host_ids(home)
    yield Check("kernel", "host ids", verdict, detail, hint)


def _keyrings() -> Check:
    count = keyrings.max_keyrings()
    detail = f"for {count} containers on podman at once"
    if count >= _MANY_CONTAINERS:
        return Check("kernel", "keyrings", "ok", detail)
    return Check("kernel", "keyrings", "note", detail, f"for more of them, {keyrings.RAISE}")


def _has_openat2() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall(ctypes.c_long(_SYS_OPENAT2), ctypes.c_long(-1), None, None, ctypes.c_long(0))
    return ctypes.get_errno() not in (errno.ENOSYS, errno.EPERM)


def _lowers(directory: str) -> Check:
    try:
        context = overlay.fsopen("overlay")
    except KernelRefused as error:
        hint = "`modprobe overlay`" if error.errno == errno.ENODEV else "Linux 5.11 or later, and root, are needed"
        return Check("kernel", "fsopen", "bad", error.message, hint)
    try:
        overlay.fsconfig(context, _SET_STRING, "lowerdir+", directory)
    except KernelRefused:
        detail = "no lowerdir+: layers go in one string"
        return Check("kernel", "lowerdir+", "note", detail, "Linux 6.8 has it")
    finally:
        os.close(context)
    return Check("kernel", "lowerdir+", "ok", f"up to {overlay.MAX_LOWERS} layers")


def _mount(directory: str) -> Check:
    for part in ("one", "two", "upper/data", "upper/work"):
        os.makedirs(os.path.join(directory, part))
    plan = overlay.MountPlan(
        lowers=(os.path.join(directory, "one"), os.path.join(directory, "two")),
        upper=os.path.join(directory, "upper"),
        userxattr=in_user_namespace(),
    )
    try:
        os.close(plan.execute())
    except KernelRefused as error:
        return Check(
            "kernel", "overlay", "bad", error.message, "put WS_HOME on ext4, xfs or btrfs, outside a container"
        )
    where = "in a user namespace" if plan.userxattr else "as root"
    return Check("kernel", "overlay", "ok", f"an overlay under WS_HOME was built, {where}")


# -- engines -----------------------------------------------------------------------------------------------------


def _engines(home: Home | None, found: list[Engine]) -> Iterator[Check]:
    if home is None:
        return
    names: tuple[EngineName, ...] = ("podman", "docker")
    for name in names:
        try:
            engine = choose_engine(name, home=home.root)
            facts = engine.check()
        except WorkspaceError as error:
            yield Check("engine", name, "bad", error.message, error.hint)
            continue
        found.append(engine)
        rootless = ", rootless" if facts.rootless else ""
        yield Check("engine", name, "ok", f"{facts.version}, runtime {facts.runtime}{rootless}, at {facts.endpoint}")
        for note in facts.notes:
            yield Check("engine", name, "note", note)


def _image(engine: Engine, *, chosen: bool) -> Check:
    """Without the default image `ws create` fails on the engine that it chooses, which is WS_ENGINE or the first."""
    reference = os.environ.get("WS_IMAGE") or DEFAULT_IMAGE
    verdict: Verdict = "bad" if chosen else "note"
    try:
        facts = engine.image(reference)
    except ImageNotFound:
        build = f"`ws image build --engine {engine.name}`"
        if shutil.which("mmdebstrap") is None:
            build = f"apt-get install mmdebstrap, then {build}; or with a registry, {build[:-1]} --source registry`"
        return Check("image", engine.name, verdict, f"{reference} is not there: workspaces need --image", build)
    except WorkspaceError as error:
        return Check("image", engine.name, verdict, error.message, error.hint)
    return Check("image", engine.name, "ok", f"{reference}, {size(facts.size_bytes)}")


def _tools() -> Iterator[Check]:
    rg = shutil.which("rg")
    if rg:
        yield Check("tools", "ripgrep", "ok", rg)
    else:
        yield Check("tools", "ripgrep", "note", "not found: grep is done in Python", "install ripgrep")


# -- leftovers ---------------------------------------------------------------------------------------------------


def _leftovers(home: Home | None, engines: list[Engine]) -> Iterator[Check]:
    if home is None:
        return
    left = [f"unfinished operation {name}" for name in os.listdir(home.at("pending")) if _abandoned(home, name)]
    for name in os.listdir(home.at("staging")):
        pid, _, rest = name.partition(".")
        if not (pid.isdigit() and str(process_start(int(pid))) == rest.partition(".")[0]):
            left.append(f"unfinished {name}")
    for engine in engines:
        with suppress(WorkspaceError):
            left += [f"{engine.name} container {found.id[:12]}" for found in find_orphans(home, engine)]
    if left:
        yield Check("leftovers", "crashes", "note", ", ".join(left[:5]), "`ws prune` removes them")
    else:
        yield Check("leftovers", "crashes", "ok", "nothing was left behind")


def _abandoned(home: Home, name: str) -> bool:
    """Whether the process that had this intent is gone: the living hold its lock."""
    path = home.at("pending", name)
    return os.path.lexists(path) and not durable.is_locked(path)


def _records(home: Home | None) -> Iterator[Check]:
    if home is None:
        return
    for damaged in read_records(home)[1]:
        yield Check("state", damaged.name, "note", damaged.problem, f"`ws rm {damaged.name}` removes it")
    for problem in damaged_bases(home):
        yield Check("state", "bases", "note", problem, "it is made again from git when it is next used")
    for problem in damaged_entries(home):
        yield Check("state", "pool", "note", problem, "`ws prune` removes what is not of the pool")
