"""Backups, trash and undo: what a tool is about to change is kept first, outside the tree.

The store is a filesystem of its own, so that a restore of the workspace does not take the backups away. It
has one directory for each path that ever changed, and in it one record for each change:

<basename>-<crc of the path>/<time>-<token>.bak     a line of JSON, then the bytes of the file <basename>-<crc
of the path>/<time>-<token>.tree    the directory that the record with the same name is about

Times are UTC with nanoseconds and never go back within a directory, so names sort by age; together with the
token and exclusive creation they cannot collide. A record is true when its `.bak` exists: the tree is moved
in before it is written, and out of the way after it is gone. One that was in hand as a whole is written in
place and says how long it is (`exact`); if it is shorter, its writer was killed, and it is none.

A record says what stood at a path before a change: a file, a link, a directory, nothing ("absent": the change
made it), or something that has since been moved elsewhere. To undo is to put the newest of these back,
keeping what stands there now as a record of its own, so that undo can be undone.
"""

from __future__ import annotations

import os
import time
from binascii import crc32
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ws.errors import InvalidRequest, NotFound
from ws.fs.paths import normal_path
from ws.fs.protocol import ByteReader, FileStat, Filesystem, WholeFile

Kind = Literal["file", "link", "directory", "absent", "moved"]

_RECORD, _TREE = ".bak", ".tree"
_MAX_HEADER_BYTES = 64 * 1024
_SWEEP_EVERY_S = 3600.0
_AT_A_TIME = 10
_TURNS = 20  # somebody else may add to a directory, so what is known of it is looked at again now and then
_MAX_KNOWN = 256
_LARGE_BYTES = 1 << 20
"""A file that goes to the trash is copied into its record up to this size; beyond it is moved as it is."""


@dataclass(frozen=True, slots=True)
class Retention:
    """How long records are kept."""

    max_per_path: int = 50
    max_age_s: float = 30 * 86_400.0


@dataclass(frozen=True, slots=True)
class Backup:
    """A record: what stood at `path` before `reason` happened to it at `saved_ns`."""

    id: str
    path: str
    kind: Kind
    reason: str
    saved_ns: int
    size_bytes: int = 0
    mode: int = 0
    modified_ns: int = 0
    target: str = ""
    """Of a link: where it led. Of something moved: where it is now."""

    @property
    def is_trash(self) -> bool:
        return self.reason == "delete"


class _Facts(NamedTuple):
    """What a record says of a file beside its bytes."""

    size_bytes: int
    mode: int
    modified_ns: int

    @classmethod
    def of(cls, status: FileStat) -> _Facts:
        return cls(status.size_bytes, status.mode, round(status.modified_at.timestamp() * 1e6) * 1000)


_NO_FACTS = _Facts(0, 0, 0)


