"""Read objects back and see that they are what their names promise.

A verifier remembers what it found sound, so that a thousand snapshots of one workspace cost little more
than one; and what it found damaged, so that every snapshot that is touched is told. `since` is for a
restore: what the target shares with a tree that is on disk anyway need not be read.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from ws.errors import StoreDamaged
from ws.store import trees
from ws.store.auditing import check_links, check_listing
from ws.store.repository import Store

Progress = Callable[[str, int, int], None]  # phase, done, total (0: unknown)

_PROGRESS_S = 0.1


@dataclass(frozen=True, slots=True)
class Damage:
    """An object that is not what its name promises, and a path that needs it."""

    path: str
    problem: str


class Verifier:
    """Checks trees of one store; one that shares nodes with those before is quick."""

    def __init__(self, store: Store, *, progress: Progress | None = None) -> None:
        store.forget()
        self._store = store
        self._sound: set[bytes] = set()  # files
        self._broken: dict[bytes, str] = {}  # files, and what is wrong with them
        self._walked: set[trees.Node] = set()
        self._touched: set[trees.Node] = set()  # directories with damage in or below them
        self._progress, self._told = progress, time.monotonic()
        self.files = 0

    def check(self, tree: str, *, since: str | None = None) -> list[Damage]:
        """All damage of a tree, by path; with `since`, only in what that tree does not have."""
        try:
            root = trees.read_root(self._store, bytes.fromhex(tree))
            check_links(self._store, root)
            known = trees.read_root(self._store, bytes.fromhex(since)).node if since else None
        except StoreDamaged as error:
            return [Damage("", error.message)]
        damage: list[Damage] = []
        walk: list[tuple[int, trees.Node]] = []  # parent's number, node
        pending: list[tuple[int, bytes, trees.Node, trees.Node | None]] = [(-1, b"", root.node, known)]
        while pending:
            parent, path, node, old = pending.pop()
            if node == old or (node in self._walked and node not in self._touched):
                continue
            number = len(walk)
            walk.append((parent, node))
            self._walked.add(node)
            found = len(damage)
            try:
                listing = trees.read_listing(self._store, node, path)
                check_listing(listing, path)
                before = trees.read_listing(self._store, old, path) if old else None
            except StoreDamaged as error:
                damage.append(Damage(trees.os_path(path, b""), error.message))
            else:
                damage += self._check_files(path, listing, before)
                pending += [
                    (number, trees.join(path, name), below, before.directories.get(name) if before else None)
                    for name, below in listing.directories.items()
                ]
            if len(damage) > found:
                self._mark(walk, number)
        return sorted(damage, key=lambda one: one.path)

    def _mark(self, walk: list[tuple[int, trees.Node]], number: int) -> None:
        while number >= 0:
            number, node = walk[number]
            self._touched.add(node)

    def _check_files(self, path: bytes, listing: trees.Listing, before: trees.Listing | None) -> list[Damage]:
        damage = []
        for name, file in listing.files.items():
            if before and before.files.get(name) == file:
                continue
            problem = self._problem(file, trees.join(path, name))
            if problem:
                damage.append(Damage(trees.os_path(path, name), problem))
        if self._progress and time.monotonic() - self._told >= _PROGRESS_S:
            self._told = time.monotonic()
            self._progress("verify", self.files, 0)
        return damage

    def _problem(self, file: trees.File, path: bytes) -> str:
        if file.oid in self._sound or file.meta.kind == "p":
            return ""
        if file.oid not in self._broken:
            self.files += 1
            try:
                size = sum(map(len, trees.read_chunks(self._store, file, path)))
                if size == file.meta.size:
                    self._sound.add(file.oid)
                    return ""
                self._broken[file.oid] = f"has {size} bytes where its record says {file.meta.size}"
            except StoreDamaged as error:
                self._broken[file.oid] = error.message
        return self._broken[file.oid]


def find_damage(store: Store, tree: str, *, since: str | None = None) -> list[Damage]:
    """All damage of one tree, or of what it does not share with `since`."""
    return Verifier(store).check(tree, since=since)
