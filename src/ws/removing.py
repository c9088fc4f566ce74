"""Removing trees of directories that nobody needs any more, whatever is in them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat

_NOT_EMPTY = (errno.ENOTEMPTY, errno.EEXIST)
_REMOVAL_ROUNDS = 100


def remove_tree(path: str) -> None:
    """Remove a directory tree of any depth and any modes; idempotent, never follows a link.

    `shutil.rmtree` dies on a tree 3,000 deep. Here a directory that is not empty is first renamed up into
    the top, so that the walk is never more than one level down and holds two descriptors.

    Without a container, processes of the workspace may still be at work in it: what has become something else since
    the look is taken for what it is now. Whoever keeps on putting things back wins in the end, by ENOTEMPTY.
    """
    try:
        top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except NotADirectoryError:  # also for a link: O_DIRECTORY is checked first
        os.unlink(path)
        return
    try:
        os.fchmod(top, 0o700)
        for left in reversed(range(_REMOVAL_ROUNDS)):
            pending = _empty_directory(top, top)
            while pending:
                pending += _empty_named(pending.pop(), top)
            try:
                os.rmdir(path)
                return
            except FileNotFoundError:  # another process removed it as well
                return
            except OSError as error:
                if left == 0 or error.errno not in _NOT_EMPTY:
                    raise
    finally:
        os.close(top)


def remove_any(path: str) -> None:
    """Remove a file, or whatever has taken its place; nothing when it is gone already. Never follows a link."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        try:
            os.unlink(path)
        except IsADirectoryError:
            remove_tree(path)


def _empty_named(name: str, top: int) -> list[str]:
    """Empty and remove a directory in `top`; names what it has moved there. One that was refilled waits for a round."""
    try:
        directory = _open_to_empty(top, name)
    except (FileNotFoundError, NotADirectoryError):
        return []
    try:
        pending = _empty_directory(directory, top)
    finally:
        os.close(directory)
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        try:
            os.rmdir(name, dir_fd=top)
        except OSError as error:
            if error.errno not in _NOT_EMPTY:
                raise
    return pending


def _open_to_empty(parent: int, name: str) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=parent)
    except PermissionError:
        # By descriptor: between two looks at a name, a link may take it, and lead to what is not ours.
        found = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{found}", 0o700)
            return os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        finally:
            os.close(found)


def _empty_directory(directory: int, top: int) -> list[str]:
    """Unlink what can be; move the directories that are left into `top` and name them there."""
    with os.scandir(directory) as entries:
        names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    if names and not stat.S_IMODE(os.fstat(directory).st_mode) & stat.S_IWUSR:
        os.fchmod(directory, 0o700)
    pending = []
    for name, is_directory in names:
        try:
            if is_directory:
                os.rmdir(name, dir_fd=directory)
            else:
                os.unlink(name, dir_fd=directory)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            continue  # no longer what it was, or no longer there: the next round finds out
        except OSError as error:
            if error.errno not in _NOT_EMPTY:
                raise
            if directory == top:
                pending.append(name)
            else:
                moved = f".ws-remove-{os.urandom(8).hex()}"
                with contextlib.suppress(FileNotFoundError):
                    os.rename(name, moved, src_dir_fd=directory, dst_dir_fd=top)
                    pending.append(moved)
    return pending
