"""What differs between two trees, found by descending only where ids differ.

The cost is that of the differences: two snapshots of a tree of 50,000 files that differ in ten have at most
ten pairs of directories to read, and those above them. A directory that exists on one side only is listed
with all that it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ws.store import trees
from ws.store.repository import Store

Kind = Literal["added", "deleted", "modified", "type", "mode", "metadata"]


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs.

    `modified`: other bytes (perhaps also other metadata); `type`: one of file, link, FIFO, directory became
    another; `mode`: the same bytes, other permissions or owner; `metadata`: only mtime or xattrs differ.
    Both sides have metadata and, but for directories and FIFOs, the id of their content.
    """

    path: bytes
    kind: Kind
    old: trees.File | None
    new: trees.File | None

    @property
    def is_directory(self) -> bool:
        return any(side is not None and side.meta.kind == "d" for side in (self.old, self.new))


def diff_trees(store: Store, old: str | None, new: str) -> list[Change]:
    """All changes from one tree, or from nothing, to another, sorted by path; hard links are not compared.

    Raises StoreDamaged.
    """
    if old == new:
        return []
    changes: dict[bytes, Change] = {}
    pending: list[tuple[bytes, trees.Node | None, trees.Node | None]] = [
        (b"", _root(store, old) if old else None, _root(store, new))
    ]
    while pending:
        path, before, after = pending.pop()
        if before == after:
            continue
        left = trees.read_listing(store, before, path) if before else None
        right = trees.read_listing(store, after, path) if after else None
        for change in _compare(path, left, right):
            other = changes.get(change.path)
            if other:  # a file on one side, a directory on the other
                change = Change(change.path, "type", change.old or other.old, change.new or other.new)
            changes[change.path] = change
        names = {*(left.directories if left else ()), *(right.directories if right else ())}
        pending += [
            (
                trees.join(path, name),
                left.directories.get(name) if left else None,
                right.directories.get(name) if right else None,
            )
            for name in names
        ]
    return sorted(changes.values(), key=lambda change: change.path)


def _root(store: Store, tree: str) -> trees.Node:
    return trees.read_root(store, bytes.fromhex(tree)).node


def _compare(path: bytes, left: trees.Listing | None, right: trees.Listing | None) -> Iterator[Change]:
    """The changes of a directory itself and of its files."""
    old, new = _entries(path, left), _entries(path, right)
    for name in old.keys() | new.keys():
        before, after = old.get(name), new.get(name)
        if before != after:
            yield Change(name, _kind(before, after), before, after)


def _entries(path: bytes, listing: trees.Listing | None) -> dict[bytes, trees.File]:
    if listing is None:
        return {}
    files = {trees.join(path, name): file for name, file in listing.files.items()}
    return {path: trees.File(listing.meta, b""), **files}


def _kind(old: trees.File | None, new: trees.File | None) -> Kind:
    if old is None:
        return "added"
    if new is None:
        return "deleted"
    if old.meta.kind.replace("c", "f") != new.meta.kind.replace("c", "f"):
        return "type"
    if old.oid != new.oid:
        return "modified"
    if (old.meta.mode, old.meta.uid, old.meta.gid) != (new.meta.mode, new.meta.uid, new.meta.gid):
        return "mode"
    return "metadata"


def read_content(store: Store, file: trees.File | None, path: bytes = b"") -> Iterator[bytes]:
    """One side of a change, a chunk at a time: a file's bytes, a link's target, or nothing."""
    if file and file.meta.kind in "fcl":
        yield from trees.read_chunks(store, file, path)
