"""Edits of one place in a file: `str_replace` and `insert`.

Both work on bytes. What they do not touch stays as it is, bit for bit: mode, encoding, byte order mark, line
endings, the missing newline at the end. What they put in takes the form of the place it goes to (`textform`).
"""

from __future__ import annotations

from ws.errors import TextAmbiguousError, TextNotFoundError, ToolError, ToolValidationError
from ws.fs.protocol import WholeFile
from ws.tools.context import Summary, ToolContext, ToolResult, cap_text
from ws.tools.diffs import unified_diff
from ws.tools.textform import (
    BOM,
    bare,
    encode_like,
    ending_at,
    find_text,
    is_binary,
    line_number,
    split_lines,
    with_endings,
)

_MAX_PLACES = 10


def str_replace(context: ToolContext, *, path: str, old_str: str, new_str: str, dry_run: bool = False) -> ToolResult:
    """Replace the one place where a text stands.

    Raises TextNotFoundError, TextAmbiguousError naming the lines, and what reading and writing raise.
    Commit point: the rename of the new file over the old one; a backup is taken before.
    """
    before = _read(context, path)
    changed, line = replace_once(before.content, old_str, new_str, path=path)
    return _save(context, path, before, changed, f"replaced the text at line {line}", dry_run=dry_run)


def insert(context: ToolContext, *, path: str, line: int, text: str, dry_run: bool = False) -> ToolResult:
    """Insert whole lines: 0 at the beginning, N after line N, -1 at the end.

    Raises ToolValidationError when there is no such line, and what reading and writing raise.
    Commit point: the rename of the new file over the old one; a backup is taken before.
    """
    before = _read(context, path)
    changed, after = insert_lines(before.content, line, text, path=path)
    return _save(context, path, before, changed, f"inserted after line {after}", dry_run=dry_run)


def replace_once(data: bytes, old_str: str, new_str: str, *, path: str) -> tuple[bytes, int]:
    """The new bytes, and the line at which they differ. Raises TextNotFoundError, TextAmbiguousError."""
    mark = BOM if data.startswith(BOM) else b""  # copied along by some; the file keeps its own
    old, new = (encode_like(text, data).removeprefix(mark) for text in (old_str, new_str))
    if not old:
        raise ToolValidationError(
            "`old_str` is empty; it takes the text to replace",
            hint="to add lines, give a line beside them as `old_str`, and that line with them as `new_str`",
        )
    if old == new:
        raise ToolValidationError("`new_str` is the same as `old_str`", hint="say what to put in its place")
    places = find_text(data, old)
    if not places:
        raise TextNotFoundError(f"{path}: the text is not in the file", hint=_near_miss(data, old))
    if len(places) > 1:
        lines = [str(line_number(data, start)) for start, _ in places[:_MAX_PLACES]]
        more = f" and {len(places) - _MAX_PLACES} more" if len(places) > _MAX_PLACES else ""
        raise TextAmbiguousError(
            f"{path}: the text is in the file {len(places)} times, at lines {', '.join(lines)}{more}",
            hint="add lines before or after it to `old_str`, so that it fits one place alone",
        )
    ((start, end),) = places
    if b"\r" not in old:
        new = with_endings(new, ending_at(data, start))
    return data[:start] + new + data[end:], line_number(data, start)


def insert_lines(data: bytes, line: int, text: str, *, path: str) -> tuple[bytes, int]:
    """The new bytes, and the line after which they differ. Raises ToolValidationError."""
    mark = BOM if data.startswith(BOM) else b""
    lines = split_lines(data[len(mark) :])
    if not -1 <= line <= len(lines):
        raise ToolValidationError(
            f"`line` is {line}, but {path} has {len(lines)} lines",
            hint=f"0 is the beginning, {len(lines)} or -1 the end of the file",
        )
    after = len(lines) if line == -1 else line
    before = b"".join(lines[:after])
    ending = ending_at(data, len(mark) + len(before))
    new = with_endings(encode_like(text, data), ending)
    if not new.endswith(b"\n"):
        new += ending
    if before and not before.endswith(b"\n"):
        before += ending
        new = bare(new)  # the file did not end with a newline, and does not now
    return mark + before + new + b"".join(lines[after:]), after


def _near_miss(data: bytes, old: bytes) -> str:
    """Where the first line of a text stands, if only its surrounding space is different."""
    first = next((line.strip() for line in old.split(b"\n") if line.strip()), b"")
    places = [str(n) for n, line in enumerate(data.split(b"\n"), 1) if first and line.strip() == first]
    if places:
        where = ", ".join(places[:_MAX_PLACES])
        return f"its first line stands at line {where}: compare indentation and what follows"
    return "read the file again and copy the text from it, without line numbers"


def _read(context: ToolContext, path: str) -> WholeFile:
    found = context.filesystem.read_whole(context.locate(path))
    if is_binary(found.content):
        raise ToolError(f"{path}: is a binary file", hint="text tools leave it alone; change it with a command")
    return found


def _save(context: ToolContext, path: str, before: WholeFile, after: bytes, done: str, *, dry_run: bool) -> ToolResult:
    place = context.locate(path)
    diff = unified_diff(path, before.content.decode("utf-8", "replace"), after.decode("utf-8", "replace"))
    backup = None
    if not dry_run:
        backup = context.backups.keep(place, before).id
        context.filesystem.write_bytes(place, after, mode="overwrite")
    output, truncated = cap_text(diff, context.caps)
    return ToolResult(
        message=f"{path}: {'would have ' if dry_run else ''}{done}",
        truncated=truncated,
        output=output,
        data={"path": path, "dry_run": dry_run, "backup": backup},
        summary=Summary((path,), 0 if dry_run else len(after), diff),
    )
