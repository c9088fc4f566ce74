"""A bundle is taken in whole and checked, or not at all: whatever it holds, nothing lands outside, nothing is left."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forged_bundles import Forger, plain, repacked
from ws.errors import AlreadyExists, BundleRefused, InvalidRequest, LimitExceeded
from ws.layout import Home, Ids
from ws.manager import Manager
from ws.store import meta, names, trees
from ws.store.import_limits import ImportLimits
from ws.store.packs import BLOB, COMMIT, TREE, entry_header
from ws.workspace import Workspace

ME = Ids(1000, 1000, os.geteuid(), os.getegid())


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    with Manager(home=str(tmp_path / "home"), engine="none") as manager:
        yield manager
        for info in manager.list():
            manager.remove(info.id)


@pytest.fixture
def box(manager: Manager, tmp_path: Path) -> Iterator[Workspace]:
    project = tmp_path / "project"
    (project / "src").mkdir(parents=True)
    (project / "src" / "main.py").write_text("one\n")
    os.link(project / "src" / "main.py", project / "hard")
    workspace = manager.create(project, name="box", env={"A": "1"}, exclude=("*.log",))
    workspace.exec(["sh", "-c", "echo two > two"])
    workspace.snapshot("first", tag="v1")
    workspace.exec(["sh", "-c", "rm two; echo three > three"])
    yield workspace
    workspace.close()


def left_in(home: Home) -> list[str]:
    parts = ("workspaces", "names", "staging", "pending", "layers", "bases", "run")
    return [f"{part}/{name}" for part in parts for name in os.listdir(home.at(part))]


def elsewhere(tmp_path: Path) -> Manager:
    return Manager(home=str(tmp_path / "elsewhere"), engine="none")


def test_a_workspace_arrives_with_all_its_snapshots(box: Workspace, tmp_path: Path) -> None:
    done = box.export_bundle(tmp_path / "f")
    assert done.snapshots == 2
    subprocess.run(["git", "init", "-q", tmp_path / "git"], check=True)
    stock = ["git", "-C", str(tmp_path / "git")]
    subprocess.run([*stock, "bundle", "verify", tmp_path / "f"], check=True, capture_output=True)
    subprocess.run([*stock, "fetch", "-q", tmp_path / "f", "refs/*:refs/*"], check=True)
    subprocess.run([*stock, "fsck", "--strict"], check=True, capture_output=True)
    with elsewhere(tmp_path) as there:
        arrived = there.import_bundle(tmp_path / "f", trust_spec=True)
        assert arrived.name == "box"
        assert arrived.id != box.id
        ours, theirs = box.snapshots(), arrived.snapshots()
        assert [(one.commit, one.tag, one.message) for one in theirs] == [
            (one.commit, one.tag, one.message) for one in ours
        ]
        record = arrived.record()
        assert (record.source, record.exclude, record.options.env) == (None, ("*.log",), {"A": "1"})
        assert arrived.exec(["sh", "-c", "ls; echo $A; stat -c %h hard"]).stdout == "hard\nsrc\nthree\n1\n2\n"
        arrived.restore(theirs[1])
        assert arrived.exec(["ls"]).stdout == "hard\nsrc\ntwo\n"
        assert arrived.snapshot("more").number == 4
        assert there.verify().sound
        again = there.import_bundle(tmp_path / "f", name="again")
        assert again.exec(["cat", "three"]).stdout == "three\n"
        for workspace in (arrived, again):
            workspace.remove()
        assert [entry for entry in left_in(there.home) if not entry.startswith("bases/")] == []


def test_nothing_is_written_over(box: Workspace, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("mine")
    with pytest.raises(AlreadyExists):
        box.export_bundle(tmp_path / "taken")
    with pytest.raises(AlreadyExists):
        box.export_dir(tmp_path / "taken")
    assert (tmp_path / "taken").read_text() == "mine"
    with pytest.raises(InvalidRequest, match="cannot write"):
        box.export_dir(tmp_path / "no" / "such" / "place")
    assert sorted(os.listdir(tmp_path)) == ["home", "project", "taken"]


def refused(tmp_path: Path, data: bytes, match: str, limits: ImportLimits | None = None) -> None:
    (tmp_path / "bad").write_bytes(data)
    with elsewhere(tmp_path) as there:
        with pytest.raises((BundleRefused, InvalidRequest, LimitExceeded), match=match):
            there.import_bundle(tmp_path / "bad", limits=limits)
        assert left_in(there.home) == []
        packs = Path(there.home.store, "objects", "pack")
        assert not packs.exists() or os.listdir(packs) == []


def test_garbage_is_refused_and_nothing_is_left(box: Workspace, tmp_path: Path) -> None:
    box.export_bundle(tmp_path / "f")
    good = (tmp_path / "f").read_bytes()
    pack = good.index(b"\n\nPACK") + 2
    refused(tmp_path, b"", "not a bundle")
    refused(tmp_path, b"\x7fELF" + bytes(1000), "not a bundle")
    refused(tmp_path, good[:16], "cannot be read")
    refused(tmp_path, good[: pack + 5], "cut short")
    refused(tmp_path, good[:-1], "cut short")
    refused(tmp_path, good + b"x", "follows the end")
    refused(tmp_path, good[:pack] + b"PACK" + struct.pack(">II", 2, 0xFFFFFFFF) + good[pack + 12 :], ".")
    refused(tmp_path, good.replace(b"refs/workspaces/", b"refs/../../../tmp/"), "none of ws")
    refused(tmp_path, good.replace(b"/tags/v1", b"/tags/.."), "cannot be read|none of ws|contradict")
    refused(tmp_path, good.replace(b" refs/ws/workspace", b" refs/ws/elsewhere"), "none of ws")
    refused(tmp_path, b"# v2 git bundle\n" + b"x" * 70000, "cannot be read")
    for position in range(pack + 12, len(good), max(1, (len(good) - pack) // 25)):
        refused(tmp_path, good[:position] + bytes((good[position] ^ 0x41,)) + good[position + 1 :], ".")
    os.mkfifo(tmp_path / "pipe")
    with elsewhere(tmp_path) as there, pytest.raises(BundleRefused):
        there.import_bundle(tmp_path / "pipe")


@pytest.fixture
def forger(tmp_path: Path) -> Forger:
    return Forger(tmp_path)


def test_the_forger_can_make_a_bundle_that_is_taken(forger: Forger, tmp_path: Path) -> None:
    (tmp_path / "fine").write_bytes(forger.bundle(forger.tree()))
    with elsewhere(tmp_path) as there:
        made = there.import_bundle(tmp_path / "fine")
        assert made.record().source is None  # /etc of this machine is not what was meant
        assert made.record().options.runtime is None
        made.remove()


def file_item(forger: Forger, name: bytes, data: bytes = b"x") -> trees.Item:
    return (trees.FILE, name, forger.writer.add(BLOB, data))


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        (b"../../escaped p644 . 0 -\n", []),
        (b".. p644 . 0 -\n", []),
        (b"/tmp/escaped p644 . 0 -\n", []),
        (b"a%2Fb p644 . 0 -\n", []),
        (b"x f644 . 0 1 trusted.overlay.redirect=/etc\n", [b"x"]),
        (b"x f644 . 0 1 security.capability=x\n", [b"x"]),
        (b"x z644 . 0 1\n", [b"x"]),
        (b"x f644 . 0 99\n", [b"x"]),
        (b"x f7777777 . 0 1\n", [b"x"]),
        (b"x f644 -1:-1 0 1\n", [b"x"]),
        (b"x f644 99999999999:0 0 1\n", [b"x"]),
        (b"x f644 . 999999999999999999999999 1\n", [b"x"]),
        (b"x l777 . 0 0\n", [b"x"]),
        (b"missing f644 . 0 1\n", []),
        (b"x c644 . 0 1\n", [b"x"]),
        (b"garbage\n", []),
    ],
)
def test_records_that_no_directory_can_have_are_refused(
    forger: Forger, tmp_path: Path, lines: bytes, named: list[bytes]
) -> None:
    items = [file_item(forger, name) for name in named]
    tree = forger.tree(b". d755 1000:1000 0 -\n" + lines, items)
    refused(tmp_path, forger.bundle(tree), "damaged")
    assert not (tmp_path / "escaped").exists()


@pytest.mark.parametrize("name", [b"..", b".", b"=..", b"a\\..\\=..", b"a\\..\\b"])
def test_trees_with_names_that_lead_out_are_refused(forger: Forger, tmp_path: Path, name: bytes) -> None:
    own = names.unescape(name) if name.startswith(b"a") else b"x"
    tree = forger.tree(b". d755 1000:1000 0 -\n%s f644 . 0 1\n" % meta.quote(own), [file_item(forger, name)])
    data = forger.bundle(tree)
    if name == b"a\\..\\b":  # a name with backslashes is a name like any other
        (tmp_path / "odd").write_bytes(data)
        with elsewhere(tmp_path) as there:
            there.import_bundle(tmp_path / "odd").remove()
    else:
        refused(tmp_path, data, "damaged|git would refuse")


@pytest.mark.parametrize("links", [b"x ../../../etc/passwd\n", b"x /etc/passwd\n", b"x y\n", b"x x\n", b"x\n"])
def test_hard_links_to_anything_but_equal_files_of_the_tree_are_refused(
    forger: Forger, tmp_path: Path, links: bytes
) -> None:
    record = b". d755 1000:1000 0 -\nx f644 . 0 1\ny f644 . 0 2\n"
    tree = forger.tree(record, [file_item(forger, b"x"), file_item(forger, b"y", b"yy")], links)
    refused(tmp_path, forger.bundle(tree), "damaged")


@pytest.mark.parametrize(
    "change",
    [
        {"name": "../../x"},
        {"name": "No Good"},
        {"uid": -1},
        {"uid": "0"},
        {"head": 7},
        {"undo": 9},
        {"source_tree": "1" * 40},
        {"source_tree": "not an id"},
        {"format": 2},
        {"surprise": True},
        {"exclude": ["\0"]},
        {"options": {}},
    ],
)
def test_manifests_that_describe_nothing_are_refused(forger: Forger, tmp_path: Path, change: dict[str, Any]) -> None:
    refused(tmp_path, forger.bundle(forger.tree(), **change), ".")


@pytest.mark.parametrize(
    "facts",
    [{"kind": "evil"}, {"skipped": 7}, {"skipped": [1]}, {"parent": "x"}, {"paths_changed": "many"}, {"root": None}],
)
def test_snapshots_that_say_nonsense_are_refused(forger: Forger, tmp_path: Path, facts: dict[str, Any]) -> None:
    forger.facts |= facts
    refused(tmp_path, forger.bundle(forger.tree()), "cannot be read")


def test_bombs_deltas_and_missing_objects_are_refused(forger: Forger, tmp_path: Path) -> None:
    data = forger.bundle(forger.tree())
    everything = lambda objects: [plain(*one) for one in objects]  # noqa: E731
    assert repacked(data, everything)[-20:] != b""
    bomb = entry_header(BLOB, 10) + zlib.compress(bytes(50 << 20))
    refused(tmp_path, repacked(data, lambda objects: [*everything(objects), bomb]), "size it says")
    huge = entry_header(BLOB, 1 << 40) + zlib.compress(b"x")
    refused(tmp_path, repacked(data, lambda objects: [*everything(objects), huge]), "the limit is")
    delta = entry_header(7, 3) + bytes(20) + zlib.compress(b"abc")
    refused(tmp_path, repacked(data, lambda objects: [*everything(objects), delta]), "does not write")
    unsorted = trees.raw_entry(trees.FILE, b"b", bytes(20)) + trees.raw_entry(trees.FILE, b"a", bytes(20))
    refused(tmp_path, repacked(data, lambda objects: [*everything(objects), plain(TREE, unsorted)]), "git would refuse")
    gitlink = trees.raw_entry(b"160000", b"sub", bytes(20))
    refused(tmp_path, repacked(data, lambda objects: [*everything(objects), plain(TREE, gitlink)]), "git would refuse")
    for kind in (BLOB, TREE, COMMIT):
        without = lambda objects, kind=kind: everything([one for one in objects if one[0] != kind])  # noqa: E731
        refused(tmp_path, repacked(data, without), "damaged")


def test_a_tree_that_would_fill_the_disk_is_refused(forger: Forger, tmp_path: Path) -> None:
    chunk = forger.writer.add(BLOB, os.urandom(trees.CHUNK_BYTES))
    count = 20_000
    chunks = trees.encode_tree((trees.FILE, b"%08d" % number, chunk) for number in range(count))
    large = forger.writer.add(TREE, chunks)
    record, items = b". d755 1000:1000 0 -\n", []
    for number in range(400):
        record += b"%03d c644 . 0 %d\n" % (number, count * trees.CHUNK_BYTES)
        items.append((trees.DIRECTORY, b"%03d" % number, large))
    data = forger.bundle(forger.tree(record, items))
    refused(tmp_path, data, "more than 17,179,869,184 bytes")
    refused(tmp_path, data, "there is room for", limits=ImportLimits(bytes=1 << 50))


def test_nothing_that_a_bundle_asks_for_is_taken_unasked(forger: Forger, tmp_path: Path) -> None:
    forger.manifest["options"] |= {"network": "bridge", "env": {"LD_PRELOAD": "/x\x1b[2J"}, "pids": 99999, "new": [1]}
    forger.manifest["options"] |= {"read_write_root": True, "runtime": "runsc"}
    forger.manifest["exclude"] = ["*.log"]
    (tmp_path / "f").write_bytes(forger.bundle(forger.tree()))
    with elsewhere(tmp_path) as there:
        for trust in (False, True):
            told: list[Any] = []
            made = there.import_bundle(tmp_path / "f", name="n", trust_spec=trust, report=told.append)
            record = made.record()
            changes = {change.field: (change.asked, change.used) for change in told[0].changes}
            assert {
                "network",
                "env",
                "pids",
                "memory_bytes",
                "cpus",
                "read_write_root",
                "exclude",
                "new",
            } <= changes.keys()
            assert record.options.env == ({"LD_PRELOAD": "/x\x1b[2J"} if trust else {})
            assert (record.options.network, record.options.pids) == (("bridge", 99999) if trust else ("none", 512))
            assert (record.options.read_write_root, record.exclude) == ((True, ("*.log",)) if trust else (False, ()))
            assert changes["network"] == ("bridge", "bridge" if trust else "none")
            made.remove()


def test_a_runtime_that_is_a_path_is_never_taken(forger: Forger, tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(forger.bundle(forger.tree()))  # /tmp/evil
    with elsewhere(tmp_path) as there:
        with pytest.raises(BundleRefused, match="not a name"):
            there.import_bundle(tmp_path / "f", trust_spec=True)
        assert left_in(there.home) == []


def test_no_message_of_an_import_carries_escape_sequences(forger: Forger, tmp_path: Path) -> None:
    forger.manifest["options"] |= {"env": {"A\x1b]0;x\x07": "\x1b[2J\u202e"}}
    name = b"\x1b[31m\n"
    record = b". d755 1000:1000 0 -\n%s f644 . 0 9\n" % meta.quote(name)
    good = forger.bundle(forger.tree())
    (tmp_path / "good\x1b[2J").write_bytes(good)
    other = tmp_path / "other"
    other.mkdir()
    bad = Forger(other)
    (tmp_path / "bad\x1b[2J").write_bytes(bad.bundle(bad.tree(record, [file_item(bad, name)])))
    env = {**os.environ, "WS_HOME": str(tmp_path / "cli"), "WS_ENGINE": "none"}
    for words in (
        ["good\x1b[2J"],
        ["bad\x1b[2J"],
        ["none\x1b[2J"],
        ["good\x1b[2J", "--name", "\x1b[2J"],
        ["bad\x1b[2J", "--json"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "ws", "import", *words], cwd=tmp_path, env=env, capture_output=True, check=False
        )
        assert b"\x1b" not in done.stdout + done.stderr, words
        assert b"\x07" not in done.stdout + done.stderr, words
        assert b"defect" not in done.stderr, done.stderr
    subprocess.run([sys.executable, "-m", "ws", "rm", "--all", "--yes"], env=env, capture_output=True, check=True)
