"""Editing a tree or record in place gives the bytes that taking it apart and building it anew would give."""

from __future__ import annotations

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from tree_picture import names
from ws.store import meta, trees
from ws.store.editing import RecordEditor, TreeEditor
from ws.store.names import escape

ids = st.binary(min_size=20, max_size=20)
modes = st.sampled_from([trees.FILE, trees.EXECUTABLE, trees.LINK, trees.DIRECTORY])
look_alikes = st.sampled_from([b"a", b"x100644 a", b"100644 a", b"40000 a", b" a", b"a a", b"7 a", b"=dir"])
entry_names = st.one_of(names.map(escape), look_alikes)
# Ids that hold what looks like an entry, to tempt a search.
tempting = st.sampled_from(
    [b"\0" * 20, b"100644 a\0" + b"\1" * 11, b"\0" * 11 + b"100644 a\0", b"40000 a\0" * 2 + b"1234"]
)
entries = st.dictionaries(entry_names, st.tuples(modes, st.one_of(ids, tempting)), max_size=12)
edits = st.lists(st.tuples(st.booleans(), entry_names, modes, st.one_of(ids, tempting)), max_size=9)


@given(entries, edits, st.integers(1, 8))
@example({b" a": (trees.DIRECTORY, bytes(20))}, [(False, b"a", trees.FILE, bytes(20))] * 3, 1)
@settings(max_examples=400)
def test_a_tree_edited_in_place(before, steps, expected) -> None:  # type: ignore[no-untyped-def]
    items = {name: (mode, name, oid) for name, (mode, oid) in before.items()}
    editor = TreeEditor(trees.encode_tree(items.values()), edits=expected)
    chosen = random.Random(len(steps))
    for put, name, mode, oid in steps:
        if items and chosen.random() < 0.6:
            name = chosen.choice(sorted(items))
        old = editor.get(name)
        assert old == (trees.raw_entry(*items[name]) if name in items else None)
        if put:
            items[name] = (mode, name, oid)
            editor.put(name, trees.raw_entry(mode, name, oid))
        else:
            assert editor.pop(name) == old
            items.pop(name, None)
        assert editor.holds_only(name) is (items.keys() <= {name})
    assert editor.to_bytes() == trees.encode_tree(items.values())
    assert trees.split_tree(editor.to_bytes()).keys() == items.keys()


metas = st.builds(meta.Meta, st.sampled_from("flp"), st.integers(0, 0o7777), st.just(1), st.just(2), st.integers(0, 9))


@given(
    st.dictionaries(names, metas, max_size=12),
    st.lists(st.tuples(st.booleans(), names, metas), max_size=9),
    st.integers(1, 8),
)
@settings(max_examples=300)
def test_a_record_edited_in_place(before, steps, expected) -> None:  # type: ignore[no-untyped-def]
    own = meta.Meta("d", 0o755, 1, 2, 3)
    now = dict(before)
    editor = RecordEditor(meta.encode_record(own, now), edits=expected)
    chosen = random.Random(len(steps))
    for put, name, value in steps:
        if now and chosen.random() < 0.6:
            name = chosen.choice(sorted(now))
        quoted = meta.quote(name)
        assert editor.get(quoted) == (meta.encode_line(name, now[name], own) if name in now else None)
        if put:
            now[name] = value
            editor.put(quoted, meta.encode_line(name, value, own))
        else:
            editor.pop(quoted)
            now.pop(name, None)
    head = meta.encode_line(b".", meta.Meta("d", 0o700, 1, 2, 99), None)
    editor.put(b".", head)
    assert editor.to_bytes() == meta.encode_record(meta.Meta("d", 0o700, 1, 2, 99), now)
