"""The names of Lincona's tooling core, over what ws has: boundary, approval guard, terminals, errors.

The dialect `lincona` (`ws.toolbox.dialects.lincona`) has the tools that a model calls. This module is for code that was
written against the document: each name is a thin adapter and has the behaviour of the tools.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from ws.errors import (
    CommandFailedError,
    CommandTimeoutError,
    FsViolationError,
    PatchApplyError,
    PatchParseError,
    ToolValidationError,
)
from ws.fs.host import HostFilesystem
from ws.fs.protocol import WORKSPACE_LIMITS
from ws.toolbox.approval import ALLOW, Approval, ApprovalPolicy, Decision
from ws.toolbox.dialects import open_dialect
from ws.toolbox.events import shorten
from ws.toolbox.parameters import did_you_mean
from ws.toolbox.roots import FsMode, find_root, reachable_paths
from ws.tools.context import Caps, ToolResult
from ws.tools.sessions import Session
from ws.tools.shells import Commands, find_workdir

__all__ = [
    "ApprovalPolicy",
    "CommandFailedError",
    "CommandTimeoutError",
    "FsBoundary",
    "FsMode",
    "FsViolationError",
    "PatchApplyError",
    "PatchParseError",
    "PtyManager",
    "ToolValidationError",
    "approval_guard",
]


class FsBoundary:
    """The allowed root, and which paths lie within it.

    The root is the working directory, whatever git repository is around it, or the one that is given; never `/`.
    `restricted` allows what is below it, `unrestricted` every absolute path. Raises SourceRefused, InvalidRequest.
    """

    def __init__(self, fs_mode: FsMode = "restricted", *, root: str | None = None) -> None:
        allowed = reachable_paths(fs_mode, ())
        self.fs_mode: FsMode = fs_mode
        self.root = find_root(root, git=False)
        self.filesystem = HostFilesystem(self.root, limits=WORKSPACE_LIMITS, allowed_paths=allowed)

    def assert_within_root(self, path: str | os.PathLike[str]) -> str:
        """The absolute path, with every link and `..` resolved; it need not exist. Raises FsViolationError.

        The answer holds for this moment. Tools do not rely on it: they open beneath the root in one system call.
        """
        return os.path.normpath(os.path.join(self.root, self.filesystem.resolve(os.fspath(path))))

    def sanitize_workdir(self, path: str | os.PathLike[str] | None = None) -> str:
        """The absolute path of a directory to run in, by default the root.

        Raises FsViolationError, FileNotFoundError, InvalidRequest for what is not a directory.
        """
        return self.assert_within_root(find_workdir(self.filesystem, None if path is None else os.fspath(path)))


def approval_guard(
    policy: Approval | ApprovalPolicy, tool_name: str, arguments: Mapping[str, Any] | None = None
) -> Decision:
    """The check before a tool of the dialect runs: ALLOW when it may.

    `never` allows everything. An `Approval` with a handler asks it. Raises ApprovalDenied with the reason, also where a
    policy asks and has no handler; ToolValidationError when there is no such tool.
    """
    tools = open_dialect("lincona").tools
    tool = tools.get(tool_name)
    if tool is None:
        raise ToolValidationError(f"unknown tool {tool_name!r}" + did_you_mean(tool_name, tools))
    given = dict(arguments or {})
    approval = Approval(policy) if isinstance(policy, str) else policy
    approval.check(tool.spec, given, lambda: f"{tool_name} {shorten(given)}")
    return ALLOW


class PtyManager:
    """Commands in terminals, by session id. Each starts in a directory that the boundary allows.

    A session ends with its process, with `close`, and at the exit of this Python process (Ctrl-C included).
    """

    def __init__(
        self, boundary: FsBoundary | None = None, *, env: Mapping[str, str] | None = None, caps: Caps | None = None
    ) -> None:
        self.boundary = boundary or FsBoundary()
        self._commands = Commands(self.boundary.filesystem, env=os.environ if env is None else env, caps=caps)
        _managers.add(self)

    @property
    def sessions(self) -> dict[int, Session]:
        """The sessions whose output has not been read to its end, by id."""
        return {session.id: session for session in self._commands.sessions.list()}

    def exec_command(
        self, cmd: str, workdir: str | None = None, yield_time_ms: int = 250, max_output_tokens: int = 8000
    ) -> ToolResult:
        """Start a command; `data["session_id"]` names it while it runs. Raises FsViolationError, LimitExceeded."""
        return self._commands.exec_command(
            cmd=cmd, workdir=workdir, yield_time_ms=yield_time_ms, max_output_tokens=max_output_tokens
        )

    def write_stdin(
        self, session_id: int, chars: str = "", yield_time_ms: int = 250, max_output_tokens: int = 8000
    ) -> ToolResult:
        """Type into a session and return what it wrote since; "" polls. Raises SessionNotFound."""
        return self._commands.write_stdin(
            session_id=session_id, chars=chars, yield_time_ms=yield_time_ms, max_output_tokens=max_output_tokens
        )

    def close(self, session_id: int | None = None) -> None:
        """End one session with its processes, or all. Raises SessionNotFound for an id that is not there."""
        if session_id is None:
            self._commands.close()
        else:
            self._commands.sessions.close(session_id)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_managers: weakref.WeakSet[PtyManager] = weakref.WeakSet()


@atexit.register
def _close_managers() -> None:
    for manager in list(_managers):
        manager.close()
