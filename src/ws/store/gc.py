"""Keep the store small: merge packs that are many, throw away what nothing needs, keep versions as
differences.

`consolidate` is for every day: when small packs have become many, it copies their entries into one. Nothing
is ever missing meanwhile, so it needs no one to wait.

`collect` is `ws gc`. It finds what is reachable, writes all of it that does not lie in large, clean packs
into one new pack, and then removes the packs that it replaced. Going through history from the newest
snapshot back, an older version of a tree, record or file becomes a difference from the next newer one: what
is used most is stored whole. For the removal alone it holds the writers' lock: what a writer took for known
is either reachable by then, or is kept now.

Killed at any point, either leaves objects twice at worst; the next run cleans that up.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ws import durable
from ws.errors import Busy
from ws.store import commits, reach
from ws.store.deltas import encode_delta
from ws.store.packs import COMMIT, Pack, PackWriter
from ws.store.repository import Store

Progress = Callable[[str, int, int], None]  # phase, done, total (0: unknown)

_SMALL_BYTES = 1 << 20
_MEDIUM_BYTES = 8 << 20
_MANY = 10
_LARGE_BYTES = 32 << 20  # a pack that is left alone while three quarters of it are needed
_CHAIN = 50  # differences from differences: as deep as git goes
_DELTA_BYTES = 8 << 20  # larger objects are not worth the comparing


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection did."""

    objects_removed: int
    bytes_before: int
    bytes_after: int

    @property
    def bytes_freed(self) -> int:
        return self.bytes_before - self.bytes_after


def consolidate(store: Store) -> bool:
    """Merge small packs when they have become many; whether it did. Safe beside everything.

    Commit point: the rename of the new index; the old packs are removed afterwards.
    """
    if store.count_small_packs(_MEDIUM_BYTES) < _MANY:  # as far as the store knows: others may have added some
        return False
    store.refresh()
    chosen = _to_merge(store.all_packs())
    if not chosen:
        return False
    with contextlib.suppress(Busy, FileNotFoundError), _maintenance(store, timeout_s=0):
        writer = PackWriter(store.pack_directory, lambda _: False)
        try:
            for pack in chosen:
                writer.absorb(pack.descriptor(), *pack.entries())
            _replace(store, chosen, writer.finish())
        finally:
            writer.abort()
        return True
    return False


def _to_merge(packs: list[Pack]) -> list[Pack]:
    """Many packs of about the same size, that together stay small enough for the collector to take up."""
    sizes = sorted((pack.size_bytes(), pack.name, pack) for pack in packs)
    for limit in (_SMALL_BYTES, _MEDIUM_BYTES):
        chosen, total = [], 0
        for size, _, pack in sizes:
            total += size
            if size < limit and total < _LARGE_BYTES:
                chosen.append(pack)
        if len(chosen) >= _MANY:
            return chosen
    return []


def collect(store: Store, keep: Callable[[], Iterable[str]] = tuple, *, progress: Progress | None = None) -> Collected:
    """Remove what neither a reference nor a tree that `keep` names needs. Safe beside running workspaces.

    `keep` is asked twice, the second time while no one writes. Raises Busy when another collection runs or
    a writer does not finish, StoreDamaged when something needed is missing; nothing is removed then. Commit
    point: the rename of the new index; then the old packs go, one by one.
    """
    with _maintenance(store, timeout_s=5):
        before = _store_size(store)
        store.refresh()
        old = store.all_packs()
        objects = {oid for pack in old for oid in pack.index.ids()}
        live: dict[bytes, int] = {}
        _reach_all(store, keep, live)
        replaced = _to_replace(old, live)
        written = _rewrite(store, [pack for pack in old if pack not in replaced], live, progress)
        with durable.locked(store.lock, timeout_s=60, what="the store"):
            known = set(live)
            _reach_all(store, keep, live)
            rescued = _rescue(store, replaced, {oid: live[oid] for oid in live.keys() - known})
            _replace(store, replaced, written, rescued)
            sweep_leftovers(store)
        commits.pack_refs(store)
        store.forget()
        store.refresh()
        left = {oid for pack in store.all_packs() for oid in pack.index.ids()}
        return Collected(len(objects - left), before, _store_size(store))


def _reach_all(store: Store, keep: Callable[[], Iterable[str]], live: dict[bytes, int]) -> None:
    refs = commits.all_refs(store)
    reach.reach(
        store,
        [bytes.fromhex(commit) for commit in refs.values()],
        [bytes.fromhex(tree) for tree in keep()],
        live,
    )


