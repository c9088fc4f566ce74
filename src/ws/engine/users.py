"""A user of a container by name or number, looked up in the container's own passwd.

Whoever may write there says who is who; the caller decides what the numbers may be.
"""

from __future__ import annotations

from ws.engine.inside import read_inside
from ws.errors import InvalidRequest

_CAP_BYTES = 1 << 20


def resolve_user(pid: int, user: str) -> tuple[int, int]:
    """The ids of NAME, UID, NAME:GROUP or UID:GID in the container whose first process is `pid`.

    Raises InvalidRequest when the container does not know the name.
    """
    name, _, group = user.partition(":")
    uid, gid = _find_user(pid, name)
    if group:
        gid = int(group) if group.isdigit() else _find_group(pid, group)
    return uid, gid


def _find_user(pid: int, name: str) -> tuple[int, int]:
    for fields in _entries(pid, "passwd"):
        if len(fields) >= 4 and name in (fields[0], fields[2]) and fields[2].isdigit() and fields[3].isdigit():
            return int(fields[2]), int(fields[3])
    if name.isdigit():
        return int(name), int(name)
    raise InvalidRequest(f"the container knows no user {name!r}", hint="give a number, as in 1000:1000")


def _find_group(pid: int, name: str) -> int:
    for fields in _entries(pid, "group"):
        if len(fields) >= 3 and fields[0] == name and fields[2].isdigit():
            return int(fields[2])
    raise InvalidRequest(f"the container knows no group {name!r}", hint="give a number, as in 1000:1000")


def _entries(pid: int, name: str) -> list[list[str]]:
    text = read_inside(pid, f"/etc/{name}", cap_bytes=_CAP_BYTES).decode("utf-8", errors="replace")
    return [line.split(":") for line in text.splitlines()]
