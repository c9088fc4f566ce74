"""Changes to a directory of this machine: what `HostFilesystem` does to names, each with the parent pinned.

Every call opens the parent directory beneath the root (`confine`) and then uses `*at` calls with a single segment, so
no link that is put on the way meanwhile leads elsewhere.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

from ws.errors import InvalidRequest
from ws.fs.confine import Confinement, Pinned
from ws.fs.host_streams import sync_directory, temporary_name
from ws.fs.kernel import rename_new
from ws.fs.paths import PathRules
from ws.fs.protocol import FileStat
from ws.fs.trees import copy_tree, remove_any, remove_tree


class HostChanges(ABC):
    """The mutations of a `HostFilesystem`."""

    _rules: PathRules
    _confinement: Confinement
    _durable: bool
    _read_only: bool

    @abstractmethod
    def stat(self, path: str, *, follow_symlinks: bool = True) -> FileStat:
        """See `Filesystem`."""

    def delete(self, path: str, recursive: bool = False) -> None:
        with self.pin_for_change(path) as pinned:
            kind = os.stat(pinned.name, dir_fd=pinned.parent, follow_symlinks=False).st_mode
            if not stat.S_ISDIR(kind):
                os.unlink(pinned.name, dir_fd=pinned.parent)
            elif recursive:
                remove_tree(pinned.parent, pinned.name)
            else:
                os.rmdir(pinned.name, dir_fd=pinned.parent)
            if self._durable:
                sync_directory(pinned.parent)

    def unlink(self, path: str) -> None:
        with self.pin_for_change(path) as pinned:
            os.unlink(pinned.name, dir_fd=pinned.parent)
            if self._durable:
                sync_directory(pinned.parent)

    def rmdir(self, path: str) -> None:
        with self.pin_for_change(path) as pinned:
            os.rmdir(pinned.name, dir_fd=pinned.parent)
            if self._durable:
                sync_directory(pinned.parent)

    def mkdir(self, path: str, parents: bool = True, exist_ok: bool = True) -> None:
        self._check_writable(path)
        with self._confinement.parent(path, create_parents=parents) as pinned:
            if not pinned.name:
                if exist_ok:
                    return
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            try:
                os.mkdir(pinned.name, dir_fd=pinned.parent)
            except FileExistsError:
                if exist_ok and self._is_directory(path):
                    return
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
            if self._durable:
                sync_directory(pinned.parent)

    def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        with self.pin_for_change(source) as old, self.pin_for_change(destination) as new:
            try:
                if overwrite:
                    os.rename(old.name, new.name, src_dir_fd=old.parent, dst_dir_fd=new.parent)
                else:
                    rename_new(old.name, old.parent, new.name, new.parent)
            except OSError as error:
                if error.errno == errno.EINVAL:
                    raise InvalidRequest(f"{source!r} cannot be moved into itself ({destination!r})") from None
                if error.errno != errno.EXDEV:
                    error.filename, error.filename2 = source, destination
                    raise
                self._move_by_copy(old, new, overwrite=overwrite)
            if self._durable:
                sync_directory(old.parent)
                sync_directory(new.parent)

    def _move_by_copy(self, old: Pinned, new: Pinned, *, overwrite: bool) -> None:
        """What rename cannot do: another filesystem, or a directory of an overlay's lower layer.

        Commit point: the rename of the finished copy; the source is removed after it.
        """
        self._copy(old, new, overwrite=overwrite)
        remove_any(old.parent, old.name)

    def copy(self, source: str, destination: str, overwrite: bool = False) -> None:
        with self.pin_for_change(source) as old, self.pin_for_change(destination) as new:
            try:
                status = os.stat(old.name, dir_fd=old.parent, follow_symlinks=False)
            except OSError as error:
                error.filename = source
                raise
            start, end = (
                self._confinement.resolve(self._rules.parse(path), path, follow_last=False)
                for path in (source, destination)
            )
            if start == end:
                if overwrite:
                    return
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), destination)
            above, below = (self._rules.absolute(place) + "/" for place in (start, end))
            if stat.S_ISDIR(status.st_mode) and below.startswith(above):
                raise InvalidRequest(f"{source!r} cannot be copied into itself ({destination!r})")
            try:
                self._copy(old, new, overwrite=overwrite)
            except OSError as error:
                error.filename, error.filename2 = source, destination
                raise
            if self._durable:
                sync_directory(new.parent)

    def _copy(self, old: Pinned, new: Pinned, *, overwrite: bool) -> None:
        """A finished copy under a temporary name, then its rename."""
        if not overwrite:
            _check_free(new)  # before any byte is copied; the rename decides
        temporary = temporary_name()
        copy_tree(old.parent, old.name, new.parent, temporary)
        try:
            if overwrite:
                os.rename(temporary, new.name, src_dir_fd=new.parent, dst_dir_fd=new.parent)
            else:
                rename_new(temporary, new.parent, new.name, new.parent)
        except BaseException:
            remove_any(new.parent, temporary)
            raise

    def make_link(self, path: str, target: str) -> None:
        with self.pin_for_change(path) as pinned:
            try:
                os.symlink(target, pinned.name, dir_fd=pinned.parent)
            except OSError as error:
                error.filename2 = None
                raise

    def set_mode(self, path: str, mode: int) -> None:
        self._check_writable(path)
        fd = self._confinement.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            os.chmod(f"/proc/self/fd/{fd}", mode)
        finally:
            os.close(fd)

    def set_modified(self, path: str, modified_ns: int) -> None:
        self._check_writable(path)
        with self._confinement.parent(path) as pinned:
            name, times = pinned.name or ".", (time.time_ns(), modified_ns)
            os.utime(name, ns=times, dir_fd=pinned.parent, follow_symlinks=False)

    @contextmanager
    def pin_for_change(self, path: str) -> Iterator[Pinned]:
        """Pin a path that is about to go or to come as a whole: moves, also between two host directories."""
        self._check_writable(path)
        with self._confinement.parent(path) as pinned:
            if not pinned.name:
                raise self._rules.violation(path, "it is the root itself", hint="name what lies below the root")
            self._rules.check_whole(pinned.place, path)
            yield pinned

    def _is_directory(self, path: str) -> bool:
        """Whether a directory stands at a path, or a link to one where links are followed. Raises FsViolationError."""
        try:
            return self.stat(path, follow_symlinks=self._rules.limits.follow_links).is_directory
        except FileNotFoundError:
            return False  # a link that leads nowhere

    def _behind_link(self, path: str) -> tuple[bool, bool]:
        """Whether a path leads to a regular file, and whether to a directory; neither for a link not followed."""
        try:
            fd = self._confinement.open(path, os.O_PATH | os.O_CLOEXEC)
        except (OSError, ValueError):
            return False, False
        try:
            kind = os.fstat(fd).st_mode
        finally:
            os.close(fd)
        return stat.S_ISREG(kind), stat.S_ISDIR(kind)

    def _check_writable(self, path: str) -> None:
        if self._read_only:
            raise PermissionError(errno.EROFS, "the filesystem is read-only", path)


def _check_free(pinned: Pinned) -> None:
    try:
        os.stat(pinned.name, dir_fd=pinned.parent, follow_symlinks=False)
    except FileNotFoundError:
        return
    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), pinned.name)
