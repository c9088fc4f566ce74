"""Bring a tree of the store back into a new directory, exactly.

Every object that is read is compared with its name, so damage stops the work before anybody sees its result.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ws import overlay
from ws.layout import Ids
from ws.store import trees
from ws.store.chunks import write_all
from ws.store.copying import Copier, Owner, finish_copy
from ws.store.meta import Meta
from ws.store.packs import BLOB
from ws.store.repository import Store
from ws.store.xattrs import Namespace

Progress = Callable[[str, int, int], None]  # phase, done, total (0: unknown)

_PROGRESS_S = 0.1


@dataclass(frozen=True, slots=True)
class Statistics:
    files: int
    size_bytes: int


def to_host(ids: Ids, uid: int, gid: int) -> Owner:
    """The owner on the host of what the container sees as owned by `uid` and `gid`."""
    return uid - ids.uid + ids.host_uid, gid - ids.gid + ids.host_gid


def host_layer() -> Namespace:
    """Where overlayfs keeps its notes in layers that we mount: root of a user namespace cannot set `trusted.`."""
    return "user" if overlay.in_user_namespace() else "trusted"


def walk_tree(store: Store, node: trees.Node) -> Iterator[tuple[bytes, trees.Listing]]:
    """Every directory of a tree with its path, parents first, without recursion."""
    pending = [(b"", node)]
    while pending:
        path, node = pending.pop()
        listing = trees.read_listing(store, node, path)
        yield path, listing
        pending += [(trees.join(path, name), below) for name, below in listing.directories.items()]


def materialise(
    store: Store,
    tree: str,
    directory: str,
    *,
    ids: Ids,
    plain: bool = False,
    progress: Progress | None = None,
) -> Statistics:
    """Write a tree into a new directory with all its metadata, as the container owning `ids` shall see it.

    `plain` is for a host: all of it belongs to the user of `ids`, and no file has a setuid or setgid bit.
    Raises StoreDamaged for the first object that is not whole, FileExistsError when the directory exists.
    What was written until then is the caller's to remove; nothing is synced.
    """
    store.forget()
    root = trees.read_root(store, bytes.fromhex(tree))
    links = trees.read_links(store, root)
    linked_later = {path for group in links for path in group[1:]}
    os.mkdir(directory, 0o700)
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    copier = Copier(top, layer="" if plain else host_layer())
    closed: list[tuple[bytes, int]] = []
    files = size_bytes = 0
    told = time.monotonic()
    try:
        for path, found in walk_tree(store, root.node):
            listing = _plain(found, ids) if plain else found
            copier.enter(path)
            for name, file in listing.files.items():
                files += 1
                size_bytes += file.meta.size
                if trees.join(path, name) not in linked_later:
                    write_entry(store, copier, trees.join(path, name), name, file, ids)
            own = listing.meta
            owner = to_host(ids, own.uid, own.gid)
            if not copier.leave(listing.directories, own.mode, own.mtime_ns, own.xattrs, owner):
                closed.append((path, own.mode))
            if progress and time.monotonic() - told >= _PROGRESS_S:
                told = time.monotonic()
                progress("rebuild", files, 0)
        finish_copy(top, links, reversed(closed), replace=False)
    finally:
        copier.close()
        os.close(top)
    return Statistics(files, size_bytes)


def _plain(listing: trees.Listing, ids: Ids) -> trees.Listing:
    def plain(meta: Meta) -> Meta:
        return replace(meta, uid=ids.uid, gid=ids.gid, mode=meta.mode & 0o777)

    files = {name: replace(file, meta=plain(file.meta)) for name, file in listing.files.items()}
    return replace(listing, meta=plain(listing.meta), files=files)


def write_entry(store: Store, copier: Copier, path: bytes, name: bytes, file: trees.File, ids: Ids) -> None:
    """Write one file, link or FIFO where the copier stands."""
    meta: Meta = file.meta
    owner = to_host(ids, meta.uid, meta.gid)
    if meta.kind == "f":
        data = store.read(file.oid, BLOB, path=path)
        copier.file(name, data, meta.mode, meta.mtime_ns, meta.xattrs, owner)
    elif meta.kind == "l":
        copier.link(name, store.read(file.oid, BLOB, path=path), meta.mtime_ns, owner)
    elif meta.kind == "p":
        copier.fifo(name, meta.mode, meta.mtime_ns, owner)
    else:
        fd = copier.begin(name, meta.mode)
        try:
            position, last, hole = 0, b"", False
            for chunk in trees.read_chunks(store, file, path):
                if chunk is not last:
                    last, hole = chunk, chunk.count(0) == len(chunk)
                if not hole:
                    write_all(fd, chunk, position)
                position += len(chunk)
            os.ftruncate(fd, position)
            copier.end(fd, meta.mode, meta.mtime_ns, meta.xattrs, owner)
        finally:
            os.close(fd)
