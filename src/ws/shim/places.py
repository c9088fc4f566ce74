"""Where file operations and tools of this shim work: the workspace's root, under the rules that a request names.

The host says with each request what it wants to be held to (limits, read-only, allowed and restricted paths, caps of
results); the usual rules are said by saying nothing. Each set of rules is made once and kept, without a descriptor.

Backups, trash and undo live beside the shim's socket, in `kept`: outside of the tree, so that a restore does not
take them away. The host puts there what belongs to the workspace, not to this container (`ws.containers`).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, Any, Final

from ws.fs.host import HostFilesystem
from ws.fs.protocol import WORKSPACE_LIMITS, Limits
from ws.shim.place import rg_command
from ws.tools.context import Caps, ToolContext
from ws.tools.trash import Backups

if TYPE_CHECKING:
    from ws.shim.server import Server

KEPT: Final = "kept"
_MAX_PLACES: Final = 16


@dataclass(frozen=True, slots=True)
class Place:
    """A filesystem over the root, and what its tools need besides."""

    filesystem: HostFilesystem
    context: ToolContext


_places: Final[dict[str, Place]] = {}
_making: Final = Lock()


def place_of(server: Server, rules: dict[str, Any] | None) -> Place:
    """The place under these rules; None for the usual ones."""
    key = repr(rules)
    found = _places.get(key)
    if found is None:
        with _making:
            found = _places.get(key) or _make(server, rules or {})
            if len(_places) >= _MAX_PLACES:
                _places.clear()
            _places[key] = found
    return found


def _make(server: Server, rules: dict[str, Any]) -> Place:
    filesystem = HostFilesystem(
        server.root,
        limits=Limits(*rules["limits"]) if "limits" in rules else WORKSPACE_LIMITS,
        read_only=rules.get("read_only", False),
        durable=False,  # what matters is synced by the snapshot; a container may be thrown away at any time
        allowed_paths=rules.get("allowed_paths", ()),
        restricted_paths=rules.get("restricted_paths", ()),
        home=os.fsdecode(server.base_env.get(b"HOME", b"/")),
        rg=rg_command(sys.prefix),
    )
    os.makedirs(os.path.join(server.run_dir, KEPT), mode=0o700, exist_ok=True)
    store = HostFilesystem(os.path.join(server.run_dir, KEPT), limits=WORKSPACE_LIMITS, durable=False)
    caps = Caps(**rules["caps"]) if "caps" in rules else Caps()
    return Place(filesystem, ToolContext(filesystem, Backups(filesystem, store), caps))