class Backups:
    """The records of one filesystem, kept in another."""

    def __init__(self, filesystem: Filesystem, store: Filesystem, *, retention: Retention | None = None) -> None:
        self._filesystem = filesystem
        self._store = store
        self.retention = retention or Retention()
        self._next_sweep = 0.0
        self._known: dict[str, tuple[list[str], int]] = {}  # names of a directory, and how often they may be relied on

    def keep(self, path: str, found: WholeFile, *, reason: str = "edit") -> Backup:
        """What `save` does, for a file that the caller has just read."""
        facts = _Facts(len(found.content), found.mode, found.modified_ns)
        return self._record(path, "file", reason, facts=facts, whole=found.content)

    def save(self, path: str, *, reason: str = "edit") -> Backup:
        """Keep what a file holds, or that there is none, before it is written. Raises IsADirectoryError.

        Commit point: the record's file. Call it before the change; a record too many is harmless.
        """
        try:
            status = self._filesystem.stat(path)
        except FileNotFoundError:
            return self._record(path, "absent", reason)
        with self._filesystem.open_read(path) as reader:
            return self._record(path, "file", reason, facts=_Facts.of(status), content=reader)

    def trash(self, path: str, *, reason: str = "delete") -> Backup:
        """Take a file, a link or a directory out of the tree and keep it. Raises FileNotFoundError."""
        status = self._filesystem.stat(path, follow_symlinks=False)
        if status.is_directory:
            return self._record(path, "directory", reason, facts=_Facts.of(status), aside=True)
        if status.is_file and status.size_bytes > _LARGE_BYTES:
            return self._record(path, "file", reason, facts=_Facts.of(status), aside=True)
        if status.is_symlink:
            backup = self._record(path, "link", reason, facts=_Facts.of(status), target=status.target or "")
        elif status.is_file:
            with self._filesystem.open_read(path) as content:
                backup = self._record(path, "file", reason, facts=_Facts.of(status), content=content)
        else:
            raise InvalidRequest(
                f"{path!r} is neither file, link nor directory and cannot be kept",
                hint="delete it permanently",
            )
        self._filesystem.delete(path)
        return backup

    def note_creation(self, path: str) -> Backup:
        """Remember that nothing stood at a path before."""
        return self._record(path, "absent", "create")

    def note_move(self, source: str, destination: str) -> Backup:
        """Remember that what stood at `source` stands at `destination` now."""
        return self._record(source, "moved", "move", target=self._normal(destination))

    def records(self, path: str | None = None) -> list[Backup]:
        """The records of a path, or all of them; newest first."""
        keys = [self._key(self._normal(path))] if path is not None else self._keys()
        wanted = None if path is None else self._normal(path)
        found = [
            record
            for key in keys
            for name in self._names(key)[-self.retention.max_per_path :]
            if (record := self._load(f"{key}/{name}")) and wanted in (None, record.path)
        ]
        return sorted(found, key=lambda record: record.saved_ns, reverse=True)

    def undo(self, path: str) -> Backup:
        """Bring back what stood at a path before its last change; returns the record that was used up.

        What stands there now becomes a record itself, before anything is changed. Raises NotFound.
        """
        record = next(iter(self.records(path)), None)
        if record is None:
            raise NotFound(f"no backup of {path!r}", hint=self._hint(path))
        self._bring_back(record, record.path, reason="undo")
        return record

    def restore(self, record_id: str, *, destination: str | None = None, overwrite: bool = False) -> Backup:
        """Bring back a record by its id, to where it was or elsewhere. Raises NotFound, FileExistsError."""
        record = self._find(record_id)
        place = self._normal(destination) if destination is not None else record.path
        if record.kind != "absent" and not overwrite and self._present(place) is not None:
            raise FileExistsError(17, "something stands there now; restore with overwrite", place)
        self._bring_back(record, place, reason="restore")
        return record

    def purge(self, *, record_id: str | None = None, older_than_s: float = 0.0, trash_only: bool = False) -> int:
        """Forget one record, or all that are older than an age; returns how many. Raises NotFound."""
        if record_id is not None:
            self._forget(self._find(record_id).id)
            return 1
        oldest = _stamp(time.time_ns() - int(older_than_s * 1e9))
        count = 0
        for key in self._keys():
            for name in self._names(key):
                if name >= oldest or (trash_only and not self._is_trash(f"{key}/{name}")):
                    continue
                self._forget(f"{key}/{name}")
                count += 1
        return count

    def _is_trash(self, record_id: str) -> bool:
        record = self._load(record_id)
        return record is not None and record.is_trash

    # putting back

    def _bring_back(self, record: Backup, place: str, *, reason: str) -> None:
        if record.kind == "moved":
            self._move_back(record, place, reason)
        elif record.kind == "absent":
            if self._present(place) is not None:
                self.trash(place, reason=reason)
            else:
                self._record(place, "absent", reason)
        else:
            aside = self._store.exists(record.id + _TREE)
            self._make_room(place, reason, keep_file=record.kind == "file" and not aside)
            self._put(record, place, aside=aside)
        self._forget(record.id)

    def _make_room(self, place: str, reason: str, *, keep_file: bool) -> None:
        """Keep what stands at the place; a file that a file replaces may stay until it is replaced."""
        now = self._present(place)
        if now is None:
            self._record(place, "absent", reason)
        elif keep_file and (now.is_file or (now.is_symlink and self._leads_to_file(place))):
            self.save(place, reason=reason)
        else:
            self.trash(place, reason=reason)

    def _put(self, record: Backup, place: str, *, aside: bool) -> None:
        parent = place.rpartition("/")[0]
        if parent:
            self._filesystem.mkdir(parent)
        if record.kind == "link":
            self._filesystem.make_link(place, record.target)
        elif aside:
            from ws.fs.transfer import move_between

            move_between(self._store, record.id + _TREE, self._filesystem, place)
        else:
            with (
                self._store.open_read(record.id + _RECORD) as kept,
                self._filesystem.open_write(place) as out,
            ):
                kept.seek(_header_size(kept))
                out.write_all(kept)
            self._filesystem.set_mode(place, record.mode)

    def _move_back(self, record: Backup, place: str, reason: str) -> None:
        if self._present(record.target) is None:
            raise NotFound(
                f"{record.path!r} was moved to {record.target!r}, where nothing stands now",
                hint=f"undo what happened to {record.target!r} first",
            )
        if self._present(place) is not None:
            self.trash(place, reason=reason)
        self._record(record.target, "moved", reason, target=place)
        self._filesystem.move(record.target, place)

    def _present(self, path: str) -> FileStat | None:
        try:
            return self._filesystem.stat(path, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _leads_to_file(self, path: str) -> bool:
        try:
            return self._filesystem.stat(path).is_file
        except (OSError, ValueError):
            return False

    # records

    def _record(
        self,
        path: str,
        kind: Kind,
        reason: str,
        *,
        facts: _Facts = _NO_FACTS,
        target: str = "",
        whole: bytes = b"",
        content: Iterable[bytes] | None = None,
        aside: bool = False,
    ) -> Backup:
        path = self._normal(path)
        key = self._key(path)
        known = self._known.pop(key, None)
        names, turns = known if known else (self._names(key), _TURNS)
        saved_ns = time.time_ns()
        stamp = _stamp(saved_ns)
        if names and stamp <= names[-1]:
            saved_ns = _nanoseconds(names[-1]) + 1  # the clock went back
            stamp = _stamp(saved_ns)
        record = Backup(
            id=f"{key}/{stamp}-{os.urandom(4).hex()}",
            path=path,
            kind=kind,
            reason=reason,
            saved_ns=saved_ns,
            size_bytes=facts.size_bytes if kind == "file" else 0,
            mode=facts.mode,
            modified_ns=facts.modified_ns,
            target=target,
        )
        if aside:
            from ws.fs.transfer import move_between

            self._store.mkdir(key)
            move_between(self._filesystem, path, self._store, record.id + _TREE)
        if content is None:
            self._store.add(record.id + _RECORD, _header(record, exact=len(whole)) + whole)
        else:
            with self._store.open_write(record.id + _RECORD, "create") as out:
                out.write(_header(record))
                out.write_all(content)
        names = self._retire(key, [*names, record.id.rpartition("/")[2]])
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        if turns:
            self._known[key] = names, turns - 1
        return record

    def _load(self, record_id: str) -> Backup | None:
        from json import loads

        try:
            with self._store.open_read(record_id + _RECORD) as kept:
                header_bytes = _header_size(kept)
                fields: dict[str, Any] = loads(kept.read(header_bytes))
                if fields.pop("exact", 0) > kept.size - header_bytes:
                    return None
        except (OSError, ValueError):
            return None  # purged meanwhile, or not a record of ours
        return Backup(id=record_id, **fields)

    def _find(self, record_id: str) -> Backup:
        key, _, name = record_id.partition("/")
        known = bool(key and name) and "/" not in name and key not in (".", "..")
        record = self._load(record_id) if known and name not in (".", "..") else None
        if record is None:
            raise NotFound(f"no backup {record_id!r}", hint="trash_list shows what there is")
        return record

    def _forget(self, record_id: str) -> None:
        self._known.pop(record_id.partition("/")[0], None)
        for name in (record_id + _RECORD, record_id + _TREE):
            try:
                self._store.delete(name, recursive=True)
            except FileNotFoundError:
                pass  # it never had one, or another call was faster

    def _retire(self, key: str, names: list[str]) -> list[str]:
        """Let go of what is too much or too old: some at a time here, everywhere once an hour. Returns what stays.

        Too many are none to `records` already; on a disk that is told of freed blocks, an unlink takes 1.5 ms.
        """
        excess = len(names) - self.retention.max_per_path
        if excess < _AT_A_TIME:
            excess = 0
        for name in names[:excess]:
            self._forget(f"{key}/{name}")
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _SWEEP_EVERY_S
            self.purge(older_than_s=self.retention.max_age_s)
        return names[excess:]

    def _keys(self) -> list[str]:
        return [entry.name for entry in self._store.list() if entry.is_directory]

    def _names(self, key: str) -> list[str]:
        """The records of a directory without their suffix, oldest first."""
        try:
            entries = self._store.list(key)
        except FileNotFoundError:
            return []
        return [entry.name.removesuffix(_RECORD) for entry in entries if _is_record(entry.name)]

    def _key(self, path: str) -> str:
        base = path.rpartition("/")[2]
        readable = "".join(char if (char.isalnum() and char.isascii()) or char in "._-" else "_" for char in base)
        return f"{readable[:40].lstrip('.')}-{crc32(path.encode('utf-8', 'surrogateescape')):08x}"

    def _normal(self, path: str) -> str:
        return normal_path(self._filesystem.root, path)

    def _hint(self, path: str) -> str:
        for ancestor in _ancestors(self._normal(path)):
            if any(record.kind == "directory" for record in self.records(ancestor)):
                return f"its directory {ancestor!r} was deleted; undo that"
        wanted = self._normal(path)
        for record in self.records():
            if record.kind == "moved" and record.target == wanted:
                return f"it was moved there from {record.path!r}; undo that"
        return "only what a tool changed can be undone"


def _is_record(name: str) -> bool:
    digits = name[0:8] + name[9:15] + name[16:25]
    return name.endswith(_RECORD) and len(digits) == 23 and digits.isdecimal()


def _header(record: Backup, *, exact: int = 0) -> bytes:
    from json import dumps

    fields = {name: getattr(record, name) for name in Backup.__slots__ if name != "id"}
    if exact:
        fields["exact"] = exact
    return dumps(fields).encode() + b"\n"


def _header_size(kept: ByteReader) -> int:
    kept.seek(0)
    size = kept.read(_MAX_HEADER_BYTES).find(b"\n") + 1
    kept.seek(0)
    return size


def _stamp(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}.{rest:09d}Z"


def _nanoseconds(stamp: str) -> int:
    """The moment of a stamp; by hand, because strptime brings in the regex and locale modules."""
    from calendar import timegm

    parts = (stamp[0:4], stamp[4:6], stamp[6:8], stamp[9:11], stamp[11:13], stamp[13:15])
    return timegm(tuple(map(int, parts))) * 1_000_000_000 + int(stamp[16:25])


def _ancestors(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
