"""Packs that ws writes are read by stock git and by libgit2; what is damaged is named and never believed."""

from __future__ import annotations

import itertools
import os
import random
import struct
import subprocess
import threading
import time
from pathlib import Path

import pygit2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ws.errors import StoreDamaged
from ws.store import gc, packs
from ws.store.deltas import apply_delta, encode_delta
from ws.store.packs import BLOB, TREE, PackWriter, object_id
from ws.store.repository import Store

SIZES = [0, 1, 15, 16, 127, 128, 2047, 2048, 4095, 4096, 4100, 65_535, 65_536, 300_000, 5 << 20]


def contents() -> list[bytes]:
    source = random.Random(7)
    return [source.randbytes(size) for size in SIZES] + [b"abc" * size for size in SIZES[1:]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    with Store(str(tmp_path / "store")) as opened:
        yield opened  # type: ignore[misc]


def git(store: Store, *arguments: str) -> bytes:
    return subprocess.run(["git", "--git-dir", store.path, *arguments], check=True, capture_output=True).stdout


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_objects_of_any_size_are_read_by_us_by_git_and_by_libgit2(store: Store, plain: bool, quick: bool) -> None:
    with store.writing(quick=quick) as writer:
        ids = {writer.add(BLOB, data, plain=plain): data for data in contents()}
        pack = writer.finish()
    assert pack
    store.refresh()
    other = pygit2.Repository(store.path)
    for oid, data in ids.items():
        assert store.read(oid, BLOB) == data
        assert other[oid.hex()].data == data
    git(store, "verify-pack", pack)
    git(store, "fsck", "--strict")


def test_what_is_known_is_not_stored_again(store: Store) -> None:
    for expected in (True, False):
        with store.writing() as writer:
            writer.add(BLOB, b"once")
            writer.add(BLOB, b"once")
            assert bool(writer.finish()) is expected
    assert len(store.all_packs()) == 1


def test_a_pack_that_was_not_finished_leaves_nothing(store: Store) -> None:
    with store.writing() as writer:
        writer.add(BLOB, os.urandom(10 << 20))
        assert len(os.listdir(store.pack_directory)) == 1
    assert os.listdir(store.pack_directory) == []


def test_a_quick_pack_compresses_what_is_much_and_leaves_no_thread(store: Store) -> None:
    threads = threading.active_count()
    data = [os.urandom(1 << 20) + bytes(1 << 20) for _ in range(12)]
    with store.writing(quick=True) as writer:
        for each in data:
            writer.add(BLOB, each)
    assert os.listdir(store.pack_directory) == []
    with store.writing(quick=True) as writer:
        ids = [writer.add(BLOB, each) for each in data]
        pack = writer.finish()
    assert threading.active_count() == threads
    assert pack
    git(store, "verify-pack", pack)
    assert [store.read(oid, BLOB) for oid in ids] == data
    assert os.path.getsize(pack) < 14 << 20, "half of it is zeros"


def test_what_a_lasting_store_knows_is_forgotten_by_whoever_verifies(store: Store) -> None:
    with Store(store.path, lasting=True) as first, first.writing() as writer:
        oid = writer.add(BLOB, b"known")
        first.remember(oid, BLOB, b"known")
    with Store(store.path, lasting=True) as second:
        assert second.read(oid, BLOB) == b"known"
        assert not second.contains(oid), "its pack was never finished"
        second.forget()
        with pytest.raises(StoreDamaged):
            second.read(oid, BLOB)
    with pytest.raises(StoreDamaged):
        store.read(oid, BLOB)


def test_nothing_of_a_pack_is_seen_before_it_is_finished(store: Store) -> None:
    with store.writing() as writer:
        oid = writer.add(BLOB, os.urandom(10 << 20))
        with Store(store.path) as other:
            assert not other.contains(oid)
        writer.finish()
        with Store(store.path) as other:
            assert other.contains(oid)


def test_an_object_written_by_another_process_is_found_without_opening_anew(store: Store) -> None:
    with Store(store.path) as other, other.writing() as writer:
        oid = writer.add(BLOB, b"late")
        writer.finish()
    assert store.read(oid, BLOB) == b"late"


def test_entries_are_taken_over_from_another_pack_without_doubles(store: Store, tmp_path: Path) -> None:
    blobs = [os.urandom(size) for size in (10, 5000, 3 << 20, 20, 2 << 20, 7)]
    first = PackWriter(str(tmp_path), lambda _: False)
    ids = [first.add(BLOB, data) for data in blobs]
    path = first.seal()
    fd = os.open(path, os.O_RDONLY)
    with store.writing() as writer:
        writer.add(BLOB, blobs[1])
        writer.add(BLOB, blobs[3])
        writer.absorb(fd, list(first.ids), first.offsets, first.crcs, first.size_bytes)
        pack = writer.finish()
    os.close(fd)
    store.refresh()
    assert [store.read(oid, BLOB) for oid in ids] == blobs
    assert store.all_packs()[0].index.count == len(blobs)
    git(store, "verify-pack", str(pack))


def stored(store: Store, data: bytes) -> tuple[bytes, str]:
    with store.writing() as writer:
        oid = writer.add(BLOB, data)
        path = writer.finish()
    assert path
    store.refresh()
    return oid, path


@pytest.mark.parametrize("position", [12, 13, 14, 15, 20, 3000, -25, -21])
def test_a_flipped_byte_is_damage_and_names_the_object(store: Store, position: int) -> None:
    oid, path = stored(store, random.Random(1).randbytes(3000) + b"x" * 3000)
    data = bytearray(Path(path).read_bytes())
    data[position] ^= 0x41
    os.chmod(path, 0o600)
    Path(path).write_bytes(data)
    with Store(store.path) as again, pytest.raises(StoreDamaged, match=oid.hex()):
        assert again.read(oid, BLOB, path=b"some/file") is None


def test_a_pack_cut_short_or_gone_is_damage(store: Store) -> None:
    oid, path = stored(store, os.urandom(9000))
    os.truncate(path, 4000)
    with Store(store.path) as again, pytest.raises(StoreDamaged, match=oid.hex()):
        again.read(oid, BLOB)
    os.unlink(path)
    with Store(store.path) as again, pytest.raises(StoreDamaged, match=oid.hex()):
        again.read(oid, BLOB)


def test_a_missing_object_is_damage_and_names_the_path(store: Store) -> None:
    with pytest.raises(StoreDamaged, match=r"a/b.*missing"):
        store.read(b"\1" * 20, BLOB, path=b"a/b")


def test_an_object_of_another_kind_is_damage(store: Store) -> None:
    oid, _ = stored(store, b"blob")
    with pytest.raises(StoreDamaged):
        store.read(oid, TREE)


def test_an_object_under_another_name_is_damage(store: Store) -> None:
    """A whole entry, with all its checksums right, and other bytes than its id stands for."""
    oid = object_id(BLOB, b"promised")
    with store.writing() as writer:
        writer.add_new(oid, BLOB, b"another ")
        writer.finish()
    with pytest.raises(StoreDamaged, match=oid.hex()):
        store.read(oid, BLOB)


def test_an_entry_that_unpacks_to_more_than_it_says_is_damage_and_takes_no_memory(store: Store) -> None:
    bomb = packs.deflate(bytes(64 << 20))
    with store.writing() as writer:
        oid = object_id(BLOB, b"small")
        writer.add_entry(oid, [packs.entry_header(BLOB, 5), bomb])
        writer.finish()
    with pytest.raises(StoreDamaged, match=oid.hex()):
        store.read(oid, BLOB)


def test_a_sound_double_of_a_damaged_object_is_used(store: Store) -> None:
    oid, path = stored(store, b"precious" * 1000)
    os.truncate(path, 40)
    with Store(store.path) as again:
        writer = PackWriter(again.pack_directory, lambda _: False)
        writer.add(BLOB, b"precious" * 1000)
        writer.add(BLOB, b"makes the name of the pack another one")
        writer.finish()
        assert again.read(oid, BLOB) == b"precious" * 1000


def test_offsets_beyond_two_gibibytes_are_written_and_read(store: Store) -> None:
    with store.writing() as writer:
        near = writer.add(BLOB, b"near")
        writer.flush()
        os.ftruncate(writer._fd, 3 << 30)  # a hole, as if 3 GiB of entries lay there
        os.lseek(writer._fd, 0, os.SEEK_END)
        writer._end = 3 << 30
        far = writer.add(BLOB, b"far")
        assert writer.offsets[1] == 3 << 30
        writer.finish()
    store.refresh()
    pack = store.all_packs()[0]
    assert pack.index.offset(pack.find(far)) == 3 << 30
    assert (store.read(near, BLOB), store.read(far, BLOB)) == (b"near", b"far")


@given(st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300), st.binary(max_size=300))
def test_a_delta_gives_the_new_version_back(head: bytes, old: bytes, new: bytes, tail: bytes) -> None:
    base, data = head + old + tail, head + new + tail
    assert apply_delta(base, encode_delta(base, data)) == data


