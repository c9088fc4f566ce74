"""Whether a tree says only what a directory can be: for trees that came from elsewhere, and for damage.

An object's id vouches for its bytes, not for their meaning. A bundle made by somebody else may hold a record that
names `../../etc/x`, or a hard link to it: sound objects, and a hole in the wall once they are written out. So before a
tree is believed, every name, kind, mode, owner and link in it is checked here. Trees that ws wrote always pass.
"""

from __future__ import annotations

from collections.abc import Callable

from ws.errors import StoreDamaged
from ws.store import trees
from ws.store.meta import Meta
from ws.store.repository import Store

_MAX_ID = (1 << 32) - 2
_MAX_NAME = 255
_MAX_MODE = 0o7777
_MAX_TARGET = 4095
_MAX_XATTR_NAME = 255
_MAX_XATTR = 64 << 10
_MAX_TIME_NS = 1 << 63
_KEPT_ENTRIES = 300_000  # of directories that were read: some 150 MB


def check_listing(listing: trees.Listing, path: bytes = b"") -> None:
    """Raises StoreDamaged for what no directory of a workspace can hold."""
    _check_meta(listing.meta, path, kinds="d")
    for name, file in listing.files.items():
        here = trees.join(path, name)
        _check_name(name, path)
        _check_meta(file.meta, here, kinds="fclp")
        if name in listing.directories:
            raise _wrong(here, "is a file and a directory")
        if file.meta.kind == "l" and not 0 < file.meta.size <= _MAX_TARGET:
            raise _wrong(here, "is a link to nowhere")
        if (file.meta.kind == "c") != (file.meta.kind in "fc" and file.meta.size > trees.CHUNKED_FROM_BYTES):
            raise _wrong(here, "is kept in another form than its size asks for")
    for name in listing.directories:
        _check_name(name, path)


def _check_name(name: bytes, path: bytes) -> None:
    if name in (b"", b".", b"..") or b"/" in name or b"\0" in name or len(name) > _MAX_NAME:
        raise StoreDamaged(
            f"{trees.os_path(path, b'') or 'the top'} holds the name {name[:80]!r}, which no file can have"
        )


def _check_meta(meta: Meta, path: bytes, *, kinds: str) -> None:
    if meta.kind not in kinds:
        raise _wrong(path, f"is of the kind {meta.kind!r}")
    if not 0 <= meta.mode <= _MAX_MODE or meta.size < 0:
        raise _wrong(path, "has an impossible mode or size")
    if not (0 <= meta.uid <= _MAX_ID and 0 <= meta.gid <= _MAX_ID):
        raise _wrong(path, "has an impossible owner")
    if not -_MAX_TIME_NS <= meta.mtime_ns < 2 * _MAX_TIME_NS:
        raise _wrong(path, "has an impossible time")
    for key, value in meta.xattrs:
        # Any other namespace says something to the kernel: capabilities, access lists, overlays.
        if not key.startswith(b"user.") or len(key) > _MAX_XATTR_NAME or b"\0" in key or len(value) > _MAX_XATTR:
            raise _wrong(path, "has an extended attribute that is not a user's")


def check_links(store: Store, root: trees.Root, *, tick: Callable[[], None] = lambda: None) -> None:
    """Every hard link must be between files of the tree, equal ones. `tick` is called for each. Raises StoreDamaged."""
    find = _Finder(store, root.node)
    linked: set[bytes] = set()
    for group in trees.read_links(store, root):
        tick()
        files = [find(path) for path in group]
        if len(group) < 2 or linked & {*group} or len({*group}) != len(group):
            raise StoreDamaged("the hard links of a tree contradict each other")
        if any(file is None or file != files[0] for file in files):
            raise _wrong(group[0], "is not the file that its hard links are")
        linked.update(group)


class _Finder:
    """Files by their paths. Directories that were read are kept, up to a number of entries."""

    def __init__(self, store: Store, node: trees.Node) -> None:
        self._store = store
        self._node = node
        self._listings: dict[trees.Node, trees.Listing] = {}
        self._entries = 0

    def __call__(self, path: bytes) -> trees.File | None:
        *parents, name = path.split(b"/")
        node = self._node
        for parent in parents:
            below = self._listing(node).directories.get(parent)
            if below is None:
                return None
            node = below
        return self._listing(node).files.get(name)

    def _listing(self, node: trees.Node) -> trees.Listing:
        if node not in self._listings:
            listing = trees.read_listing(self._store, node)
            self._entries += len(listing.files) + len(listing.directories)
            if self._entries > _KEPT_ENTRIES:
                self._listings.clear()
                self._entries = len(listing.files) + len(listing.directories)
            self._listings[node] = listing
        return self._listings[node]


def _wrong(path: bytes, problem: str) -> StoreDamaged:
    return StoreDamaged(f"{trees.os_path(path, b'') or 'the top'} {problem}")
