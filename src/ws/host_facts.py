"""What a file of the host has beside what a tree of the store keeps: owner, special mode bits, access lists.

An apply records it for the files that it replaces or deletes, where it is not what a new file would have anyway, so
that an undo can give it back.
"""

from __future__ import annotations

import base64
import binascii
import errno
import itertools
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ws import overlay
from ws.fs.kernel import open_directory

_SPECIAL = 0o7000
_OVERFLOW_ID = 65534  # what the kernel shows for an id that a user namespace does not have


@dataclass(frozen=True, slots=True)
class Original:
    """Owner, all twelve mode bits, and the extended attributes outside of `user.`."""

    uid: int
    gid: int
    mode: int
    xattrs: tuple[tuple[str, bytes], ...] = ()

    def to_json(self) -> list[Any]:
        return [self.uid, self.gid, self.mode, {key: base64.b64encode(value).decode() for key, value in self.xattrs}]

    @classmethod
    def from_json(cls, value: Any) -> Original:
        """Raises ValueError, TypeError."""
        uid, gid, mode, xattrs = value
        if not all(type(number) is int and 0 <= number < 1 << 32 for number in (uid, gid, mode)):
            raise ValueError("an owner or a mode is not a number")
        try:
            decoded = tuple((str(key), base64.b64decode(text, validate=True)) for key, text in xattrs.items())
        except (binascii.Error, AttributeError) as error:
            raise ValueError(f"extended attributes cannot be read: {error}") from None
        return cls(uid, gid, stat.S_IMODE(mode), decoded)


def known_owner(look: os.stat_result, top: os.stat_result) -> tuple[int, int]:
    """The owner of a file; for ids that this user namespace has no name for, those of the top directory."""
    if not overlay.in_user_namespace():
        return look.st_uid, look.st_gid
    uid = top.st_uid if look.st_uid == _OVERFLOW_ID else look.st_uid
    return uid, top.st_gid if look.st_gid == _OVERFLOW_ID else look.st_gid


def read_originals(top: int, paths: Iterable[bytes]) -> dict[bytes, Original]:
    """What is to be recorded of files below the directory open as `top`; of those that are ordinary, nothing.

    Raises OSError when one cannot be looked at.
    """
    owner = os.fstat(top)
    found = {}
    for parent, group in itertools.groupby(paths, os.path.dirname):
        directory = open_directory(top, parent.decode("utf-8", "surrogateescape"))
        try:
            for path in group:
                name = os.path.basename(path)
                look = os.stat(name, dir_fd=directory, follow_symlinks=False)
                uid, gid = known_owner(look, owner)
                xattrs = _read_xattrs(directory, name)
                special = look.st_mode & _SPECIAL and not stat.S_ISLNK(look.st_mode)
                if special or xattrs or (uid, gid) != (owner.st_uid, owner.st_gid):
                    found[path] = Original(uid, gid, stat.S_IMODE(look.st_mode), xattrs)
        finally:
            os.close(directory)
    return found


def _read_xattrs(directory: int, name: bytes) -> tuple[tuple[str, bytes], ...]:
    path = b"/proc/self/fd/%d/%s" % (directory, name)
    try:
        keys = [key for key in os.listxattr(path, follow_symlinks=False) if not key.startswith("user.")]
        return tuple((key, os.getxattr(path, key, follow_symlinks=False)) for key in keys)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOSYS, errno.ENODATA, errno.EPERM, errno.EACCES):
            return ()
        raise


def give_back(directory: int, name: bytes, original: Original, *, with_mode: bool) -> None:
    """Give a file that was made anew what was recorded. What only root may give is left out for other users."""
    mode = original.mode
    try:
        os.chown(name, original.uid, original.gid, dir_fd=directory, follow_symlinks=False)
    except PermissionError:
        mode &= ~_SPECIAL  # they were meant for another owner
    if with_mode:
        os.chmod(name, mode, dir_fd=directory)
    for key, value in original.xattrs:
        try:
            os.setxattr(b"/proc/self/fd/%d/%s" % (directory, name), key, value, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EACCES):
                raise
