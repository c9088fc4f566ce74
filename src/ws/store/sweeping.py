"""Remove what writers that died left in the pack directory.

    tmp_*, .*          a pack or an index that was never finished: removed
    .idx, no .pack     a removal that was cut short, or a pack that is lost: removed, for it promises what is not there
    .pack, no .idx     a writer that died between its two renames, or an index that is lost: the index is built anew,
                       unless not one entry can be read: then it is removed

Files are removed only while no process writes (`locking`). A pack is never removed for having no index: which of the
two cases it is cannot be told, and the collector removes what nothing needs.
"""

from __future__ import annotations

import contextlib
import os

from ws.errors import Busy
from ws.removing import remove_any
from ws.store import locking
from ws.store.reindexing import holds_nothing
from ws.store.repository import Store


def sweep_leftovers(store: Store) -> None:
    """Remove what dead writers left behind. The caller holds `ws.lock` exclusively."""
    names = set(os.listdir(store.pack_directory))
    for name in names:
        without_pack = name.endswith(".idx") and name.removesuffix(".idx") + ".pack" not in names
        without_index = name.endswith(".pack") and name.removesuffix(".pack") + ".idx" not in names
        path = os.path.join(store.pack_directory, name)
        if name.startswith(("tmp_", ".")) or without_pack or (without_index and holds_nothing(path)):
            remove_any(path)


def adopt_orphans(store: Store) -> None:
    """Give each pack without an index one. The caller holds `ws.gc.lock`, and `ws.lock` shared or exclusively."""
    if store.adopt_orphans():
        store.keep_rebuilt()


def sweep(store: Store) -> bool:
    """Remove what dead writers left behind, if no process writes right now; whether it could look.

    Every lock is tried only: a recovery waits for no other operation.
    """
    try:
        with locking.removing(store, timeout_s=0):
            sweep_leftovers(store)
    except Busy:
        return False
    # With a lock that does not keep writers out: to read a large pack takes a while.
    with contextlib.suppress(Busy), locking.maintaining(store, timeout_s=0), locking.adding(store, timeout_s=0):
        adopt_orphans(store)
    return True
