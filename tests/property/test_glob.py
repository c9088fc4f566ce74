"""The law: a glob means the same everywhere: by definition, in memory, on disk, and as grep's filter."""

from __future__ import annotations

import os
import tempfile
from functools import cache

from hypothesis import given, settings
from hypothesis import strategies as st

from ws.fs.globs import basename_filter, compile_for_names, compile_glob, filter_for, literal_prefix, max_depth
from ws.fs.host import HostFilesystem
from ws.fs.memory import MemoryFilesystem

ALPHABET = "ab.[]{}!\\-*?"
names = st.text("ab.[{!-é", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
paths = st.lists(names, min_size=1, max_size=4).map("/".join)
pieces = st.sampled_from(["*", "**", "?", "a", "b", ".", "[", "{", "!", "-", "é", "[a]", "{a,b}", "a*", "*b", "**b"])
segments = st.one_of(st.just("**"), st.just("*"), st.lists(pieces, min_size=1, max_size=3).map("".join))
patterns = (
    st.lists(segments, min_size=1, max_size=4)
    .map("/".join)
    .filter(lambda pattern: not {".", ".."} & set(pattern.split("/")))
)


def matches(pattern: str, path: str) -> bool:
    """The definition, word by word, without a regular expression.

    A `**` that is a whole segment stands for any number of segments, at least one when it is last; inside a
    segment `**` stands for any characters; `*` for any but `/`; `?` for one but `/`; all else for itself.
    """

    @cache
    def rest(p: int, s: int) -> bool:
        if p == len(pattern):
            return s == len(path)
        if pattern.startswith("**", p):
            end = p
            while end < len(pattern) and pattern[end] == "*":
                end += 1
            whole = (p == 0 or pattern[p - 1] == "/") and (end == len(pattern) or pattern[end] == "/")
            if whole and end - p == 2:
                if end == len(pattern):
                    return s < len(path)
                # none, or as many segments as end before a `/`
                after = end + 1
                starts = [s] + [i + 1 for i in range(s, len(path)) if path[i] == "/" and i > s]
                return any(rest(after, start) for start in starts)
            return any(rest(end, i) for i in range(s, len(path) + 1))
        if pattern[p] == "*":
            stop = s
            while True:
                if rest(p + 1, stop):
                    return True
                if stop == len(path) or path[stop] == "/":
                    return False
                stop += 1
        if s == len(path):
            return False
        if pattern[p] == "?":
            return path[s] != "/" and rest(p + 1, s + 1)
        return pattern[p] == path[s] and rest(p + 1, s + 1)

    return rest(0, 0)


@given(patterns, paths)
@settings(max_examples=2_000, deadline=None)
def test_a_glob_matches_as_it_is_defined(pattern: str, path: str) -> None:
    assert compile_glob(pattern)(path) == matches(pattern, path)
    by_name = compile_for_names(pattern)
    if by_name is not None:
        assert by_name(path.rpartition("/")[2]) == matches(pattern, path)


@given(patterns, paths)
@settings(max_examples=500, deadline=None)
def test_what_a_walk_leaves_out_could_not_have_matched(pattern: str, path: str) -> None:
    if compile_glob(pattern)(path):
        prefix, depth = literal_prefix(pattern), max_depth(pattern)
        assert not prefix or path.startswith(prefix + "/")
        assert depth is None or path.count("/") < depth


@given(patterns.filter(lambda pattern: "/" not in pattern), paths)
@settings(max_examples=500, deadline=None)
def test_a_filter_without_a_slash_looks_at_the_basename(pattern: str, path: str) -> None:
    accepts, excluded = filter_for(pattern), basename_filter([pattern])
    assert accepts is not None
    assert excluded is not None
    name = path.rpartition("/")[2]
    assert excluded(name) == matches(pattern, name)
    assert accepts(path) == matches(f"**/{pattern}", path)


@given(st.sets(paths, max_size=8), patterns)
@settings(max_examples=150, deadline=None)
def test_memory_and_disk_find_the_same(tree: set[str], pattern: str) -> None:
    memory = MemoryFilesystem()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as root:
        host = HostFilesystem(root, durable=False)
        for path in sorted(tree):
            for fs in (memory, host):
                try:
                    fs.write(path, "")
                except (NotADirectoryError, IsADirectoryError):
                    continue  # another path made a file where this one needs a directory
        found = [(match.path, match.is_file) for match in host.glob(pattern)]
        assert found == [(match.path, match.is_file) for match in memory.glob(pattern)]
        everything = [match.path for match in host.glob("**")]
        assert [path for path, _ in found] == [path for path in everything if matches(pattern, path)]
