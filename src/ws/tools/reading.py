"""Looking at files and directories: read_file, list_dir, tree, file_info. Tier: safe.

What a call returns is bounded by its own paging, and by the caps for callers that ask for everything. A file
up to one chunk, which is nearly every file, is read with one call and cut into lines once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from stat import filemode
from typing import Any, NamedTuple

from ws.errors import InvalidRequest, ToolValidationError
from ws.fs.globs import Matcher, basename_filter
from ws.fs.protocol import CHUNK_BYTES, ByteReader, FileStat
from ws.fs.search import clean_line
from ws.fs.streams import byte_lines
from ws.tools.context import TRUNCATED, ToolContext, ToolResult, cap_line, cap_lines
from ws.tools.encodings import check_encoding, is_binary, mark_of, readable_text, utf8_chunks

INDENTATION = "    "
REPLACEMENT = "\ufffd"
MAX_TREE_ENTRIES = 10_000


def read_file(
    context: ToolContext,
    *,
    path: str,
    offset: int = 0,
    limit: int = 400,
    mode: str = "slice",
    view_range: Sequence[int] | None = None,
    line_numbers: bool = False,
    encoding: str | None = None,
) -> ToolResult:
    """Lines of a text file: `limit` after the first `offset`, or those of `view_range` (from 1, −1 is the
    end).

    The text is UTF-8, or what the file's byte order mark or `encoding` says; the result says when it is not. With mode
    "indentation" every line is set in by four spaces. Raises InvalidRequest for a binary file, ToolValidationError for
    a range that cannot be, ToolError for a file that is not in the encoding named, and as `open_read`.
    """
    if mode not in ("slice", "indentation"):
        raise ToolValidationError(f"mode is {mode!r}", hint="one of slice, indentation")
    start, count = _page(offset, limit, view_range)
    with context.filesystem.open_read(context.locate(path)) as reader:
        head = reader.read(CHUNK_BYTES)
        if encoding is None and is_binary(head):
            raise InvalidRequest(
                f"{reader.path!r} is a binary file of {reader.size:,} bytes",
                hint="look into it with a command such as xxd",
            )
        page = _slice(reader, head, start, count, context.caps.max_read_bytes, encoding)
        name = reader.path
    lines, total, more = page.lines, page.total, page.more
    end = start + len(lines)
    cut = bool(lines) and max(map(len, lines)) > context.caps.max_line_chars
    if cut:
        lines = [cap_line(line, context.caps) for line in lines]
    if mode == "indentation":
        lines = [INDENTATION + line for line in lines]
    if line_numbers:
        lines = [f"{number:>6}\t{line}" for number, line in enumerate(lines, start + 1)]
    message = _read_message(start, end, total, more, name)
    if page.replaced:
        message += "; the file is not UTF-8, what is not is shown as \ufffd: name its `encoding` to read and edit it"
    return ToolResult(
        message=message,
        truncated=more or cut,
        output="\n".join(lines),
        data={
            "path": name,
            "start_line": start + 1 if lines else None,
            "end_line": end if lines else None,
            "total_lines": total,
            "more": more,
            "next_offset": end if more else None,
            "encoding": page.encoding,
            "replaced": page.replaced,
        },
    )


def _page(offset: int, limit: int, view_range: Sequence[int] | None) -> tuple[int, int | None]:
    """The lines to skip, and how many to show (None: to the end)."""
    if view_range is None:
        if offset < 0 or limit < 1:
            raise ToolValidationError(f"offset is {offset} and limit {limit}; the least are 0 and 1")
        return offset, limit
    if len(view_range) not in (1, 2):
        raise ToolValidationError(f"`view_range` is {list(view_range)}", hint="[first, last], counted from 1")
    first, last = view_range[0], view_range[1] if len(view_range) == 2 else -1
    if first < 1 or (last != -1 and last < first):
        raise ToolValidationError(
            f"`view_range` is [{first}, {last}]",
            hint="lines count from 1, the last is not before the first, and -1 is the end of the file",
        )
    return first - 1, None if last == -1 else last - first + 1


class _Page(NamedTuple):
    """The lines asked for, the number of lines in the file where it is known, whether more is left."""

    lines: list[str]
    total: int | None
    more: bool
    encoding: str
    replaced: bool = False
    """Some bytes are not in the encoding, and are shown as U+FFFD."""


def _slice(
    reader: ByteReader, head: bytes, start: int, count: int | None, max_bytes: int, encoding: str | None
) -> _Page:
    """A page of the text. A byte order mark is not shown: it is not text, and edits keep it."""
    if len(head) == reader.size:
        text, name, replaced = readable_text(head, encoding, reader.path)
        text = text.replace("\r\n", "\n")
        lines = text.split("\n" if "\n" in text else "\r")
        if not lines[-1]:
            lines.pop()
        found = lines[start:] if count is None else lines[start : start + count]
        return _Page(found, len(lines), start + len(found) < len(lines), name, replaced)
    mark, name = mark_of(head)
    name = name or (check_encoding(encoding) if encoding is not None else "utf-8")
    reader.seek(len(mark))
    chunks: Iterable[bytes] = reader if name == "utf-8" else utf8_chunks(reader, name, reader.path)
    source = byte_lines(chunks, max_line_bytes=CHUNK_BYTES)
    skipped = sum(1 for _ in islice(source, start))
    found = []
    size = 0
    replaced = False
    for raw in source:
        if len(found) == count or size > max_bytes:
            return _Page(found, None, True, name, replaced)
        size += len(raw)
        line = clean_line(raw)
        replaced = replaced or (REPLACEMENT in line and REPLACEMENT.encode() not in raw)
        found.append(line)
    return _Page(found, skipped + len(found), False, name, replaced)


def _read_message(start: int, end: int, total: int | None, more: bool, path: str) -> str:
    if start == end:
        return f"{path} has {total} lines, none after line {start}" if total else f"{path} is empty"
    shown = f"lines {start + 1}-{end}" + (f" of {total}" if total is not None else "")
    return f"{shown}; more is left, go on with `offset={end}`" if more else shown


def list_dir(context: ToolContext, *, path: str = ".", depth: int = 2, offset: int = 0, limit: int = 200) -> ToolResult:
    """Entries of a directory and those below, breadth first and sorted: `/` directory, `*` executable, `@`
    link.
    """
    if depth < 1 or offset < 0 or limit < 1:
        raise ToolValidationError(f"depth is {depth}, offset {offset}, limit {limit}; the least are 1, 0 and 1")
    entries = list(islice(_breadth_first(context, context.locate(path), depth), offset, offset + limit + 1))
    more = len(entries) > limit
    del entries[limit:]
    output, shown = cap_lines([name + _marker(status) for name, status in entries], context.caps)
    message = f"{shown} entries" if shown != 1 else "1 entry"
    left = more or shown < len(entries)
    if left:
        message += f"; more is left, go on with `offset={offset + shown}`"
    return ToolResult(
        message=message,
        truncated=left,
        output=output,
        data={"entries": [_entry(name, status) for name, status in entries], "more": more},
    )


def _breadth_first(context: ToolContext, top: str, depth: int) -> Iterator[tuple[str, FileStat]]:
    level = [("", top)]
    for _ in range(depth):
        deeper: list[tuple[str, str]] = []
        for prefix, directory in level:
            try:
                found = context.filesystem.scan(directory)
            except (OSError, ValueError):
                if not prefix:
                    raise
                continue  # gone, closed to us, or deeper than paths may be
            for status in found:
                name = prefix + status.path.rpartition("/")[2]
                yield name, status
                if status.is_directory:
                    deeper.append((name + "/", status.path))
        level = deeper


def _marker(status: FileStat) -> str:
    if status.is_symlink:
        return "@"
    if status.is_directory:
        return "/"
    return "*" if status.mode & 0o111 else ""


def kind_name(status: FileStat) -> str:
    """What a result calls the type of a path."""
    if status.is_symlink:
        return "symlink"
    if status.is_directory:
        return "directory"
    return "file" if status.is_file else "other"


def _entry(name: str, status: FileStat) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": name, "path": status.path, "type": kind_name(status)}
    if status.is_file:
        entry["size_bytes"] = status.size_bytes
        entry["executable"] = bool(status.mode & 0o111)
    if status.is_symlink:
        entry["target"] = status.target
    entry["modified"] = status.modified_at.isoformat()
    return entry


def tree(context: ToolContext, *, path: str = ".", depth: int | None = None, exclude: Sequence[str] = ()) -> ToolResult:
    """A directory with all below it, nested: name, type, size, children; `exclude`: globs on basenames."""
    if depth is not None and depth < 1:
        raise ToolValidationError(f"depth is {depth}; the least is 1")
    top = context.filesystem.stat(context.locate(path))
    if not top.is_directory:
        raise NotADirectoryError(20, "Not a directory", path)
    name = context.filesystem.root.rpartition("/")[2] if top.path == "." else top.path.rpartition("/")[2]
    root: dict[str, Any] = {"name": name, "type": "directory", "children": []}
    lines, cut = _grow(context, root, top.path, depth, basename_filter(exclude))
    output, shown = cap_lines([f"{name}/", *lines], context.caps)
    capped = shown <= len(lines)
    if cut and not capped:
        output += f"\n{TRUNCATED}"
    message = f"{len(lines)} entries" if len(lines) != 1 else "1 entry"
    return ToolResult(
        message=message + ("; more is left, ask for less depth or a part" if cut or capped else ""),
        truncated=cut or capped,
        output=output,
        data=root,
    )


def _grow(
    context: ToolContext, root: dict[str, Any], top: str, depth: int | None, excluded: Matcher | None
) -> tuple[list[str], bool]:
    """Hang everything below `top` into `root`; returns a line for each entry, and whether some are left."""
    lines: list[str] = []
    pending: list[tuple[dict[str, Any], str, int]] = [(root, top, 0)]
    while pending:
        parent, directory, level = pending.pop()
        if level:
            lines.append("  " * level + parent["name"] + "/")
        if depth is not None and level >= depth:
            continue
        try:
            found = context.filesystem.scan(directory)
        except (OSError, ValueError):
            if not level:
                raise
            continue
        below: list[tuple[dict[str, Any], str, int]] = []
        for status in found:
            name = status.path.rpartition("/")[2]
            if excluded is not None and excluded(name):
                continue
            if len(lines) + len(pending) + len(below) >= MAX_TREE_ENTRIES:
                return lines, True
            node: dict[str, Any] = {"name": name, "type": kind_name(status)}
            parent["children"].append(node)
            if status.is_directory:
                node["children"] = []
                below.append((node, status.path, level + 1))
                continue
            if status.is_file:
                node["size_bytes"] = status.size_bytes
            if status.is_symlink:
                node["target"] = status.target
            lines.append("  " * (level + 1) + name + _marker(status))
        pending += reversed(below)
    return lines, False


def file_info(context: ToolContext, *, path: str) -> ToolResult:
    """Type, size, times, permissions, access, and where a link leads."""
    place = context.locate(path)
    status = context.filesystem.stat(place, follow_symlinks=False)
    info: dict[str, Any] = {
        "path": context.shown(place, follow_symlinks=False),
        "type": kind_name(status),
        "size_bytes": status.size_bytes,
        "created": status.created_at.isoformat(),
        "modified": status.modified_at.isoformat(),
        "accessed": status.accessed_at.isoformat(),
        "permissions": filemode(status.mode)[1:],
        "readable": status.readable,
        "writable": status.writable,
    }
    if status.is_symlink:
        info["target"] = status.target
        info["target_path"] = info["target_type"] = None
        with suppress(OSError):  # the link leads out, or into what is restricted
            info["target_path"] = context.shown(place)
            info["target_type"] = kind_name(context.filesystem.stat(place))
    return ToolResult(
        message=f"{info['path']}: {info['type']}",
        output="\n".join(f"{key}: {value}" for key, value in info.items()),
        data=info,
    )
