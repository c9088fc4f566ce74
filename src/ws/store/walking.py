"""Walk an overlay's upper: each directory after its parent, its files stored on the way.

Where there are many files a second process (`crew`) reads some of the directories; what both find comes out here.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from ws.errors import InvalidRequest, SnapshotFailed
from ws.layout import Ids
from ws.store import trees
from ws.store.crew import BATCH, Helper, may_help
from ws.store.gathering import RACY, RACY_NS, Contents, Owners, Row
from ws.store.packs import PackWriter
from ws.store.reading import DirectoryReader, Rules
from ws.store.repository import Store
from ws.store.statcache import StatCache
from ws.store.xattrs import Namespace

_HELP_FROM = 1000  # entries: to read so many takes as long as a second process takes to start


class Found(NamedTuple):
    """A directory of an upper, after that of its parent's number."""

    parent: int
    name: bytes
    here: Contents


class _Directory(NamedTuple):
    """A directory that is still to be read."""

    parent: int
    name: bytes
    path: bytes
    in_cache: int  # its number there, or −1


def gather_upper(
    writer: PackWriter,
    upper: str,
    *,
    ids: Ids,
    layer: Namespace = "trusted",
    cache: StatCache | None = None,
    max_file_bytes: int | None = None,
    store: Store | None = None,
) -> Generator[Found, None, None]:
    """The directories of an upper that holds still, each after its parent; their files are stored as they come.

    Files that are in the `cache`, of the same upper, and have not changed since are not read. With the `store` of the
    writer a second process may help.
    Raises SnapshotFailed when the upper holds what cannot be read or understood, or moves; LimitExceeded; StateUnusable
    when the store cannot be written.
    """
    with _walking(writer, upper, ids, layer, max_file_bytes, cache, store) as walk:
        for directory, here in walk:
            if here is None or here.torn:
                raise SnapshotFailed(
                    f"{trees.os_path(directory.path, here.torn if here else b'')} changed while it was read",
                    hint="something writes into the layer from outside the workspace",
                )
            yield Found(directory.parent, directory.name, here)


def read_ahead(
    writer: PackWriter,
    upper: str,
    *,
    ids: Ids,
    layer: Namespace = "trusted",
    cache: StatCache | None = None,
    since_ns: int | None = None,
    max_file_bytes: int | None = None,
    store: Store | None = None,
) -> StatCache:
    """Store the files of an upper that is still moving, so that gathering it while it is frozen has little to read.

    What is gone or half written when we come to it is left to that, and so is what changed after `since_ns`: a mapping
    made meanwhile shows in the times of a file by its first write alone. Raises what `gather_upper` does.
    """
    ahead = StatCache()
    trusted_until_ns = (time.time_ns() if since_ns is None else since_ns) - RACY_NS
    with _walking(writer, upper, ids, layer, max_file_bytes, cache, store) as walk:
        for directory, here in walk:
            rows = here.rows if here else []
            rows = [row if row[3] < trusted_until_ns else (*row[:4], row[4] | RACY, row[5]) for row in rows]
            ahead.add(directory.parent, directory.name, here.identity if here else (0, 0, 0), rows)
    return ahead


Walk = Iterator[tuple[_Directory, Contents | None]]  # None: it is gone


@contextlib.contextmanager
def _walking(
    writer: PackWriter,
    upper: str,
    ids: Ids,
    layer: Namespace,
    max_file_bytes: int | None,
    cache: StatCache | None,
    store: Store | None,
) -> Iterator[Walk]:
    top = os.open(upper, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    rules = Rules(os.fstat(top).st_dev, Owners.seen_by(ids), max_file_bytes=max_file_bytes, layer=layer)
    reader = DirectoryReader(writer, rules, top)
    try:
        with contextlib.ExitStack() as helped:
            yield _walk(reader, writer, cache, lambda: _hire(helped, store, rules, top))
    except InvalidRequest as error:
        raise SnapshotFailed(error.message) from error
    finally:
        reader.close()
        os.close(top)


def _hire(helped: contextlib.ExitStack, store: Store | None, rules: Rules, top: int) -> Helper | None:
    if store is None or not may_help():
        return None
    try:
        helper = Helper(store, rules, top)
    except OSError:
        return None  # no process to be had: one is enough
    helped.callback(helper.close)
    return helper


def _walk(
    reader: DirectoryReader, writer: PackWriter, cache: StatCache | None, hire: Callable[[], Helper | None]
) -> Walk:
    pending = [_Directory(0, b"", b"", 0 if cache else -1)]
    lent: list[_Directory] = []
    helper: Helper | None = None
    number = entries = 0
    asked = False
    while pending or (helper and helper.outstanding):
        if not asked and entries >= _HELP_FROM and len(pending) > BATCH:
            asked, helper = True, hire()
        done: list[tuple[_Directory, Contents | None]] = []
        if helper:
            while helper.outstanding < 2 and len(pending) > 1:
                count = min(BATCH, len(pending) // 2)
                batch, pending[:count] = pending[:count], []  # the oldest, far from where we are
                jobs = enumerate(batch, start=len(lent))
                helper.give([(job, each.path, _rows(cache, each.in_cache)) for job, each in jobs])
                lent += batch
            done += [(lent[job], here) for job, here in helper.take_contents(wait=not pending)]
        if pending:
            directory = pending.pop()
            rows = {row[0]: row for row in _rows(cache, directory.in_cache)}
            gathered = reader.gather(directory.path, rows)
            done.append((directory, gathered.contents() if gathered else None))
        for directory, here in done:
            yield directory, here
            for child in here.directories if here else ():
                path, known = trees.join(directory.path, child), _find(cache, directory.in_cache, child)
                pending.append(_Directory(number, child, path, known))
            entries += 1 + (len(here.rows) if here else 0)
            number += 1
    if helper:
        helper.finish(writer)


def _rows(cache: StatCache | None, directory: int) -> list[Row]:
    return cache.rows(directory) if cache and directory >= 0 else []


def _find(cache: StatCache | None, directory: int, name: bytes) -> int:
    return cache.find(directory, name) if cache and directory >= 0 else -1
