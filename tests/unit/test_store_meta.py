"""A record says everything that git does not keep, says it one way only, and can be read back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tree_picture import names, times
from ws.errors import StoreDamaged
from ws.store import meta

keys = st.binary(min_size=1, max_size=20).map(lambda name: b"user." + name)
metas = st.builds(
    meta.Meta,
    kind=st.sampled_from("fcl"),
    mode=st.integers(0, 0o7777),
    uid=st.integers(0, 2**32 - 2),
    gid=st.sampled_from([0, 5]),
    mtime_ns=times,
    size=st.integers(0, 2**50),
    xattrs=st.dictionaries(keys, st.binary(max_size=30), max_size=3).map(lambda found: tuple(sorted(found.items()))),
)
directories = st.builds(
    meta.Meta, kind=st.just("d"), mode=st.just(0o755), uid=st.just(7), gid=st.just(5), mtime_ns=times
)


@given(directories, st.dictionaries(names, metas, max_size=6))
def test_a_record_comes_back(directory: meta.Meta, entries: dict[bytes, meta.Meta]) -> None:
    assert meta.decode_record(meta.encode_record(directory, entries)) == (directory, entries)


@given(directories, st.lists(st.tuples(names, metas), max_size=6, unique_by=lambda pair: pair[0]), st.randoms())
def test_the_order_of_the_entries_does_not_matter(directory, entries, random) -> None:  # type: ignore[no-untyped-def]
    before = meta.encode_record(directory, dict(entries))
    random.shuffle(entries)
    assert meta.encode_record(directory, dict(entries)) == before


@given(st.lists(st.lists(names, min_size=2, max_size=4, unique=True).map(sorted), max_size=4))
def test_hard_links_come_back(groups: list[list[bytes]]) -> None:
    back = meta.decode_links(meta.encode_links(groups))
    assert sorted(map(sorted, back)) == sorted(groups)


def test_a_record_is_a_text_that_people_can_read() -> None:
    directory = meta.Meta("d", 0o755, 1000, 1000, 5)
    entries = {
        b"notes today.txt": meta.Meta("f", 0o644, 1000, 1000, -1, 12),
        b"run": meta.Meta("f", 0o4755, 0, 0, 7, 3, ((b"user.k=", b"v\n="),)),
        b"pipe": meta.Meta("p", 0o600, 1000, 1000, 9),
    }
    assert meta.encode_record(directory, entries) == (
        b". d755 1000:1000 5 -\nnotes%20today.txt f644 . -1 12\npipe p600 . 9 -\nrun f4755 0:0 7 3 user.k%3D=v%0A=\n"
    )


@pytest.mark.parametrize("record", [b"\n", b"a f644 . 1 1\n", b". d755 1:1 5 -\nx\n", b". d755 1:1 5 -\nx f9 . 1 1\n"])
def test_what_is_no_record_is_damage(record: bytes) -> None:
    with pytest.raises(StoreDamaged):
        meta.decode_record(record)
