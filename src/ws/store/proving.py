"""Whether a directory still is the tree it was made from: bases, read back byte by byte.

The same walk as a checkout, with its eyes only: names, types, modes, owners, times, targets, sizes and bytes. Files are
opened one component at a time, following nothing.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from ws.store import chunks, trees
from ws.store.checkout import walk_tree
from ws.store.descent import Descent
from ws.store.packs import BLOB, PackWriter, object_id
from ws.store.reading import OPEN_FLAGS
from ws.store.repository import Store
from ws.store.verify import Damage

Progress = Callable[[str, int, int], None]  # phase, done, total (0: unknown)

_TYPES = {"f": stat.S_IFREG, "c": stat.S_IFREG, "l": stat.S_IFLNK, "p": stat.S_IFIFO}


def compare_directory(store: Store, tree: str, directory: str, *, progress: Progress | None = None) -> list[Damage]:
    """Where a directory differs from the tree that it is a checkout of. Raises StoreDamaged, OSError.

    Owners are compared among each other: which ids they are mapped to is the business of the workspace.
    """
    root = trees.read_root(store, bytes.fromhex(tree)).node
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    descent = Descent(top)
    damage: list[Damage] = []
    checked = 0
    try:
        look, meta = os.fstat(top), trees.read_listing(store, root).meta
        shift = (look.st_uid - meta.uid, look.st_gid - meta.gid)
        for path, listing in walk_tree(store, root):
            try:
                fd = descent.open(path)
            except OSError as error:
                damage.append(Damage(trees.os_path(path, b""), f"is missing: {error.strerror}"))
                continue
            damage += _compare(fd, path, listing, shift)
            checked += len(listing.files)
            if progress:
                progress("bases", checked, 0)
    finally:
        descent.close()
        os.close(top)
    return damage


def _compare(fd: int, path: bytes, listing: trees.Listing, shift: tuple[int, int]) -> list[Damage]:
    damage = []
    found = set(map(os.fsencode, os.listdir(fd)))
    for name in sorted(found - listing.files.keys() - listing.directories.keys()):
        damage.append(Damage(trees.os_path(path, name), "does not belong there"))
    if _facts(os.fstat(fd)) != _expected(trees.File(listing.meta, b""), shift):
        damage.append(Damage(trees.os_path(path, b""), "has another mode, owner or time"))
    for name, file in listing.files.items():
        problem = _problem(fd, name, file, shift) if name in found else "is missing"
        if problem:
            damage.append(Damage(trees.os_path(path, name), problem))
    return damage


def _facts(look: os.stat_result) -> tuple[int, int, int, int]:
    mode = 0 if stat.S_ISLNK(look.st_mode) else stat.S_IMODE(look.st_mode)
    return mode, look.st_uid, look.st_gid, look.st_mtime_ns


def _expected(file: trees.File, shift: tuple[int, int]) -> tuple[int, int, int, int]:
    meta = file.meta
    return 0 if meta.kind == "l" else meta.mode, meta.uid + shift[0], meta.gid + shift[1], meta.mtime_ns


def _problem(directory: int, name: bytes, file: trees.File, shift: tuple[int, int]) -> str | None:
    try:
        look = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if stat.S_IFMT(look.st_mode) != _TYPES[file.meta.kind]:
            return "is of another type"
        if _facts(look) != _expected(file, shift):
            return "has another mode, owner or time"
        if file.meta.kind != "p" and _content_id(directory, name, file) != file.oid:
            return "has other bytes"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return None


def _content_id(directory: int, name: bytes, file: trees.File) -> bytes:
    if file.meta.kind == "l":
        return object_id(BLOB, os.fsencode(os.readlink(name, dir_fd=directory)))
    fd = os.open(name, OPEN_FLAGS, dir_fd=directory)
    try:
        size = os.fstat(fd).st_size
        if size <= trees.CHUNKED_FROM_BYTES:
            return object_id(BLOB, chunks.read_up_to(fd, size + 1))
        hasher = PackWriter("", lambda _: True)  # knows every object, so it writes none
        return chunks.add_chunks(hasher, fd, size)
    finally:
        os.close(fd)
