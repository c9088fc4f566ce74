"""The overlay of a workspace: planned as a value, built detached, put into a running container.

A mount is made with `fsopen`/`fsconfig`/`fsmount`, so it exists before it is anywhere, and `move_mount` puts it on
the container's `/workspace` from inside the container's mount namespace. Nothing is mounted on the host: when the
container dies its mounts die with it, and a container that already runs can be given a workspace.

`setns` to a mount namespace needs an unshared `fs_struct`, not a single-threaded process: a short-lived thread that
calls `unshare(CLONE_FS)` first may enter, and leaves no trace when it ends. Measured: 0.4 ms, where forking a child
for it took 5–30 ms, growing with the parent.

Directories are handed to the kernel as `/proc/self/fd/N`. So a path may hold `,` `:` `\\` or spaces and be of any
length, it cannot be swapped between check and use, and `/proc/self/mountinfo` in the container tells nothing of
where on the host the workspace lies.

The functions at the top keep the kernel's names; their numbers are the same on x86-64 and arm64 except where two
are given.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import struct
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ws.aside import Aside
from ws.errors import ContainerDied, KernelRefused, LimitExceeded

MAX_LOWERS = 500  # the kernel's limit; one more is EINVAL

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
_X86 = os.uname().machine == "x86_64"
_SYS_UMOUNT2 = 166 if _X86 else 39
_SYS_SETNS = 308 if _X86 else 268
_SYS_UNSHARE = 272 if _X86 else 97
_SYS_OPEN_TREE = 428
_SYS_MOVE_MOUNT = 429
_SYS_FSOPEN = 430
_SYS_FSCONFIG = 431
_SYS_FSMOUNT = 432
_SYS_MOUNT_SETATTR = 442

_FSOPEN_CLOEXEC = 1
_FSMOUNT_CLOEXEC = 1
_FSCONFIG_SET_FLAG = 0
FSCONFIG_SET_STRING = 1
FSCONFIG_CMD_CREATE = 6
MOUNT_ATTR_RDONLY = 1
_MOUNT_ATTR_NOSUID = 2
_MOUNT_ATTR_NODEV = 4
_MOUNT_ATTR_NOEXEC = 8
_MOUNT_ATTR_IDMAP = 0x100000
_OPEN_TREE_CLONE = 1
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MNT_EXPIRE = 4
_AT_FDCWD = -100
_OVERLAYFS_SUPER_MAGIC = 0x794C7630
_GONE = (errno.ENOENT, errno.ESRCH)  # of a process in /proc; anything else does not mean that it is gone
_CLONE_FS = 0x200
_CLONE_NEWNS = 0x20000

T = TypeVar("T")


def _syscall(name: str, number: int, *arguments: int | bytes | None) -> int:
    # c_long for every integer: ctypes would pass a C int and leave the upper half of the register undefined.
    prepared = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    result: int = _libc.syscall(ctypes.c_long(number), *prepared)
    if result < 0:
        code = ctypes.get_errno()
        raise KernelRefused(f"{name}: {os.strerror(code)}", errno=code)
    return result


def fsopen(kind: str) -> int:
    return _syscall("fsopen", _SYS_FSOPEN, kind.encode(), _FSOPEN_CLOEXEC)


def fsconfig(context: int, command: int, key: str | None = None, value: str | None = None) -> None:
    name = f"fsconfig {key}" if key else "fsconfig"
    encoded = [os.fsencode(text) if text is not None else None for text in (key, value)]
    try:
        _syscall(name, _SYS_FSCONFIG, context, command, *encoded, 0)
    except KernelRefused as error:
        raise _with_kernel_log(error, context) from None


def fsmount(context: int) -> int:
    return _syscall("fsmount", _SYS_FSMOUNT, context, _FSMOUNT_CLOEXEC, _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV)


def move_mount(mount: int, target: str) -> None:
    _syscall(
        "move_mount",
        _SYS_MOVE_MOUNT,
        mount,
        b"",
        _AT_FDCWD,
        os.fsencode(target),
        _MOVE_MOUNT_F_EMPTY_PATH,
    )


def open_tree(directory: str) -> int:
    """A detached mount of a directory of the host."""
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
    return _syscall("open_tree", _SYS_OPEN_TREE, _AT_FDCWD, os.fsencode(directory), flags)


def mount_setattr(
    mount: int, attributes: int, idmap: int | None = None, *, recursive: bool = False, propagation: int = 0
) -> None:
    """Attributes of a detached mount that nothing can take from it once it is in a container.

    `idmap` is the descriptor of a user namespace: ids on disk that it has inside are shown as those outside.
    """
    if idmap is not None:
        attributes |= _MOUNT_ATTR_IDMAP
    what = struct.pack("=QQQQ", attributes, 0, propagation, idmap or 0)  # set, clear, propagation, user namespace
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if recursive else 0)
    _syscall("mount_setattr", _SYS_MOUNT_SETATTR, mount, b"", flags, what, len(what))


def umount2(target: str, flags: int = 0) -> None:
    _syscall("umount2", _SYS_UMOUNT2, os.fsencode(target), flags)


def setns(namespace: int, kind: int) -> None:
    _syscall("setns", _SYS_SETNS, namespace, kind)


def unshare(flags: int) -> None:
    _syscall("unshare", _SYS_UNSHARE, flags)


def _with_kernel_log(error: KernelRefused, context: int) -> KernelRefused:
    """The same error with what the kernel wrote about it: an fs context is read like a log."""
    with contextlib.suppress(OSError):
        lines = os.read(context, 4096).decode(errors="replace").strip()
        return KernelRefused(f"{error.message}: {lines}", errno=error.errno or 0)
    return error


@functools.cache
def in_user_namespace() -> bool:
    """Whether this process is root only in a namespace of its own, as under `podman unshare`."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            return file.read().split() != ["0", "0", "4294967295"]
    except OSError:
        return False


