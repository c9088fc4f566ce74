"""Whole trees on a host: walking, removing, copying, whatever their depth and whoever moves them meanwhile.

Every directory is opened by a path in which the kernel allows no link (`confine.open_directory`), from the
top of the tree or from a directory below it: nothing that happens to the tree during a walk leads out of it,
no recursion overflows on a tree 3,000 deep, and no more than a few descriptors are open at a time.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from typing import NamedTuple

from ws.errors import InvalidRequest
from ws.fs.confine import kind_of
from ws.fs.kernel import open_directory

_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV)
_PASSED_OVER = (*_GONE, errno.EACCES)
_NEAR_SEGMENTS = 64
_MAX_HELD = 64
_ENTER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC


class Hidden(NamedTuple):
    """What a walk must not show, and where it need not even go, by the path below its top."""

    hides: Callable[[str], bool]
    closes: Callable[[str], bool]


class Reach:
    """Opens directories below a top, each by a path without links.

    Deep ones are opened from a directory near the last one, not from the top: on a tree 3,000 deep the kernel
    would otherwise look up millions of segments. Wherever that directory is moved meanwhile, nothing leads up
    from it.
    """

    def __init__(self, top: int) -> None:
        self._top = top
        self._near = -1
        self._near_path = ""

    def open(self, below: str) -> int:
        start, rest = self._top, below
        if self._near >= 0 and below.startswith(self._near_path + "/"):
            start, rest = self._near, below[len(self._near_path) + 1 :]
        if rest.count("/") < _NEAR_SEGMENTS:
            return open_directory(start, rest)
        segments = rest.split("/")
        ahead = "/".join(segments[: -(len(segments) % _NEAR_SEGMENTS + 1)])
        near = open_directory(start, ahead)
        self.close()
        self._near, self._near_path = near, below[: len(below) - len(rest) + len(ahead)]
        return open_directory(near, rest[len(ahead) + 1 :])

    def close(self) -> None:
        if self._near >= 0:
            os.close(self._near)
            self._near = -1

    def __enter__(self) -> Reach:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def walk(
    top: int,
    *,
    start: str = "",
    max_depth: int | None = None,
    hidden: Hidden | None = None,
    matches_path: Callable[[str], bool] | None = None,
    matches_name: Callable[[str], bool] | None = None,
) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Every entry below a directory that matches, and its path, in no order.

    An entry's `stat` may be asked until the next one comes. Directories that are gone or may not be read are
    passed over; links are never entered.
    """
    far = [start]  # to be opened from the top; what lies right below a directory that is held is opened from it
    held: list[tuple[int, str, list[str]]] = []
    with Reach(top) as reach:
        try:
            while (step := _step(reach, held, far)) is not None:
                fd, prefix = step
                inner: list[str] = []
                held.append((fd, prefix, inner))
                deeper = max_depth is None or prefix.count("/") + 1 < max_depth
                with os.scandir(fd) as entries:
                    for entry in entries:
                        name = entry.name
                        entered = deeper and entry.is_dir(follow_symlinks=False)
                        if entered and (hidden is None or not hidden.closes(prefix + name)):
                            inner.append(name)
                        if matches_name is not None and not matches_name(name):
                            continue
                        path = prefix + name
                        if matches_path is not None and not matches_path(path):
                            continue
                        if hidden is None or not hidden.hides(path):
                            yield path, entry
                if len(held) > _MAX_HELD:
                    far += [prefix + name for name in inner]
                    inner.clear()
        finally:
            for fd, _, _ in held:
                os.close(fd)


def _step(reach: Reach, held: list[tuple[int, str, list[str]]], far: list[str]) -> tuple[int, str] | None:
    """The next directory of a walk, open, and the prefix of what is in it; None after the last."""
    while True:
        if held:
            parent, prefix, names = held[-1]
            if not names:
                os.close(parent)
                held.pop()
                continue
            name = names.pop()
            try:
                return os.open(name, _ENTER, dir_fd=parent), f"{prefix}{name}/"
            except OSError as error:
                if error.errno not in _PASSED_OVER:
                    raise
        elif far:
            below = far.pop()
            fd = _open_if_there(reach, below)
            if fd is not None:
                return fd, below + "/" if below else ""
        else:
            return None


def _open_if_there(reach: Reach, below: str) -> int | None:
    try:
        return reach.open(below)
    except OSError as error:
        if error.errno in _PASSED_OVER:
            return None
        raise


