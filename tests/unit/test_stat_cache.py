"""What a stat cache says is unchanged is unchanged: every fact counts, and what is too young to tell is hashed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ws.layout import Ids
from ws.store.gathering import RACY, RACY_NS
from ws.store.repository import Store
from ws.store.scan import scan_directory
from ws.store.statcache import StatCache
from ws.store.walking import read_ahead

ME = Ids(os.geteuid(), os.getegid(), os.geteuid(), os.getegid())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store(str(tmp_path / "store")) as opened:
        yield opened


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree" / "below").mkdir(parents=True)
    (tmp_path / "tree" / "below" / "file").write_text("content")
    return tmp_path / "tree"


def scanned(store: Store, tree: Path) -> StatCache:
    with store.writing() as writer:
        cache = scan_directory(store, writer, str(tree)).cache
        writer.finish()
    assert cache is not None
    return cache


def settle() -> None:
    """Until what was written is older than the grain of the clock."""
    time.sleep(3 * RACY_NS / 1e9)


def flags(cache: StatCache) -> list[int]:
    return [row[4] for number in range(len(cache._names)) for row in cache.rows(number)]


@pytest.mark.parametrize("column", ["_devices", "_inodes", "_ctimes", "_file_inodes", "_file_sizes", "_file_ctimes"])
def test_each_fact_of_a_file_and_a_directory_counts(store: Store, tree: Path, column: str) -> None:
    settle()
    cache = scanned(store, tree)
    assert cache.first_change(str(tree)) is None
    getattr(cache, column)[-1] += 1
    assert cache.first_change(str(tree)) is not None


def test_a_racy_entry_is_hashed_before_it_is_believed(store: Store, tree: Path) -> None:
    """The same inode, size and ctime, and other bytes: as after a write within the grain of the clock."""
    settle()
    cache = scanned(store, tree)
    cache._flags[-1] = RACY
    assert cache.first_change(str(tree)) is None, "it was hashed, and is the same"
    cache._oids[-1] ^= 1
    assert cache.first_change(str(tree)) == os.fsencode(tree / "below" / "file")
    cache._flags[-1] = 0
    assert cache.first_change(str(tree)) is None, "what is not racy is not read"


def test_what_changed_just_now_is_racy(store: Store, tree: Path) -> None:
    settle()
    assert flags(scanned(store, tree)) == [0]
    (tree / "below" / "file").write_text("changed")
    assert flags(scanned(store, tree)) == [RACY]


def test_what_changed_while_it_was_read_ahead_is_racy(store: Store, tree: Path) -> None:
    changed_ns = (tree / "below" / "file").stat().st_ctime_ns
    settle()
    for since_ns, expected in ((changed_ns, [RACY]), (time.time_ns(), [0])):
        with store.writing() as writer:
            assert flags(read_ahead(writer, str(tree), ids=ME, since_ns=since_ns)) == expected


def test_a_cache_with_a_flipped_bit_is_no_cache(store: Store, tree: Path) -> None:
    data = bytearray(scanned(store, tree).to_bytes())
    assert StatCache.from_bytes(bytes(data)) is not None
    data[-1] ^= 1
    assert StatCache.from_bytes(bytes(data)) is None
