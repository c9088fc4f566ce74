"""Records of what stood at a path before a change, in a filesystem of their own: one directory for each path.

A record is a file: a line of JSON, then the bytes of the file that it is about. A directory or a large file lies beside
its record as it was. `record_names` says how both are named.

Timestamps never go back within a directory, so records sort by age; a name is claimed by exclusive creation. A record
is true when it is whole: an empty file is a claim, whose writer is at work or was killed, and what lies beside it is
moved in before the record is written. One that was in hand as a whole is written in place and says how long it is
(`exact`); if it is shorter, its writer was killed, and it does not count.

A change of two paths at once, such as a move, has a record under each of them. Both have the same timestamp and say
where the other is (`twin`), so that either path leads to both.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from ws.errors import NotFound
from ws.fs.protocol import ByteReader, FileStat, Filesystem
from ws.tools.budget import Budget, Size, size_of
from ws.tools.record_names import (
    BACKUP,
    age_of,
    directory_of,
    nanoseconds,
    record_name,
    stamp,
    stamp_of,
    tree_of,
)

Kind = Literal["file", "link", "directory", "absent", "moved", "unkept"]

_MAX_HEADER_BYTES = 64 * 1024
_SWEEP_EVERY_S = 3600.0
_AT_A_TIME = 10
_TURNS = 20  # somebody else may add to a directory, so what is known of it is looked at again now and then
_MAX_KNOWN = 256


@dataclass(frozen=True, slots=True)
class Retention:
    """How long records are kept."""

    max_per_path: int = 50
    max_age_s: float = 30 * 86_400.0
    max_bytes: int = 256 << 20
    max_entries: int = 10_000


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
    shape: str = ""
    """Of something moved: by what it is known again."""
    twin: str = ""
    """The other path of the same change."""
    again: str = ""
    """Of an undo or a redo: the reason of the change that was undone or done again."""

    @property
    def is_trash(self) -> bool:
        return _deletes(self.reason, self.again)


def _deletes(reason: str, again: str) -> bool:
    """Whether a change takes something out of the tree, so that its records are the trash."""
    return reason == "delete" or (reason == "redo" and again == "delete")


class Facts(NamedTuple):
    """What a record says of a file beside its bytes."""

    size_bytes: int = 0
    mode: int = 0
    modified_ns: int = 0

    @classmethod
    def of(cls, status: FileStat) -> Facts:
        return cls(status.size_bytes, status.mode, round(status.modified_at.timestamp() * 1e6) * 1000)


_NO_FACTS = Facts()


class Change(NamedTuple):
    """What the records of one change have in common."""

    reason: str
    saved_ns: int
    paths: tuple[str, ...]
    again: str = ""

    def twin(self, path: str) -> str:
        return next((other for other in self.paths if other != path), "")


class Records:
    """The records in a store."""

    def __init__(self, store: Filesystem, retention: Retention) -> None:
        self._store = store
        self._retention = retention
        self._next_sweep = 0.0
        most = Size(retention.max_bytes, retention.max_entries)
        self.budget = Budget(store, most, ids=self._ids, forget=self.forget)
        self._known: dict[str, tuple[list[str], int]] = {}  # names of a directory, and how often they may be relied on

    # making

    def begin(self, reason: str, *paths: str, again: str = "") -> Change:
        """A change of one path or of two, younger than every record that they have."""
        saved_ns = time.time_ns()
        for path in paths:
            names, _ = self._look_up(directory_of(path))
            newest = stamp_of(names[-1]) if names else None
            if newest and stamp(saved_ns) <= newest:
                saved_ns = nanoseconds(newest) + 1  # the clock went back
        return Change(reason, saved_ns, paths, again)

    def add(
        self,
        change: Change,
        path: str,
        kind: Kind,
        *,
        facts: Facts = _NO_FACTS,
        target: str = "",
        shape: str = "",
        whole: bytes = b"",
        content: Iterable[bytes] | None = None,
        out_of: Filesystem | None = None,
    ) -> Backup:
        """Write a record: of bytes in hand or as they come, or of what is moved here out of another filesystem.

        The oldest records go where the budget needs it. Raises LimitExceeded for what is larger than all of it.

        Commit point: the record's file is whole.
        """
        key = directory_of(path)
        record = Backup(
            id="",  # until its name is claimed
            path=path,
            kind=kind,
            reason=change.reason,
            saved_ns=change.saved_ns,
            size_bytes=facts.size_bytes if kind == "file" else 0,
            mode=facts.mode,
            modified_ns=facts.modified_ns,
            target=target,
            shape=shape,
            twin=change.twin(path),
            again=change.again,
        )
        most = Size(self._retention.max_bytes, self._retention.max_entries)
        inside = size_of(out_of, path, most) if out_of is not None else Size(len(whole) or facts.size_bytes)
        self.budget.make_room(path, Size(inside.size_bytes, inside.entries + 1))
        in_hand = content is None and out_of is None
        first = _header(record, exact=len(whole)) + whole if in_hand else b""
        record = replace(record, id=f"{key}/{self._claim(key, record, first)}")
        if not in_hand:
            try:
                self._fill(record, content or (), out_of)
            except BaseException:
                self._store.delete(record.id)
                raise
        self._remember(key, record.id.rpartition("/")[2])
        return record

    def _claim(self, key: str, record: Backup, first: bytes) -> str:
        """Create the file of a record under a name that no other record has; returns the name."""
        suffix = ""
        while True:
            name = record_name(
                record.path,
                stamp(record.saved_ns),
                trash=record.is_trash,
                limits=self._store.limits,
                suffix=suffix,
            )
            try:
                self._store.add(f"{key}/{name}", first)
            except FileExistsError:
                suffix = os.urandom(4).hex()
                continue
            return name

    def _fill(self, record: Backup, content: Iterable[bytes], out_of: Filesystem | None) -> None:
        """Write a record whose name is claimed, after what it is about has been moved beside it.

        What was moved goes back when the record cannot be written.
        """
        from ws.fs.transfer import move_between

        if out_of is not None:
            move_between(out_of, record.path, self._store, tree_of(record.id))
        try:
            with self._store.open_write(record.id, "overwrite") as out:
                out.write(_header(record))
                out.write_all(content)
        except BaseException:
            if out_of is not None:
                move_between(self._store, tree_of(record.id), out_of, record.path)
            raise

    def _look_up(self, key: str) -> tuple[list[str], int]:
        return self._known.get(key) or self._known.setdefault(key, (self._names(key), _TURNS))

    def _remember(self, key: str, name: str) -> None:
        names, turns = self._look_up(key)
        names = [*names, name] if not names or age_of(name) > age_of(names[-1]) else sorted({*names, name}, key=age_of)
        names = self._retire(key, names)
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        if turns:
            self._known[key] = names, turns - 1
        else:
            self._known.pop(key, None)

    # finding

    def of(self, path: str) -> list[Backup]:
        """The records of a path, newest first."""
        return [record for record in self._loaded(directory_of(path)) if record.path == path]

    def all(self) -> list[Backup]:
        """Every record, newest first."""
        found = [record for key in self._keys() for record in self._loaded(key)]
        return sorted(found, key=lambda record: record.saved_ns, reverse=True)

    def find(self, record_id: str) -> Backup:
        """A record by its id, which a caller may have made up. Raises NotFound."""
        key, _, name = record_id.partition("/")
        known = bool(key and name) and "/" not in name and key not in (".", "..")
        record = None
        if known and name not in (".", ".."):
            record = self._load(record_id) or self._load(record_id + BACKUP)  # as ids were before they were file names
        if record is None:
            raise NotFound(f"no backup {record_id!r}", hint="trash_list shows what there is")
        return record

    def twin_of(self, record: Backup) -> Backup | None:
        """The record of the other path of the same change, as long as it is kept."""
        if not record.twin:
            return None
        key, saved = directory_of(record.twin), stamp(record.saved_ns)
        for name in self._names(key):
            twin = self._load(f"{key}/{name}") if stamp_of(name) == saved else None
            if twin is not None and (twin.path, twin.twin) == (record.twin, record.path):
                return twin
        return None

    def _loaded(self, key: str) -> list[Backup]:
        names = reversed(self._names(key)[-self._retention.max_per_path :])
        return [record for name in names if (record := self._load(f"{key}/{name}"))]

    def _load(self, record_id: str) -> Backup | None:
        from json import loads

        try:
            with self._store.open_read(record_id) as kept:
                header_bytes = _header_size(kept)
                fields: dict[str, Any] = loads(kept.read(header_bytes))
                if fields.pop("exact", 0) > kept.size - header_bytes:
                    return None
        except (OSError, ValueError):
            return None  # purged meanwhile, or not a record of ours
        return Backup(id=record_id, **fields)

    def _ids(self) -> list[str]:
        """Every record of the store, the oldest first."""
        found = [(age_of(name), f"{key}/{name}") for key in self._keys() for name in self._names(key)]
        return [record_id for _, record_id in sorted(found)]

    def _keys(self) -> list[str]:
        return [entry.name for entry in self._store.list() if entry.is_directory]

    def _names(self, key: str) -> list[str]:
        """The records of a directory, oldest first."""
        try:
            entries = self._store.list(key)
        except FileNotFoundError:
            return []
        names = [entry.name for entry in entries if entry.is_file and stamp_of(entry.name)]
        return sorted(names, key=age_of)

    # taking out

    def is_aside(self, record: Backup) -> bool:
        """Whether what the record is about lies beside it, as it was."""
        return self._store.exists(tree_of(record.id))

    def move_out(self, record: Backup, filesystem: Filesystem, place: str) -> None:
        """Put what lies beside a record where nothing stands. Raises as `Filesystem.move`."""
        from ws.fs.transfer import move_between

        move_between(self._store, tree_of(record.id), filesystem, place)

    @contextmanager
    def open(self, record: Backup) -> Iterator[ByteReader]:
        """The bytes of a file that is kept in its record."""
        with self._store.open_read(record.id) as kept:
            kept.seek(_header_size(kept))
            yield kept

    # letting go

    def forget(self, record_id: str) -> None:
        """Remove a record and what lies beside it, if it is there."""
        self._known.pop(record_id.partition("/")[0], None)
        for name in (record_id, tree_of(record_id)):
            try:
                self._store.delete(name, recursive=True)
            except FileNotFoundError:
                pass  # it never had one, or another call was faster

    def purge(self, older_than_s: float, *, only: Callable[[Backup], bool] | None = None) -> int:
        """Forget all that are older than an age, or only some of them; returns how many."""
        oldest = stamp(time.time_ns() - int(older_than_s * 1e9))
        count = 0
        for key in self._keys():
            for name in self._names(key):
                if age_of(name)[0] >= oldest:
                    continue
                if only is not None and not ((record := self._load(f"{key}/{name}")) and only(record)):
                    continue
                self.forget(f"{key}/{name}")
                count += 1
        return count

    def _retire(self, key: str, names: list[str]) -> list[str]:
        """Let go of what is too much or too old: some at a time here, everywhere once an hour. Returns what stays.

        Too many are none to `of` already; on a disk that is told of freed blocks, an unlink takes 1.5 ms.
        """
        excess = len(names) - self._retention.max_per_path
        if excess < _AT_A_TIME:
            excess = 0
        for name in names[:excess]:
            self.forget(f"{key}/{name}")
        if time.monotonic() >= self._next_sweep:
            self._next_sweep = time.monotonic() + _SWEEP_EVERY_S
            self.purge(self._retention.max_age_s)
        return names[excess:]


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
