"""Moving, deleting, making directories, and taking it back: move, delete, mkdir, undo, trash_*.

Tier: dangerous.
"""

from __future__ import annotations

import errno
from datetime import UTC, datetime
from typing import Any

from ws.errors import InvalidRequest, ToolValidationError
from ws.fs.protocol import FileStat
from ws.tools.context import Summary, ToolContext, ToolResult, cap_text
from ws.tools.trash import Backup

_DAY_S = 86_400.0


def move(context: ToolContext, *, source: str, destination: str, overwrite: bool = False) -> ToolResult:
    """Give a file, a link or a directory another path; what it replaces goes to the backups.

    Raises FileNotFoundError, FileExistsError, InvalidRequest (a directory into itself). Commit point: the
    rename.
    """
    filesystem = context.filesystem
    old, new = context.locate(source), context.locate(destination)
    moved = filesystem.stat(old, follow_symlinks=False)
    start, end = (filesystem.resolve(place, follow_symlinks=False) for place in (old, new))
    if moved.is_directory and end.startswith(start + "/"):
        raise InvalidRequest(f"{source!r} cannot be moved into itself ({destination!r})")
    if _present(context, new) is not None and (start == end or not overwrite):
        raise FileExistsError(errno.EEXIST, "File exists; use overwrite to replace it", destination)
    stood = context.backups.move(start, end)
    replaced = stood.id if stood.kind != "absent" else None
    return ToolResult(
        message=f"{source} moved to {destination}" + (", which was replaced" if replaced else ""),
        data={"source": source, "destination": destination, "replaced": replaced},
        summary=Summary((source, destination)),
    )


def delete(context: ToolContext, *, path: str, recursive: bool = False, permanent: bool = False) -> ToolResult:
    """Move a file, a link or a directory to the trash, or with `permanent` remove it for good.

    A link is removed, never its target. Raises FileNotFoundError; OSError (ENOTEMPTY) for a directory with
    entries unless `recursive`. Commit point: the record in the trash is complete before the path goes.
    """
    place = context.locate(path)
    status = context.filesystem.stat(place, follow_symlinks=False)
    if status.is_directory and not recursive and context.filesystem.list(place):
        raise OSError(errno.ENOTEMPTY, "Directory not empty; use recursive to delete it with all below", path)
    if permanent:
        context.filesystem.delete(place, recursive)
        return _deleted(path, f"{path} deleted for good", None)
    kept = context.backups.trash(place)
    return _deleted(path, f"{path} moved to the trash; undo brings it back", kept.id)


def _deleted(path: str, message: str, name: str | None) -> ToolResult:
    return ToolResult(message=message, data={"path": path, "trash_name": name}, summary=Summary((path,)))


def mkdir(context: ToolContext, *, path: str, parents: bool = True, exist_ok: bool = True) -> ToolResult:
    """Make a directory. Raises FileExistsError, FileNotFoundError, NotADirectoryError."""
    place = context.locate(path)
    there = _present(context, place)
    context.filesystem.mkdir(place, parents, exist_ok)
    if there is not None:
        return ToolResult(message=f"{path} is there already", data={"path": path, "created": False})
    context.backups.note_creation(place)
    return ToolResult(message=f"{path} made", data={"path": path, "created": True}, summary=Summary((path,)))


def undo(context: ToolContext, *, path: str) -> ToolResult:
    """Bring back what stood at a path before the last change; doing it again takes that back.

    Undoing a creation deletes, undoing a move moves back, whichever of its two paths is named. Raises NotFound
    when no tool changed the path, InvalidRequest when something else stands where it was moved to.
    """
    record, *twin = context.backups.undo(context.locate(path))
    names = {path: record} | {other.path: other for other in twin}
    moved = next((one for one in names.values() if one.kind == "moved"), None)
    if moved is not None:  # that nothing stood there before goes without saying
        names = {name: one for name, one in names.items() if one.kind != "absent"}
    return ToolResult(
        message="; ".join(f"{name} {_told(one)}" for name, one in names.items()),
        data={"path": path, "kind": (moved or record).kind, "reason": record.reason},
        summary=Summary((path, *(other.path for other in twin)), sum(one.size_bytes for one in names.values())),
    )


def _told(record: Backup) -> str:
    return {
        "absent": "removed again: it was not there before",
        "moved": f"moved back from {record.target}",
        "directory": "brought back with all below it",
        "link": "brought back as a link",
        "file": "brought back as it was",
    }[record.kind]


def trash_list(context: ToolContext, *, path: str | None = None, limit: int = 50) -> ToolResult:
    """What was deleted and can come back, newest first; of one path, or all below it, its backups too."""
    if limit < 1:
        raise ToolValidationError(f"limit is {limit}; the least is 1")
    if path is None:
        records = [record for record in context.backups.records() if record.is_trash]
    else:
        records = context.backups.below(context.locate(path))
    shown = [_row(record) for record in records[:limit]]
    output, capped = cap_text(
        "\n".join(f"{row['name']}  {row['kind']}  {row['reason']}  {row['path']}" for row in shown),
        context.caps,
    )
    return ToolResult(
        message=f"{len(records)} in the trash" if path is None else f"{len(records)} kept",
        truncated=capped or len(records) > limit,
        output=output,
        data={"entries": shown, "total": len(records)},
    )


def _row(record: Backup) -> dict[str, Any]:
    return {
        "name": record.id,
        "path": record.path,
        "kind": record.kind,
        "reason": record.reason,
        "saved_at": datetime.fromtimestamp(record.saved_ns / 1e9, UTC).isoformat(),
        "size_bytes": record.size_bytes,
    }


def trash_restore(
    context: ToolContext, *, name: str, destination: str | None = None, overwrite: bool = False
) -> ToolResult:
    """Bring back one entry by its name, to where it was or elsewhere. Raises NotFound, FileExistsError."""
    place = None if destination is None else context.locate(destination)
    record = context.backups.restore(name, destination=place, overwrite=overwrite)
    path = destination or record.path
    return ToolResult(message=f"{path} brought back", data={"path": path, "name": name}, summary=Summary((path,)))


def trash_purge(context: ToolContext, *, name: str | None = None, older_than_days: float | None = None) -> ToolResult:
    """Remove from the trash for good: one entry, those of an age, by default those past their retention."""
    if older_than_days is not None and older_than_days < 0:
        raise ToolValidationError(f"older_than_days is {older_than_days}; the least is 0")
    age_s = context.backups.retention.max_age_s if older_than_days is None else older_than_days * _DAY_S
    count = context.backups.purge(record_id=name, older_than_s=age_s, trash_only=True)
    return ToolResult(message=f"{count} removed for good", data={"removed": count})


def _present(context: ToolContext, place: str) -> FileStat | None:
    try:
        return context.filesystem.stat(place, follow_symlinks=False)
    except FileNotFoundError:
        return None