def shown_xattrs(directory: int | str) -> dict[str, bytes]:
    """The xattrs of a layer's directory that a container sees, by their names on disk: all but the kernel's notes.

    With `userxattr` the kernel keeps its notes as `user.overlay.`, and the container's own as `user.overlay.overlay.`.
    """
    notes = "user.overlay." if in_user_namespace() else "trusted."
    return {
        name: os.getxattr(directory, name)
        for name in os.listxattr(directory)
        if name.startswith("user.") and (not name.startswith(notes) or name.startswith(notes + "overlay."))
    }


@dataclass(frozen=True, slots=True)
class MountPlan:
    """An overlay to be: lowers from the top down, and the upper that takes the changes, if any are to be made.

    `upper` holds the directories `data` and `work`; each lower is a directory named in full. With `idmap`, the
    descriptor of a user namespace, the overlay is made over id-mapped clones of the directories: their files belong to
    other ids in the container than on disk (`idmaps`). The kernel refuses an id-mapped mount of a finished overlay.
    What lies below `top` shares one clone, as far as it is one mount: the end of each takes the kernel 0.1 ms.
    """

    lowers: tuple[str, ...]
    upper: str | None
    userxattr: bool = False  # the whiteout namespace of a mount made in a user namespace
    idmap: int | None = None
    top: str = "/"

    def describe(self) -> list[str]:
        """The plan in the words of mount(8), for people."""
        lines = [f"lowerdir+={lower}" for lower in self.lowers]
        if self.upper is not None:
            lines += [f"upperdir={self.upper}/data", f"workdir={self.upper}/work"]
        lines += [f"{key}={value}" for key, value in self._options()]
        return [*lines, "userxattr"] if self.userxattr else lines

    def _options(self) -> tuple[tuple[str, str], ...]:
        # The defaults depend on how the kernel was configured, so all are said. In a user namespace the kernel
        # refuses metacopy and index, and has them off.
        always = (("redirect_dir", "nofollow"), ("xino", "off"))
        return always if self.userxattr else (*always, ("metacopy", "off"), ("index", "off"), ("nfs_export", "off"))

    def execute(self) -> int:
        """Build the mount, attached nowhere; the descriptor is all there is of it.

        Raises LimitExceeded for more lowers than the kernel takes, KernelRefused when it takes none of it.
        """
        if len(self.lowers) > MAX_LOWERS:
            raise LimitExceeded(
                f"{len(self.lowers)} layers are more than the kernel's {MAX_LOWERS}",
                hint="run `ws gc` to merge layers",
            )
        with contextlib.ExitStack() as held:
            top = None if self.idmap is None else held.enter_context(_cloned(self.top, self.idmap))
            lowers = [held.enter_context(self._open(lower, top)) for lower in self.lowers]
            context = fsopen("overlay")
            held.callback(os.close, context)
            _set_lowers(context, lowers)
            if self.upper is not None:
                upper = held.enter_context(self._open(self.upper, top))  # once: both must be of one mount
                for option, part in (("upperdir", "data"), ("workdir", "work")):
                    pinned = held.enter_context(_pinned(f"{upper}/{part}"))
                    fsconfig(context, FSCONFIG_SET_STRING, option, pinned)
            for key, value in self._options():
                fsconfig(context, FSCONFIG_SET_STRING, key, value)
            if self.userxattr:
                fsconfig(context, _FSCONFIG_SET_FLAG, "userxattr")
            fsconfig(context, FSCONFIG_CMD_CREATE)
            return fsmount(context)

    @contextlib.contextmanager
    def _open(self, path: str, top: str | None) -> Iterator[str]:
        with contextlib.ExitStack() as held:
            pinned = held.enter_context(_pinned(path))
            if self.idmap is not None and top is not None:
                below = os.path.relpath(path, self.top)
                try:
                    found = held.enter_context(_pinned(f"{top}/{below}"))
                    same = os.path.samestat(os.stat(found), os.stat(pinned))
                except KernelRefused:
                    same = False
                # Not the same where another mount lies between the two.
                pinned = found if same else held.enter_context(_cloned(path, self.idmap))
            yield pinned


