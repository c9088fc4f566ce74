"""Moving, deleting, making directories, and taking it back: move, delete, mkdir, undo, redo, trash_*.

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


def move(
    context: ToolContext, *, source: str, destination: str, overwrite: bool = False, dry_run: bool = False
) -> ToolResult:
    """Give a file, a link or a directory another path; what it replaces goes to the backups.

    Raises FileNotFoundError, FileExistsError, InvalidRequest (a directory into itself). Commit point: the
    rename.
    """
    filesystem = context.filesystem
    old, new = context.locate(source), context.locate(destination)
    moved = filesystem.stat(old, follow_symlinks=False)
    start, end = (context.shown(place, follow_symlinks=False) for place in (old, new))
    if moved.is_directory and end.startswith(start + "/"):
        raise InvalidRequest(f"{source!r} cannot be moved into itself ({destination!r})")
    there = _present(context, new)
    if there is not None and (start == end or not overwrite):
        raise FileExistsError(errno.EEXIST, "File exists; use overwrite to replace it", destination)
    replaced = None
    if not dry_run:
        context.committing()
        stood = context.backups.move(start, end)
        replaced = stood.id if stood.kind != "absent" else None
    done = "would be moved" if dry_run else "moved"
    return ToolResult(
        message=f"{start} {done} to {end}" + (", which is replaced" if there is not None else ""),
        data={"source": start, "destination": end, "replaced": replaced, "dry_run": dry_run},
        summary=Summary((start, end)),
    )


def delete(
    context: ToolContext, *, path: str, recursive: bool = False, permanent: bool = False, dry_run: bool = False
) -> ToolResult:
    """Move a file, a link or a directory to the trash, or with `permanent` remove it for good.

    A link is removed, never its target. Raises FileNotFoundError; OSError (ENOTEMPTY) for a directory with
    entries unless `recursive`. Commit point: the record in the trash is complete before the path goes.
    """
    place = context.locate(path)
    status = context.filesystem.stat(place, follow_symlinks=False)
    if status.is_directory and not recursive and context.filesystem.list(place):
        raise OSError(errno.ENOTEMPTY, "Directory not empty; use recursive to delete it with all below", path)
    name = context.shown(place, follow_symlinks=False)
    if dry_run:
        where = "deleted for good" if permanent else "moved to the trash"
        return _deleted(name, f"{name} would be {where}", None, dry_run=True)
    context.committing()
    if permanent:
        context.filesystem.delete(place, recursive)
        return _deleted(name, f"{name} deleted for good", None)
    kept = context.backups.trash(place)
    return _deleted(name, f"{name} moved to the trash; undo brings it back", kept.id)


def _deleted(name: str, message: str, trash_name: str | None, *, dry_run: bool = False) -> ToolResult:
    data = {"path": name, "trash_name": trash_name, "dry_run": dry_run}
    return ToolResult(message=message, data=data, summary=Summary((name,)))


def mkdir(context: ToolContext, *, path: str, parents: bool = True, exist_ok: bool = True) -> ToolResult:
    """Make a directory. Raises FileExistsError, FileNotFoundError, NotADirectoryError."""
    place = context.locate(path)
    there = _present(context, place)
    context.committing()
    context.filesystem.mkdir(place, parents, exist_ok)
    name = context.shown(place)
    if there is not None:
        return ToolResult(message=f"{name} is there already", data={"path": name, "created": False})
    context.backups.note_creation(place)
    return ToolResult(message=f"{name} made", data={"path": name, "created": True}, summary=Summary((name,)))


def undo(context: ToolContext, *, path: str, dry_run: bool = False) -> ToolResult:
    """Bring back what stood at a path before the last change; again, before the change before that.

    Undoing a creation deletes, undoing a move moves back, whichever of its two paths is named. Raises NotFound
    when no tool changed the path, InvalidRequest when something else stands where it was moved to.
    """
    context.committing()
    return _gone_to(context.backups.undo(context.locate(path), dry_run=dry_run), dry_run=dry_run)


def redo(context: ToolContext, *, path: str, dry_run: bool = False) -> ToolResult:
    """Do again what the last `undo` of a path took back. Raises NotFound when nothing was undone."""
    context.committing()
    return _gone_to(context.backups.redo(context.locate(path), dry_run=dry_run), dry_run=dry_run)


def _gone_to(used: tuple[Backup, ...], *, dry_run: bool) -> ToolResult:
    record = used[0]
    names = {one.path: one for one in used}
    moved = next((one for one in used if one.kind == "moved"), None)
    if moved is not None:  # that nothing stood at the other path needs no line
        names = {name: one for name, one in names.items() if one.kind != "absent"}
    would = "would be " if dry_run else ""
    return ToolResult(
        message="; ".join(f"{name} {would}{_told(one)}" for name, one in names.items()),
        data={"path": record.path, "kind": (moved or record).kind, "reason": record.reason, "dry_run": dry_run},
        summary=Summary(
            tuple(one.path for one in used), 0 if dry_run else sum(one.size_bytes for one in names.values())
        ),
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
    context.committing()
    record = context.backups.restore(name, destination=place, overwrite=overwrite)
    shown = record.path if place is None else context.shown(place, follow_symlinks=False)
    return ToolResult(message=f"{shown} brought back", data={"path": shown, "name": name}, summary=Summary((shown,)))


def trash_purge(context: ToolContext, *, name: str | None = None, older_than_days: float | None = None) -> ToolResult:
    """Remove from the trash for good: one entry, those of an age, by default those past their retention."""
    if older_than_days is not None and older_than_days < 0:
        raise ToolValidationError(f"older_than_days is {older_than_days}; the least is 0")
    age_s = context.backups.retention.max_age_s if older_than_days is None else older_than_days * _DAY_S
    context.committing()
    count = context.backups.purge(record_id=name, older_than_s=age_s, trash_only=True)
    return ToolResult(message=f"{count} removed for good", data={"removed": count})


def _present(context: ToolContext, place: str) -> FileStat | None:
    try:
        return context.filesystem.stat(place, follow_symlinks=False)
    except FileNotFoundError:
        return None
