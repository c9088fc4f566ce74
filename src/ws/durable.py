"""Changes to state that survive a crash: every mutation under WS_HOME goes through here.

The order is always data → sync → reference. A file is written beside its place, synced, renamed over it,
and the directory synced; the rename is the commit point. Directories are built elsewhere and moved in with
one rename. Locks are `flock`: the kernel lets go of them when their holder dies, whatever it died of.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator, Sequence

from ws import filesystem_kinds, reserve
from ws.aside import Aside
from ws.errors import Busy, NotFound, StateUnusable, WorkspaceError
from ws.removing import remove_tree
from ws.together import Together

_libc = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2
_SYNC_FILE_RANGE_WRITE = 2
_READ_BYTES = 64 << 10
_MAX_READ_BYTES = 256 << 20  # of a small file; a damaged one may be a sparse terabyte

# What the machine says of itself, not of the request: full, broken, read-only, not ours, no descriptors or memory left.
_REFUSALS = frozenset(
    (
        errno.ENOSPC,
        errno.EDQUOT,
        errno.EIO,
        errno.EROFS,
        errno.EACCES,
        errno.EPERM,
        errno.EMFILE,
        errno.ENFILE,
        errno.ENOMEM,
        errno.EFBIG,
    )
)
# What the caller can do about a limit of its own process; all else is about WS_HOME.
_PROCESS_LIMITS = {
    errno.EFBIG: "raise the limit on file size (`ulimit -f`)",
    errno.EMFILE: "raise the limit on open files (`ulimit -n`)",
    errno.ENOMEM: "raise the limit on memory (`ulimit -v`), or free some",
}


def advice_for(error: OSError) -> str | None:
    """What to do about a limit of this process that a system call has met; None when it was something else."""
    return _PROCESS_LIMITS.get(error.errno or 0)


_directories: Together[None] = Together()


def sync_directory(path: str) -> None:
    """Make the names in a directory durable; threads that have put some into the same one do it together."""
    _directories.do(path, lambda: _sync_file(path))


def sync_filesystem(path: str) -> None:
    """Make everything written so far to the filesystem that holds `path` durable, in one call.

    One `syncfs` after 2,000 files took 1.5 s where an fsync each took 12.4 s. An ext4 without a journal needs two: the
    first writes the bytes, and only then marks their extents as written in the inodes, which it has passed already.
    (Linux 6.18: after one of them and a power cut, a file had its size and read as zeros.)
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        for _ in range(2 if filesystem_kinds.lacks_journal(path) else 1):
            if _libc.syncfs(fd) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code), path)
    finally:
        os.close(fd)


@contextlib.contextmanager
def syncing_ahead(path: str) -> Iterator[None]:
    """The disk begins to write what there is on the filesystem of `path`: a sync inside this block finds little left.

    Nothing counts as durable by that, and what is refused here is refused again by the sync that counts.
    """

    def sync() -> None:
        with contextlib.suppress(OSError):
            sync_filesystem(path)

    ahead = Aside(sync)
    try:
        yield
    finally:
        ahead.wait()


def read_file(path: str) -> bytes:
    """The bytes of a small file. Every operation reads several, and a file object takes three times as long."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)  # a FIFO must not block
    try:
        data = os.read(fd, _READ_BYTES)
        while part := os.read(fd, _READ_BYTES):  # what the kernel tells of itself comes in pages
            data += part
            if len(data) > _MAX_READ_BYTES:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), path)
        return data
    finally:
        os.close(fd)


def write_file(path: str, data: bytes, *, mode: int = 0o600, sync: bool = True) -> None:
    """Replace a file whole.

    Commit point: the rename. Before it the old bytes (or no file) are found, after it the new ones. Without `sync` a
    power cut may bring the old bytes back, but never leaves a file that was replaced without any: for what can be told
    again from elsewhere. Where only a sync gives that, it is made.
    """
    temporary, fd = _stage(path, data, mode)
    try:
        try:
            sync = sync or not filesystem_kinds.takes_bytes_along(temporary)
            if sync:
                os.fsync(fd)
        finally:
            os.close(fd)
        if sync:
            _replace(temporary, path)
        else:
            rename_over(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _replace(temporary: str, path: str) -> None:
    """Rename over a file that may be there; durable on return.

    The old file is held open until the directory is synced, so that its inode cannot become another file's before.
    Without a journal the old name would lead to that other file after a power cut.
    """
    with _held_open(path):
        rename_over(temporary, path)
        sync_directory(os.path.dirname(path))


@contextlib.contextmanager
def _held_open(*paths: str) -> Iterator[None]:
    """The inodes of these files, of those that are there, stay theirs inside this block."""
    held: list[int] = []
    try:
        for path in paths:
            with contextlib.suppress(OSError):
                held.append(os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC))
        yield
    finally:
        for fd in held:
            os.close(fd)


def rename_over(temporary: str, path: str) -> None:
    """Rename a file into its place, also where damage has left a directory: that one is removed."""
    try:
        os.rename(temporary, path)
    except IsADirectoryError:
        _renameat2(temporary, path, _RENAME_EXCHANGE)
        remove_tree(temporary)


def put_file(path: str, data: bytes = b"") -> None:
    """A file where none is, or of which nobody minds the bytes: not synced, and not replaced whole."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        while data:
            data = data[os.write(fd, data) :]
    finally:
        os.close(fd)


