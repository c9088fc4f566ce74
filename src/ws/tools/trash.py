"""Backups, trash and undo: what a tool is about to change is kept first, outside the tree.

The store is a filesystem of its own, so that a restore of the workspace does not take the backups away
(`records`). A record says what stood at a path before a change: a file, a link, a directory, nothing ("absent":
the change made it), or something that has since been moved elsewhere. To undo is to put the newest of these
back. What stood there becomes a record with the reason "undo", which only `redo` uses: undo goes back one change at a
time, redo forward again, until another change is made.

A path is resolved once, by the filesystem, before anything is done with it: what is kept, changed and brought
back is one and the same file, whatever links its spelling goes through. What the filesystem's rules restrict is
no more to be had from a record than from the tree.
"""

from __future__ import annotations

from binascii import crc32
from collections.abc import Iterator

from ws.errors import FsViolationError, InvalidRequest, LimitExceeded, NotFound
from ws.fs.protocol import FileStat, Filesystem, WholeFile
from ws.tools.records import Backup, Change, Facts, Kind, Records, Retention

__all__ = ["Backup", "Backups", "Retention"]

_LARGE_BYTES = 1 << 20
"""A file that goes to the trash is copied into its record up to this size; beyond it is moved as it is."""


class Backups:
    """The records of one filesystem, kept in another."""

    def __init__(self, filesystem: Filesystem, store: Filesystem, *, retention: Retention | None = None) -> None:
        self._filesystem = filesystem
        self.retention = retention or Retention()
        self._records = Records(store, self.retention)
        self._unkept: list[str] = []

    def take_unkept(self) -> list[str]:
        """The paths that were changed since the last time without a backup, because one would be too large."""
        unkept, self._unkept = self._unkept, []
        return unkept

    def take_removed(self) -> int:
        """How many of the oldest records went since the last time, because the budget was used up."""
        return self._records.budget.take_removed()

    # before a change

    def keep(self, path: str, found: WholeFile, *, reason: str = "edit") -> Backup:
        """What `save` does, for a file that the caller has just read."""
        place = self._filesystem.resolve(path)
        facts = Facts(len(found.content), found.mode, found.modified_ns)
        change = self._records.begin(reason, place)
        try:
            return self._records.add(change, place, "file", facts=facts, whole=found.content)
        except LimitExceeded:
            return self._note_unkept(change, place)

    def save(self, path: str, *, reason: str = "edit", follow_symlinks: bool = True) -> Backup:
        """Keep what a file holds, or that there is none, before it is written. Raises IsADirectoryError.

        Commit point: the record's file. Call it before the change; a record too many is harmless.
        """
        place = self._filesystem.resolve(path, follow_symlinks=follow_symlinks)
        return self._save(self._records.begin(reason, place), place)

    def save_move(self, source: str, destination: str) -> None:
        """Keep what stands at two paths, before the content of one becomes that of the other."""
        places = [self._filesystem.resolve(path, follow_symlinks=False) for path in (source, destination)]
        change = self._records.begin("move", *places)
        for place in places:
            self._save(change, place)

    def note_creation(self, path: str) -> Backup:
        """Remember that nothing stood at a path before."""
        place = self._filesystem.resolve(path, follow_symlinks=False)
        return self._records.add(self._records.begin("create", place), place, "absent")

    def _save(self, change: Change, place: str) -> Backup:
        now = self._present(place)
        if now is None:
            return self._records.add(change, place, "absent")
        try:
            return self._copy(change, place, now)
        except LimitExceeded:
            return self._note_unkept(change, place)

    def _note_unkept(self, change: Change, place: str) -> Backup:
        """Remember that a change was made without a backup: `undo` must not go past it to an older one."""
        self._unkept.append(place)
        return self._records.add(change, place, "unkept")

    def _copy(self, change: Change, place: str, status: FileStat) -> Backup:
        if status.is_symlink:
            return self._records.add(change, place, "link", facts=Facts.of(status), target=status.target or "")
        with self._filesystem.open_read(place) as content:
            return self._records.add(change, place, "file", facts=Facts.of(status), content=content)

    # changes

    def trash(self, path: str, *, reason: str = "delete") -> Backup:
        """Take a file, a link or a directory out of the tree and keep it. Raises FileNotFoundError."""
        place = self._filesystem.resolve(path, follow_symlinks=False)
        return self._trash(self._records.begin(reason, place), place)

    def move(self, source: str, destination: str) -> Backup:
        """Give a path to what stands at another; returns the record of what stood there before.

        Raises as `Filesystem.move`. Commit point: the rename.
        """
        places = [self._filesystem.resolve(path, follow_symlinks=False) for path in (source, destination)]
        return self._move(self._records.begin("move", *places), *places)

    def _trash(self, change: Change, place: str) -> Backup:
        status = self._filesystem.stat(place, follow_symlinks=False)
        if status.is_directory or (status.is_file and status.size_bytes > _LARGE_BYTES):
            kind: Kind = "directory" if status.is_directory else "file"
            return self._records.add(change, place, kind, facts=Facts.of(status), out_of=self._filesystem)
        if not status.is_file and not status.is_symlink:
            raise InvalidRequest(
                f"{place!r} is neither file, link nor directory and cannot be kept",
                hint="delete it permanently",
            )
        backup = self._copy(change, place, status)
        self._filesystem.delete(place)
        return backup

    def _clear(self, change: Change, place: str) -> Backup:
        """Have nothing stand at a place, and keep what did."""
        if self._present(place) is None:
            return self._records.add(change, place, "absent")
        return self._trash(change, place)

    def _move(self, change: Change, source: str, destination: str) -> Backup:
        shape = self._shape(source)
        stood = self._clear(change, destination)
        try:
            self._filesystem.move(source, destination)
        except BaseException:
            if stood.kind != "absent":
                self._put(stood, destination)
            self._records.forget(stood.id)
            raise
        self._records.add(change, source, "moved", target=destination, shape=shape)
        return stood

    def _shape(self, place: str) -> str:
        """What is the same as long as the same thing stands at a place, under this name or another."""
        status = self._filesystem.stat(place, follow_symlinks=False)
        if status.is_directory:
            return "directory"  # what is in it may change and move back with it
        if status.is_symlink:
            return f"link to {status.target}"
        facts = Facts.of(status)
        if not status.is_file or not status.readable or facts.size_bytes > _LARGE_BYTES:
            return f"{facts.size_bytes} bytes at {facts.modified_ns}"
        check = 0
        with self._filesystem.open_read(place) as content:
            for chunk in content:
                check = crc32(chunk, check)
        return f"{facts.size_bytes} bytes with {check:08x}"

    # records

    def records(self, path: str | None = None) -> list[Backup]:
        """The records of a path, and of what it leads to, or all that the rules let be seen; newest first."""
        if path is None:
            return [record for record in self._records.all() if self._is_visible(record)]
        found = [record for place in self._places(path) for record in self._records.of(place)]
        return sorted(found, key=lambda record: record.saved_ns, reverse=True)

    def below(self, path: str) -> list[Backup]:
        """The records of a path and of all below it, and below what it leads to; newest first."""
        tops = self._places(path)
        return [
            record
            for record in self.records()
            if any(top in (".", record.path) or record.path.startswith(top + "/") for top in tops)
        ]

    def purge(self, *, record_id: str | None = None, older_than_s: float = 0.0, trash_only: bool = False) -> int:
        """Forget one record, or all that are older than an age; returns how many. Raises NotFound."""
        if record_id is not None:
            self._records.forget(self._find(record_id).id)
            return 1
        in_trash = (lambda record: record.is_trash and self._is_visible(record)) if trash_only else None
        return self._records.purge(older_than_s, only=in_trash)

    def _find(self, record_id: str) -> Backup:
        record = self._records.find(record_id)
        self._check(record)
        return record

    def _check(self, record: Backup) -> None:
        """Refuse what the rules keep back, were it in the tree. Raises FsViolationError."""
        self._filesystem.resolve(record.path, follow_symlinks=False, whole=record.kind == "directory")

    def _is_visible(self, record: Backup) -> bool:
        try:
            self._filesystem.resolve(record.path, follow_symlinks=False)
        except (PermissionError, ValueError):
            return False
        return True

    def _places(self, path: str) -> list[str]:
        """Where the records of a path are: under its own name, and where a link leads to."""
        own = self._filesystem.resolve(path, follow_symlinks=False)
        try:
            end = self._filesystem.resolve(path)
        except FsViolationError:
            return [own]  # a link that leads out may still be spoken of itself
        return [own] if end == own else [own, end]

    # putting back

    def undo(self, path: str, *, dry_run: bool = False) -> tuple[Backup, ...]:
        """Bring back what stood at a path before its last change, and at the other path if that had two.

        Each call goes back one change further, as far as there are records; `redo` goes forward. Returns the records
        that were used up. What stands there now becomes a record for `redo` before anything is changed. Raises
        NotFound, InvalidRequest when what was moved is not there any more.
        """
        record = next((one for one in self.records(path) if one.reason != "undo"), None)
        if record is None:
            raise NotFound(f"no backup of {path!r}", hint=self._hint(path))
        return self._go_to(record, "undo", dry_run=dry_run)

    def redo(self, path: str, *, dry_run: bool = False) -> tuple[Backup, ...]:
        """Do again what the last undo of a path took back; as often as there was an undo, until another change.

        Returns and raises as `undo`.
        """
        records = self.records(path)
        changed_ns = max((one.saved_ns for one in records if one.reason not in ("undo", "redo")), default=0)
        record = next((one for one in records if one.reason == "undo" and one.saved_ns > changed_ns), None)
        if record is None:
            raise NotFound(f"nothing was undone at {path!r}", hint="a change after an undo ends what can be redone")
        return self._go_to(record, "redo", dry_run=dry_run)

    def _go_to(self, record: Backup, reason: str, *, dry_run: bool) -> tuple[Backup, ...]:
        """Put back a record and its twin, and keep what stands there now under a reason."""
        twin = self._records.twin_of(record)
        used = (record,) if twin is None else (record, twin)
        for one in used:
            self._check(one)
            _check_kept(one)
        if dry_run:
            return used
        again = record.again or record.reason
        moved = next((one for one in used if one.kind == "moved"), None)
        if moved is not None:
            change = self._records.begin(reason, moved.path, moved.target, again=again)
            self._move_back(change, moved, moved.path)
            for one in used:
                if one.kind not in ("moved", "absent"):
                    self._put(one, one.path)
        else:
            change = self._records.begin(reason, *(one.path for one in used), again=again)
            for one in sorted(used, key=lambda one: one.kind == "absent"):  # what comes before what goes
                self._bring_back(change, one, one.path)
        for one in used:
            self._records.forget(one.id)
        return used

    def restore(self, record_id: str, *, destination: str | None = None, overwrite: bool = False) -> Backup:
        """Bring back a record by its id, to where it was or elsewhere. Raises NotFound, FileExistsError."""
        record = self._find(record_id)
        _check_kept(record)
        path = record.path if destination is None else destination
        place = self._filesystem.resolve(path, follow_symlinks=False)
        if record.kind != "absent" and not overwrite and self._present(place) is not None:
            raise FileExistsError(17, "something stands there now; restore with overwrite", path)
        if record.kind == "moved":
            self._move_back(self._records.begin("restore", place, record.target), record, place)
        else:
            self._bring_back(self._records.begin("restore", place), record, place)
        self._records.forget(record.id)
        return record

    def _bring_back(self, change: Change, record: Backup, place: str) -> None:
        now = self._present(place)
        if record.kind == "absent":
            self._clear(change, place)
        elif record.kind == "file" and now is not None and now.is_file and not self._records.is_aside(record):
            self._copy(change, place, now)
            self._write(record, place)  # a change like any other, so its time is now: make(1) is to see it
        else:
            self._clear(change, place)
            self._put(record, place)

    def _move_back(self, change: Change, record: Backup, place: str) -> None:
        if self._present(record.target) is None:
            raise NotFound(
                f"{record.path!r} was moved to {record.target!r}, where nothing stands now",
                hint=f"undo what happened to {record.target!r} first",
            )
        if record.shape not in ("", self._shape(record.target)):
            raise InvalidRequest(
                f"{record.path!r} was moved to {record.target!r}, where something else stands now",
                hint=f"undo what happened to {record.target!r} first, or move it yourself",
            )
        self._make_parent(place)
        self._move(change, record.target, place)

    def _put(self, record: Backup, place: str) -> None:
        """Have what a record is about stand where nothing does, as it was."""
        self._make_parent(place)
        if self._records.is_aside(record):
            self._records.move_out(record, self._filesystem, place)
            return
        if record.kind == "link":
            self._filesystem.make_link(place, record.target)
        else:
            self._write(record, place)
        self._filesystem.set_modified(place, record.modified_ns)

    def _write(self, record: Backup, place: str) -> None:
        with self._records.open(record) as kept, self._filesystem.open_write(place) as out:
            out.write_all(kept)
        self._filesystem.set_mode(place, record.mode)

    def _make_parent(self, place: str) -> None:
        parent = place.rpartition("/")[0]
        if parent:
            self._filesystem.mkdir(parent)

    def _present(self, place: str) -> FileStat | None:
        try:
            return self._filesystem.stat(place, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _hint(self, path: str) -> str:
        for ancestor in _ancestors(self._filesystem.resolve(path, follow_symlinks=False)):
            for record in self._records.of(ancestor):
                if record.kind in ("directory", "moved"):
                    done = "deleted" if record.kind == "directory" else "moved"
                    return f"its directory {ancestor!r} was {done}; undo that"
        return "only what a tool changed can be undone"


def _check_kept(record: Backup) -> None:
    if record.kind == "unkept":
        raise NotFound(
            f"no backup of {record.path!r}: it was too large to be kept before its last change",
            hint="a snapshot of the workspace from before the change has it",
        )


def _ancestors(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