def ordered_files(top: int, *, hidden: Hidden | None = None) -> Iterator[str]:
    """The regular files below a directory in the order of their paths as strings."""
    pending = ["/"]  # a trailing slash marks a directory, and sorts it where its contents belong
    with Reach(top) as reach:
        while pending:
            item = pending.pop()
            if not item.endswith("/"):
                yield item
                continue
            fd = _open_if_there(reach, item[:-1])
            if fd is None:
                continue
            prefix = "" if item == "/" else item
            found = []
            try:
                with os.scandir(fd) as entries:
                    for entry in entries:
                        path = prefix + entry.name
                        if entry.is_dir(follow_symlinks=False):
                            if hidden is None or not hidden.closes(path):
                                found.append(path + "/")
                        elif entry.is_file(follow_symlinks=False) and (hidden is None or not hidden.hides(path)):
                            found.append(path)
            finally:
                os.close(fd)
            found.sort(reverse=True)
            pending += found


def remove_tree(parent: int, name: str) -> None:
    """Remove a directory and all below it; links are removed, never followed. Idempotent for what is gone."""
    top = _open_for_change(parent, name)
    try:
        with Reach(top) as reach:
            pending: list[tuple[str, bool]] = [("", False)]
            while pending:
                below, emptied = pending.pop()
                if emptied:
                    _remove_directory(reach, below)
                    continue
                if below:
                    pending.append((below, True))
                pending += [(inner, False) for inner in _empty(reach, below)]
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=parent)


def _empty(reach: Reach, below: str) -> list[str]:
    """Unlink what is no directory; returns the directories that are left."""
    fd = _open_to_empty(reach, below)
    try:
        with os.scandir(fd) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        if found and not os.fstat(fd).st_mode & stat.S_IWUSR:
            os.fchmod(fd, 0o700)
        for entry, is_directory in found:
            if not is_directory:
                try:
                    os.unlink(entry, dir_fd=fd)
                except FileNotFoundError:
                    pass  # someone else removes the same tree
    finally:
        os.close(fd)
    prefix = below + "/" if below else ""
    return [prefix + entry for entry, is_directory in found if is_directory]


def _remove_directory(reach: Reach, below: str) -> None:
    parent, _, name = below.rpartition("/")
    fd = reach.open(parent)
    try:
        os.rmdir(name, dir_fd=fd)
    except FileNotFoundError:
        pass
    finally:
        os.close(fd)


def _open_to_empty(reach: Reach, below: str) -> int:
    try:
        return reach.open(below)
    except PermissionError:
        parent, _, name = below.rpartition("/")
        fd = reach.open(parent)
        try:
            return _open_for_change(fd, name)
        finally:
            os.close(fd)