def test_a_delta_of_one_changed_line_in_a_large_object_is_small() -> None:
    base = random.Random(3).randbytes(300_000)
    data = base[:150_000] + b"changed" + base[150_007:]
    delta = encode_delta(base, data)
    assert len(delta) < 80
    assert apply_delta(base, delta) == data


def test_deltas_are_read_by_us_by_git_and_by_libgit2(store: Store) -> None:
    versions = [random.Random(3).randbytes(70_000) + b"%d" % number + b"end" * 20_000 for number in range(20)]
    with store.writing() as writer:
        ids = [writer.add(BLOB, versions[0])]
        for before, after in itertools.pairwise(versions):
            oid = object_id(BLOB, after)
            writer.add_delta(oid, ids[-1], encode_delta(before, after))
            ids.append(oid)
        pack = writer.finish()
    assert [store.read(oid, BLOB) for oid in ids] == versions
    other = pygit2.Repository(store.path)
    assert [other[oid.hex()].data for oid in ids] == versions
    git(store, "verify-pack", str(pack))
    assert os.path.getsize(str(pack)) < 100_000


def test_thousands_of_existence_checks_are_quick(store: Store) -> None:
    with store.writing() as writer:
        known = [writer.add(BLOB, struct.pack(">I", number)) for number in range(20_000)]
        writer.finish()
    store.refresh()
    unknown = [os.urandom(20) for _ in range(20_000)]
    began = time.perf_counter()
    assert all(map(store.contains, known))
    assert not any(map(store.contains, unknown))
    assert time.perf_counter() - began < 2


def test_stores_that_share_what_they_know_find_all_while_packs_come_and_go(store: Store) -> None:
    """What small packs hold is in one table of the process, and each store has looked at its own time."""
    early, held = Store(store.path, lasting=True), []
    for number in range(3 * 12):
        with Store(store.path, lasting=True) as late:
            with late.writing(quick=True) as writer:
                held.append(writer.add(BLOB, b"object %d" % (number // 2)))  # every second one is known already
                writer.finish()
            gc.consolidate(late)
            late.refresh()
            assert all(late.contains(oid) for oid in held)
        if number % 5 == 0:
            early.refresh()
            assert all(early.contains(oid) for oid in held)
        assert early.read(held[-1], BLOB) == b"object %d" % (number // 2)
        assert not early.contains(bytes(20))
    assert len(os.listdir(store.pack_directory)) < 2 * 12
    early.close()
    assert early.contains(held[0])  # and whoever was closed looks anew
    early.close()
