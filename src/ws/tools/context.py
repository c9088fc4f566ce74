"""What every tool is given and what it gives back.

A tool is a function `tool(context, *, …) -> ToolResult`. It speaks to files through `context.filesystem`
alone, saves what it is about to change through `context.backups`, and raises what it cannot do; turning an
exception into an answer for a model is the router's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

TYPE_CHECKING = False  # `ws tool` needs the result alone, and has no 25 ms for the rest
if TYPE_CHECKING:
    from ws.fs.protocol import Filesystem
    from ws.tools.trash import Backups

TRUNCATED = "[truncated]"
TRUNCATED_LINE = "… [truncated line]"
_TELLING = ("exit_code", "signal", "shell_ended", "dry_run", "replaced")
"""Fields of `data` that, when set, make a result other than its output looks; so does any session."""


@dataclass(frozen=True, slots=True)
class Caps:
    """How much a result may hold.

    What `read_file` shows is bounded by its own paging and `max_read_bytes`.
    """

    max_output_bytes: int = 8_192
    max_output_lines: int = 200
    max_line_chars: int = 400
    max_read_bytes: int = 262_144


@dataclass(frozen=True, slots=True)
class Summary:
    """What a call changed, or with `dry_run` would change."""

    files_touched: tuple[str, ...] = ()
    bytes_written: int = 0
    diff: str = ""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to a call: `text` is for a model, `data` for a program.

    `output` is what was asked for, and `message` says in a line how it went.
    """

    status: Literal["ok", "error"] = "ok"
    message: str = ""
    truncated: bool = False
    output: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    summary: Summary | None = None

    @property
    def note(self) -> str:
        """The message where the output does not say as much: it is cut or empty, a command failed, or a session goes on
        or has ended.
        """
        if self.status == "error" and self.output:
            return ""  # an error says all of it in its output
        telling = self.truncated or not self.output or "session_id" in self.data or any(map(self.data.get, _TELLING))
        return self.message if telling and self.message != self.output else ""

    @property
    def text(self) -> str:
        """All that a model is to read: the output, and the note below it in brackets."""
        if not self.output or not self.note:
            return self.output or self.note
        return f"{self.output.removesuffix(chr(10))}\n[{self.note}]"


_IN_MEMORY: Any = None  # stands for backups that the context makes itself


def _nothing() -> None:
    """Where a call is never broken off."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """Where a tool works.

    Relative paths are taken from `workdir`, which is itself a path of the filesystem. Without `backups`, what a tool
    changes or deletes is kept in memory, for as long as this context and its copies exist.
    """

    filesystem: Filesystem
    backups: Backups = _IN_MEMORY
    caps: Caps = Caps()
    workdir: str = "."
    committing: Callable[[], None] = _nothing
    """Called before the first write of a change: up to there a call may be broken off anywhere."""

    def __post_init__(self) -> None:
        if self.backups is _IN_MEMORY:
            from ws.fs.memory import MemoryFilesystem
            from ws.fs.protocol import WORKSPACE_LIMITS
            from ws.tools.trash import Backups

            store = MemoryFilesystem("/backups", limits=WORKSPACE_LIMITS)
            object.__setattr__(self, "backups", Backups(self.filesystem, store))

    def locate(self, path: str) -> str:
        """The path as the filesystem takes it.

        The boundary stays the root, whatever the workdir (CVE-2025-59532).
        """
        if self.workdir == "." or not path or path == "~" or path.startswith(("/", "~/")):
            return path
        return f"{self.workdir}/{path}"

    def shown(self, place: str, *, follow_symlinks: bool = True) -> str:
        """The one spelling of a file in results: relative to the root, without links; absolute outside of it.

        Raises as `Filesystem.resolve`.
        """
        return self.filesystem.resolve(place, follow_symlinks=follow_symlinks)


def cap_text(text: str, caps: Caps) -> tuple[str, bool]:
    """At most so many bytes and lines of a text, and whether some was left out; the marker says so in the
    text.
    """
    lines = text.split("\n", caps.max_output_lines)
    kept = text
    if len(lines) > caps.max_output_lines and lines[-1]:
        kept = "\n".join(lines[:-1])
    if len(kept) > caps.max_output_bytes // 4:  # cheap bound: UTF-8 has at most 4 bytes a character
        data = kept.encode("utf-8", "surrogateescape")
        if len(data) > caps.max_output_bytes:
            kept = data[: caps.max_output_bytes].decode("utf-8", "ignore")
    if kept is text:
        return text, False
    return f"{kept.removesuffix(chr(10))}\n{TRUNCATED}", True


def cap_lines(lines: Sequence[str], caps: Caps) -> tuple[str, int]:
    """As many whole lines as the caps allow, but one at least, as a text, and how many they are.

    Where some were left out, the marker says so in the text.
    """
    room = caps.max_output_bytes + 1  # the last line has no newline behind it
    shown = 0
    for line in lines[: caps.max_output_lines]:
        room -= len(line.encode("utf-8", "surrogateescape")) + 1
        if room < 0 and shown:
            break
        shown += 1
    return "\n".join(lines if shown == len(lines) else (*lines[:shown], TRUNCATED)), shown


def cap_line(line: str, caps: Caps) -> str:
    """A line, cut at the cap with a marker that says so."""
    if len(line) <= caps.max_line_chars:
        return line
    return line[: caps.max_line_chars] + TRUNCATED_LINE