def _open_for_change(parent: int, name: str) -> int:
    """Open a directory that its owner may have closed to himself (mode 0000)."""
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, os.O_RDONLY | flags, dir_fd=parent)
    except PermissionError:
        # chmod by name would follow a link put there meanwhile: pin the directory, change what is pinned.
        pin = os.open(name, os.O_PATH | flags, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{pin}", 0o700)
            return os.open(".", os.O_RDONLY | flags, dir_fd=pin)
        finally:
            os.close(pin)


def copy_tree(source: int, name: str, destination: int, new_name: str) -> None:
    """Copy a file, link or directory to a name that is free: bytes, modes, times, owners and xattrs where
    allowed.

    Raises InvalidRequest for sockets and devices, FileExistsError. On an error what was made is removed
    again.
    """
    try:
        _copy_entry(source, name, destination, new_name)
        if stat.S_ISDIR(os.stat(new_name, dir_fd=destination, follow_symlinks=False).st_mode):
            _copy_below(source, name, destination, new_name)
    except FileExistsError:
        raise
    except BaseException:
        remove_any(destination, new_name)
        raise


def remove_any(parent: int, name: str) -> None:
    """Remove whatever stands under a name, if something does."""
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        pass
    except (IsADirectoryError, PermissionError):
        remove_tree(parent, name)


def _copy_below(source: int, name: str, destination: int, new_name: str) -> None:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    old_top = os.open(name, flags, dir_fd=source)
    try:
        new_top = os.open(new_name, flags, dir_fd=destination)
        try:
            with Reach(old_top) as old, Reach(new_top) as new:
                _copy_entries(old, new)
        finally:
            os.close(new_top)
    finally:
        os.close(old_top)


def _copy_entries(old: Reach, new: Reach) -> None:
    linked: dict[tuple[int, int], str] = {}
    directories = [""]
    for below in directories:  # grows while it is gone through
        old_fd, new_fd = old.open(below), new.open(below)
        prefix = below + "/" if below else ""
        try:
            with os.scandir(old_fd) as entries:
                for entry in entries:
                    path = prefix + entry.name
                    if entry.is_dir(follow_symlinks=False):
                        directories.append(path)
                    status = entry.stat(follow_symlinks=False)
                    key = (status.st_dev, status.st_ino)
                    if status.st_nlink > 1 and key in linked and stat.S_ISREG(status.st_mode):
                        _link_again(new, linked[key], new_fd, entry.name)
                        continue
                    linked[key] = path
                    _copy_entry(old_fd, entry.name, new_fd, entry.name)
        finally:
            os.close(old_fd)
            os.close(new_fd)
    # Last and deepest first: filling a directory changes its time, and a closed one could not be filled.
    for below in reversed(directories):
        old_fd, new_fd = old.open(below), new.open(below)
        try:
            _copy_metadata(os.fstat(old_fd), new_fd)
        finally:
            os.close(old_fd)
            os.close(new_fd)


def _link_again(new: Reach, first: str, directory: int, name: str) -> None:
    parent, _, first_name = first.rpartition("/")
    fd = new.open(parent)
    try:
        os.link(first_name, name, src_dir_fd=fd, dst_dir_fd=directory, follow_symlinks=False)
    finally:
        os.close(fd)


def _copy_entry(source: int, name: str, destination: int, new_name: str) -> None:
    """One entry; a directory is made empty, and open to its owner until it has been filled."""
    status = os.stat(name, dir_fd=source, follow_symlinks=False)
    kind = status.st_mode
    if stat.S_ISDIR(kind):
        os.mkdir(new_name, 0o700, dir_fd=destination)
    elif stat.S_ISLNK(kind):
        os.symlink(os.readlink(name, dir_fd=source), new_name, dir_fd=destination)
        times = (status.st_atime_ns, status.st_mtime_ns)
        os.utime(new_name, ns=times, dir_fd=destination, follow_symlinks=False)
    elif stat.S_ISREG(kind):
        _copy_file(source, name, destination, new_name)
    elif stat.S_ISFIFO(kind):
        os.mkfifo(new_name, stat.S_IMODE(kind), dir_fd=destination)
    else:
        raise InvalidRequest(f"{name!r} is {kind_of(kind)} and cannot be copied")


def _copy_file(source: int, name: str, destination: int, new_name: str) -> None:
    old = os.open(name, _READ, dir_fd=source)
    try:
        status = os.fstat(old)
        if not stat.S_ISREG(status.st_mode):
            raise InvalidRequest(f"{name!r} is {kind_of(status.st_mode)} and cannot be copied")
        new = os.open(new_name, _CREATE, 0o600, dir_fd=destination)
        try:
            copy_bytes(old, new, status.st_size)
            copy_xattrs(old, new)
            _copy_metadata(status, new)
        finally:
            os.close(new)
    finally:
        os.close(old)


def copy_bytes(source: int, destination: int, size: int) -> None:
    """Copy the first `size` bytes to the position of the other, in the kernel where it can."""
    offset = 0
    while offset < size:
        try:
            done = os.copy_file_range(source, destination, min(size - offset, 1 << 30), offset)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
                raise
            done = os.sendfile(destination, source, offset, min(size - offset, 1 << 30))
        if not done:
            return
        offset += done


def copy_xattrs(source: int, destination: int) -> None:
    """Carry over the extended attributes that we may set."""
    try:
        names = os.listxattr(source)
    except OSError:
        return
    for name in names:
        try:
            os.setxattr(destination, name, os.getxattr(source, name))
        except OSError:
            pass  # not ours to set (security.*, trusted.*), or not supported there


def _copy_metadata(status: os.stat_result, fd: int) -> None:
    copy_owner(status, fd)
    os.fchmod(fd, stat.S_IMODE(status.st_mode))
    os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))


def copy_owner(status: os.stat_result, fd: int) -> os.stat_result:
    """Give the file to the same owner where we may; who may not keeps it for himself, as `cp -a` does.

    Returns what the file was like before.
    """
    now = os.fstat(fd)
    if (now.st_uid, now.st_gid) != (status.st_uid, status.st_gid):
        try:
            os.fchown(fd, status.st_uid, status.st_gid)
        except PermissionError:
            pass
    return now
