"""Packs and objects."""

from __future__ import annotations

from mutations import Mutation

_PACKS = "unit/test_store_packs.py"
_ORDER = "unit/test_durable_order.py"

MUTATIONS = [
    Mutation(
        "a pack is not synced before its index",
        "store/packs.py",
        "            also=[self._fd],\n",
        "            also=[],\n",
        "a snapshot that was reported survives a power cut",
        (f"{_ORDER}::test_a_pack_is_synced_before_its_index_and_that_before_its_references",),
    ),
    Mutation(
        "references come before the index of their pack",
        "store/packs.py",
        '            [(place + ".idx", index), *references],\n',
        '            [*references, (place + ".idx", index)],\n',
        "a reference is never on disk without its objects",
        (f"{_ORDER}::test_a_pack_is_synced_before_its_index_and_that_before_its_references",),
    ),
    Mutation(
        "an object is not hashed when it is read",
        "store/repository.py",
        "                if not base and packs.object_id(kind, data) == oid:\n                    return",
        "                if not base:\n                    return",
        "damage is found, never restored",
        (f"{_PACKS}::test_an_object_under_another_name_is_damage",),
    ),
    Mutation(
        "the store is made without a sync",
        "store/repository.py",
        "            durable.sync_filesystem(self.path)  # the lock files too",
        "            _ = (self.path)  # the lock files too",
        "a store that was made has its locks",
        (f"{_ORDER}::test_a_store_and_a_home_are_synced_before_they_count",),
    ),
    Mutation(
        "a home is made without a sync",
        "layout.py",
        "        durable.sync_filesystem(home.root)\n",
        "",
        "a home that was made has its directories",
        (f"{_ORDER}::test_a_store_and_a_home_are_synced_before_they_count",),
    ),
]