def _to_replace(packs: list[Pack], live: dict[bytes, int]) -> list[Pack]:
    """All packs but the large ones of which little is rubbish."""
    replaced = []
    for pack in packs:
        needed = sum(oid in live for oid in pack.index.ids())
        if pack.size_bytes() < _LARGE_BYTES or needed < pack.index.count * 3 // 4:
            replaced.append(pack)
    return replaced


def _rewrite(store: Store, kept: list[Pack], live: dict[bytes, int], progress: Progress | None) -> str | None:
    """Write all that is needed and is not in the packs that stay; the new pack."""
    wanted = {oid: kind for oid, kind in live.items() if all(pack.find(oid) < 0 for pack in kept)}
    writer = PackWriter(store.pack_directory, lambda _: False)
    depth: dict[bytes, int] = {}

    def write(oid: bytes, kind: int, newer: bytes | None = None) -> None:
        if oid in depth or oid not in wanted:
            return
        data = store.read(oid, kind)
        above = depth.get(newer, _CHAIN) if newer else _CHAIN
        if newer and above < _CHAIN and len(data) <= _DELTA_BYTES:
            delta = encode_delta(store.read(newer, kind), data)
            if len(delta) < len(data) // 2:
                writer.add_delta(oid, newer, delta)
                depth[oid] = above + 1
                return
        writer.add_new(oid, kind, data)
        depth[oid] = 0
        if progress and len(depth) % 256 == 0:
            progress("collect", len(depth), len(wanted))

    try:
        for commit in _newest_first(store, live):
            tree, parents = reach.read_commit(store, commit)
            for parent in parents[:1]:
                for kind, new, older in reach.versions(store, tree, reach.read_commit(store, parent)[0]):
                    write(new, kind)
                    write(older, kind, new)
        for oid, kind in wanted.items():
            write(oid, kind)
        return writer.finish()
    finally:
        writer.abort()


def _newest_first(store: Store, live: dict[bytes, int]) -> list[bytes]:
    """Commits, children before their parents."""
    children: dict[bytes, int] = {commit: 0 for commit, kind in live.items() if kind == COMMIT}
    for commit in children:
        for parent in reach.read_commit(store, commit)[1]:
            children[parent] += 1
    ready = [commit for commit, count in children.items() if count == 0]
    order = []
    while ready:
        commit = ready.pop()
        order.append(commit)
        for parent in reach.read_commit(store, commit)[1]:
            children[parent] -= 1
            if children[parent] == 0:
                ready.append(parent)
    return order


def _rescue(store: Store, replaced: list[Pack], late: dict[bytes, int]) -> str | None:
    """Keep what became needed while we worked, if it lies only in packs that are about to go."""
    store.refresh()
    going = {pack.name for pack in replaced}
    staying = [pack for pack in store.all_packs() if pack.name not in going]
    writer = PackWriter(store.pack_directory, lambda _: False)
    try:
        for oid, kind in late.items():
            if all(pack.find(oid) < 0 for pack in staying):
                writer.add_new(oid, kind, store.read(oid, kind))
        return writer.finish()
    finally:
        writer.abort()


def _replace(store: Store, packs: Iterable[Pack], *new: str | None) -> None:
    """Remove packs whose objects are in others by now. A pack that came out the same stays."""
    same = {path.removesuffix(".pack") for path in new if path}
    for pack in packs:
        if pack.name not in same:
            for suffix in (".idx", ".pack"):  # in this order: an index without its pack would be a lie
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(pack.name + suffix)
    durable.sync_directory(store.pack_directory)
    store.refresh()


def sweep_leftovers(store: Store) -> None:
    """Remove what writers that died left behind. The caller holds the store's lock exclusively."""
    names = set(os.listdir(store.pack_directory))
    for name in names:
        orphan = name.endswith(".pack") and name.removesuffix(".pack") + ".idx" not in names
        if name.startswith(("tmp_", ".")) or orphan:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(store.pack_directory, name))


def sweep(store: Store) -> bool:
    """Remove what writers that died left behind, if no one writes right now; whether it could look."""
    try:
        with durable.locked(store.lock, timeout_s=0, what="the store"):
            sweep_leftovers(store)
            return True
    except Busy:
        return False


def _maintenance(store: Store, *, timeout_s: float) -> contextlib.AbstractContextManager[int]:
    """One at a time: two that merge the same packs would remove each other's work."""
    path = os.path.join(store.path, "ws.gc.lock")
    durable.create_lock_file(path)
    return durable.locked(path, timeout_s=timeout_s, what="the collector of the store")


def _store_size(store: Store) -> int:
    """What the store takes on disk, also in blocks that are not full."""
    return sum(
        os.lstat(os.path.join(directory, name)).st_blocks * 512
        for directory, _, files in os.walk(store.path)
        for name in files
    )
