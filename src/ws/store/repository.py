"""The store: one bare git repository, all of it in packs that ws wrote.

Stock git reads it; nothing but ws writes it. No configuration, hook or attribute is consulted, and nothing is
ever read by path from a workspace. Every object that is read is hashed again and compared with its name.

Writers hold `ws.lock` shared from before they ask what is known until what they wrote is referred to; the
collector takes it exclusively for the moment in which it removes packs. So an object that was known
when a snapshot began is there when it ends.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from ws import durable
from ws.errors import StateUnusable, StoreDamaged
from ws.store import packs
from ws.store.deltas import apply_delta
from ws.store.indexes import Index, read_index

_CONFIG = b"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"
_HEAD = b"ref: refs/heads/main\n"
_REMEMBERED_BYTES = 16 << 20  # of small objects that are kept: the trees at the top are read again and again
_SMALL_BYTES = 64 << 10
_MEMORIES = 4  # homes that one process works in at a time
_WRITE_LOCK_S = 60.0


class _Memory:
    """Small objects by their ids, each hashed when it was read or written; and the indexes of packs, by their names.

    What small packs hold is in one table besides: snapshots leave some thirty of them, and to ask each of those for
    each of a hundred new objects takes half a millisecond.
    """

    def __init__(self) -> None:
        self._indexes: dict[str, Index] = {}
        self.holders: dict[bytes, str] = {}  # the name of a small pack's index, by the ids in it
        self._objects: dict[bytes, tuple[int, bytes]] = {}
        self._size_bytes = 0

    def get(self, oid: bytes) -> tuple[int, bytes] | None:
        return self._objects.get(oid)

    def add(self, oid: bytes, kind: int, data: bytes) -> None:
        if len(data) > _SMALL_BYTES:
            return
        if self._size_bytes > _REMEMBERED_BYTES:
            self._objects.clear()
            self._size_bytes = 0
        self._objects[oid] = kind, data
        self._size_bytes += len(data)

    def indexes(self, directory: str, names: set[str]) -> dict[str, Index]:
        """The indexes of these names, but for those that are gone. All others are forgotten: their packs are gone."""
        for name in self._indexes.keys() - names:
            index = self._indexes.pop(name, None)
            for oid in index.small_ids() if index else ():
                if self.holders.get(oid) == name:  # else it is in a newer pack too
                    self.holders.pop(oid, None)
        found = {}
        for name in names:
            index = self._indexes.get(name)
            if index is None:
                with contextlib.suppress(FileNotFoundError):  # collected since it was listed
                    found[name] = self.learn(name, read_index(os.path.join(directory, name)))
            else:
                found[name] = index
        return found

    def learn(self, name: str, index: Index) -> Index:
        self._indexes[name] = index
        self.holders.update(dict.fromkeys(index.small_ids(), name))
        return index


_memories: dict[str, _Memory] = {}


def _lasting_memory(path: str) -> _Memory:
    if path not in _memories and len(_memories) >= _MEMORIES:
        _memories.clear()
    return _memories.setdefault(path, _Memory())


class Store:
    """The repository at `path`, made if it is not there. One thread at a time; opening another is cheap.

    With `lasting`, what it comes to know is known to the next one that is opened so: the snapshots of an agent change
    the same directories again and again.
    Raises StateUnusable when it can neither be opened nor made.
    Commit point of making it: the rename of HEAD.
    """

    def __init__(self, path: str, *, lasting: bool = False) -> None:
        self.path = path
        self.pack_directory = os.path.join(path, "objects", "pack")
        self.lock = os.path.join(path, "ws.lock")
        self.refs_lock = os.path.join(path, "ws.refs.lock")
        self._indexes: dict[str, Index] = {}  # of the packs there are, by their names
        self._large: list[str] = []
        self._packs: dict[str, packs.Pack] = {}  # those that were asked for
        self._last: packs.Pack | None = None
        self._memory = _lasting_memory(path) if lasting else _Memory()
        self._looked = False  # whoever only reads references needs no packs
        if not os.path.exists(os.path.join(path, "HEAD")):
            self._create()

    def _create(self) -> None:
        try:
            for part in (
                "",
                "objects",
                "objects/pack",
                "objects/info",
                "refs",
                "refs/heads",
                "refs/workspaces",
            ):
                durable.ensure_directory(os.path.join(self.path, part).rstrip("/"))
            durable.create_lock_file(self.lock)
            durable.create_lock_file(self.refs_lock)
            durable.write_file(os.path.join(self.path, "config"), _CONFIG)
            durable.sync_filesystem(self.path)  # the lock files too: without a journal no later sync covers them
            durable.write_file(os.path.join(self.path, "HEAD"), _HEAD)
        except OSError as error:
            raise StateUnusable(
                f"cannot make the store in {self.path}: {error.strerror}",
                hint="check that WS_HOME is writable and not full",
            ) from error

    def close(self) -> None:
        for pack in self._packs.values():
            pack.close()
        self._packs.clear()
        self._indexes, self._large = {}, []
        self._last, self._looked = None, False

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def refresh(self) -> None:
        """See the packs that came and went since."""
        self._looked = True
        names = {name for name in os.listdir(self.pack_directory) if name.endswith(".idx")}
        for name in self._packs.keys() - names:
            pack = self._packs.pop(name)
            pack.close()
            if pack is self._last:
                self._last = None
        self._indexes = self._memory.indexes(self.pack_directory, names)
        self._large = [name for name, index in self._indexes.items() if not index.small]

    def forget(self) -> None:
        """Read everything from disk again: who verifies must not be told what was there a while ago."""
        self._memory = _Memory()
        self.close()
        self.refresh()

    def remember(self, oid: bytes, kind: int, data: bytes) -> None:
        """Know an object that is on its way into the store, and will be asked for by whoever comes next."""
        self._memory.add(oid, kind, data)

    def all_packs(self) -> list[packs.Pack]:
        if not self._looked:
            self.refresh()
        return [self._pack(name) for name in self._indexes]

    def count_small_packs(self, limit_bytes: int) -> int:
        """How many packs there were at the last look that are smaller; those that nobody has measured count too."""
        return sum(index.pack_bytes < limit_bytes for index in self._indexes.values())

    def _pack(self, name: str) -> packs.Pack:
        pack = self._packs.get(name)
        if pack is None:
            path = os.path.join(self.pack_directory, name.removesuffix(".idx"))
            pack = self._packs[name] = packs.Pack(path, self._indexes[name])
        return pack

    def contains(self, oid: bytes) -> bool:
        """Whether an object was there at the last refresh."""
        return self._find(oid) is not None

    def _find(self, oid: bytes) -> tuple[packs.Pack, int] | None:
        """A pack that holds an object, and where."""
        last = self._last
        if last and (position := last.find(oid)) >= 0:  # mostly the pack of the base
            return last, position
        if not self._looked:
            self.refresh()
        holder = self._memory.holders.get(oid)
        # One that came after our last look may have taken the place of another in the table.
        asked = [holder] if holder in self._indexes else self._large if holder is None else list(self._indexes)
        for name in asked:
            if (position := self._indexes[name].find(oid)) >= 0:
                self._last = self._pack(name)
                return self._last, position
        return None

    def read(self, oid: bytes, kind: int, *, path: bytes = b"") -> bytes:
        """The bytes of an object. Raises StoreDamaged, naming it and `path`, when missing or wrong."""
        found = self._memory.get(oid)
        if found is None:
            found = self._read(oid, path)
            self._memory.add(oid, *found)
        if found[0] != kind:
            raise _damaged(oid, path, f"is a {packs.KINDS[found[0]].decode()}")
        return found[1]

    def _read(self, oid: bytes, path: bytes) -> tuple[int, bytes]:
        found = self._find(oid)
        if found:
            try:
                kind, data, base = found[0].read(found[1])
                if not base and packs.object_id(kind, data) == oid:
                    return kind, data
            except (ValueError, OSError):
                pass  # the long way says what is wrong
        trouble = "is missing"
        for attempt in range(2):
            for pack in self.all_packs():
                position = pack.find(oid)
                if position < 0:
                    continue
                try:
                    kind, data = self._resolve(pack, position)
                except FileNotFoundError:
                    continue  # the pack was collected meanwhile; what it held is in another one
                except (ValueError, OSError) as error:
                    trouble = f"cannot be read: {error}"
                    continue
                if packs.object_id(kind, data) == oid:
                    self._last = pack
                    return kind, data
                trouble = "does not have the bytes that its name promises"
            if attempt == 0:
                self.refresh()
        raise _damaged(oid, path, trouble)

    def _resolve(self, pack: packs.Pack, position: int) -> tuple[int, bytes]:
        kind, data, base = pack.read(position)
        deltas: list[bytes] = []
        while kind == packs.REF_DELTA:
            deltas.append(data)
            position = pack.find(base)
            if position < 0:
                raise ValueError(f"its base {base.hex()} is not in the same pack")
            kind, data, base = pack.read(position)
        while deltas:
            data = apply_delta(data, deltas.pop())
        return kind, data

    @contextlib.contextmanager
    def writing(self, *, quick: bool = False) -> Iterator[packs.PackWriter]:
        """A new pack, under the writers' lock. The caller finishes it and refers to it inside the block.

        A `quick` one compresses only what is much: for snapshots, not for what is imported and kept for long.

        Raises Busy when the collector does not let go of the lock for a minute.
        """
        with durable.locked(self.lock, shared=True, timeout_s=_WRITE_LOCK_S, what="the store"):
            self.refresh()
            writer = packs.PackWriter(self.pack_directory, self.contains, quick=quick)
            try:
                yield writer
            finally:
                writer.abort()
                if writer.finished and writer.finished[1].small:  # a large one is mapped when it is next looked for
                    name, index = writer.finished
                    self._indexes[name] = self._memory.learn(name, index)


def _damaged(oid: bytes, path: bytes, trouble: str) -> StoreDamaged:
    where = f" ({os.fsdecode(path)})" if path else ""
    return StoreDamaged(f"object {oid.hex()}{where} {trouble}", hint="`ws verify` tells which snapshots it touches")
