"""A bundle costs what its limits allow, in a process whose memory is measured; a refused one leaves nothing behind."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from forged_bundles import DIRECTORY_LINE, Forger, plain, repacked
from ws.store import trees
from ws.store.packs import BLOB, TREE, entry_header

IMPORT = r"""
import json, re, sys, time
from ws.errors import WorkspaceError
from ws.manager import Manager
from ws.store.import_limits import ImportLimits

def peak_mib():  # not ru_maxrss, which begins with what the parent had before exec
    return int(re.search(r"VmHWM:\s+(\d+)", open("/proc/self/status").read())[1]) >> 10

home, bundle, limits = sys.argv[1:]
with Manager(home=home, engine="none") as manager:
    before, started = peak_mib(), time.monotonic()
    try:
        manager.import_bundle(bundle, limits=ImportLimits(**json.loads(limits))).remove()
        outcome = "imported"
    except WorkspaceError as error:
        outcome = f"{error.code}: {error.message}"
    print(json.dumps([outcome, peak_mib() - before, time.monotonic() - started]))
"""
FLAT_MIB = 400  # a million paths of one snapshot take three quarters of it
LEFT = (
    "workspaces",
    "names",
    "staging",
    "pending",
    "layers",
    "bases",
    "run",
    "store/objects/pack",
    "store/refs/workspaces",
)


def import_in_child(tmp_path: Path, data: bytes, **limits: Any) -> tuple[str, int, float]:
    """What became of the bundle, the MiB that it took beyond those of the program, and the seconds."""
    home = tmp_path / "elsewhere"
    (tmp_path / "bundle").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", IMPORT, home, tmp_path / "bundle", json.dumps(limits)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outcome, peak_mib, seconds = json.loads(done.stdout)
    if outcome != "imported":
        assert outcome.startswith(("bundle_refused: ", "limit_exceeded: "))
        assert [f"{part}/{name}" for part in LEFT if (home / part).exists() for name in os.listdir(home / part)] == []
    return outcome, peak_mib, seconds


@pytest.fixture
def forger(tmp_path: Path) -> Forger:
    return Forger(tmp_path)


def nested(
    forger: Forger, levels: int, width: int, *, leaf: bytes = DIRECTORY_LINE, items: Sequence[trees.Item] = ()
) -> str:
    """A tree whose directories all hold the same directory, under so many names."""
    writer = forger.writer
    node = trees.add_directory(writer, writer.add(BLOB, leaf), items, [])
    record = writer.add(BLOB, DIRECTORY_LINE)
    for _ in range(levels):
        names = [b"%06d" % number for number in range(width)]
        mode = trees.FILE if node.leaf else trees.DIRECTORY
        node = trees.add_directory(
            writer,
            record,
            [(trees.DIRECTORY, name, node.data) for name in names],
            [(mode, name, node.meta) for name in names],
        )
    return trees.add_root(writer, node).hex()


def a_tree_bomb(forger: Forger) -> bytes:
    return forger.bundle(nested(forger, 12, 10))


def a_wide_and_deep_tree(forger: Forger) -> bytes:
    """Each directory is large, so the walk itself would hold many entries."""
    return forger.bundle(nested(forger, 30, 50_000))


def a_tree_that_is_too_deep(forger: Forger) -> bytes:
    return forger.bundle(nested(forger, 30_000, 1))


def a_file_named_by_everything(forger: Forger) -> bytes:
    blob = forger.writer.add(BLOB, bytes(16 << 20))
    leaf = DIRECTORY_LINE + b"x f644 . 0 %d\n" % (16 << 20)
    return forger.bundle(nested(forger, 2, 300, leaf=leaf, items=[(trees.FILE, b"x", blob)]))


def paths_longer_than_all_memory(forger: Forger) -> bytes:
    writer = forger.writer
    record = writer.add(BLOB, DIRECTORY_LINE)
    node = trees.add_directory(writer, record, [], [])
    for level in range(5_000):
        names = [b"%03d" % number + b"n" * 250 for number in range(500 if level == 0 else 1)]
        mode = trees.FILE if node.leaf else trees.DIRECTORY
        node = trees.add_directory(
            writer,
            record,
            [(trees.DIRECTORY, name, node.data) for name in names],
            [(mode, name, node.meta) for name in names],
        )
    return forger.bundle(trees.add_root(writer, node).hex())


def appended(forger: Forger, *entries: bytes) -> bytes:
    """A sound bundle with more objects, which nothing refers to."""
    return repacked(forger.bundle(forger.tree()), lambda objects: [*[plain(*one) for one in objects], *entries])


def a_large_tree_that_nothing_refers_to(forger: Forger) -> bytes:
    content = b"".join(trees.raw_entry(trees.FILE, b"%07d" % number, bytes(20)) for number in range(1_800_000))
    return appended(forger, plain(TREE, content))


def a_tree_larger_than_any(forger: Forger) -> bytes:
    return appended(forger, entry_header(TREE, 256 << 20) + zlib.compress(bytes(256 << 20)))


def blobs_that_unpack_to_more_than_the_limit(forger: Forger) -> bytes:
    blob = plain(BLOB, bytes(60 << 20))
    return appended(forger, *[blob] * 100)


def a_record_of_millions_of_lines(forger: Forger) -> bytes:
    record = DIRECTORY_LINE + b"".join(b"%07d p644 . 0 -\n" % number for number in range(2_500_000))
    return forger.bundle(forger.tree(record))


def a_record_of_empty_lines(forger: Forger) -> bytes:
    return forger.bundle(forger.tree(DIRECTORY_LINE + b"\n" * (60 << 20)))


def one_file_with_millions_of_xattrs(forger: Forger) -> bytes:
    line = b"x f644 . 0 1 " + b" ".join(b"user.%07d=x" % number for number in range(3_000_000))
    return forger.bundle(
        forger.tree(DIRECTORY_LINE + line + b"\n", [(trees.FILE, b"x", forger.writer.add(BLOB, b"x"))])
    )


def xattrs_on_every_path(forger: Forger) -> bytes:
    leaf = DIRECTORY_LINE[:-1] + b" user.bomb=" + b"x" * 60_000 + b"\n"
    return forger.bundle(nested(forger, 2, 900, leaf=leaf))


def hard_links_without_end(forger: Forger) -> bytes:
    return forger.bundle(forger.tree(links=b"a b\n" * (15 << 20)))


def a_name_of_a_megabyte(forger: Forger) -> bytes:
    name = b"n" * (1 << 20)
    item = (trees.FILE, name, forger.writer.add(BLOB, b"x"))
    return forger.bundle(forger.tree(DIRECTORY_LINE + name + b" f644 . 0 1\n", [item]))


def a_chunked_file_of_two_alternating_chunks(forger: Forger) -> bytes:
    chunks = [forger.writer.add(BLOB, os.urandom(trees.CHUNK_BYTES)) for _ in range(2)]
    count = 200_000
    content = b"".join(trees.raw_entry(trees.FILE, b"%08d" % number, chunks[number % 2]) for number in range(count))
    large = forger.writer.add(TREE, content)
    record = DIRECTORY_LINE + b"x c644 . 0 %d\n" % (count * trees.CHUNK_BYTES)
    return forger.bundle(forger.tree(record, [(trees.DIRECTORY, b"x", large)]))


def a_manifest_of_one_long_list(forger: Forger) -> bytes:
    return forger.bundle(forger.tree(), exclude=[""] * 20_000_000)


@pytest.mark.parametrize(
    "forge",
    [
        a_tree_bomb,
        a_wide_and_deep_tree,
        a_tree_that_is_too_deep,
        a_file_named_by_everything,
        paths_longer_than_all_memory,
        a_large_tree_that_nothing_refers_to,
        a_tree_larger_than_any,
        blobs_that_unpack_to_more_than_the_limit,
        a_record_of_millions_of_lines,
        a_record_of_empty_lines,
        one_file_with_millions_of_xattrs,
        xattrs_on_every_path,
        hard_links_without_end,
        a_name_of_a_megabyte,
        a_chunked_file_of_two_alternating_chunks,
        a_manifest_of_one_long_list,
    ],
)
def test_a_bomb_is_refused_in_flat_memory(forger: Forger, tmp_path: Path, forge: Callable[[Forger], bytes]) -> None:
    limits = {"bytes": 4 << 30} if forge is blobs_that_unpack_to_more_than_the_limit else {}
    outcome, peak_mib, seconds = import_in_child(tmp_path, forge(forger), **limits)
    assert outcome != "imported"
    assert peak_mib < FLAT_MIB, outcome
    assert seconds < 60, outcome


def many_objects(forger: Forger, count: int) -> bytes:
    """A sound workspace of that many different files."""
    record, items = bytearray(DIRECTORY_LINE), []
    for number in range(count):
        name = b"%07d" % number
        record += b"%s f644 . 0 7\n" % name
        items.append((trees.FILE, name, forger.writer.add(BLOB, name)))
    return forger.bundle(forger.tree(bytes(record), items))


def test_the_limits_hold_and_can_be_raised(forger: Forger, tmp_path: Path) -> None:
    data = many_objects(forger, 3000)
    for limits, told in (
        ({"objects": 3000}, "holds 3,007 objects; the limit is 3,000"),
        ({"paths": 3000}, "more than 3,000 paths|more than 1,024 entries"),
        ({"bytes": 100_000}, "more than 100,000 bytes"),
        ({"time_s": 0.0001}, "takes longer than 0.0001 s"),
    ):
        outcome, _, _ = import_in_child(tmp_path, data, **limits)
        assert re.search(told, outcome), outcome
    outcome, _, _ = import_in_child(tmp_path, data, objects=4000, paths=20_000, bytes=10 << 20, time_s=100)
    assert outcome == "imported"


def test_a_large_sound_bundle_takes_flat_memory(forger: Forger, tmp_path: Path) -> None:
    outcome, peak_mib, _ = import_in_child(tmp_path, many_objects(forger, 20_000))
    assert outcome == "imported"
    assert peak_mib < FLAT_MIB
