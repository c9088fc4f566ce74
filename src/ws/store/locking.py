"""The locks of the store: what each one covers, and the one order in which they are taken.

    ws.gc.lock    exclusive    to replace packs by other packs: collect, consolidate, writing an index anew
    ws.lock       shared       to add a file to the pack directory, or a reference: from before the writer asks what
                               the store has until what it wrote is referred to; also to remove a pack of which
                               every object is in another pack that is finished
                  exclusive    to remove the last copy of an object; to remove a file because it is incomplete
                               (sweep); to move references from files of their own into `packed-refs`
    ws.refs.lock  exclusive    to write `packed-refs`

The order: the turn of a workspace, the lock of a workspace, `ws.gc.lock`, `ws.lock`, `ws.refs.lock`. A process that
holds one of them waits only for those that come later. One that comes earlier, or the same one again, it only tries
(`timeout_s=0`) and does without. A shared lock is never turned into an exclusive one: it is released first.

What follows from that:

- A file of a living writer (`tmp_*`, a `.pack` whose `.idx` is still to come) is never taken for that of a dead one:
  the writer holds `ws.lock` shared, so no sweep runs.
- A pack that collect or consolidate has read is there until that process removes it: nothing else removes packs.
- An object that the store had when a writer asked is there when the writer is done.

Readers take no lock. A pack that is gone when they open it was replaced, so they look again (`Store.read`).
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from ws import durable
from ws.errors import StateUnusable
from ws.store.plain import is_plain

if TYPE_CHECKING:
    from ws.store.repository import Store

WRITER_WAIT_S = 60.0
REMOVER_WAIT_S = 60.0


def maintaining(store: Store, *, timeout_s: float) -> contextlib.AbstractContextManager[int]:
    """Hold `ws.gc.lock`: the only process that replaces packs. Raises Busy, StateUnusable."""
    path = _lock_file(os.path.join(store.path, "ws.gc.lock"))
    return durable.locked(path, timeout_s=timeout_s, what="the collector of the store")


def adding(store: Store, *, timeout_s: float = WRITER_WAIT_S) -> contextlib.AbstractContextManager[int]:
    """Hold `ws.lock` shared: files may be added to the pack directory. Raises Busy, StateUnusable."""
    return durable.locked(_lock_file(store.lock), shared=True, timeout_s=timeout_s, what="the store")


def removing(store: Store, *, timeout_s: float = REMOVER_WAIT_S) -> contextlib.AbstractContextManager[int]:
    """Hold `ws.lock` exclusively: no process adds anything. Raises Busy, StateUnusable."""
    return durable.locked(_lock_file(store.lock), timeout_s=timeout_s, what="the store")


def listing_references(store: Store) -> contextlib.AbstractContextManager[int]:
    """Hold `ws.refs.lock`: the only process that writes `packed-refs`. Raises Busy, StateUnusable."""
    return durable.locked(_lock_file(store.refs_lock), what="the list of references")


def _lock_file(path: str) -> str:
    """The path, with a lock file there: it holds nothing, so one that is gone is made anew. Raises StateUnusable.

    Only an empty directory is removed from its place: a regular file may be the lock of another process.
    """
    if is_plain(path):
        return path
    try:
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(path)
        durable.create_lock_file(path)
    except OSError as error:
        if is_plain(path):  # another process has just put it right
            return path
        raise StateUnusable(
            f"{path} is not a lock file: {error.strerror}", hint="move it away; a lock file holds nothing"
        ) from error
    return path
