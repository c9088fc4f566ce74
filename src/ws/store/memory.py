"""What a process remembers of a store: small objects, indexes of packs, and which files were found sound."""

from __future__ import annotations

import contextlib
import os

from ws.errors import StoreDamaged
from ws.store.indexes import Index, read_index
from ws.store.reindexing import build_index
from ws.store.vouching import Ledger

_REMEMBERED_BYTES = 16 << 20  # of small objects that are kept: the trees at the top are read again and again
_SMALL_BYTES = 64 << 10
_MEMORIES = 4  # homes that one process works in at a time


class Memory:
    """Small objects by their ids, each hashed when it was read or written; and the indexes of packs, by their names.

    What small packs hold is in one table besides: snapshots leave some thirty of them, and to ask each of those for
    each of a hundred new objects takes half a millisecond.
    """

    def __init__(self, path: str) -> None:
        self._indexes: dict[str, Index] = {}
        self.ledger = Ledger(path)
        self.rebuilt: dict[str, bytes] = {}  # indexes that were built anew and are not on disk yet
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
                    index = self._load(directory, name)
            if index is not None:
                found[name] = index
        return found

    def _load(self, directory: str, name: str) -> Index | None:
        try:
            return self.learn(name, read_index(os.path.join(directory, name), self.ledger))
        except StoreDamaged:
            return self.rebuild(directory, name)

    def rebuild(self, directory: str, name: str) -> Index | None:
        """The index of a pack, from the pack itself; None when nothing of that can be read."""
        try:
            data = build_index(os.path.join(directory, name.removesuffix(".idx") + ".pack"))
        except (StoreDamaged, OSError):
            return None
        if data is None:
            return None
        self.rebuilt[name] = data
        return self.learn(name, Index(name, data))

    def learn(self, name: str, index: Index) -> Index:
        self._indexes[name] = index
        self.holders.update(dict.fromkeys(index.small_ids(), name))
        return index


_memories: dict[str, Memory] = {}


def lasting_memory(path: str) -> Memory:
    if path not in _memories and len(_memories) >= _MEMORIES:
        _memories.clear()
    return _memories.setdefault(path, Memory(path))