def _sync_file(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def stage_file(path: str, data: bytes, *, mode: int = 0o600) -> str:
    """The bytes of a file beside its place, not synced; the caller syncs them and moves them in (`commit_staged`)."""
    temporary, fd = _stage(path, data, mode)
    os.close(fd)
    return temporary


def _stage(path: str, data: bytes, mode: int = 0o600) -> tuple[str, int]:
    """A staged file, still open."""
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{os.urandom(4).hex()}.tmp")
    return temporary, reserve.new_file(temporary, data, os.O_WRONLY, mode)


def commit_staged(temporary: str, path: str) -> None:
    """Move a staged file, whose bytes are on disk, into its place. Commit point: the rename; durable on return."""
    _replace(temporary, path)


def write_files(
    files: Sequence[tuple[str, bytes]], *, also: Sequence[int] = (), then: Callable[[], None] | None = None
) -> None:
    """Make several files, and the open ones in `also`, durable together; they appear in the order given.

    All begin to be written before the first is waited for: a journal commits them together then. (Of three files that
    takes 0.6 ms at best; one after the other 0.8, from three threads 1.4.) Then `then` is called, and each file is
    renamed into its place.
    Commit point: the rename of the last. Before it, any of those before it may be there.
    """
    staged: list[str] = []
    opened: list[int] = []
    try:
        for path, data in files:
            temporary, fd = _stage(path, data)
            staged.append(temporary)
            opened.append(fd)
        for fd in (*also, *opened):
            start_writing(fd)
        for fd in (*also, *opened):
            os.fsync(fd)
        if then:
            then()
        with _held_open(*(path for path, _ in files)):
            for number, (path, _) in enumerate(files):
                os.rename(staged[number], path)
                staged[number] = ""
                directory = os.path.dirname(path)
                last = number + 1 == len(files)
                moves_on = last or os.path.dirname(files[number + 1][0]) != directory
                if last or (moves_on and not filesystem_kinds.keeps_order(directory)):
                    sync_directory(directory)
    finally:
        for fd in opened:
            os.close(fd)
        for temporary in staged:
            if temporary:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)


def start_writing(fd: int, start: int = 0, size_bytes: int = 0) -> None:
    """Begin to write a file, or a part of it, to disk, without waiting: a sync that comes later finds little left."""
    _libc.sync_file_range(fd, ctypes.c_int64(start), ctypes.c_int64(size_bytes), _SYNC_FILE_RANGE_WRITE)


def rename(source: str, destination: str) -> None:
    """Move within a filesystem; the rename is the commit point and is durable on return."""
    os.rename(source, destination)
    _sync_parents(source, destination)


def rename_new(source: str, destination: str) -> None:
    """Move to a name that must be free. Raises FileExistsError when it is not."""
    _renameat2(source, destination, _RENAME_NOREPLACE)
    _sync_parents(source, destination)


def exchange(first: str, second: str) -> None:
    """Swap two names in one step: at no instant is either of them missing."""
    _renameat2(first, second, _RENAME_EXCHANGE)
    _sync_parents(first, second)


def _renameat2(source: str, destination: str, flags: int) -> None:
    if _libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(destination), flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), source, None, destination)


def _sync_parents(source: str, destination: str) -> None:
    parents = {os.path.dirname(source), os.path.dirname(destination)}
    for parent in parents:
        sync_directory(parent)


def ensure_directory(path: str, *, mode: int = 0o700) -> None:
    """A directory, made durable if it was not there: itself, and then its name."""
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        return
    sync_directory(path)  # without a journal a name without its inode is lost
    sync_directory(os.path.dirname(path))


