"""Records of what stood at a path before a change, in a filesystem of their own: one directory for each path.

    <basename>-<crc of the path>/<time>-<token>.bak     a line of JSON, then the bytes of the file
    <basename>-<crc of the path>/<time>-<token>.tree    the directory that the record with the same name is about

Times are UTC with nanoseconds and never go back within a directory, so names sort by age; together with the
token and exclusive creation they cannot collide. A record is true when its `.bak` exists: the tree is moved
in before it is written, and out of the way after it is gone. One that was in hand as a whole is written in
place and says how long it is (`exact`); if it is shorter, its writer was killed, and it is none.

A change of two paths at once, such as a move, has a record under each of them. Both have the same name and say
where the other is (`twin`), so that either path leads to both.
"""

from __future__ import annotations

import os
import time
from binascii import crc32
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from ws.errors import NotFound
from ws.fs.protocol import ByteReader, FileStat, Filesystem
from ws.tools.budget import Budget, Size, size_of

Kind = Literal["file", "link", "directory", "absent", "moved"]

_RECORD, _TREE = ".bak", ".tree"
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
        return self.reason == "delete" or (self.reason == "redo" and self.again == "delete")


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
    name: str
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
        stamp = _stamp(saved_ns)
        for path in paths:
            names, _ = self._look_up(_key(path))
            if names and stamp <= names[-1]:
                saved_ns = _nanoseconds(names[-1]) + 1  # the clock went back
                stamp = _stamp(saved_ns)
        return Change(reason, saved_ns, f"{stamp}-{os.urandom(4).hex()}", paths, again)

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

        Commit point: the record's file.
        """
        key = _key(path)
        record = Backup(
            id=f"{key}/{change.name}",
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
        inside = size_of(out_of, path) if out_of is not None else Size(len(whole) or facts.size_bytes)
        self.budget.make_room(path, Size(inside.size_bytes, inside.entries + 1))
        if out_of is not None:
            from ws.fs.transfer import move_between

            self._store.mkdir(key)
            move_between(out_of, path, self._store, record.id + _TREE)
        if content is None:
            self._store.add(record.id + _RECORD, _header(record, exact=len(whole)) + whole)
        else:
            with self._store.open_write(record.id + _RECORD, "create") as out:
                out.write(_header(record))
                out.write_all(content)
        self._remember(key, change.name)
        return record

    def _look_up(self, key: str) -> tuple[list[str], int]:
        return self._known.get(key) or self._known.setdefault(key, (self._names(key), _TURNS))

    def _remember(self, key: str, name: str) -> None:
        names, turns = self._look_up(key)
        names = [*names, name] if not names or name > names[-1] else sorted({*names, name})
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
        return [record for record in self._loaded(_key(path)) if record.path == path]

    def all(self) -> list[Backup]:
        """Every record, newest first."""
        found = [record for key in self._keys() for record in self._loaded(key)]
        return sorted(found, key=lambda record: record.saved_ns, reverse=True)

    def find(self, record_id: str) -> Backup:
        """A record by its id, which a caller may have made up. Raises NotFound."""
        key, _, name = record_id.partition("/")
        known = bool(key and name) and "/" not in name and key not in (".", "..")
        record = self._load(record_id) if known and name not in (".", "..") else None
        if record is None:
            raise NotFound(f"no backup {record_id!r}", hint="trash_list shows what there is")
        return record

    def twin_of(self, record: Backup) -> Backup | None:
        """The record of the other path of the same change, as long as it is kept."""
        if not record.twin:
            return None
        twin = self._load(f"{_key(record.twin)}/{record.id.rpartition('/')[2]}")
        return twin if twin is not None and twin.path == record.twin else None

    def _loaded(self, key: str) -> list[Backup]:
        names = reversed(self._names(key)[-self._retention.max_per_path :])
        return [record for name in names if (record := self._load(f"{key}/{name}"))]

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

    def _ids(self) -> list[str]:
        return [f"{key}/{name}" for key in self._keys() for name in self._names(key)]

    def _keys(self) -> list[str]:
        return [entry.name for entry in self._store.list() if entry.is_directory]

    def _names(self, key: str) -> list[str]:
        """The records of a directory without their suffix, oldest first."""
        try:
            entries = self._store.list(key)
        except FileNotFoundError:
            return []
        return [entry.name.removesuffix(_RECORD) for entry in entries if _is_record(entry.name)]

    # taking out

    def is_aside(self, record: Backup) -> bool:
        """Whether what the record is about lies beside it, as it was."""
        return self._store.exists(record.id + _TREE)

    def move_out(self, record: Backup, filesystem: Filesystem, place: str) -> None:
        """Put what lies beside a record where nothing stands. Raises as `Filesystem.move`."""
        from ws.fs.transfer import move_between

        move_between(self._store, record.id + _TREE, filesystem, place)

    @contextmanager
    def open(self, record: Backup) -> Iterator[ByteReader]:
        """The bytes of a file that is kept in its record."""
        with self._store.open_read(record.id + _RECORD) as kept:
            kept.seek(_header_size(kept))
            yield kept

    # letting go

    def forget(self, record_id: str) -> None:
        """Remove a record and what lies beside it, if it is there."""
        self._known.pop(record_id.partition("/")[0], None)
        for name in (record_id + _RECORD, record_id + _TREE):
            try:
                self._store.delete(name, recursive=True)
            except FileNotFoundError:
                pass  # it never had one, or another call was faster

    def purge(self, older_than_s: float, *, only: Callable[[Backup], bool] | None = None) -> int:
        """Forget all that are older than an age, or only some of them; returns how many."""
        oldest = _stamp(time.time_ns() - int(older_than_s * 1e9))
        count = 0
        for key in self._keys():
            for name in self._names(key):
                if name >= oldest:
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


def _key(path: str) -> str:
    base = path.rpartition("/")[2]
    readable = "".join(char if (char.isalnum() and char.isascii()) or char in "._-" else "_" for char in base)
    return f"{readable[:40].lstrip('.')}-{crc32(path.encode('utf-8', 'surrogateescape')):08x}"


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
