"""A tree of the store as files: look them up by path, and make another tree with a few of them replaced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from ws.store import meta, names, trees
from ws.store.packs import BLOB, PackWriter
from ws.store.repository import Store

Edits = Mapping[bytes, trees.File | None]  # by path: what shall be there; None: nothing

_DIRECTORY_MODE = 0o755


class TreeFiles:
    """What a tree of the store has, directory by directory; without one, nothing."""

    def __init__(self, store: Store, tree: str | None) -> None:
        self._store = store
        self._listings: dict[bytes, trees.Listing | None] = {}
        self._root = trees.read_root(store, bytes.fromhex(tree)).node if tree else None

    def listing(self, directory: bytes) -> trees.Listing | None:
        """None when there is no such directory. Raises StoreDamaged."""
        if directory not in self._listings:
            pending = [directory]
            while pending[-1] and pending[-1].rpartition(b"/")[0] not in self._listings:
                pending.append(pending[-1].rpartition(b"/")[0])
            while pending:
                path = pending.pop()
                node = self._node(path)
                self._listings[path] = trees.read_listing(self._store, node, path) if node else None
        return self._listings[directory]

    def _node(self, path: bytes) -> trees.Node | None:
        if not path:
            return self._root
        above, _, name = path.rpartition(b"/")
        listing = self._listings[above]
        return listing.directories.get(name) if listing else None

    def names(self, directory: bytes) -> frozenset[bytes] | None:
        listing = self.listing(directory)
        return frozenset((*listing.files, *listing.directories)) if listing else None

    def file(self, path: bytes) -> trees.File | None:
        directory, _, name = path.rpartition(b"/")
        listing = self.listing(directory)
        return listing.files.get(name) if listing else None

    def read(self, path: bytes) -> bytes | None:
        """The bytes of a regular file, if it is one."""
        file = self.file(path)
        if file is None or file.meta.kind not in "fc":
            return None
        return b"".join(trees.read_chunks(self._store, file, path))

    def tail(self, path: bytes, count: int) -> bytes:
        """The last bytes of a regular file, at most a chunk; nothing when it is not one."""
        file = self.file(path)
        if file is None or file.meta.kind not in "fc":
            return b""
        if file.meta.kind == "f":
            return (self.read(path) or b"")[-count:]
        last = trees.read_tree(self._store, file.oid, path)[-2:]  # the last chunk may have less
        return b"".join(self._store.read(oid, BLOB, path=path) for _, _, oid in last)[-count:]


def edit_tree(store: Store, writer: PackWriter, tree: str, edits: Edits) -> str:
    """The id of a tree that differs from another by these files and directories; its objects go to `writer`.

    The cost is that of the directories above the edits. A directory that is removed is named with all that is in it.
    One that is missing above a file is made. Raises StoreDamaged.
    """
    if not edits:
        return tree
    files, root = TreeFiles(store, tree), trees.read_root(store, bytes.fromhex(tree))
    groups = [[path for path in group if path not in edits] for group in trees.read_links(store, root)]
    links = meta.encode_links(group for group in groups if len(group) > 1)
    inside: dict[bytes, dict[bytes, trees.File | None]] = {b"": {}}
    for path, file in edits.items():
        parent, _, name = path.rpartition(b"/")
        inside.setdefault(parent, {})[name] = file
        if file and file.meta.kind == "d":
            inside.setdefault(path, {})
        while parent and (above := parent.rpartition(b"/")[0]) not in inside:
            parent = above
            inside[parent] = {}
    made: dict[bytes, trees.Node | None] = {}
    below: dict[bytes, list[bytes]] = {}
    for path in sorted(inside, key=lambda each: each.count(b"/") + bool(each), reverse=True):
        listing = _edited(
            files, path, edits, inside[path], {name: made[trees.join(path, name)] for name in below.get(path, ())}
        )
        made[path] = _write(writer, listing, b"" if path else links) if listing else None
        parent, _, name = path.rpartition(b"/")
        if path:
            below.setdefault(parent, []).append(name)
    node = made[b""]
    assert node  # the top is never removed
    return trees.add_root(writer, node).hex()


def _edited(
    files: TreeFiles, path: bytes, edits: Edits, inside: Edits, nodes: Mapping[bytes, trees.Node | None]
) -> trees.Listing | None:
    """A directory after the edits; None when there is none."""
    listing, own = files.listing(path), edits.get(path)
    if path in edits and (own is None or own.meta.kind != "d"):
        return None
    kept = {name: file for name, file in inside.items() if file and file.meta.kind != "d"}
    if own is None and listing is None and not kept and not any(nodes.values()):
        return None  # edits that remove what is not there make no directory
    above = files.listing(b"")
    assert above
    default = replace(above.meta, mode=_DIRECTORY_MODE, xattrs=())
    directories = dict(listing.directories) if listing else {}
    entries = dict(listing.files) if listing else {}
    for name in inside:
        entries.pop(name, None)
        directories.pop(name, None)
    for name, node in nodes.items():
        directories.pop(name, None)
        if node:
            entries.pop(name, None)
            directories[name] = node
    found = own.meta if own else listing.meta if listing else default
    return trees.Listing(found, {**entries, **kept}, directories)


def _write(writer: PackWriter, listing: trees.Listing, links: bytes) -> trees.Node:
    record = meta.encode_record(listing.meta, {name: file.meta for name, file in listing.files.items()})
    items, below = [*_items(listing)], []
    for name, node in listing.directories.items():
        items.append((trees.DIRECTORY, names.escape(name), node.data))
        below.append((trees.FILE if node.leaf else trees.DIRECTORY, names.escape(name), node.meta))
    return trees.add_directory(writer, writer.add(BLOB, record), items, below, links)


def _items(listing: trees.Listing) -> Iterator[trees.Item]:
    for name, file in listing.files.items():
        kind = file.meta.kind
        if kind == "f":
            yield trees.EXECUTABLE if file.meta.mode & 0o100 else trees.FILE, names.escape(name), file.oid
        elif kind != "p":
            mode = trees.LINK if kind == "l" else trees.DIRECTORY
            yield mode, names.escape(name, link=kind == "l"), file.oid
