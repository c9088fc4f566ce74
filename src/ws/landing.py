"""Changes land in a directory of the host: check all, stage all, rename all, or take everything back.

Everything new is made in `.ws-apply-…` at the top of the directory first, synced, and then moved to its place by
one rename each; what it replaces is swapped out into the same place, and what goes is moved there. So until the end
nothing is lost, and an error half way is undone by the same renames backwards.

Workspaces are hostile: no path is ever followed through a link. Directories are opened beneath the top by a call in
which the kernel allows no link at all (`fs.kernel`), and the rest are `*at` calls with one name. Whoever changes a
file of the host in the last instant finds his own version in its place: what was swapped out is compared with what
was seen, and anything unexpected takes everything back.

A crash leaves some paths new and some as they were, and the staging directory. Nothing of it is needed: the next time
removes it. The living are told apart from the dead by a flock on it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ws import durable
from ws.errors import ApplyFailed
from ws.fs.kernel import exchange, open_directory, rename_new
from ws.fs.trees import remove_any
from ws.host_facts import Original
from ws.landing_stage import Stage, Step, failed
from ws.store import trees
from ws.store.gathering import Row
from ws.store.repository import Store
from ws.store.statcache import StatCache

STAGING = ".ws-apply-"

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Obstacle:
    path: bytes
    reason: str


class Landing:
    """A directory, open as `top`, and the steps to be taken in it; `cache` says what was seen there."""

    def __init__(
        self, top: int, steps: Sequence[Step], cache: StatCache, originals: Mapping[bytes, Original] | None = None
    ) -> None:
        """`originals` is what is to be given back to paths that come back, beside their content (`host_facts`)."""
        self._top = top
        self._originals = originals or {}
        self._found = os.fstat(top)
        self._steps = steps
        self._cache = cache
        self._rows: dict[bytes, dict[bytes, Row]] = {}
        self._numbers: dict[bytes, int] = {b"": 0}
        self._made = {step.path for step in steps if step.action == "mkdir"}
        self._deleted = {step.path for step in steps if step.action == "delete"}
        self._staging = -1
        self._undo: list[Callable[[], None]] = []
        self.is_torn = False  # an error half way could not be taken back
        self.kept: list[bytes] = []  # directories that were to go, and in which something else lies

    @contextlib.contextmanager
    def _directory(self, path: bytes) -> Iterator[int]:
        fd = open_directory(self._top, path.decode("utf-8", "surrogateescape"))
        try:
            yield fd
        finally:
            os.close(fd)

    # -- looking -------------------------------------------------------------------------------------------------

    def obstacles(self) -> list[Obstacle]:
        """Where the directory is not as it was seen, or cannot take the change. Only looks."""
        found = []
        for step in self._steps:
            reason = self._obstacle(step)
            if reason:
                found.append(Obstacle(step.path, reason))
        return found

    def _obstacle(self, step: Step) -> str | None:
        parent, name = os.path.split(step.path)
        if parent in self._made or (step.action != "delete" and step.path in self._deleted):
            return None  # nothing is there yet; or the step that deletes it looks
        try:
            with self._directory(parent) as directory:
                if os.fstat(directory).st_dev != self._found.st_dev:
                    return "it lies on another filesystem"
                look = os.stat(name, dir_fd=directory, follow_symlinks=False)
        except FileNotFoundError:
            return "it is gone" if step.old else None
        except OSError as error:
            return f"its directory cannot be opened: {error.strerror}"
        if step.old is None:
            return "something that was not imported stands in its place"
        if step.old.meta.kind != "d":
            return None if self._is_as_seen(step.path, look) else "it changed just now"
        if not stat.S_ISDIR(look.st_mode) or look.st_dev != self._found.st_dev:
            return "it changed just now"
        return self._obstacle_inside(step.path) if step.action == "delete" and step.new else None

    def _obstacle_inside(self, path: bytes) -> str | None:
        """A directory that something else replaces must hold nothing but what goes with it."""
        with self._directory(path) as directory:
            names = map(os.fsencode, os.listdir(directory))
        left = next((name for name in names if trees.join(path, name) not in self._deleted), None)
        return f"it holds {trees.os_path(b'', left)}, which was not imported" if left else None

    def _is_as_seen(self, path: bytes, look: os.stat_result) -> bool:
        row = self._row(path)
        return row is not None and (look.st_ino, look.st_size, look.st_ctime_ns) == row[1:4]

    def _row(self, path: bytes) -> Row | None:
        parent, name = os.path.split(path)
        if parent not in self._rows:
            number = self._number(parent)
            rows = self._cache.rows(number) if number >= 0 else []
            self._rows[parent] = {row[0]: row for row in rows}
        return self._rows[parent].get(name)

    def _number(self, directory: bytes) -> int:
        """A directory's number in the cache, −1 when it was not seen."""
        pending = []
        while directory not in self._numbers:
            pending.append(directory)
            directory = os.path.dirname(directory)
        number = self._numbers[directory]
        while pending:
            directory = pending.pop()
            number = self._cache.find(number, os.path.basename(directory)) if number >= 0 else -1
            self._numbers[directory] = number
        return number

    # -- landing -------------------------------------------------------------------------------------------------

    def land(self, store: Store) -> None:
        """Take all steps, or none of them. Raises ApplyFailed, StoreDamaged; then the directory is as it was.

        Commit point: the renames, one a path; there is no instant for all of them together.
        """
        remove_leftovers(self._top)
        if not self._steps:
            return
        name = STAGING + os.urandom(6).hex()
        try:
            os.mkdir(name, 0o700, dir_fd=self._top)
            self._staging = os.open(name, _DIRECTORY, dir_fd=self._top)
        except OSError as error:
            raise failed(b"", error) from error
        try:
            fcntl.flock(self._staging, fcntl.LOCK_EX)
            with Stage(self._top, self._staging, self._originals, self._deleted) as stage:
                stage.make_all(store, self._steps)
            self._sync()
            for obstacle in self.obstacles():
                raise ApplyFailed(
                    f"{trees.os_path(obstacle.path, b'')}: {obstacle.reason}; nothing was changed", hint="try again"
                )
            self._switch()
        finally:
            os.close(self._staging)
            remove_any(self._top, name)

    def _sync(self) -> None:
        try:
            durable.sync_filesystem(f"/proc/self/fd/{self._staging}")
        except OSError as error:
            raise failed(b"", error) from error

    # -- the renames ---------------------------------------------------------------------------------------------

    def _switch(self) -> None:
        numbered = list(enumerate(self._steps))
        order = [
            *((n, step) for n, step in reversed(numbered) if step.action == "delete"),  # what is inside goes first
            *((n, step) for n, step in numbered if step.action == "mkdir"),
            *((n, step) for n, step in numbered if step.action == "write"),
            *((n, step) for n, step in reversed(numbered) if step.action == "mode"),
        ]
        try:
            for number, step in order:
                parent, name = os.path.split(step.path)
                try:
                    with self._directory(parent) as directory:
                        self._take(number, step, directory, name.decode("utf-8", "surrogateescape"))
                except OSError as error:
                    raise failed(step.path, error) from error
            for _, step in reversed(numbered):
                if step.action == "mkdir" and step.new:
                    self._finish_directory(step.path, step.new)
            self._sync()
        except BaseException:
            for undo in reversed(self._undo):
                try:
                    undo()
                except OSError:
                    self.is_torn = True
            raise

    def _take(self, number: int, step: Step, directory: int, name: str) -> None:
        staged, aside = str(number), f"old-{number}"
        if step.action == "mode":
            self._change_mode(step, directory, name)
        elif step.action == "delete" and step.old and step.old.meta.kind == "d":
            self._remove_directory(step, directory, name)
        elif step.action == "delete":
            os.rename(name, aside, src_dir_fd=directory, dst_dir_fd=self._staging)
            self._undo.append(lambda: self._put_back(aside, step.path))
            self._check_swapped(step, aside)
        elif step.action == "write" and step.old is not None and step.path not in self._deleted:
            exchange(staged, self._staging, name, directory)
            self._undo.append(lambda: self._swap_back(staged, step.path))
            self._check_swapped(step, staged)
        else:
            rename_new(staged, self._staging, name, directory)
            self._undo.append(lambda: self._take_away(staged, step.path))

    def _check_swapped(self, step: Step, aside: str) -> None:
        """What came out must be what was seen; a rename moves the ctime, so the inode, size and mtime must do."""
        look = os.stat(aside, dir_fd=self._staging, follow_symlinks=False)
        row = self._row(step.path)
        mtime_ns = step.old.meta.mtime_ns if step.old else None
        if row is None or (look.st_ino, look.st_size, look.st_mtime_ns) != (row[1], row[2], mtime_ns):
            raise OSError(errno.EBUSY, "it changed in this instant")

    def _remove_directory(self, step: Step, directory: int, name: str) -> None:
        look = os.stat(name, dir_fd=directory, follow_symlinks=False)
        try:
            os.rmdir(name, dir_fd=directory)
        except OSError as error:
            if step.new is not None or error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            self.kept.append(step.path)
            return
        self._undo.append(lambda: self._make_again(step.path, look))

    def _change_mode(self, step: Step, directory: int, name: str) -> None:
        fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        try:
            look = os.fstat(fd)
            assert step.new
            special = look.st_mode & 0o7000 if stat.S_ISDIR(look.st_mode) else 0
            original = self._originals.get(step.path)
            os.chmod(f"/proc/self/fd/{fd}", original.mode if original else special | step.new.meta.mode & 0o777)
        finally:
            os.close(fd)
        self._undo.append(lambda: self._set_mode(step.path, stat.S_IMODE(look.st_mode)))

    def _finish_directory(self, path: bytes, new: trees.File) -> None:
        """A new directory gets its last mode and its time once nothing more comes into it."""
        with self._directory(path) as directory:
            original = self._originals.get(path)
            os.fchmod(directory, original.mode if original else new.meta.mode & 0o777)
            os.utime(directory, ns=(new.meta.mtime_ns, new.meta.mtime_ns))

    # -- and backwards -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _place(self, path: bytes) -> Iterator[tuple[int, str]]:
        parent, name = os.path.split(path)
        with self._directory(parent) as directory:
            yield directory, name.decode("utf-8", "surrogateescape")

    def _put_back(self, aside: str, path: bytes) -> None:
        with self._place(path) as (directory, name):
            rename_new(aside, self._staging, name, directory)

    def _swap_back(self, staged: str, path: bytes) -> None:
        with self._place(path) as (directory, name):
            exchange(staged, self._staging, name, directory)

    def _take_away(self, staged: str, path: bytes) -> None:
        with self._place(path) as (directory, name):
            rename_new(name, directory, staged, self._staging)

    def _make_again(self, path: bytes, look: os.stat_result) -> None:
        with self._place(path) as (directory, name):
            os.mkdir(name, 0o700, dir_fd=directory)
        with self._directory(path) as made:
            if os.geteuid() == 0:
                os.fchown(made, look.st_uid, look.st_gid)
            os.fchmod(made, stat.S_IMODE(look.st_mode))

    def _set_mode(self, path: bytes, mode: int) -> None:
        with self._place(path) as (directory, name):
            fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            try:
                os.chmod(f"/proc/self/fd/{fd}", mode)
            finally:
                os.close(fd)


def remove_leftovers(top: int) -> None:
    """Take away the staging directories of those that died."""
    for name in os.listdir(top):
        if not name.startswith(STAGING):
            continue
        try:
            fd = os.open(name, _DIRECTORY, dir_fd=top)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_any(top, name)
        except BlockingIOError:
            pass  # another apply is under way
        finally:
            os.close(fd)
