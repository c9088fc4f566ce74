"""Edits of one place in a file: `str_replace` and `insert`.

What they do not touch stays as it is, bit for bit: mode, encoding, byte order mark, line endings, the missing newline
at the end. What they put in takes the encoding of the file (`encodings`) and the form of the place (`textform`).
"""

from __future__ import annotations

from ws.errors import TextAmbiguousError, TextNotFoundError, ToolValidationError
from ws.fs.protocol import WholeFile
from ws.tools.context import Summary, ToolContext, ToolResult, cap_text
from ws.tools.diffs import unified_diff
from ws.tools.encodings import Text, decode_file
from ws.tools.textform import (
    BOM,
    bare,
    ending_at,
    find_text,
    line_number,
    split_lines,
    with_endings,
)

_MAX_LINES_NAMED = 10
_MAX_PLACES = 100


def str_replace(
    context: ToolContext, *, path: str, old_str: str, new_str: str, encoding: str | None = None, dry_run: bool = False
) -> ToolResult:
    """Replace the one place where a text stands.

    Raises TextNotFoundError, TextAmbiguousError naming the lines, and what reading and writing raise.
    Commit point: the rename of the new file over the old one; a backup is taken before.
    """
    edit = _Edit(context, path, encoding)
    changed, line = replace_once(edit.text, old_str, new_str, path=edit.name)
    return edit.save(changed, f"replaced the text at line {line}", dry_run=dry_run)


def insert(
    context: ToolContext, *, path: str, line: int, text: str, encoding: str | None = None, dry_run: bool = False
) -> ToolResult:
    """Insert whole lines: 0 at the beginning, N after line N, -1 at the end.

    Raises ToolValidationError when there is no such line, and what reading and writing raise.
    Commit point: the rename of the new file over the old one; a backup is taken before.
    """
    edit = _Edit(context, path, encoding)
    changed, after = insert_lines(edit.text, line, text, path=edit.name)
    return edit.save(changed, f"inserted after line {after}", dry_run=dry_run)


def replace_once(text: Text, old_str: str, new_str: str, *, path: str) -> tuple[bytes, int]:
    """The new content, and the line at which it differs. Raises TextNotFoundError, TextAmbiguousError."""
    data = text.content
    mark = BOM if data.startswith(BOM) else b""  # some callers copy it; the file keeps its own
    old, new = (text.argument(sent).removeprefix(mark) for sent in (old_str, new_str))
    if not old:
        raise ToolValidationError(
            "`old_str` is empty; it takes the text to replace",
            hint="to add lines, give a line beside them as `old_str`, and that line with them as `new_str`",
        )
    if old == new:
        raise ToolValidationError("`new_str` is the same as `old_str`", hint="say what to put in its place")
    places = find_text(data, old, _MAX_PLACES + 1)
    if not places:
        raise TextNotFoundError(f"{path}: the text is not in the file", hint=_near_miss(data, old))
    if len(places) > 1:
        lines = [str(line_number(data, start)) for start, _ in places[:_MAX_LINES_NAMED]]
        more = f" and {len(places) - _MAX_LINES_NAMED} more" if len(places) > _MAX_LINES_NAMED else ""
        times = f"{len(places)} times"
        if len(places) > _MAX_PLACES:
            times, more = f"more than {_MAX_PLACES} times", " and further"
        raise TextAmbiguousError(
            f"{path}: the text is in the file {times}, at lines {', '.join(lines)}{more}",
            hint="add lines before or after it to `old_str`, so that it fits one place alone",
        )
    ((start, end),) = places
    if b"\r" not in old:
        new = with_endings(new, ending_at(data, start))
    return data[:start] + new + data[end:], line_number(data, start)


def insert_lines(file: Text, line: int, text: str, *, path: str) -> tuple[bytes, int]:
    """The new content, and the line after which it differs. Raises ToolValidationError."""
    data = file.content
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
    new = with_endings(file.argument(text), ending)
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
        where = ", ".join(places[:_MAX_LINES_NAMED])
        return f"its first line stands at line {where}: compare indentation and what follows"
    return "read the file again and copy the text from it, without line numbers"


class _Edit:
    """One file, read once, that is written once."""

    def __init__(self, context: ToolContext, path: str, encoding: str | None) -> None:
        self._context = context
        self._place = context.locate(path)
        self._before: WholeFile = context.filesystem.read_whole(self._place)
        self.name = context.shown(self._place)
        self.text = decode_file(self._before.content, self.name, encoding)

    def save(self, edited: bytes, done: str, *, dry_run: bool) -> ToolResult:
        context, name = self._context, self.name
        after = self.text.encoded(edited, name)
        diff = unified_diff(name, self.text.content.decode("utf-8"), edited.decode("utf-8"))
        backup = None
        if not dry_run:
            context.committing()
            kept = context.backups.keep(self._place, self._before)
            backup = None if kept.kind == "unkept" else kept.id
            context.filesystem.write_bytes(self._place, after, mode="overwrite")
        output, truncated = cap_text(diff, context.caps)
        return ToolResult(
            message=f"{name}: {'would have ' if dry_run else ''}{done}",
            truncated=truncated,
            output=output,
            data={"path": name, "encoding": self.text.encoding, "dry_run": dry_run, "backup": backup},
            summary=Summary((name,), 0 if dry_run else len(after), diff),
        )
