"""The store: one bare git repository, all of it in packs that ws wrote.

Stock git reads it; nothing but ws writes it. No configuration, hook or attribute is consulted, and nothing is
ever read by path from a workspace. Every object that is read is hashed again and compared with its name.

`locking` says which lock covers what. An object that a writer relies on without storing it again is one that the
store has, in a pack that is sound (`vouching`), or that was compared with the bytes at hand. An index that is damaged
is built anew from its pack (`reindexing`); a pack that cannot be read is left out, so that it stops only those who
need what was in it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from ws import durable
from ws.errors import Busy, StateUnusable, StoreDamaged
from ws.removing import remove_any
from ws.store import locking, packs
from ws.store.deltas import apply_delta
from ws.store.indexes import Index
from ws.store.memory import Memory, lasting_memory
from ws.store.plain import is_plain
from ws.store.vouching import QUICK_BYTES, THOROUGH_BYTES, Checks

_CONFIG = b"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = true\n"
_HEAD = b"ref: refs/heads/main\n"
_LOOKS = 5  # at the packs there are, while one after the other is replaced under a reader


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
        self._memory = lasting_memory(path) if lasting else Memory(path)
        self._checks = Checks(self._memory.ledger)
        self._doubtful: bool | None = None  # whether a pack is damaged; None: not asked since the last look
        self._writer: packs.PackWriter | None = None  # of the pack that is being written
        self._looked = False  # who only reads references needs no packs
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
                hint=durable.advice_for(error) or "check that WS_HOME is writable and not full",
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
        self._checks.forget()
        self._doubtful = None
        listed = set(self._list_packs())
        names = {name for name in listed if name.endswith(".idx") and self._has_pack(name, listed)}
        for name in self._packs.keys() - names:
            pack = self._packs.pop(name)
            pack.close()
            if pack is self._last:
                self._last = None
        self._indexes = self._memory.indexes(self.pack_directory, names)
        self._large = [name for name, index in self._indexes.items() if not index.small]
        if self._memory.rebuilt:
            with (
                contextlib.suppress(Busy, OSError),  # else it is in memory, and the next one tries
                locking.maintaining(self, timeout_s=0),
                locking.adding(self, timeout_s=0),
            ):
                self.keep_rebuilt()

    def _list_packs(self) -> list[str]:
        try:
            return os.listdir(self.pack_directory)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreDamaged(
                f"the pack directory of the store is not there: {error.strerror}: {self.pack_directory}",
                hint="bring it back from a copy of WS_HOME; no object can be read without it",
            ) from error

    def _has_pack(self, name: str, listed: set[str]) -> bool:
        """Whether the pack of an index is there. It comes before its index, so a listing may have missed it."""
        pack = name.removesuffix(".idx") + ".pack"
        return pack in listed or os.path.lexists(os.path.join(self.pack_directory, pack))

    def keep_rebuilt(self) -> None:
        """Write the indexes that were built anew; the caller holds `ws.gc.lock` and `ws.lock`.

        Commit point of each: the rename of the index. Killed before it, the next reader builds it again.
        """
        rebuilt = self._memory.rebuilt
        for name in list(rebuilt):
            path = os.path.join(self.pack_directory, name)
            if is_plain(path.removesuffix(".idx") + ".pack"):
                if not is_plain(path):
                    remove_any(path)
                durable.write_file(path, rebuilt[name])
            rebuilt.pop(name, None)

    def adopt_orphans(self) -> bool:
        """Build the index of every pack that has none; whether there was one that could be read.

        A pack has no index for the instant in which its writer renames both, when the writer died in that instant, or
        when the index was lost. It gets the same index in each case.
        """
        listed = set(self._list_packs())
        found = False
        for name in listed:
            index = name.removesuffix(".pack") + ".idx"
            if name.startswith("pack-") and name.endswith(".pack") and index not in listed:
                found = self._memory.rebuild(self.pack_directory, index) is not None or found
        if found:
            self.refresh_with(self._memory.rebuilt)
        return found

    def refresh_with(self, added: dict[str, bytes]) -> None:
        """See the packs that came and went since, and those whose indexes are in memory alone."""
        names = set(added)
        self.refresh()
        for name in names - self._indexes.keys():
            data = added.get(name)
            if data is not None:
                self._indexes[name] = self._memory.learn(name, Index(name, data))

    def forget(self) -> None:
        """Read everything from disk again: who verifies must not be told what was there a while ago."""
        self._memory = Memory(self.path)
        self._checks = Checks(self._memory.ledger)
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

    def vouches(self, oid: bytes, kind: int, data: bytes) -> bool:
        """Whether a sound copy of an object is stored, for a caller who has its bytes and stores it again if not."""
        found = self._find(oid)
        if found is None:
            return False
        if self.verdict(found[0]):
            return True
        for pack in self.all_packs():
            position = pack.find(oid)
            if position >= 0 and (self.verdict(pack) or self._equals(pack, position, kind, data)):
                return True
        return False

    def doubts(self, oid: bytes, *, in_chunks: bool = False) -> bool:
        """Whether an object may be stored in damaged packs only, for a caller who has not read its bytes but could.

        The id of a file that is kept `in_chunks` names the list of chunks alone: any damaged pack makes it doubtful.
        """
        if self._doubtful is None:
            self._doubtful = any(self.verdict(pack) is False for pack in self.all_packs())
        if not self._doubtful:
            return False
        return in_chunks or all(self.verdict(pack) is False for pack in self.all_packs() if pack.find(oid) >= 0)

    def bound_checks(self, budget_bytes: int) -> None:
        """How many bytes of packs may be read until the next writer, to see whether those packs are sound."""
        self._checks.budget = budget_bytes

    def verdict(self, pack: packs.Pack) -> bool | None:
        """Whether a pack is sound by its checksum; None when it is larger than the bound and was not checked yet."""
        try:
            return self._checks.verdict(pack.name)
        except FileNotFoundError:
            return False  # replaced since the last look: nothing is read from it

    def _equals(self, pack: packs.Pack, position: int, kind: int, data: bytes) -> bool:
        try:
            return self._resolve(pack, position) == (kind, data)
        except (ValueError, OSError, StoreDamaged):
            return False

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

    def describe(self, oid: bytes, *, path: bytes = b"") -> tuple[int, int]:
        """Kind and size of an object without its bytes, in a store without deltas. Raises StoreDamaged when missing."""
        found = self._find(oid)
        if found is None:
            raise _damaged(oid, path, "is missing")
        try:
            return found[0].describe(found[1])
        except (ValueError, OSError) as error:
            raise _damaged(oid, path, f"cannot be read: {error}") from None

    def read(self, oid: bytes, kind: int, *, path: bytes = b"") -> bytes:
        """The bytes of an object, also of one in the pack that is being written.

        Raises StoreDamaged, naming it and `path`, when it is missing or wrong.
        """
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
            except (ValueError, OSError, StoreDamaged):
                pass  # the long way says what is wrong
        elif self._writer and (pending := self._writer.read_back(oid)):
            return pending
        trouble = "is missing"
        for attempt in range(_LOOKS):
            gone = False
            for pack in self.all_packs():
                position = pack.find(oid)
                if position < 0:
                    continue
                try:
                    kind, data = self._resolve(pack, position)
                except FileNotFoundError:
                    gone = True  # the pack was collected meanwhile; what it held is in another one
                    continue
                except (ValueError, OSError, StoreDamaged) as error:
                    trouble = f"cannot be read from {pack.name}.pack: {error}"
                    continue
                if packs.object_id(kind, data) == oid:
                    self._last = pack
                    return kind, data
                trouble = f"in {pack.name}.pack does not have the bytes that its name promises"
            if attempt and not gone and not self.adopt_orphans():
                break
            self.refresh_with(self._memory.rebuilt)
        raise _damaged(oid, path, trouble)

    def _resolve(self, pack: packs.Pack, position: int) -> tuple[int, bytes]:
        kind, data, base = pack.read(position)
        deltas: list[bytes] = []
        while kind == packs.REF_DELTA:
            deltas.append(data)
            position = pack.find(base)
            if position < 0:
                raise ValueError(f"its base {base.hex()} is not in the same pack")
            kind, data, base = self._read_base(pack, position, base)
        while deltas:
            data = apply_delta(data, deltas.pop())
        return kind, data

    def _read_base(self, pack: packs.Pack, position: int, oid: bytes) -> tuple[int, bytes, bytes]:
        """The base of a delta: that of the same pack or, where that one is damaged, a copy that was stored since."""
        try:
            kind, data, base = pack.read(position)
            if base or packs.object_id(kind, data) == oid:
                return kind, data, base
        except ValueError:
            pass
        for other in self.all_packs():
            found = -1 if other is pack else other.find(oid)
            if found >= 0:
                with contextlib.suppress(ValueError, OSError, StoreDamaged):
                    kind, data, base = other.read(found)
                    if not base and packs.object_id(kind, data) == oid:
                        return kind, data, base
        raise ValueError(f"its base {oid.hex()} is damaged")

    @contextlib.contextmanager
    def writing(self, *, quick: bool = False) -> Iterator[packs.PackWriter]:
        """A new pack, under the writers' lock. The caller finishes it and refers to it inside the block.

        A `quick` one compresses only what is much: for snapshots, not for what is imported and kept for long.

        Raises Busy when the collector does not let go of the lock for a minute.
        """
        with locking.adding(self):
            self.refresh()
            self.bound_checks(QUICK_BYTES if quick else THOROUGH_BYTES)
            writer = packs.PackWriter(self.pack_directory, self.contains, judge=self, quick=quick)
            self._writer = writer
            try:
                yield writer
            finally:
                self._writer = None
                writer.abort()
                if writer.finished:
                    name, index = writer.finished
                    self._memory.ledger.trust(name.removesuffix(".idx") + ".pack")
                    if (same := self._packs.pop(name, None)) is not None:  # a damaged one that was written over
                        same.close()
                        self._last = None
                    if index.small:  # a large one is mapped when it is next looked for
                        self._indexes[name] = self._memory.learn(name, index)


def _damaged(oid: bytes, path: bytes, trouble: str) -> StoreDamaged:
    where = f" ({os.fsdecode(path)})" if path else ""
    return StoreDamaged(f"object {oid.hex()}{where} {trouble}", hint="`ws verify` tells which snapshots it touches")
