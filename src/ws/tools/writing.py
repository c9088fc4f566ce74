"""Writing whole files: write_file. Tier: dangerous."""

from __future__ import annotations

from ws.errors import ToolValidationError
from ws.fs.protocol import FileStat
from ws.fs.streams import WRITE_MODES
from ws.tools.context import Summary, ToolContext, ToolResult, cap_text
from ws.tools.diffs import unified_diff
from ws.tools.encodings import decode_file, decode_stream, encode_argument, encode_new, is_binary, readable_text

MAX_DIFF_BYTES = 1 << 20
"""A diff of a larger file is not made: it takes seconds and does not fit a result."""


def write_file(
    context: ToolContext,
    *,
    path: str,
    content: str,
    mode: str = "create",
    create_parents: bool = True,
    encoding: str | None = None,
    dry_run: bool = False,
) -> ToolResult:
    """Write a file whole, or add to its end; what was there is kept for undo.

    New text is UTF-8, or in the encoding named. What is appended takes the encoding of the file, as an edit does.
    Raises FileExistsError (mode "create"), and as `write`. Commit point: the rename of the finished file;
    with `dry_run` nothing is written and the result says what would be.
    """
    if mode not in WRITE_MODES:
        raise ToolValidationError(f"mode is {mode!r}", hint=f"one of {', '.join(WRITE_MODES)}")
    place = context.locate(path)
    old = _existing(context, place)
    if old is not None and mode == "create":
        raise FileExistsError(17, "File exists; use `mode` overwrite or append, or `str_replace` for a part", path)
    if old is not None and old.is_directory:
        raise IsADirectoryError(21, "Is a directory", path)
    name = context.shown(place)
    data = _encoded(context, place, old, content, encoding, name, append=mode == "append")
    diff = _diff(context, place, old, content, name, append=mode == "append")
    if not dry_run:
        context.committing()
        context.backups.save(place, reason="create" if old is None else "write")
        context.filesystem.write_bytes(place, data, mode, create_parents)  # type: ignore[arg-type]
    elif not create_parents and "/" in place.strip("/"):
        context.filesystem.stat(place.rstrip("/").rpartition("/")[0] or "/")
    done = "made" if old is None else {"overwrite": "overwritten", "append": "added to"}[mode]
    output, truncated = cap_text(diff, context.caps)
    return ToolResult(
        message=f"{name} {'would be ' if dry_run else ''}{done}, {len(data)} bytes",
        truncated=truncated,
        output=output,
        data={"path": name, "created": old is None, "dry_run": dry_run},
        summary=Summary((name,), 0 if dry_run else len(data), diff),
    )


def _encoded(
    context: ToolContext,
    place: str,
    old: FileStat | None,
    content: str,
    encoding: str | None,
    name: str,
    *,
    append: bool,
) -> bytes:
    """The bytes to write. Raises ToolError when text would be appended to a file in another encoding."""
    if not append or old is None or not old.size_bytes:
        return encode_new(content, encoding, name)
    if old.size_bytes <= MAX_DIFF_BYTES:
        text = decode_file(context.filesystem.read_bytes(place), name, encoding)
        return text.encoded(text.argument(content), name).removeprefix(text.mark)
    with context.filesystem.open_read(place) as reader:
        text = decode_stream(reader, name, encoding)
    return text.encoded(encode_argument(content), name).removeprefix(text.mark)


def _existing(context: ToolContext, place: str) -> FileStat | None:
    try:
        return context.filesystem.stat(place)
    except FileNotFoundError:
        return None


def _diff(context: ToolContext, place: str, old: FileStat | None, content: str, name: str, *, append: bool) -> str:
    if len(content) > MAX_DIFF_BYTES or (old is not None and old.size_bytes > MAX_DIFF_BYTES):
        return ""
    if old is None:
        return unified_diff(name, None, content)
    data = context.filesystem.read_bytes(place)
    if is_binary(data):
        return ""
    before = readable_text(data, None, name)[0]
    return unified_diff(name, before, before + content if append else content)