@contextlib.contextmanager
def _pinned(path: str) -> Iterator[str]:
    """A directory by descriptor: the name the kernel is given cannot come to mean something else."""
    try:
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise KernelRefused(f"{path}: {error.strerror}", errno=error.errno or 0) from error
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


@contextlib.contextmanager
def _cloned(path: str, idmap: int) -> Iterator[str]:
    """An id-mapped clone of a directory's mount, from that directory on, attached nowhere."""
    with _pinned(path) as pinned:
        mount = open_tree(pinned)
    try:
        mount_setattr(mount, 0, idmap)
        yield f"/proc/self/fd/{mount}"
    finally:
        os.close(mount)


def _set_lowers(context: int, lowers: list[str]) -> None:
    try:
        for lower in lowers:
            fsconfig(context, FSCONFIG_SET_STRING, "lowerdir+", lower)
    except KernelRefused as error:
        if error.errno != errno.EINVAL or lower != lowers[0]:
            raise
        # Before Linux 6.8 there is one string for all; descriptors need no escaping and keep it short.
        fsconfig(context, FSCONFIG_SET_STRING, "lowerdir", ":".join(lowers))


def attach(mount: int, pid: int, target: str) -> None:
    """Put a detached mount on `target` as the process `pid` sees it.

    Commit point: `move_mount`. Raises ContainerDied when the process is gone, KernelRefused otherwise.
    """
    attach_all([(mount, target)], pid)


def attach_all(mounts: Sequence[tuple[int, str]], pid: int) -> None:
    """As `attach`, for several in their order: entering the namespace is what takes time. No last link is followed."""

    def move() -> None:
        for mount, target in mounts:
            move_mount(mount, target)

    in_mount_namespace(pid, move)


def clone(directory: str, idmap: int | None = None) -> int:
    """A detached mount of a directory of the host, for files to be kept and nothing to be run; the caller closes it."""
    with _pinned(directory) as pinned:
        mount = open_tree(pinned)
    try:
        mount_setattr(mount, _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV | _MOUNT_ATTR_NOEXEC, idmap)
    except BaseException:
        os.close(mount)
        raise
    return mount


def is_idle(pid: int, target: str) -> bool:
    """Whether no process works in the mount or has a file of it open, so that another may cover it.

    MNT_EXPIRE asks just that: EBUSY when it is in use, EAGAIN when it is not. Asked twice with nothing in between it
    would unmount, which may take a second: so it is looked at in between.
    """
    device_at(pid, target)
    try:
        in_mount_namespace(pid, lambda: umount2(target, _MNT_EXPIRE))
    except KernelRefused as error:
        if error.errno not in (errno.EBUSY, errno.EAGAIN):
            raise
        return error.errno == errno.EAGAIN
    return True


def detach(pid: int, target: str) -> bool:
    """Take off the overlay and those that it covers; False when a process works in it or has a file of it open.

    Never lazily: after a lazy unmount processes keep writing into an upper that is taken for sealed. The end of an
    overlay syncs the whole filesystem that its upper lies on, so this may take as long as that.
    """
    while attached(pid, target):
        try:
            in_mount_namespace(pid, lambda: umount2(target))
        except KernelRefused as error:
            if error.errno == errno.EBUSY:
                return False
            raise
    return True


def attached(pid: int, target: str) -> bool:
    """Whether an overlay is what the process sees at `target`. Raises ContainerDied."""
    found = ctypes.create_string_buffer(256)  # struct statfs: 120 bytes, and room for what a kernel may add
    if _libc.statfs(os.fsencode(f"/proc/{pid}/root{target}"), found) != 0:
        code = ctypes.get_errno()
        if code in _GONE:
            raise ContainerDied(f"process {pid} is gone")
        raise KernelRefused(f"statfs of {target}: {os.strerror(code)}", errno=code)
    return int.from_bytes(found.raw[:4], sys.byteorder) == _OVERLAYFS_SUPER_MAGIC


def device_at(pid: int, target: str) -> int:
    """The device number of what the process sees at `target`: every overlay has its own. Raises ContainerDied.

    One `stat`, 10 µs, where reading the process's mountinfo takes 300: every command asks this first.
    """
    try:
        return os.stat(f"/proc/{pid}/root{target}").st_dev
    except OSError as error:
        raise _trouble(pid, error) from error


def _trouble(pid: int, error: OSError) -> ContainerDied | KernelRefused:
    if error.errno in _GONE:
        return ContainerDied(f"process {pid} is gone")
    return KernelRefused(f"/proc/{pid}: {error.strerror}", errno=error.errno or 0)


def in_mount_namespace(pid: int, action: Callable[[], T]) -> T:
    """Run `action` in the mount namespace of a process. It must make system calls only: paths are the container's.

    The thread enters, acts and ends before this returns, so no namespace is held: a held one makes the engine's
    removal of the container fail.
    """
    try:
        namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise _trouble(pid, error) from error

    def run() -> T:
        unshare(_CLONE_FS)
        setns(namespace, _CLONE_NEWNS)
        return action()

    try:
        return Aside(run).wait()
    finally:
        os.close(namespace)
