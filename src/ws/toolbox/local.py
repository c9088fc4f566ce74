"""Standard tools run in this process: on memory and host filesystems, and where there is no container."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from ws.fs.host import HostFilesystem
from ws.fs.protocol import WORKSPACE_LIMITS, Filesystem
from ws.toolbox.roots import FsMode, find_root, reachable_paths
from ws.tools.context import Caps, ToolContext, ToolResult
from ws.tools.dispatch import run_tool
from ws.tools.shells import Commands
from ws.tools.trash import Backups, Retention


class LocalBackend:
    """A context and, where commands may run, the means to run them."""

    def __init__(self, context: ToolContext, commands: Commands | None = None) -> None:
        self.context = context
        self.commands = commands

    @property
    def root(self) -> str:
        return self.context.filesystem.root

    def run(self, tool: str, params: Mapping[str, Any]) -> ToolResult:
        return run_tool(self.context, tool, params, commands=self.commands)

    def close(self) -> None:
        """End the sessions that commands have left open."""
        if self.commands is not None:
            self.commands.close()


def open_local(
    root: str | None,
    backups: Filesystem,
    *,
    fs_mode: FsMode | None = None,
    allowed_paths: Sequence[str] = (),
    restricted_paths: Sequence[str] = (),
    home: str | None = None,
    env: Mapping[str, str] | None = None,
    caps: Caps | None = None,
    rg: Sequence[str] | None = None,
    commands: bool = True,
    retention: Retention | None = None,
) -> LocalBackend:
    """Tools over a directory of this machine, by default the project around the working directory (`find_root`).

    With `fs_mode="restricted"` the default is the working directory itself, whatever git repository is around it.
    `unrestricted` lets absolute paths lead anywhere; `retention` says how much is kept for `undo`.
    Raises SourceRefused where there is no project, and for `/`; InvalidRequest for an unknown mode.
    """
    allowed_paths = reachable_paths(fs_mode, allowed_paths)
    filesystem = HostFilesystem(
        find_root(root, git=fs_mode != "restricted"),
        limits=WORKSPACE_LIMITS,
        allowed_paths=allowed_paths,
        restricted_paths=restricted_paths,
        home=home,
        rg=rg,
    )
    caps = caps or Caps()
    context = ToolContext(filesystem, Backups(filesystem, backups, retention=retention), caps)
    runner = Commands(filesystem, env=os.environ if env is None else env, caps=caps) if commands else None
    return LocalBackend(context, runner)
