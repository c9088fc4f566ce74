"""Git trees, and how a workspace lies in them.

    data/            the files, as stock git would show them
    meta/            the directories again; each is a tree that holds its record as `=dir` beside its
                     subdirectories, or, where there are none, the record itself
    meta/=links      the hard links, if any
    v                the version of this encoding

A file over 16 MiB is a tree of chunks under `data/`; its record says so. Trees are built and read as bytes:
the index of git, its attributes and filters have no part in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ws.errors import StoreDamaged
from ws.store import meta, names
from ws.store.packs import BLOB, TREE, PackWriter
from ws.store.repository import Store

DIRECTORY, FILE, EXECUTABLE, LINK = b"40000", b"100644", b"100755", b"120000"
VERSION = b"1\n"

CHUNKED_FROM_BYTES = 16 << 20
CHUNK_BYTES = 1 << 20

Item = tuple[bytes, bytes, bytes]  # mode, escaped name, id

_ITEM = re.compile(rb"([0-7]{5,6}) ([^\0]+)\0(.{20})", re.DOTALL)
_NAMED = re.compile(rb"(?=[0-7]{5,6} ([^\0]+)\0)([0-7]{5,6} [^\0]+\0.{20})", re.DOTALL)


def encode_tree(items: Iterable[Item]) -> bytes:
    """A tree object; git sorts a directory as if its name ended in a slash."""
    rows = [(name + b"/" if mode == DIRECTORY else name, mode, name, oid) for mode, name, oid in items]
    rows.sort()
    return b"".join([b"%s %s\0%s" % row[1:] for row in rows])


def split_tree(data: bytes) -> dict[bytes, bytes]:
    """The raw entries of a tree by name, in its order; without a loop in Python. Raises StoreDamaged."""
    entries: dict[bytes, bytes] = dict(_NAMED.findall(data))
    if sum(map(len, entries.values())) != len(data):
        raise StoreDamaged("a tree cannot be read")
    return entries


def join_tree(entries: dict[bytes, bytes], *, in_order: bool) -> bytes:
    """A tree from its raw entries, `in_order` when none was added since it was split."""
    if in_order:
        return b"".join(entries.values())
    rows = [(name + b"/" if entry.startswith(b"40000 ") else name, entry) for name, entry in entries.items()]
    rows.sort()
    return b"".join([entry for _, entry in rows])


def raw_entry(mode: bytes, name: bytes, oid: bytes) -> bytes:
    return b"%s %s\0%s" % (mode, name, oid)


def decode_tree(data: bytes) -> list[Item]:
    """Raises StoreDamaged."""
    items: list[Item] = _ITEM.findall(data)
    if sum([len(mode) + len(name) for mode, name, _ in items]) + 22 * len(items) != len(data):
        raise StoreDamaged("a tree cannot be read")
    return items


def scan_tree(data: bytes) -> Iterator[tuple[bytes, bytes, int]]:
    """Mode, name and end of each entry, up to the first that cannot be read; nothing is kept in memory."""
    end = 0
    for item in _ITEM.finditer(data):
        if item.start() != end:
            return
        end = item.end()
        yield item[1], item[2], end


@dataclass(frozen=True, slots=True)
class Node:
    """One directory: its tree under data/, and its tree or record under meta/."""

    data: bytes
    meta: bytes
    leaf: bool  # no subdirectories: `meta` is the record itself


@dataclass(frozen=True, slots=True)
class Root:
    node: Node
    links: bytes | None


@dataclass(frozen=True, slots=True)
class File:
    """A file, link or FIFO: metadata, and the id of its blob, of its tree of chunks, or of nothing."""

    meta: meta.Meta
    oid: bytes


@dataclass(frozen=True, slots=True)
class Listing:
    """All of one directory, by the files' own names."""

    meta: meta.Meta
    files: dict[bytes, File]
    directories: dict[bytes, Node]


def add_directory(
    writer: PackWriter, record: bytes, items: Iterable[Item], below: Iterable[Item], links: bytes = b""
) -> Node:
    """Store one directory, of which all parts are stored already.

    `record` is the id of its record, `items` all of its entries under data/, `below` its subdirectories
    under meta/.
    """
    data = writer.add(TREE, encode_tree(items), plain=True)
    inner = list(below)
    if not inner and not links:
        return Node(data, record, leaf=True)
    inner.append((FILE, names.RECORD, record))
    if links:
        inner.append((FILE, names.LINKS, writer.add(BLOB, links)))
    return Node(data, writer.add(TREE, encode_tree(inner), plain=True), leaf=False)


