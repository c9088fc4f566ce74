"""The tree of a workspace at one instant: sealed, or frozen and read where it is.

Both ways give the same tree for the same files. Its objects go into the caller's pack; whether they come to count is
for the caller to decide.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, replace

from ws import bases, durable, layers, overlay, sealing
from ws.errors import InvalidRequest, LimitExceeded, SnapshotFailed, SourceChanged, WorkspaceError
from ws.last_look import LastLook
from ws.layout import Home, WorkspaceRecord
from ws.merging import merge_layers, plan_merge
from ws.record_fields import is_tree
from ws.removing import remove_any
from ws.store.packs import PackWriter
from ws.store.repository import Store
from ws.store.scan import Skipped, scan_directory
from ws.store.statcache import StatCache, load_cache
from ws.store.uppers import UpperScan, merge_upper, scan_upper
from ws.store.walking import Found, gather_upper, read_ahead
from ws.store.xattrs import Namespace

UNMERGED_LAYERS = 200  # where merging is not possible; the kernel takes 500


@dataclass(frozen=True, slots=True)
class Caps:
    """Limits that fail a snapshot whole."""

    max_file_bytes: int | None = None
    max_total_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Capture:
    """What a workspace was at one instant; its objects are in a pack that is not finished."""

    record: WorkspaceRecord
    tree: str
    sealed: bool
    layers_tree: str = ""  # of the sealed layers alone, where the tree has an upper on top of them
    paths_changed: int = 0
    size_bytes: int = 0
    skipped: tuple[Skipped, ...] = ()
    cache: StatCache | None = None  # of an upper that goes on being written to

    def with_scan(self, found: UpperScan) -> Capture:
        return replace(
            self,
            tree=found.tree,
            paths_changed=self.paths_changed + found.paths_changed,
            size_bytes=self.size_bytes + found.size_bytes,
            skipped=(*self.skipped, *found.skipped),
        )


def capture(
    home: Home,
    store: Store,
    writer: PackWriter,
    record: WorkspaceRecord,
    caps: Caps,
    *,
    locked: bool = False,
    seen: LastLook | None = None,
) -> Capture:
    """The tree of the workspace at one instant, for a caller who has the turn.

    A caller who publishes nothing passes what was `seen` last: layers that it covers are not read again.
    """
    try:
        return _capture(home, store, writer, record, caps, locked=locked, seen=seen)
    except BaseException:
        # An interrupt may come between any two steps; layers that were merged and not switched to are nobody's.
        with contextlib.suppress(WorkspaceError, OSError):
            sealing.put_right(home, record.id)
        raise


def _capture(
    home: Home,
    store: Store,
    writer: PackWriter,
    record: WorkspaceRecord,
    caps: Caps,
    *,
    locked: bool,
    seen: LastLook | None,
) -> Capture:
    if record.engine == "none":
        return _capture_directory(home, store, writer, record, caps)
    if not sealing.untouched(home, record):
        sealing.check_not_paused(record)  # before layers are merged in vain
    shorter = _shortened(home, record)
    with contextlib.nullcontext(record) if locked else sealing.exclusive(home, record) as current:
        # A command may have brought the container back since the turn was taken; nothing else changes without it.
        record = replace(record, container=current.container)
        sealed: WorkspaceRecord | None = record
        if not sealing.untouched(home, record):
            with sealing.stilled(record):
                sealed = sealing.seal(home, record, shorter)
        if sealed is None or sealed is record:  # nothing was switched to the merged layers
            layers.release_layers(home, set(shorter.layers) - set(record.layers), record.id)
        elif seen is not None:
            seen = seen.merged(record, shorter)
        if sealed is None:
            directories, mapped = _gather_frozen(home, store, writer, record, caps)
    if sealed is not None:
        if sealed.upper != record.upper:
            remove_any(_cache_path(home, record))
        return scan_layers(home, store, writer, sealed, caps, seen=seen)
    hashed = scan_layers(home, store, writer, record, caps, seen=seen)
    found = merge_upper(store, writer, hashed.tree, directories, remember=True, max_total_bytes=caps.max_total_bytes)
    settled = replace(record, tree=hashed.tree, history=replace(record.history, unhashed=0))
    captured = replace(hashed.with_scan(found), record=settled, sealed=False, layers_tree=hashed.tree)
    return replace(captured, cache=None if mapped else found.cache)


def _gather_frozen(
    home: Home, store: Store, writer: PackWriter, record: WorkspaceRecord, caps: Caps
) -> tuple[list[Found], bool]:
    """What the upper holds at one instant, and whether that may be remembered by its times.

    Nearly all is read ahead, while everybody runs: on a busy machine 1,000 changed files kept them frozen for 15 to
    31 ms then, and for 160 to 250 without.
    """

    def gather(cache: StatCache | None) -> list[Found]:
        data, limit = _data(home, record.upper), caps.max_file_bytes
        return list(gather_upper(writer, data, ids=record.ids, layer=namespace(), cache=cache, max_file_bytes=limit))

    cache, since_ns = _load_cache(home, store, record), time.time_ns()
    with sealing.stilled(record) as freezer:
        mapped = freezer is not None and writes_through_mappings(freezer.processes())
        if mapped or freezer is None:
            return gather(cache), mapped
    ahead = read_ahead(
        writer,
        _data(home, record.upper),
        ids=record.ids,
        layer=namespace(),
        cache=cache,
        since_ns=since_ns,
        max_file_bytes=caps.max_file_bytes,
        store=store,
    )
    with sealing.stilled(record) as freezer:
        mapped = freezer is not None and writes_through_mappings(freezer.processes())
        return gather(ahead), mapped


def writes_through_mappings(processes: list[int]) -> bool:
    """Whether a process has a file of the workspace mapped shared and writable.

    Such a process changes bytes without touching any time of the file, as long as the page is dirty already; so what is
    read now must not be remembered by its times. (The alternative, writing all dirty pages out so that the next write
    is noticed, kept everybody frozen for most of a second.) A mapping made later is noticed: its first write is a
    fault, which sets the time.
    """
    for pid in processes:
        try:
            with open(f"/proc/{pid}/maps", "rb") as lines:
                if any(b" rw-s " in line and b" /workspace/" in line for line in lines):
                    return True
        except OSError:
            return True  # it ended, or cannot be asked: better to read once more
    return False


def scan_layers(
    home: Home,
    store: Store,
    writer: PackWriter,
    record: WorkspaceRecord,
    caps: Caps,
    *,
    seen: LastLook | None = None,
) -> Capture:
    """Store the sealed layers that no snapshot has yet: one, or more after a look or after a snapshot that failed.

    Several are merged for the reading: what only an earlier one held, such as a file that was over a limit, is gone.
    Those that were `seen` are in the store already.
    """
    captured = Capture(record, record.tree, sealed=True)
    unread = record.layers[: record.history.unhashed]
    if seen is not None and seen.covers(record) and store.contains(bytes.fromhex(seen.layers_tree)):
        captured = replace(captured, tree=seen.layers_tree)
        unread = unread[: len(unread) - len(seen.layers)]
    if len(unread) > 1:
        try:
            merged = merge_layers(home, unread, None, record.id, opaque=_opaque())
        except LimitExceeded:
            pass  # a tree too deep to merge: one layer after the other, from the bottom up
        else:
            try:
                return captured.with_scan(_scan(home, store, writer, captured.tree, record, merged, caps))
            finally:
                layers.release_layers(home, [merged], record.id)
    for layer in reversed(unread):
        captured = captured.with_scan(_scan(home, store, writer, captured.tree, record, layer, caps))
    return captured


def _scan(
    home: Home,
    store: Store,
    writer: PackWriter,
    before: str,
    record: WorkspaceRecord,
    layer: str,
    caps: Caps,
) -> UpperScan:
    return scan_upper(
        store,
        writer,
        before,
        _data(home, layer),
        ids=record.ids,
        layer=namespace(),
        max_file_bytes=caps.max_file_bytes,
        max_total_bytes=caps.max_total_bytes,
    )


def _capture_directory(home: Home, store: Store, writer: PackWriter, record: WorkspaceRecord, caps: Caps) -> Capture:
    """Without a container nothing can be frozen or sealed: the directory is read until nothing moved meanwhile."""
    try:
        found = scan_directory(
            store,
            writer,
            _data(home, record.upper),
            cache=_load_cache(home, store, record),
            max_file_bytes=caps.max_file_bytes,
            max_total_bytes=caps.max_total_bytes,
        )
    except (InvalidRequest, SourceChanged) as error:
        raise SnapshotFailed(error.message, hint=error.hint or "stop what writes there, and try again") from error
    return Capture(
        record,
        found.tree.hex(),
        sealed=False,
        size_bytes=found.size_bytes,
        skipped=found.skipped,
        cache=found.cache,
    )


def _shortened(home: Home, record: WorkspaceRecord) -> WorkspaceRecord:
    """The workspace over fewer layers, merged where they have become many; it is switched to with the next seal.

    Layers that no snapshot has are merged with each other alone: what is hashed and what is not stay apart.
    """
    unhashed = record.history.unhashed
    fresh, kept = record.layers[:unhashed], record.layers[unhashed:]
    runs = plan_merge(fresh), plan_merge(kept)
    # Where a process works in it all the time, each snapshot would merge in vain.
    if not any(runs) or sealing.untouched(home, record) or not sealing.looks_idle(record):
        return record
    made: list[str] = []
    try:
        for start, run in ((unhashed, runs[1]), (0, runs[0])):
            if run:
                made.append(_merge(home, record, start, run))
                merged = (*record.layers[:start], made[-1], *record.layers[start + run :])
                record = replace(record, layers=merged)
    except (LimitExceeded, OSError):
        layers.release_layers(home, made, record.id)
        record = replace(record, layers=(*fresh, *kept))
        if len(record.layers) < UNMERGED_LAYERS:
            return record
    else:
        count = unhashed - runs[0] + 1 if runs[0] else unhashed
        return replace(record, history=replace(record.history, unhashed=count))
    # A tree too deep to merge, or the disk is full: what cannot go on growing is made anew from git.
    base = bases.ensure_base(home, bases.base_key(record.tree, record.ids), ids=record.ids, announced=True)
    return replace(record, base=base.key, layers=fresh)


def _merge(home: Home, record: WorkspaceRecord, start: int, count: int) -> str:
    """Some layers as one: `count` of them, below the `start` topmost."""
    below = [_data(home, layer) for layer in record.layers[start + count :]]
    below.append(os.path.join(home.base(record.base), "data"))
    return merge_layers(home, record.layers[start : start + count], below, record.id, opaque=_opaque())


def _opaque() -> str:
    return f"{namespace()}.overlay.opaque"


def keep_cache(home: Home, captured: Capture) -> None:
    """Remember what was read, once it is stored and something refers to it: what is cached is not stored again.

    The snapshot counts by now, so a full disk is no failure: the next one reads more.
    """
    if captured.cache is not None:
        captured.cache.facts = {**captured.cache.facts, "tree": captured.tree}
        with contextlib.suppress(OSError):
            durable.write_file(_cache_path(home, captured.record), captured.cache.to_bytes(), sync=False)


def _cache_path(home: Home, record: WorkspaceRecord) -> str:
    return os.path.join(home.workspace(record.id), f"scan-{record.upper}")


def _load_cache(home: Home, store: Store, record: WorkspaceRecord) -> StatCache | None:
    """What was read of an upper before; None when the store may not have it any more: then all is read again."""
    cache = load_cache(_cache_path(home, record))
    tree = cache.facts.get("tree") if cache else None
    return cache if is_tree(tree) and store.contains(bytes.fromhex(str(tree))) else None


def _data(home: Home, layer: str) -> str:
    return os.path.join(home.layer(layer), "data")


def namespace() -> Namespace:
    """Whose xattrs our mounts use for whiteouts and opaque directories."""
    return "user" if overlay.in_user_namespace() else "trusted"
