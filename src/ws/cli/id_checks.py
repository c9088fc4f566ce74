"""What `ws doctor` says of host ids: whether every container can have its own, and whether they are reserved."""

from __future__ import annotations

import os
from typing import Literal

from ws import idmaps
from ws.errors import WorkspaceError
from ws.layout import Home, Ids
from ws.overlay import in_user_namespace
from ws.subordinate_ids import FIRST, OWNER, read_span

_SAME = "containers of ws have their ids in common, and what the kernel counts by id"


def check_host_ids(home: Home) -> tuple[Literal["ok", "note"], str, str | None]:
    """A verdict, what was found, and a hint."""
    if in_user_namespace() or os.geteuid() != 0:
        return "note", "rootless: containers have the subordinate ids of their user in common", None
    namespace = idmaps.create(home, Ids(1, 1, 1, 1), Ids(1, 1, FIRST + 1, FIRST + 1))
    if namespace is None:
        hint = "Linux 6.15, and WS_HOME on ext4, xfs, btrfs or tmpfs, separate them"
        return "note", f"no id-mapped overlays: {_SAME}", hint
    os.close(namespace)
    try:
        span = read_span()
    except (OSError, WorkspaceError) as error:
        return "note", f"/etc/subuid cannot be read: {error}", None
    if span is None:
        return "ok", "every container has its own; the first one records them in /etc/subuid and /etc/subgid", None
    return "ok", f"every container has its own, of {span.first} to {span.end - 1}, recorded for {OWNER}", None
