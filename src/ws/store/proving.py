"""Whether a directory still is the tree it was made from: bases, and layers over a base, read back byte by byte.

The same walk as a checkout, with its eyes only: names, types, modes, owners, times, targets, sizes and bytes. Files are
opened one component at a time, following nothing. A file that several directories share is read once.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ws.store import chunks, trees
from ws.store.checkout import walk_tree
from ws.store.descent import Descent
from ws.store.packs import BLOB, PackWriter, object_id
from ws.store.reading import OPEN_FLAGS
from ws.store.repository import Store
from ws.store.verify import Damage

Progress = Callable[[str, int, int], None]  # phase, done, total (0: unknown)

_TYPES = {"f": stat.S_IFREG, "c": stat.S_IFREG, "l": stat.S_IFLNK, "p": stat.S_IFIFO}


@dataclass(frozen=True, slots=True)
class Below:
    """What lies under a view: where no layer has anything, and the tree is the base's, there is nothing to compare."""

    tree: str  # of the base
    layers: tuple[str, ...]  # directories


class Prover:
    """Compares directories of one filesystem with trees of one store, and remembers the bytes of inodes."""

    def __init__(self, store: Store, *, progress: Progress | None = None) -> None:
        self._store = store
        self._progress = progress
        self._checked = 0
        self._contents: dict[tuple[int, ...], bytes] = {}

    def compare(self, tree: str, directory: str, *, over: Below | None = None) -> list[Damage]:
        """Where a directory differs from the tree that it is a checkout of. Raises StoreDamaged, OSError.

        Owners are compared among each other: which ids they are mapped to is the business of the workspace.
        """
        root = trees.read_root(self._store, bytes.fromhex(tree)).node
        top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        descent = Descent(top)
        damage: list[Damage] = []
        try:
            look, meta = os.fstat(top), trees.read_listing(self._store, root).meta
            shift = (look.st_uid - meta.uid, look.st_gid - meta.gid)
            for path, listing in _walk_over(self._store, root, over) if over else walk_tree(self._store, root):
                try:
                    fd = descent.open(path)
                except OSError as error:
                    damage.append(Damage(trees.os_path(path, b""), f"is missing: {error.strerror}"))
                    continue
                damage += self._compare(fd, path, listing, shift)
                self._checked += len(listing.files)
                if self._progress:
                    self._progress("bases and layers", self._checked, 0)
        finally:
            descent.close()
            os.close(top)
        return damage

    def _compare(self, fd: int, path: bytes, listing: trees.Listing, shift: tuple[int, int]) -> list[Damage]:
        damage = []
        found = set(map(os.fsencode, os.listdir(fd)))
        for name in sorted(found - listing.files.keys() - listing.directories.keys()):
            damage.append(Damage(trees.os_path(path, name), "does not belong there"))
        if _facts(os.fstat(fd)) != _expected(trees.File(listing.meta, b""), shift):
            damage.append(Damage(trees.os_path(path, b""), "has another mode, owner or time"))
        for name, file in listing.files.items():
            problem = self._problem(fd, name, file, shift) if name in found else "is missing"
            if problem:
                damage.append(Damage(trees.os_path(path, name), problem))
        return damage

    def _problem(self, directory: int, name: bytes, file: trees.File, shift: tuple[int, int]) -> str | None:
        try:
            look = os.stat(name, dir_fd=directory, follow_symlinks=False)
            if stat.S_IFMT(look.st_mode) != _TYPES[file.meta.kind]:
                return "is of another type"
            if _facts(look) != _expected(file, shift):
                return "has another mode, owner or time"
            if file.meta.kind != "p" and self._content_id(directory, name, file, look) != file.oid:
                return "has other bytes"
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        return None

    def _content_id(self, directory: int, name: bytes, file: trees.File, look: os.stat_result) -> bytes:
        # An overlay shows the inode numbers of what it shows, where all of it lies on one filesystem, as ours does.
        inode = (look.st_ino, look.st_size, look.st_mtime_ns, look.st_ctime_ns)
        if inode not in self._contents:
            self._contents[inode] = _read_content_id(directory, name, file)
        return self._contents[inode]


def _walk_over(store: Store, node: trees.Node, over: Below) -> Iterator[tuple[bytes, trees.Listing]]:
    """The directories of a tree that a layer holds, or that are not as in the base; parents first.

    A layer that holds a directory holds its parents, so no component is a link that leads elsewhere.
    """
    base: trees.Node | None = trees.read_root(store, bytes.fromhex(over.tree)).node
    pending = [(b"", node, base, tuple(map(os.fsencode, over.layers)))]
    while pending:
        path, node, base, layers = pending.pop()
        inside = tuple(layer for layer in layers if _is_directory(os.path.join(layer, path)))
        if node == base and not inside:
            continue
        listing = trees.read_listing(store, node, path)
        yield path, listing
        below = trees.read_listing(store, base, path).directories if base else {}
        for name, child in listing.directories.items():
            pending.append((trees.join(path, name), child, below.get(name), inside))


def _is_directory(path: bytes) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # too deep for one call: compared, then


def _facts(look: os.stat_result) -> tuple[int, int, int, int]:
    mode = 0 if stat.S_ISLNK(look.st_mode) else stat.S_IMODE(look.st_mode)
    return mode, look.st_uid, look.st_gid, look.st_mtime_ns


def _expected(file: trees.File, shift: tuple[int, int]) -> tuple[int, int, int, int]:
    meta = file.meta
    return 0 if meta.kind == "l" else meta.mode, meta.uid + shift[0], meta.gid + shift[1], meta.mtime_ns


def _read_content_id(directory: int, name: bytes, file: trees.File) -> bytes:
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