def add_root(writer: PackWriter, node: Node) -> bytes:
    """Store the tree of a whole workspace; its id."""
    items = [
        (DIRECTORY, b"data", node.data),
        (FILE if node.leaf else DIRECTORY, b"meta", node.meta),
        (FILE, b"v", writer.add(BLOB, VERSION)),
    ]
    return writer.add(TREE, encode_tree(items), plain=True)


def read_root(store: Store, tree: bytes) -> Root:
    """Raises StoreDamaged when the tree is not a workspace's, or of a newer encoding."""
    items = {name: (mode, oid) for mode, name, oid in decode_tree(store.read(tree, TREE))}
    if items.keys() != {b"data", b"meta", b"v"}:
        raise StoreDamaged(f"{tree.hex()} is not the tree of a workspace")
    if store.read(items[b"v"][1], BLOB) != VERSION:
        raise StoreDamaged(f"{tree.hex()} has an encoding that this ws does not know", hint="use a newer ws")
    mode, oid = items[b"meta"]
    node = Node(items[b"data"][1], oid, leaf=mode != DIRECTORY)
    links = None
    if not node.leaf:
        links = next((oid for _, name, oid in read_tree(store, oid) if name == names.LINKS), None)
    return Root(node, links)


def read_tree(store: Store, oid: bytes, path: bytes = b"") -> list[Item]:
    return decode_tree(store.read(oid, TREE, path=path))


def read_meta(store: Store, node: Node, path: bytes = b"") -> tuple[bytes, list[Item]]:
    """A directory's record, and its subdirectories under meta/."""
    if node.leaf:
        return store.read(node.meta, BLOB, path=path), []
    record, below = b"", []
    for item in read_tree(store, node.meta, path):
        if item[1] == names.RECORD:
            record = store.read(item[2], BLOB, path=path)
        elif item[1] != names.LINKS:
            below.append(item)
    if not record:
        raise StoreDamaged(f"the tree {node.meta.hex()} has no record")
    return record, below


def read_listing(store: Store, node: Node, path: bytes = b"") -> Listing:
    """Everything in one directory. Raises StoreDamaged when data/ and meta/ contradict each other."""
    record, below = read_meta(store, node, path)
    return decode_listing(record, below, read_tree(store, node.data, path), path)


def decode_listing(record: bytes, below: list[Item], items: list[Item], path: bytes = b"") -> Listing:
    """A directory from its record, its subdirectories under meta/ and its tree under data/. Raises StoreDamaged."""
    own, entries = meta.decode_record(record)
    blobs = {names.unescape(name): oid for _, name, oid in items}
    try:
        files = {name: File(entry, b"" if entry.kind == "p" else blobs[name]) for name, entry in entries.items()}
        directories = {
            (own_name := names.unescape(name)): Node(blobs[own_name], oid, leaf=mode != DIRECTORY)
            for mode, name, oid in below
        }
    except KeyError as error:
        raise StoreDamaged(f"{os_path(path, error.args[0])} has a record and no content") from None
    return Listing(own, files, directories)


def join(directory: bytes, name: bytes) -> bytes:
    return directory + b"/" + name if directory else name


def os_path(directory: bytes, name: bytes) -> str:
    """A path for people."""
    return (join(directory, name) if name else directory).decode(errors="backslashreplace")


def read_links(store: Store, root: Root) -> list[list[bytes]]:
    return meta.decode_links(store.read(root.links, BLOB)) if root.links else []


def read_chunks(store: Store, file: File, path: bytes = b"") -> Iterator[bytes]:
    """The bytes of a file or the target of a link, a chunk at a time; like neighbours are one object."""
    if file.meta.kind == "c":
        last, data = b"", b""
        for item in _ITEM.finditer(store.read(file.oid, TREE, path=path)):
            if item[3] != last:
                last, data = item[3], store.read(item[3], BLOB, path=path)
            yield data
    elif file.meta.kind != "p":
        yield store.read(file.oid, BLOB, path=path)
