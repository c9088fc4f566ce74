"""Keep the store small: merge packs that are many, throw away what nothing needs, keep versions as
differences.

`consolidate` is for every day: when small packs have become many, it copies their entries into one. Nothing
is ever missing meanwhile, so no writer has to wait for it. A damaged pack is not copied: it would get a checksum
that fits.

`collect` is `ws gc`. It finds what is reachable, writes all of it that does not lie in large, clean packs
into one new pack, and then removes the packs that it replaced. Going through history from the newest
snapshot back, an older version of a tree, record or file becomes a difference from the next newer one: what
is used most is stored whole. For the removal alone it keeps writers out: what a writer took for known
is either reachable by then, or is kept now. A large pack stays only if it is sound.

Both take their locks in the order that `locking` gives. Killed at any point, either leaves objects twice at worst; the
next run cleans that up.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ws import durable
from ws.errors import Busy
from ws.removing import remove_any
from ws.store import locking, reach, references
from ws.store.deltas import encode_delta
from ws.store.packs import COMMIT, Pack, PackWriter
from ws.store.repairs import find_lost, repair_references
from ws.store.repository import Store
from ws.store.sweeping import adopt_orphans, sweep_leftovers
from ws.store.vouching import UNBOUNDED

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
    lost: tuple[str, ...] = ()  # workspaces with references that cannot be found again: nothing was removed then

    @property
    def bytes_freed(self) -> int:
        return self.bytes_before - self.bytes_after


def consolidate(store: Store) -> bool:
    """Merge small packs when they have become many; whether it did. Safe beside everything.

    Commit point: the rename of the new index; the old packs are removed afterwards.
    """
    if store.count_small_packs(_MEDIUM_BYTES) < _MANY:  # as far as the store knows: others may have added some
        return False
    with (
        contextlib.suppress(Busy, FileNotFoundError),
        locking.maintaining(store, timeout_s=0),
        locking.adding(store, timeout_s=0),
    ):
        store.refresh()
        chosen = _to_merge(store)
        if not chosen:
            return False
        writer = PackWriter(store.pack_directory, lambda _: False)
        try:
            for pack in chosen:
                writer.absorb(pack.descriptor(), *pack.entries())
            _replace(store, chosen, writer.finish())
        finally:
            writer.abort()
        return True
    return False


def _to_merge(store: Store) -> list[Pack]:
    """Many sound packs of about the same size, that together stay small enough for the collector to take up."""
    store.bound_checks(_LARGE_BYTES)
    sizes = sorted((pack.size_bytes(), pack.name, pack) for pack in store.all_packs())
    for limit in (_SMALL_BYTES, _MEDIUM_BYTES):
        chosen, total = [], 0
        for size, _, pack in sizes:
            total += size
            if size < limit and total < _LARGE_BYTES and store.verdict(pack):
                chosen.append(pack)
        if len(chosen) >= _MANY:
            return chosen
    return []


def collect(
    store: Store,
    keep: Callable[[], Iterable[str]] = tuple,
    *,
    counts: Callable[[], Mapping[str, int]] = dict,
    progress: Progress | None = None,
) -> Collected:
    """Remove what neither a reference nor a tree that `keep` names needs. Safe beside running workspaces.

    `counts` says how many snapshots each workspace has. A reference that is damaged or lost is written anew where its
    commit is found; where it is not, nothing is removed, for what it needs cannot be told. `keep` is asked twice, the
    second time while no process writes. Raises Busy when another collection runs or a writer does not finish,
    StoreDamaged when something needed is missing; nothing is removed then. Commit point: the rename of the new index;
    then the old packs go, one by one.
    """
    with locking.maintaining(store, timeout_s=5):
        with locking.adding(store):
            before = _store_size(store)
            store.forget()
            adopt_orphans(store)
            store.keep_rebuilt()
            lost = repair_references(store, find_lost(store, counts()))
            if lost:
                return Collected(0, before, before, tuple(lost))
            old = store.all_packs()
            objects = {oid for pack in old for oid in pack.index.ids()}
            live: dict[bytes, int] = {}
            _reach_all(store, keep, live)
            replaced = _to_replace(store, live)
            written = _rewrite(store, [pack for pack in old if pack not in replaced], live, progress)
        with locking.removing(store):
            known = set(live)
            _reach_all(store, keep, live)
            rescued = _rescue(store, replaced, {oid: live[oid] for oid in live.keys() - known})
            _replace(store, replaced, written, rescued)
            sweep_leftovers(store)
            references.pack_refs(store)
        store.forget()
        store.refresh()
        left = {oid for pack in store.all_packs() for oid in pack.index.ids()}
        return Collected(len(objects - left), before, _store_size(store))


def _reach_all(store: Store, keep: Callable[[], Iterable[str]], live: dict[bytes, int]) -> None:
    refs = references.all_refs(store)
    reach.reach(
        store,
        [bytes.fromhex(commit) for commit in refs.values()],
        [bytes.fromhex(tree) for tree in keep()],
        live,
    )


def _to_replace(store: Store, live: dict[bytes, int]) -> list[Pack]:
    """All packs but the large ones that are sound and of which little is rubbish."""
    store.bound_checks(UNBOUNDED)
    replaced = []
    for pack in store.all_packs():
        needed = sum(oid in live for oid in pack.index.ids())
        mostly_needed = pack.size_bytes() >= _LARGE_BYTES and needed >= pack.index.count * 3 // 4
        if not (mostly_needed and store.verdict(pack)):
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
            for suffix in (".pack", ".idx"):  # in this order: a pack without an index is one that gets an index
                remove_any(pack.name + suffix)
    durable.sync_directory(store.pack_directory)
    store.refresh()


def _store_size(store: Store) -> int:
    """What the store takes on disk, also in blocks that are not full."""
    return sum(
        os.lstat(os.path.join(directory, name)).st_blocks * 512
        for directory, _, files in os.walk(store.path)
        for name in files
    )
