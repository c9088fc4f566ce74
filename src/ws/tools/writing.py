"""Writing whole files: write_file. Tier: dangerous."""

from __future__ import annotations

from ws.errors import ToolValidationError
from ws.fs.protocol import FileStat
from ws.fs.search import is_binary
from ws.fs.streams import WRITE_MODES
from ws.tools.context import Summary, ToolContext, ToolResult, cap_text
from ws.tools.diffs import unified_diff

MAX_DIFF_BYTES = 1 << 20
"""Beyond that a diff helps nobody and costs seconds."""


def write_file(
    context: ToolContext,
    *,
    path: str,
    content: str,
    mode: str = "create",
    create_parents: bool = True,
    dry_run: bool = False,
) -> ToolResult:
    """Write a file whole, or add to its end; what was there is kept for undo.

    Raises FileExistsError (mode "create"), and as `write`. Commit point: the rename of the finished file;
    with `dry_run` nothing is written and the result tells what would be.
    """
    if mode not in WRITE_MODES:
        raise ToolValidationError(f"mode is {mode!r}", hint=f"one of {', '.join(WRITE_MODES)}")
    place = context.locate(path)
    old = _existing(context, place)
    if old is not None and mode == "create":
        raise FileExistsError(17, "File exists; use `mode` overwrite or append, or `str_replace` for a part", path)
    if old is not None and old.is_directory:
        raise IsADirectoryError(21, "Is a directory", path)
    diff = _diff(context, place, old, content, append=mode == "append")
    size = len(content.encode("utf-8", "surrogatepass"))
    if not dry_run:
        context.backups.save(place, reason="create" if old is None else "write")
        context.filesystem.write(place, content, mode, create_parents)  # type: ignore[arg-type]
    elif not create_parents and "/" in place.strip("/"):
        context.filesystem.stat(place.rstrip("/").rpartition("/")[0] or "/")
    done = "made" if old is None else {"overwrite": "overwritten", "append": "added to"}[mode]
    output, truncated = cap_text(diff, context.caps)
    return ToolResult(
        message=f"{path} {'would be ' if dry_run else ''}{done}, {size} bytes",
        truncated=truncated,
        output=output,
        data={"path": path, "created": old is None, "dry_run": dry_run},
        summary=Summary((path,), 0 if dry_run else size, diff),
    )


def _existing(context: ToolContext, place: str) -> FileStat | None:
    try:
        return context.filesystem.stat(place)
    except FileNotFoundError:
        return None


def _diff(context: ToolContext, place: str, old: FileStat | None, content: str, *, append: bool) -> str:
    shown = place.removeprefix("./")
    if len(content) > MAX_DIFF_BYTES or (old is not None and old.size_bytes > MAX_DIFF_BYTES):
        return ""
    if old is None:
        return unified_diff(shown, None, content)
    data = context.filesystem.read_bytes(place)
    if is_binary(data):
        return ""
    before = data.decode("utf-8", "replace")
    return unified_diff(shown, before, before + content if append else content)
