"""Every exception of ws.

The class states the state of the world; the code is stable and is what machines compare; the message
says what happened, the hint what to do. Classes also inherit the builtin that callers expect.

    WorkspaceError                       1  error
    ├── InvalidRequest (ValueError)      2  invalid_request
    │   ├── InvalidName                  2  invalid_name
    │   ├── SourceRefused                2  source_refused
    │   ├── BundleRefused                2  bundle_refused
    │   └── ToolValidationError          2  tool_validation
    ├── NotFound (LookupError)           3  not_found
    │   ├── WorkspaceNotFound            3  workspace_not_found
    │   ├── SnapshotNotFound             3  snapshot_not_found
    │   ├── SnapshotAmbiguous            3  snapshot_ambiguous
    │   ├── SessionNotFound              3  session_not_found
    │   └── ImageNotFound                3  image_not_found
    ├── AlreadyExists (FileExistsError)  4  already_exists
    │   ├── WorkspaceExists              4  workspace_exists
    │   └── TagExists                    4  tag_exists
    ├── Busy (BlockingIOError)           5  busy
    ├── EngineError (RuntimeError)       6  engine_error
    │   ├── EngineUnavailable            6  engine_unavailable
    │   ├── ImageBuildFailed             6  image_build_failed
    │   └── ContainerDied                6  container_died
    ├── ProtocolError (ConnectionError)  6  protocol_error
    ├── KernelRefused (OSError)          6  kernel_refused
    ├── StateError                       7  state_error
    │   ├── StateUnusable                7  state_unusable
    │   └── StoreDamaged                 7  store_damaged
    ├── SourceChanged                    8  source_changed
    ├── SnapshotFailed                   8  snapshot_failed
    ├── RestoreFailed                    8  restore_failed
    ├── ApplyConflict                    8  apply_conflict
    ├── ApplyFailed                      8  apply_failed
    ├── LimitExceeded                    9  limit_exceeded
    └── ToolError                       10  tool_error
        ├── FsViolationError (PermissionError)     10  fs_violation
        ├── PatchParseError (ValueError)           10  patch_parse
        ├── PatchApplyError (ValueError)           10  patch_apply
        ├── TextNotFoundError (LookupError)        10  text_not_found
        ├── TextAmbiguousError (LookupError)       10  text_ambiguous
        ├── CommandTimeoutError (TimeoutError)     10  command_timeout
        ├── CommandFailedError                     10  command_failed
        │   └── CommandNotStarted (OSError)        10  command_not_started
        ├── ApprovalDenied (PermissionError)       10  approval_denied
        └── OperationNotSupportedError             10  operation_not_supported

A command that fails is a result, not an exception: `ws exec` ends with the command's own status.
Standard library only: the shim imports this module inside the container.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing typing would cost every command, and the shim, 10 ms and 2 MB
if TYPE_CHECKING:
    from typing import ClassVar

_EACCES = 13  # Linux; importing errno only for this constant would be a module more in every start


class WorkspaceError(Exception):
    """Something ws was asked to do did not happen; what was there before is still there."""

    code: ClassVar[str] = "error"
    exit_code: ClassVar[int] = 1
    advice: ClassVar[str | None] = None  # the hint where whoever raises it has no better one

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint or self.advice

    def __str__(self) -> str:
        # OSError and KeyError subclasses would otherwise print their own idea of args.
        return self.message


class InvalidRequest(WorkspaceError, ValueError):
    """The request contradicts itself or the rules; nothing was begun."""

    code = "invalid_request"
    exit_code = 2
    advice = "nothing was begun: mend what the message names, and ask again"


class InvalidName(InvalidRequest):
    """A workspace name or tag with characters that a name may not have."""

    code = "invalid_name"


class SourceRefused(InvalidRequest):
    """A directory that must not become a workspace: `/`, a home directory, WS_HOME itself."""

    code = "source_refused"
    advice = "name the directory of one project"


class BundleRefused(InvalidRequest):
    """A file that is no bundle of ws, or a damaged one; nothing of it was taken in."""

    code = "bundle_refused"
    advice = "`ws export --bundle F` makes a bundle; nothing of this one was kept"


class ToolValidationError(InvalidRequest):
    """The arguments of a tool call do not fit its parameters."""

    code = "tool_validation"


class NotFound(WorkspaceError, LookupError):
    """The thing named does not exist."""

    code = "not_found"
    exit_code = 3
    advice = "`ws ls` shows the workspaces, `ws log NAME` the snapshots of one"


class WorkspaceNotFound(NotFound):
    """No workspace has this name or id."""

    code = "workspace_not_found"


class SnapshotNotFound(NotFound):
    """The workspace has no such snapshot."""

    code = "snapshot_not_found"


class SnapshotAmbiguous(NotFound):
    """A prefix that fits several snapshots."""

    code = "snapshot_ambiguous"
    advice = "give more of the id; `ws log NAME` lists them"


class SessionNotFound(NotFound):
    """No PTY session with this id; it ended, or a restore ended it."""

    code = "session_not_found"
    advice = "start another one"


class ImageNotFound(NotFound):
    """The engine does not have the image; ws never pulls one by itself."""

    code = "image_not_found"
    advice = "build it with `ws image build`, or pull it with the engine"


class AlreadyExists(WorkspaceError, FileExistsError):
    """The name is taken; what has it is untouched."""

    code = "already_exists"
    exit_code = 4
    advice = "choose another name"


class WorkspaceExists(AlreadyExists):
    """A workspace of this name exists."""

    code = "workspace_exists"


class TagExists(AlreadyExists):
    """A snapshot of this workspace has the tag already."""

    code = "tag_exists"


class Busy(WorkspaceError, BlockingIOError):
    """Another operation holds the workspace; nothing was begun, try again."""

    code = "busy"
    exit_code = 5
    advice = "wait for the other operation to end, and try again"


class EngineError(WorkspaceError, RuntimeError):
    """The container engine refused or failed."""

    code = "engine_error"
    exit_code = 6
    advice = "`ws doctor` says how the engines are"


class EngineUnavailable(EngineError):
    """The engine is absent, hung, or of a version ws cannot use; nothing was begun."""

    code = "engine_unavailable"


class ImageBuildFailed(EngineError):
    """The image was not made; an earlier one of the same name is untouched."""

    code = "image_build_failed"


class ContainerDied(EngineError):
    """The container of the workspace is gone; its files are not."""

    code = "container_died"
    advice = "use the workspace again: it starts anew, with its files"


class ProtocolError(WorkspaceError, ConnectionError):
    """The peer in the container broke the wire protocol; the connection is closed."""

    code = "protocol_error"
    exit_code = 6
    advice = "try again; its container may be paused, or something in it has taken the shim over"


class KernelRefused(WorkspaceError, OSError):
    """A mount or namespace call failed; `errno` has the kernel's word."""

    code = "kernel_refused"
    exit_code = 6
    advice = "`ws doctor` says what this kernel lacks"

    def __init__(self, message: str, *, errno: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.errno = errno


class StateError(WorkspaceError):
    """What is on disk under WS_HOME is not what ws wrote."""

    code = "state_error"
    exit_code = 7
    advice = "`ws verify` says what is damaged, and which snapshots it touches"


class StateUnusable(StateError):
    """WS_HOME cannot be used: read-only, another owner, a newer version of ws wrote it."""

    code = "state_unusable"
    advice = "check that WS_HOME is yours, writable and not full"


class StoreDamaged(StateError):
    """An object of the store is missing or does not have the bytes its name promises."""

    code = "store_damaged"


class SourceChanged(WorkspaceError):
    """The source kept changing while it was read; nothing was made."""

    code = "source_changed"
    exit_code = 8
    advice = "stop what writes there, and try again"


class SnapshotFailed(WorkspaceError):
    """No snapshot was taken; the workspace is as it was."""

    code = "snapshot_failed"
    exit_code = 8
    advice = "the workspace is as it was: mend what the message names, and try again"


class RestoreFailed(WorkspaceError):
    """Nothing was restored; the workspace is as it was."""

    code = "restore_failed"
    exit_code = 8
    advice = "the workspace is as it was: mend what the message names, and try again"


class ApplyConflict(WorkspaceError):
    """The source changed where the workspace did; nothing on the host was touched. `conflicts` has all of them."""

    code = "apply_conflict"
    exit_code = 8
    advice = "change one side so that both agree, or apply to another directory with --to"

    def __init__(self, message: str, *, hint: str | None = None, conflicts: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.conflicts = conflicts  # path and reason


class ApplyFailed(WorkspaceError):
    """The changes could not be written to the host; what had been written was taken back."""

    code = "apply_failed"
    exit_code = 8
    advice = "mend what the message names, and try again"


class LimitExceeded(WorkspaceError):
    """A limit the caller set, or a cap of ws, stopped the operation whole."""

    code = "limit_exceeded"
    exit_code = 9
    advice = "raise the limit, or leave out what is too large"


class ToolError(WorkspaceError):
    """A tool call that did not do what it was asked; the files are as they were."""

    code = "tool_error"
    exit_code = 10
    advice = "look at the file or directory again, and call once more"


class FsViolationError(ToolError, PermissionError):
    """A path that leads out of the root, into a restricted part of it, or through a link that is not followed.

    A PermissionError with `errno` (EACCES) and `filename`, the path as the caller wrote it.
    """

    code = "fs_violation"
    advice = "use a path inside the root"

    def __init__(
        self, message: str, *, hint: str | None = None, errno: int = _EACCES, filename: str | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.errno = errno
        self.filename = filename


class PatchParseError(ToolError, ValueError):
    """The text is not a patch."""

    code = "patch_parse"


class PatchApplyError(ToolError, ValueError):
    """The patch does not fit the files; no file was changed."""

    code = "patch_apply"


class TextNotFoundError(ToolError, LookupError):
    """The text to replace is not in the file."""

    code = "text_not_found"


class TextAmbiguousError(ToolError, LookupError):
    """The text to replace is in the file more than once."""

    code = "text_ambiguous"


class CommandTimeoutError(ToolError, TimeoutError):
    """A command ran out of time and was ended, with its whole process group; `output` came before that."""

    code = "command_timeout"
    advice = "give it more time, or run it in the background"

    def __init__(self, message: str, *, hint: str | None = None, output: str = "") -> None:
        super().__init__(message, hint=hint)
        self.output = output


class CommandFailedError(ToolError):
    """A command could not be started, or ended with a status the caller said to refuse."""

    code = "command_failed"
    advice = "see what it wrote"


class CommandNotStarted(CommandFailedError, OSError):
    """No such command, or not an executable one; `errno` has the kernel's word. Not an exit status of 127."""

    code = "command_not_started"
    advice = "is it installed, and is its directory in PATH?"

    def __init__(self, message: str, *, errno: int = 0, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.errno = errno


class ApprovalDenied(ToolError, PermissionError):
    """The approval policy or its handler refused the call."""

    code = "approval_denied"
    advice = "do it another way, or ask whoever decides"


class OperationNotSupportedError(ToolError):
    """The dialect has no such operation, on purpose."""

    code = "operation_not_supported"
    advice = "use an operation that the dialect has"


def all_errors() -> dict[str, type[WorkspaceError]]:
    """Every class of the tree by its code; the closed set that may cross the wire."""
    found: dict[str, type[WorkspaceError]] = {}
    pending: list[type[WorkspaceError]] = [WorkspaceError]
    while pending:
        cls = pending.pop()
        found[cls.code] = cls
        pending.extend(cls.__subclasses__())
    return found
