"""From one snapshot to the next: the tree before, plus what lies in an overlay's upper, is the tree after.

The cost is that of the changes. Only directories that are in the upper are looked at; of the tree before,
only those same directories are read; everything else keeps its id. Being in the upper is not being changed
(opening a file for writing copies it up): what equals the tree before gives the same ids.

What the kernel writes into an upper: a removed name is a character device 0:0, a directory that hides the
one below it has the note `opaque`, and a file with several names that was copied up has one. Other notes
are refused.

The upper must hold still while it is gathered: sealed, or frozen. A name that moves under our eyes fails the snapshot.
Merging what was gathered with the tree before needs the store alone, so the frozen may run again by then; and what was
read ahead, while they still ran, is only looked at.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass

from ws.errors import LimitExceeded
from ws.layout import Ids
from ws.store import meta, names, trees
from ws.store.editing import RecordEditor, TreeEditor
from ws.store.gathering import Contents
from ws.store.packs import BLOB, TREE, PackWriter, object_id
from ws.store.repository import Store
from ws.store.scan import Skipped
from ws.store.statcache import StatCache
from ws.store.walking import Found, gather_upper
from ws.store.xattrs import Namespace


@dataclass(frozen=True, slots=True)
class UpperScan:
    """The tree after, though its pack is not finished yet."""

    tree: str
    paths_changed: int  # files, links and FIFOs made, changed or removed; a removed directory counts as one
    size_bytes: int  # of the files made or changed
    skipped: tuple[Skipped, ...]
    cache: StatCache | None  # for the next scan of the same upper, if it was asked for


def scan_upper(
    store: Store,
    writer: PackWriter,
    before: str,
    upper: str,
    *,
    ids: Ids,
    layer: Namespace = "trusted",
    cache: StatCache | None = None,
    remember: bool = False,
    max_file_bytes: int | None = None,
    max_total_bytes: int | None = None,
) -> UpperScan:
    """Store what the tree `before` becomes under `upper`: gathered and merged, directory by directory.

    Raises what `gather_upper` and `merge_upper` do.
    """
    found = gather_upper(writer, upper, ids=ids, layer=layer, cache=cache, max_file_bytes=max_file_bytes, store=store)
    with contextlib.closing(found):
        return merge_upper(store, writer, before, found, remember=remember, max_total_bytes=max_total_bytes)


def merge_upper(
    store: Store,
    writer: PackWriter,
    before: str,
    found: Iterable[Found],
    *,
    remember: bool = False,
    max_total_bytes: int | None = None,
) -> UpperScan:
    """Store what the tree `before` becomes under an upper that was gathered.

    An upper that stays in use is scanned again: `remember` gives the cache for that.
    Raises LimitExceeded, StoreDamaged; StateUnusable when the store cannot be written.
    """
    return _Merge(store, writer, bytes.fromhex(before), remember, max_total_bytes).run(found)


class _Directory:
    """A directory of the tree after: begins as it was before."""

    __slots__ = ("before", "below", "data", "name", "parent", "record", "record_before")

    def __init__(self, parent: int, name: bytes) -> None:
        self.parent, self.name = parent, name
        self.before: trees.Node | None = None
        self.record_before = b""
        self.record, self.data = RecordEditor(), TreeEditor()
        self.below = TreeEditor()  # the tree under meta/

    def load(self, store: Store, node: trees.Node, here: Contents) -> None:
        path, files, below = here.path, len(here.rows) + len(here.whiteouts), len(here.directories)
        self.before = node
        self.record_before = node.meta
        if not node.leaf:
            self.below = TreeEditor(store.read(node.meta, TREE, path=path), edits=below)
            self.record_before = (self.below.get(names.RECORD) or b"")[-20:]
        self.record = RecordEditor(store.read(self.record_before, BLOB, path=path), edits=files)
        self.data = TreeEditor(store.read(node.data, TREE, path=path), edits=files + below)

    def set_head(self, head: bytes) -> None:
        """Take a new line for the directory itself; others name their owner only where it is not its own."""
        old = self.record.get(b".")
        if old == head:
            return
        if old and meta.owner_field(old) != meta.owner_field(head):
            before, after = meta.decode_line(old, None)[1], meta.decode_line(head, None)[1]
            entries = [meta.decode_line(line, before) for line in self.record.split().values()]
            self.record.replace_all({meta.quote(name): meta.encode_line(name, entry, after) for name, entry in entries})
        self.record.put(b".", head)

    def set_file(self, name: bytes, line: bytes, escaped: bytes, entry: bytes | None) -> bool:
        """Put a file, link or FIFO in the place of whatever has its name; whether that is a change."""
        quoted = line[: line.find(b" ")]
        old_line, old_entry = self.record.get(quoted), self.data.get(escaped)
        if old_line == line and old_entry == entry:
            return False
        if old_line is None or old_entry is None or entry is None:
            self.drop(name)
        self.record.put(quoted, line)
        if entry:
            self.data.put(escaped, entry)
        return True

    def set_directory(self, name: bytes, node: trees.Node) -> None:
        escaped = names.escape(name)
        self.data.put(escaped, trees.raw_entry(trees.DIRECTORY, escaped, node.data))
        mode = trees.FILE if node.leaf else trees.DIRECTORY
        self.below.put(escaped, trees.raw_entry(mode, escaped, node.meta))

    def subdirectory(self, name: bytes) -> trees.Node | None:
        escaped = names.escape(name)
        found = self.below.get(escaped)
        data = self.data.get(escaped) if found else None
        if not found or not data:
            return None
        return trees.Node(data[-20:], found[-20:], leaf=not found.startswith(trees.DIRECTORY))

    def drop(self, name: bytes) -> bool:
        """Remove whatever has this name; whether there was anything."""
        escaped = names.escape(name)
        known = self.record.pop(meta.quote(name)) is not None
        known = self.below.pop(escaped) is not None or known
        self.data.pop(escaped)
        self.data.pop(names.escape(name, link=True))
        return known

    def write(self, store: Store, writer: PackWriter, links: bytes) -> trees.Node:
        """Write what is new of it. Ids are compared with those before, not looked up: nearly all are new."""
        before = self.before
        record = _put(store, writer, BLOB, self.record.to_bytes(), self.record_before)
        data = _put(store, writer, TREE, self.data.to_bytes(), before.data if before else b"")
        below = self.below
        if links:
            entry = trees.raw_entry(trees.FILE, names.LINKS, writer.add(BLOB, links))
            below.put(names.LINKS, entry)
        else:
            below.pop(names.LINKS)
        if below.holds_only(names.RECORD) and not links:
            return trees.Node(data, record, leaf=True)
        below.put(names.RECORD, trees.raw_entry(trees.FILE, names.RECORD, record))
        tree = _put(store, writer, TREE, below.to_bytes(), before.meta if before else b"")
        return trees.Node(data, tree, leaf=False)


def _put(store: Store, writer: PackWriter, kind: int, data: bytes, before: bytes) -> bytes:
    oid = object_id(kind, data)
    if oid != before or not store.vouches(oid, kind, data):
        writer.add_new(oid, kind, data, plain=True)
        store.remember(oid, kind, data)
    return oid


class _Merge:
    def __init__(
        self, store: Store, writer: PackWriter, before: bytes, remember: bool, max_total_bytes: int | None
    ) -> None:
        self._store, self._writer = store, writer
        self._root = trees.read_root(store, before)
        self._groups = trees.read_links(store, self._root)
        self._limit = max_total_bytes
        self._directories: list[_Directory] = []
        self._nodes: dict[tuple[int, bytes], trees.Node | None] = {}  # those before, by parent's number and name
        self._new_cache = StatCache() if remember else None
        self._gone: set[bytes] = set()  # paths whose old self, and all below it, is no more
        self._linked: dict[tuple[int, int], list[bytes]] = {}
        self._skipped: list[Skipped] = []
        self._changed = self._bytes = 0

    def run(self, found: Iterable[Found]) -> UpperScan:
        self._nodes[0, b""] = self._root.node
        for parent, name, here in found:
            self._visit(parent, name, here)
        return UpperScan(
            self._assemble().hex(),
            self._changed,
            self._bytes,
            tuple(sorted(self._skipped, key=lambda skipped: skipped.path)),
            self._new_cache,
        )

    def _visit(self, parent: int, name: bytes, here: Contents) -> None:
        """Merge one directory of the upper, and find those that the ones below it were."""
        number = len(self._directories)
        node = self._nodes.pop((parent, name))
        directory = _Directory(parent, name)
        self._directories.append(directory)
        if self._new_cache is not None:
            self._new_cache.add(parent, name, here.identity, here.rows)
        if here.opaque:
            self._gone.add(here.path)
        elif node:
            directory.load(self._store, node, here)
        directory.set_head(here.head)
        self._merge(directory, here)
        for child in here.directories:
            old = directory.subdirectory(child)
            if old is None and directory.drop(child):
                self._gone.add(trees.join(here.path, child))
                self._changed += 1
            self._nodes[number, child] = old

    def _merge(self, directory: _Directory, here: Contents) -> None:
        path = here.path
        for name in here.whiteouts:
            self._gone.add(trees.join(path, name))
            if directory.drop(name):
                self._changed += 1
        entries = {name: trees.raw_entry(mode, name, oid) for mode, name, oid in here.items}
        for line, row in sorted(zip(here.lines, here.rows, strict=True)):
            name = row[0]
            escaped = names.escape(name, link=line[line.find(b" ") + 1] == 0x6C)  # l
            self._gone.add(trees.join(path, name))
            if directory.set_file(name, line, escaped, entries.get(escaped)):
                self._changed += 1
                self._bytes += row[2]
                if self._limit is not None and self._bytes > self._limit:
                    raise LimitExceeded(
                        f"more than {self._limit} bytes changed: {trees.os_path(path, name)} with {row[2]} is too much",
                        hint="raise the limit, or remove something",
                    )
        for name, device, inode in here.linked:
            self._linked.setdefault((device, inode), []).append(trees.join(path, name))
        for name, reason in here.skipped:
            self._skipped.append(Skipped(trees.os_path(path, name), reason))
            self._gone.add(trees.join(path, name))
            if directory.drop(name):  # a socket took the place of what was kept until now
                self._changed += 1

    def _assemble(self) -> bytes:
        links = meta.encode_links(self._link_groups())
        node = trees.Node(b"", b"", leaf=True)
        for number in range(len(self._directories) - 1, -1, -1):
            directory = self._directories[number]
            node = directory.write(self._store, self._writer, b"" if number else links)
            if number:
                self._directories[directory.parent].set_directory(directory.name, node)
        return trees.add_root(self._writer, node)

    def _link_groups(self) -> list[list[bytes]]:
        """A name stays in its group unless it is in the upper, removed, or below what was removed."""
        kept = [[path for path in group if not self._is_gone(path)] for group in self._groups]
        return [group for group in [*kept, *self._linked.values()] if len(group) > 1]

    def _is_gone(self, path: bytes) -> bool:
        while path:
            if path in self._gone:
                return True
            path = path.rpartition(b"/")[0]
        return b"" in self._gone
