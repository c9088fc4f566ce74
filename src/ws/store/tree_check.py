"""Check trees that came from another machine: what they say, and what writing them out would cost.

An object's id vouches for its bytes, not for their meaning. `auditing` checks what one directory may hold. This module
walks the graph of directories, where each distinct directory is read once however many paths lead to it, and adds up
what stands below each: paths, their length, bytes, depth. The totals of a tree that shares its subtrees are then known
without visiting 10^12 paths. Everything is counted before it is built.

A record, a list of hard links and the names in a tree have exactly one spelling. Anything else is refused: the code
that edits records works on their text, and `git fsck --strict` on the names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ws.errors import StoreDamaged
from ws.store import meta, names, trees
from ws.store.auditing import check_links, check_listing
from ws.store.import_limits import Budget
from ws.store.packs import BLOB, TREE, object_id
from ws.store.repository import Store

_MAX_LINE_BYTES = 1 << 20  # of a record: a name and all xattrs of a file
_ZEROS_ID = object_id(BLOB, bytes(trees.CHUNK_BYTES))


class Totals(NamedTuple):
    """What a directory holds, with all that is below it."""

    paths: int
    path_bytes: int  # relative to the directory
    size_bytes: int  # on disk: without holes, with xattrs
    depth: int
    max_uid: int
    max_gid: int


class _Open(NamedTuple):
    """A directory whose subdirectories are being visited."""

    node: trees.Node
    own: Totals
    directories: dict[bytes, trees.Node]
    left: Iterator[trees.Node]


class TreeCheck:
    """Checks the trees of one store, which has no deltas, within one budget."""

    def __init__(self, store: Store, budget: Budget) -> None:
        self._store = store
        self._budget = budget
        self._totals: dict[trees.Node, Totals] = {}
        self._roots: dict[trees.Node, Totals] = {}  # apart: only the top of a tree may hold hard links
        self._linked: set[tuple[trees.Node, bytes]] = set()

    def check(self, tree: str) -> Totals:
        """What a snapshot's tree holds. Raises StoreDamaged for what cannot be, LimitExceeded for what is too much."""
        root = self._read_root(bytes.fromhex(tree))
        totals = self._walk(root.node)
        if root.links and (root.node, root.links) not in self._linked:
            self._check_links(root, totals)
            self._linked.add((root.node, root.links))
        return totals

    def _read_root(self, tree: bytes) -> trees.Root:
        modes = {name: mode for mode, name, _ in trees.read_tree(self._store, tree)}
        root = trees.read_root(self._store, tree)
        expected = {
            b"data": trees.DIRECTORY,
            b"meta": trees.FILE if root.node.leaf else trees.DIRECTORY,
            b"v": trees.FILE,
        }
        if modes != expected:
            raise StoreDamaged(f"{tree.hex()} is not the tree of a workspace")
        return root

    def _walk(self, top: trees.Node) -> Totals:
        """The totals of a tree, children first, without recursion."""
        if top in self._roots:
            return self._roots[top]
        stack = [self._open(top, top=True)]
        entries = stack[0].own.paths
        while True:
            current = stack[-1]
            node = next((node for node in current.left if node not in self._totals), None)
            if node is not None:
                self._budget.check_depth(len(stack))
                opened = self._open(node, top=False)
                entries += opened.own.paths
                self._budget.check_paths(entries)  # all of these are paths of their own: it can only become more
                stack.append(opened)
                continue
            totals = self._add_up(current)
            entries -= current.own.paths
            stack.pop()
            if not stack:
                self._roots[top] = totals
                return totals
            self._totals[current.node] = totals

    def _add_up(self, current: _Open) -> Totals:
        paths, path_bytes, size_bytes, depth, max_uid, max_gid = current.own
        for name, node in current.directories.items():
            below = self._totals[node]
            paths += below.paths
            path_bytes += below.path_bytes + below.paths * (len(name) + 1)
            size_bytes += below.size_bytes
            depth = max(depth, below.depth + 1)
            max_uid, max_gid = max(max_uid, below.max_uid), max(max_gid, below.max_gid)
        self._budget.check_paths(paths)
        self._budget.check_path_bytes(path_bytes)
        self._budget.check_tree_bytes(size_bytes)
        self._budget.check_depth(depth)
        return Totals(paths, path_bytes, size_bytes, depth, max_uid, max_gid)

    def _open(self, node: trees.Node, *, top: bool) -> _Open:
        """Read and check one directory; its totals are those of its own entries."""
        self._budget.count_directory()
        record, below = self._read_meta(node, top=top)
        items = trees.read_tree(self._store, node.data)
        listing = trees.decode_listing(record, below, items)
        check_listing(listing)
        if meta.encode_record(listing.meta, {name: file.meta for name, file in listing.files.items()}) != record:
            raise StoreDamaged(f"a record is not written as ws writes it: {record[:80]!r}")
        self._check_names(listing, items, below)
        size_bytes = sum(self._check_file(name, file) for name, file in listing.files.items())
        metas = [listing.meta, *(file.meta for file in listing.files.values())]
        size_bytes += sum(len(key) + len(value) for each in metas for key, value in each.xattrs)
        own = Totals(
            paths=len(listing.files) + len(listing.directories) + (1 if top else 0),
            path_bytes=sum(len(name) + 1 for part in (listing.files, listing.directories) for name in part),
            size_bytes=size_bytes,
            depth=1,
            max_uid=max(each.uid for each in metas),
            max_gid=max(each.gid for each in metas),
        )
        return _Open(node, own, listing.directories, iter(listing.directories.values()))

    def _read_meta(self, node: trees.Node, *, top: bool) -> tuple[bytes, list[trees.Item]]:
        if not node.leaf:
            allowed = {names.RECORD, names.LINKS} if top else {names.RECORD}
            for mode, name, _ in trees.read_tree(self._store, node.meta):
                if name in (names.RECORD, names.LINKS) and (name not in allowed or mode != trees.FILE):
                    raise StoreDamaged(f"the tree {node.meta.hex()} has {name.decode()} in the wrong place")
        record, below = trees.read_meta(self._store, node)
        self._budget.check_entries(record.count(b"\n") + len(below))
        if max(map(len, record.split(b"\n")), default=0) > _MAX_LINE_BYTES:
            raise StoreDamaged("a record has a line that is too long")
        if not node.leaf and not below and not top:
            raise StoreDamaged(f"the tree {node.meta.hex()} has no subdirectories")
        return record, below

    def _check_names(self, listing: trees.Listing, items: list[trees.Item], below: list[trees.Item]) -> None:
        """Both trees must hold exactly what the record lists, under the names that ws gives git."""
        modes = {name: mode for mode, name, _ in items}
        expected: dict[bytes, tuple[bytes, ...]] = {
            names.escape(name): (trees.DIRECTORY,) for name in listing.directories
        }
        if {name for _, name, _ in below} != expected.keys() or any(
            mode not in (trees.FILE, trees.DIRECTORY) for mode, _, _ in below
        ):
            raise StoreDamaged("the subdirectories of a tree are not named as ws names them")
        for name, file in listing.files.items():
            if file.meta.kind != "p":
                expected[names.escape(name, link=file.meta.kind == "l")] = _MODES[file.meta.kind]
        if modes.keys() != expected.keys() or any(modes[name] not in expected[name] for name in modes):
            raise StoreDamaged("a tree holds other entries than its record")

    def _check_file(self, name: bytes, file: trees.File) -> int:
        """The bytes that a file takes on disk. Raises StoreDamaged when its content is not what its record says."""
        kind, size = file.meta.kind, file.meta.size
        if kind == "p":
            return 0
        if kind == "c":
            return self._check_chunks(name, file)
        if self._store.describe(file.oid, path=name) != (BLOB, size):
            raise StoreDamaged(f"{trees.os_path(b'', name)} has other content than its record says")
        if kind == "l" and b"\0" in self._store.read(file.oid, BLOB, path=name):
            raise StoreDamaged(f"{trees.os_path(b'', name)} is a link whose target holds a NUL")
        return size

    def _check_chunks(self, name: bytes, file: trees.File) -> int:
        if self._store.describe(file.oid, path=name)[0] != TREE:
            raise StoreDamaged(f"{trees.os_path(b'', name)} has other content than its record says")
        size = on_disk = 0
        last, last_size = b"", 0
        wrong = StoreDamaged(f"{trees.os_path(b'', name)} is not kept in the chunks that its record says")
        for number, (mode, chunk, oid) in enumerate(trees.read_tree(self._store, file.oid, name)):
            if mode != trees.FILE or chunk != b"%08d" % number or size != number * trees.CHUNK_BYTES:
                raise wrong
            if oid != last:
                kind, last_size = self._store.describe(oid, path=name)
                last = oid
                if kind != BLOB or not 0 < last_size <= trees.CHUNK_BYTES:
                    raise wrong
            size += last_size
            on_disk += 0 if oid == _ZEROS_ID else last_size
        self._budget.check_time()
        if size != file.meta.size:
            raise wrong
        return on_disk

    def _check_links(self, root: trees.Root, totals: Totals) -> None:
        assert root.links
        data = self._store.read(root.links, BLOB)
        if data.count(b" ") + data.count(b"\n") > totals.paths:
            raise StoreDamaged("the hard links of a tree name more paths than it has")
        if not data or meta.encode_links(meta.decode_links(data)) != data:
            raise StoreDamaged("the hard links of a tree are not written as ws writes them")
        check_links(self._store, root, tick=self._budget.check_time)


_MODES = {"f": (trees.FILE, trees.EXECUTABLE), "c": (trees.DIRECTORY,), "l": (trees.LINK,)}
