"""Names for the users of a docker container whose host ids are its own.

docker maps no ids, so a user of the image runs under another number in the container. passwd and group are given to the
container with a second entry for each user and group of the image but root: first the one with the number that its
processes have, then the image's own, so that the image's files keep the names of their owners. The workspace's user
gets a name also when the image has none for it.

The two files are mounted over the image's: on a small filesystem that is theirs alone, read-only, and ends with the
container. An image without these files has no names, and gets none.
"""

from __future__ import annotations

import contextlib
import os
import stat

from ws import overlay
from ws.engine import HOME
from ws.engine.inside import open_inside, read_inside
from ws.errors import EngineError, KernelRefused
from ws.subordinate_ids import SLOT_IDS

_CAP_BYTES = 1 << 20
_PASSWD, _GROUP = "/etc/passwd", "/etc/group"
_NAME = "agent"  # of a user that the image does not know


def name_users(pid: int, first: int, uid: int, gid: int) -> None:
    """Give the container of process `pid` names for users from the host id `first` on; idempotent.

    Raises EngineError when the kernel refuses.
    """
    mounts = []
    try:
        for path, ids, own in ((_PASSWD, (2, 3), uid), (_GROUP, (2,), gid)):
            text = read_inside(pid, path, cap_bytes=_CAP_BYTES)
            if _is_file(pid, path) and f":{own}:".encode() not in text:
                own_line = f"{_NAME}:x:{uid}:{gid}::{HOME}:/bin/sh" if path == _PASSWD else f"{_NAME}:x:{gid}:"
                mounts.append((_mount_file(shift(text, first, ids, own, own_line)), path))
        if mounts:
            overlay.attach_all(mounts, pid)
    except (KernelRefused, OSError) as error:
        raise EngineError(f"the container's users cannot be named: {error}") from error
    finally:
        for mount, _ in mounts:
            os.close(mount)


def shift(text: bytes, first: int, fields: tuple[int, ...], own: int, own_line: str) -> bytes:
    """A passwd or group file with the shifted entries before its own; `fields` are those that hold ids."""
    shifted = []
    for line in text.splitlines():
        words = line.split(b":")
        if len(words) > max(fields) and all(words[each].isdigit() for each in fields):
            numbers = [int(words[each]) for each in fields]
            if 0 < numbers[0] < SLOT_IDS:
                for each, number in zip(fields, numbers, strict=True):
                    words[each] = b"%d" % (first + number if 0 < number < SLOT_IDS else number)
                shifted.append(b":".join(words))
    if not any(line.split(b":")[2] == b"%d" % own for line in shifted):
        shifted.insert(0, own_line.encode())
    return b"\n".join((*shifted, text))


def _is_file(pid: int, path: str) -> bool:
    with contextlib.suppress(OSError), open_inside(pid, path) as found:
        return stat.S_ISREG(os.fstat(found).st_mode)
    return False


def _mount_file(data: bytes) -> int:
    """A detached, read-only mount of one file with these bytes. Raises KernelRefused, OSError."""
    with contextlib.ExitStack() as held:
        context = overlay.fsopen("tmpfs")
        held.callback(os.close, context)
        overlay.fsconfig(context, overlay.FSCONFIG_SET_STRING, "size", str(4 * _CAP_BYTES))
        overlay.fsconfig(context, overlay.FSCONFIG_CMD_CREATE)
        top = overlay.fsmount(context)
        held.callback(os.close, top)
        fd = os.open("file", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=top)
        held.callback(os.close, fd)
        os.fchmod(fd, 0o444)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        mount = overlay.open_tree(f"/proc/self/fd/{fd}")
        try:
            overlay.mount_setattr(mount, overlay.MOUNT_ATTR_RDONLY)
        except BaseException:
            os.close(mount)
            raise
        return mount
