"""User xattrs, and those in which overlayfs keeps its own notes.

A mount keeps its notes as `trusted.overlay.*`, or with the option `userxattr` as `user.overlay.*`. Only the
namespace that our mount uses means anything: in the other one, `user.overlay.opaque` is a container's own
data like any other. Where the kernel uses `user.overlay.`, it shows and takes the container's own as
`user.overlay.overlay.`; so do we.
"""

from __future__ import annotations

import errno
import os
from typing import Literal

from ws.errors import SnapshotFailed
from ws.store.meta import Xattrs

Namespace = Literal["", "trusted", "user"]  # where overlayfs keeps its notes in the tree; "": it is no layer

_USER_NOTES = "user.overlay."
_ESCAPED = "user.overlay.overlay."


def read_layer_xattrs(fd: int, namespace: Namespace) -> tuple[Xattrs, bool]:
    """The user xattrs of an open file as the container sees them, and whether it is an opaque directory.

    Raises SnapshotFailed on notes that say the content lies elsewhere: our mounts never make them.
    """
    try:
        keys = os.listxattr(fd)
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOSYS):
            return (), False
        raise
    if not keys:
        return (), False
    notes = namespace and f"{namespace}.overlay."
    found: list[tuple[bytes, bytes]] = []
    opaque = False
    for key in keys:
        if notes and key.startswith(notes) and not key.startswith(_ESCAPED):
            opaque = _read_note(fd, key, key.removeprefix(notes)) or opaque
        elif key.startswith("user."):
            shown = (
                _USER_NOTES + key.removeprefix(_ESCAPED) if notes == _USER_NOTES and key.startswith(_ESCAPED) else key
            )
            try:
                found.append((os.fsencode(shown), os.getxattr(fd, key)))
            except OSError as error:
                if error.errno != errno.ENODATA:  # removed since it was listed
                    raise
    return tuple(sorted(found)), opaque


def _read_note(fd: int, key: str, note: str) -> bool:
    if note in ("metacopy", "redirect", "whiteout") or (note == "opaque" and os.getxattr(fd, key) != b"y"):
        raise SnapshotFailed(
            f"a layer has an entry with {key}, which ws never asks the kernel for",
            hint="the workspace was mounted by something else, or its files were changed from outside",
        )
    return note == "opaque"  # origin, impure, uuid, nlink, upper, protattr say nothing about content


def write_xattrs(fd: int, xattrs: Xattrs, *, namespace: Namespace = "") -> None:
    """Set user xattrs on a file that will lie in a layer with notes in `namespace`."""
    for key, value in xattrs:
        name = os.fsdecode(key)
        if namespace == "user" and name.startswith(_USER_NOTES):
            name = _ESCAPED + name.removeprefix(_USER_NOTES)
        os.setxattr(fd, name, value)
