"""Which objects are needed, and which of them are versions of one another.

Plain git, with no idea of what the trees mean: a commit needs its tree and its parents, a tree what it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from ws.store import trees
from ws.store.packs import BLOB, COMMIT, TREE
from ws.store.repository import Store


def read_commit(store: Store, commit: bytes) -> tuple[bytes, list[bytes]]:
    """The tree and the parents of a commit."""
    tree, parents = b"", []
    for line in store.read(commit, COMMIT).split(b"\n\n", 1)[0].split(b"\n"):
        key, _, value = line.partition(b" ")
        if key == b"tree":
            tree = bytes.fromhex(value.decode())
        elif key == b"parent":
            parents.append(bytes.fromhex(value.decode()))
    return tree, parents


def reach(
    store: Store,
    commits: Iterable[bytes],
    roots: Iterable[bytes],
    live: dict[bytes, int],
    *,
    tick: Callable[[], None] = lambda: None,
) -> None:
    """Add to `live` (id → kind) all that the commits and the trees `roots` need and that is not in it.

    `tick` is called for each tree.

    Raises StoreDamaged when something is missing: then nobody knows what can be thrown away.
    """
    pending_trees = [root for root in roots if root not in live]
    pending = list(commits)
    while pending:
        commit = pending.pop()
        if commit in live:
            continue
        live[commit] = COMMIT
        tree, parents = read_commit(store, commit)
        pending_trees.append(tree)
        pending += parents
    while pending_trees:
        tree = pending_trees.pop()
        if tree in live:
            continue
        live[tree] = TREE
        tick()
        for mode, _, oid in trees.read_tree(store, tree):
            if mode == trees.DIRECTORY:
                pending_trees.append(oid)
            else:
                live[oid] = BLOB


def versions(store: Store, new: bytes, old: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Kind, new and old id of what has the same path in two trees and differs; parents before children."""
    pending = [(new, old)]
    while pending:
        new, old = pending.pop()
        if new == old:
            continue
        yield TREE, new, old
        before = {name: (mode, oid) for mode, name, oid in trees.read_tree(store, old)}
        for mode, name, oid in trees.read_tree(store, new):
            old_mode, old_oid = before.get(name, (b"", oid))
            if oid == old_oid:
                continue
            if mode == old_mode == trees.DIRECTORY:
                pending.append((oid, old_oid))
            elif trees.DIRECTORY not in (mode, old_mode):
                yield BLOB, oid, old_oid
