"""Read a whole host directory into a tree: sources of bases, and workspaces without a container.

The walk hands out directories, to this process and to a second one (`crew`), and gathers what they found;
trees are put together from the leaves once all is read. No recursion and no path longer than one component,
so a tree 3,000 deep or of 100,000 empty directories is a tree like any other.

What was read is the tree at *one instant* if afterwards every entry still has the inode and ctime it had
when it was read: `Scan.cache.first_change` looks. The caller reads again what changed, or gives up.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate

from ws.errors import LimitExceeded, SourceChanged
from ws.store import meta, names, trees
from ws.store.crew import BATCH, Helper, may_help
from ws.store.gathering import Owners, Row
from ws.store.packs import PackWriter
from ws.store.reading import DirectoryReader, Result, Rules
from ws.store.repository import Store
from ws.store.statcache import StatCache

Progress = Callable[[str, int, int], None]  # phase, done, total (0: unknown)

_HELP_FROM = 300  # a second process takes 60 ms to start; so many entries take as long
_PROGRESS_S = 0.1
_ROUNDS = 4  # of reading a directory that keeps changing


@dataclass(frozen=True, slots=True)
class Skipped:
    """Something that is there and is not in the tree."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Scan:
    """A directory that was read and stored, though its pack is not finished yet."""

    tree: bytes
    files: int
    size_bytes: int
    skipped: tuple[Skipped, ...]
    cache: StatCache
    links: tuple[tuple[bytes, ...], ...]  # groups of paths that are one file
    closed: tuple[tuple[bytes, int], ...]  # directories of the copy and modes to give them last, from the leaves


def scan_tree(
    store: Store,
    writer: PackWriter,
    source: int,
    rules: Rules,
    *,
    copy: int | None = None,
    earlier: int | None = None,
    cache: StatCache | None = None,
    max_total_bytes: int | None = None,
    progress: Progress | None = None,
) -> Scan:
    """Read the directory open as `source`, copying it below `copy` if given, and store its tree.

    Files that `cache` knows unchanged are not read, and are linked from `earlier` instead of copied. Raises
    InvalidRequest for what cannot be read, LimitExceeded, StateUnusable, SourceChanged when the root
    vanished.
    """
    walk = _Walk(cache, max_total_bytes, progress)
    reader = DirectoryReader(writer, rules, source, copy, earlier)
    helper: Helper | None = None
    alone = False
    try:
        while walk.pending or (helper and helper.outstanding):
            if helper is None and not alone and walk.worth_help():
                try:
                    helper = Helper(store, rules, source, copy, earlier)
                except OSError:
                    alone = True  # no process to be had, or no interpreter to start: one is enough
            if helper:
                while helper.outstanding < 2 and (batch := walk.far(BATCH)):
                    helper.give([(number, path, walk.cached(number)) for number, path in batch])
                for number, result in helper.take(wait=not walk.pending):
                    walk.found(number, result)
            if walk.pending:
                number, path = walk.pending.pop()
                cached = {row[0]: row for row in walk.cached(number)}
                walk.found(number, reader.read(path, cached))
        if helper:
            helper.finish(writer)
    finally:
        reader.close()
        if helper:
            helper.close()
    return walk.assemble(writer)


def scan_directory(
    store: Store,
    writer: PackWriter,
    path: str,
    *,
    exclude: tuple[str, ...] = (),
    cache: StatCache | None = None,
    max_file_bytes: int | None = None,
    max_total_bytes: int | None = None,
    progress: Progress | None = None,
) -> Scan:
    """A host directory at one instant, as it is: for workspaces without a container.

    With the cache of an earlier scan, one of an unchanged directory costs one lstat a file. Raises what
    `scan_tree` does, and SourceChanged when the directory never holds still.
    """
    if cache and (known := _known(cache, path)):
        return known
    changed: bytes | None = b""
    for _ in range(_ROUNDS):
        top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            scan = scan_tree(
                store,
                writer,
                top,
                Rules(os.fstat(top).st_dev, Owners(), exclude, max_file_bytes=max_file_bytes),
                cache=cache,
                max_total_bytes=max_total_bytes,
                progress=progress,
            )
        finally:
            os.close(top)
        changed = scan.cache.first_change(path)
        if changed is None:
            scan.cache.facts = {
                "tree": scan.tree.hex(),
                "size": scan.size_bytes,
                "skipped": [[skipped.path, skipped.reason] for skipped in scan.skipped],
            }
            return scan
        cache = scan.cache
    raise SourceChanged(f"{os.fsdecode(changed or b'')} kept changing while {path} was read")


def _known(cache: StatCache, path: str) -> Scan | None:
    """The scan that a cache remembers, if nothing changed since."""
    facts = cache.facts
    if "tree" not in facts or cache.first_change(path) is not None:
        return None
    skipped = tuple(Skipped(path, reason) for path, reason in facts["skipped"])
    return Scan(bytes.fromhex(facts["tree"]), cache.files, facts["size"], skipped, cache, (), ())