def unlink(path: str) -> None:
    """Remove a name if it is there; durable on return."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    sync_directory(os.path.dirname(path))


@contextlib.contextmanager
def state_usable() -> Iterator[None]:
    """What the disk refuses inside this block, or in a function that has it as decorator, becomes StateUnusable."""
    try:
        yield
    except WorkspaceError:
        raise
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        where = f": {os.fsdecode(error.filename)}" if error.filename else ""
        raise StateUnusable(
            f"the state of ws cannot be used: {error.strerror}{where}", hint=advice_for(error)
        ) from error


@contextlib.contextmanager
def locked(path: str, *, shared: bool = False, timeout_s: float = 10.0, what: str = "it") -> Iterator[int]:
    """Hold a lock file. Raises Busy after the timeout, NotFound when the file is gone.

    The path is compared with the descriptor after the lock is had: whoever removed the workspace removed the
    lock with it, and a lock on an unlinked file would protect nothing.
    """
    fd = acquire_lock(path, shared=shared, timeout_s=timeout_s, what=what)
    try:
        yield fd
    finally:
        os.close(fd)


@state_usable()
def acquire_lock(path: str, *, shared: bool = False, timeout_s: float = 10.0, what: str = "it") -> int:
    """Like `locked`, but the caller owns the descriptor; closing it lets go."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    deadline = time.monotonic() + timeout_s
    pause_s = 0.001
    fd = _open_lock(path, what)
    try:
        while True:
            try:
                fcntl.flock(fd, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise Busy(
                        f"{what} is in use by another operation",
                        hint="wait for it to end and try again",
                    ) from None
                time.sleep(pause_s)
                pause_s = min(pause_s * 2, 0.05)
        try:
            same = os.path.samestat(os.fstat(fd), os.stat(path))
        except FileNotFoundError:
            same = False
        if not same:
            raise NotFound(f"{what} is gone")
    except BaseException:
        os.close(fd)
        raise
    return fd


_NOT_A_LOCK_FILE = (errno.EISDIR, errno.ELOOP, errno.ENXIO)


def _open_lock(path: str, what: str) -> int:
    """A lock file, open. It holds nothing but its lock, so one that is missing or damaged is made again.

    A removal takes the directory of the lock away with it: without the directory, what the lock protects is gone.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY
    try:
        fd = os.open(path, flags)
        if stat.S_ISREG(os.fstat(fd).st_mode):
            return fd
        os.close(fd)
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno not in _NOT_A_LOCK_FILE:
            raise
    try:
        fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        write_file(path, b"", sync=False)
        fd = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFound(f"{what} is gone") from None
    return fd


class Announced:
    """An intent that is being carried out."""

    left = False

    def leave(self) -> None:
        """Things may not be in order: let the intent stay, for recovery to settle."""
        self.left = True


@contextlib.contextmanager
def intent(path: str, data: bytes, *, sync: bool = True) -> Iterator[Announced]:
    """Say on disk what is about to be done, for as long as it takes; held by flock, so the living are told apart.

    The file appears locked, by one rename, and goes when the block ends, in whichever way: a block that raises has
    put things right itself, or says that it could not. What is left behind, by that or by death, is unlocked: recovery
    settles it. Without `sync` an intent does not outlive a power cut; nor do the containers that some are about.
    """
    fd = _appear_locked(path, data, sync=sync)
    announced = Announced()
    try:
        yield announced
    finally:
        with contextlib.suppress(OSError):  # as good as left
            if not announced.left:
                os.unlink(path)
        os.close(fd)


@state_usable()
def _appear_locked(path: str, data: bytes, *, sync: bool) -> int:
    """A file that is locked from the first instant it has its name. Raises Busy when there is one already."""
    directory, name = os.path.split(path)
    while True:
        temporary = made = os.path.join(directory, f".{name}.{os.urandom(4).hex()}.tmp")
        fd = reserve.new_file(temporary, data, os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            if sync:
                os.fsync(fd)
            _renameat2(temporary, path, _RENAME_NOREPLACE)
            made = path
            if sync:
                sync_directory(directory)
            return fd
        except FileNotFoundError:
            os.close(fd)  # a recovery saw it before it was locked, and took it for a dead one's
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(made)
            os.close(fd)
            if isinstance(error, FileExistsError):
                raise _in_the_way(path) from None
            raise


def _in_the_way(path: str) -> Busy:
    """Why there is an intent already: of a living process, or of a dead one that recovery could not settle."""
    if is_locked(path):
        return Busy("another operation on it is under way", hint="wait for it to end and try again")
    return Busy(
        "an operation on it was cut short, and what it left cannot be put right yet",
        hint="`ws doctor` says what is in the way; the next command tries again",
    )


def is_locked(path: str) -> bool:
    """Whether a process holds the exclusive lock of a file, such as an intent. Waits for nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def create_lock_file(path: str) -> None:
    """An empty lock file, if there is none."""
    with state_usable():
        put_file(path)