class _Walk:
    """Which directories there are, and what was found in them."""

    def __init__(self, cache: StatCache | None, max_total_bytes: int | None, progress: Progress | None) -> None:
        self.pending: list[tuple[int, bytes]] = [(0, b"")]
        self._parents = [0]
        self._names = [b""]
        self._results: list[Result | None] = [None]
        self._cache = cache
        self._in_cache = [0 if cache else -1]
        self._limit = max_total_bytes
        self._files = self._bytes = 0
        self._progress, self._told = progress, time.monotonic()

    def worth_help(self) -> bool:
        return self._files + len(self._results) >= _HELP_FROM and len(self.pending) > 1 and may_help()

    def far(self, count: int) -> list[tuple[int, bytes]]:
        """Directories for the other process: the oldest ones, far from where this one works."""
        count = min(count, (len(self.pending) + 1) // 2)
        batch, self.pending[:count] = self.pending[:count], []
        return batch

    def cached(self, number: int) -> list[Row]:
        known = self._in_cache[number]
        return self._cache.rows(known) if self._cache and known >= 0 else []

    def found(self, number: int, result: Result | None) -> None:
        self._results[number] = result
        if result is None:
            return
        self._files += len(result.rows)
        self._check_total(result)
        self._bytes += result.size_bytes
        known = self._in_cache[number]
        for name in result.directories:
            self.pending.append((len(self._results), result.path + b"/" + name if result.path else name))
            self._parents.append(number)
            self._names.append(name)
            self._results.append(None)
            self._in_cache.append(self._cache.find(known, name) if self._cache and known >= 0 else -1)
        self._tell()

    def _check_total(self, result: Result) -> None:
        if self._limit is None or self._bytes + result.size_bytes <= self._limit:
            return
        totals = accumulate((row[2] for row in result.rows), initial=self._bytes)
        within = sum(total <= self._limit for total in totals) - 1
        name, _, size_bytes, *_ = result.rows[min(within, len(result.rows) - 1)]
        where = trees.os_path(result.path, name)
        raise LimitExceeded(
            f"the tree has more than {self._limit} bytes: {where} with {size_bytes} is too much",
            hint="raise the limit, or leave something out",
        )

    def _tell(self) -> None:
        if self._progress and time.monotonic() - self._told >= _PROGRESS_S:
            self._told = time.monotonic()
            self._progress("import", self._files, self._cache.files if self._cache else 0)

    def assemble(self, writer: PackWriter) -> Scan:
        """Store the trees from the leaves up, and gather the rest."""
        root = self._results[0]
        if root is None:
            raise SourceChanged("the source vanished while it was read")
        groups = self._link_groups()
        below: list[list[trees.Item]] = [[] for _ in self._results]
        node = trees.Node(b"", b"", leaf=True)
        for number in range(len(self._results) - 1, -1, -1):
            result = self._results[number]
            if result is None:
                continue
            if result.node:
                node = trees.Node(*result.node, leaf=True)
            else:
                links = b"" if number else meta.encode_links(groups)
                node = trees.add_directory(writer, result.record, result.items, below[number], links)
            if number:
                above, escaped = self._parents[number], names.escape(self._names[number])
                mode = trees.FILE if node.leaf else trees.DIRECTORY
                below[above].append((mode, escaped, node.meta))
                parent = self._results[above]
                assert parent  # a directory is read before those below it
                parent.items.append((trees.DIRECTORY, escaped, node.data))
        if self._progress:
            self._progress("import", self._files, self._files)
        return Scan(
            tree=trees.add_root(writer, node),
            files=self._files,
            size_bytes=self._bytes,
            skipped=tuple(self._skipped()),
            cache=self._stat_cache(),
            links=tuple(groups),
            closed=tuple(
                (result.path, result.closed_mode)
                for result in reversed(self._results)
                if result and result.closed_mode >= 0
            ),
        )

    def _link_groups(self) -> list[tuple[bytes, ...]]:
        groups: dict[tuple[int, int], list[bytes]] = {}
        for result in self._results:
            for name, device, inode in result.linked if result else ():
                path = result.path + b"/" + name if result and result.path else name
                groups.setdefault((device, inode), []).append(path)
        return [tuple(sorted(group)) for group in groups.values() if len(group) > 1]

    def _skipped(self) -> list[Skipped]:
        return sorted(
            (
                Skipped(trees.os_path(result.path, name), reason)
                for result in self._results
                if result
                for name, reason in result.skipped
            ),
            key=lambda skipped: skipped.path,
        )

    def _stat_cache(self) -> StatCache:
        cache = StatCache()
        numbers: dict[int, int] = {}
        for number, result in enumerate(self._results):
            if result:
                numbers[number] = len(numbers)
                cache.add(numbers[self._parents[number]], self._names[number], result.identity, result.rows)
        return cache
