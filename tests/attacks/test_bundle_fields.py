"""Every field of every JSON and every git object of a sound bundle is changed, one at a time.

Each import is a success or a typed refusal, never a traceback, within seconds. What is imported passes `ws verify` and
`git fsck --strict`; what is refused leaves nothing behind.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forged_bundles import OpenedBundle
from ws.bundles import MANIFEST_REF
from ws.errors import BundleRefused, LimitExceeded
from ws.manager import Manager
from ws.removing import remove_tree
from ws.store import names, trees
from ws.store.packs import BLOB, COMMIT, TREE
from ws.store.repository import Store

SECONDS = 20.0
LEFT = ("workspaces", "names", "staging", "pending", "layers", "bases", "run", "store/objects/pack")

# Values that some reader takes for another: True is 1, 10**9 is a number, "" is no name.
VALUES: list[Any] = [
    False, 0, 1, 2, 10**18, 2**63, -(2**63), 0.5, 1e300, "", "0", "1", ".", "..", "../../x",
    "\0", "\x1b[2J", "é", "\udcff", "a" * 300, "a" * 200_000, [[]], [1], [None], ["x"], {"a": 1}, {"a": "b"},
]  # fmt: skip
FIELDS = [
    b"", b"x", b".", b"..", b"-", b"-1", b"+1", b"0", b"1_0", b"9" * 30, b"9" * 5000, b"0:0", b"-1:-1", b"1:2:3",
    b"4294967295:0", b"4294967294:0", b"f644", b"f99999999999999999999", b"f-1", b"d755", b"z644", b"%41", b"%zz",
    b"\xff", b"\0", b"../x", b"a/b", b"user.x=1 user.x=2", b"trusted.x=1", b"n" * 300,
]  # fmt: skip
RAW = [b"NaN", b"Infinity", b"1" * 5000, b"[" * 100_000, b'"\\ud800"', b'{"a":1,"a":2}', b'"\xff"', b"1_0", b"", b"01"]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> OpenedBundle:
    """A bundle with something of each kind."""
    top = tmp_path_factory.mktemp("made")
    project = top / "project"
    (project / "sub" / "deeper").mkdir(parents=True)
    (project / "sub" / "deeper" / "file").write_text("deep\n")
    (project / "empty").mkdir()
    (project / "run").write_text("#!/bin/sh\n")
    (project / "run").chmod(0o755)
    os.link(project / "run", project / "hard")
    os.symlink("sub/deeper", project / "link")
    os.mkfifo(project / "pipe")
    (project / ".gitattributes").write_text("* text\n")
    with (project / "large").open("wb") as file:
        file.write(b"x" * (1 << 20))
        file.truncate(18 << 20)
    with Manager(home=str(top / "home"), engine="none") as manager:
        os.setxattr(project / "run", "user.note", b"a b=c")
        box = manager.create(project, name="box", env={"A": "1"}, exclude=("*.log",))
        box.exec(["sh", "-c", "echo two > two; rm run"])
        box.snapshot("first", tag="v1")
        box.exec(["sh", "-c", "echo three > sub/three"])
        box.restore("v1")
        box.export_bundle(top / "bundle")
        box.remove()
    return OpenedBundle((top / "bundle").read_bytes())


class Importer:
    """Imports bundles into a WS_HOME that is empty each time."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._count = 0
        self._verified: list[dict[str, str]] = []  # the references of what was found sound: they name all objects
        self._renew()

    def _renew(self) -> None:
        self._count += 1
        self.manager = Manager(home=str(self._top / str(self._count)), engine="none")
        Store(self.manager.home.store).close()  # made now, so that its directories are there to be looked at

    def __call__(self, data: bytes) -> str:
        """The code of the refusal, or "" when it was imported; then what is there was verified."""
        home = self.manager.home
        path = self._top / "bundle"
        path.write_bytes(data)
        started = time.monotonic()
        refusal = ""
        try:
            made = self.manager.import_bundle(path, name="tried")
        except (BundleRefused, LimitExceeded) as error:
            refusal = error.code
        assert time.monotonic() - started < SECONDS
        if refusal:
            assert [f"{part}/{name}" for part in LEFT for name in os.listdir(home.at(part))] == []
            return refusal
        made.snapshots()
        refs = {ref: oid for ref, oid in OpenedBundle(data).refs.items() if ref != MANIFEST_REF}
        if refs not in self._verified:
            self._verified.append(refs)
            assert self.manager.verify().sound
            fsck = ["git", "--git-dir", home.store, "fsck", "--strict", "--no-dangling"]
            checked = subprocess.run(fsck, capture_output=True, text=True, check=False)
            assert checked.returncode == 0, checked.stderr
        made.remove()
        self.manager.close()
        remove_tree(home.root)
        self._renew()
        return ""


@pytest.fixture
def tried(tmp_path: Path) -> Iterator[Importer]:
    importer = Importer(tmp_path)
    yield importer
    importer.manager.close()


_places = itertools.count()  # each place gets a sixth of the values, the next place the next sixth


def changed_values(value: Any) -> Iterator[Any]:
    """The document with one value replaced, one key missing or one key more, at every place."""
    yield from (None, True, 10**9, -1, "x", [], {})
    yield from VALUES[next(_places) % 6 :: 6]
    if isinstance(value, dict):
        for key, inner in value.items():
            yield {name: one for name, one in value.items() if name != key}
            for other in changed_values(inner):
                yield {**value, key: other}
        yield {**value, "surprise": 1}
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            for other in changed_values(inner):
                yield [*value[:at], other, *value[at + 1 :]]
        yield [*value, *value]


def test_the_bundle_itself_is_imported(bundle: OpenedBundle, tried: Importer) -> None:
    assert tried(bundle.rebuilt({})) == ""


def test_every_field_of_the_manifest(bundle: OpenedBundle, tried: Importer) -> None:
    oid = bundle.manifest
    document = json.loads(bundle.objects[oid][1])
    outcomes = {}
    for changed in changed_values(document):
        data = bundle.rebuilt({oid: json.dumps(changed).encode()})
        outcomes[json.dumps(changed)] = tried(data)
    original = json.dumps(document)
    for raw in RAW:
        for field in ("head", "cpus", "format"):
            before, _, after = original.partition(f'"{field}": ')
            text = before.encode() + f'"{field}": '.encode() + raw + b"," + after.partition(",")[2].encode()
            assert tried(bundle.rebuilt({oid: text})) == "bundle_refused"
    assert "" in outcomes.values()  # another name is a name
    assert sum(map(bool, outcomes.values())) > len(outcomes) / 2


@pytest.mark.parametrize("number", [0, 2])
def test_every_field_of_a_snapshot(bundle: OpenedBundle, tried: Importer, number: int) -> None:
    ref = next(ref for ref in bundle.refs if ref.endswith(f"/{number}"))
    oid = bytes.fromhex(bundle.refs[ref])
    content = bundle.objects[oid][1]
    head, _, last = content.rpartition(b"\nWs: ")
    for changed in changed_values(json.loads(last)):
        line = json.dumps(changed, sort_keys=True).encode()
        tried(bundle.rebuilt({oid: head + b"\nWs: " + line + b"\n"}))
    for raw in RAW:
        for key in (b'"number": ', b'"parent": ', b'"created_ns": ', b'"kind": ', b'"skipped": '):
            before, _, after = last.partition(key)
            line = before + key + raw + b"," + after.partition(b",")[2]
            data = bundle.rebuilt({oid: head + b"\nWs: " + line})
            assert tried(data) == "bundle_refused"
    for wrong in (
        content.replace(b"author ws <ws@localhost>", b"author ws <ws@localhost\x00>"),
        content.replace(b"author ws", b"author <x> ws"),
        content.replace(b"+0000", b"+9999"),
        content.replace(b"\nauthor", b"\ngpgsig x\nauthor"),
        content.replace(b"tree ", b"tree  "),
        b"parent " + b"1" * 40 + b"\n" + content,
        content.replace(b"\nauthor", b"\nparent " + b"2" * 40 + b"\nauthor"),
        content + b"\n",
        content[:-1],
        content.replace(b"\n\n", b"\n", 1),
        b"",
        b"\n" * 100_000,
    ):
        assert tried(bundle.rebuilt({oid: wrong})) == "bundle_refused"


def test_every_field_of_every_record(bundle: OpenedBundle, tried: Importer) -> None:
    records = [oid for oid, (kind, data) in bundle.objects.items() if kind == BLOB and data.startswith(b". d")]
    assert len(records) > 4
    refused = count = 0
    turn = itertools.count()  # each place gets a fifth of the values, the next place the next fifth
    for oid in records:
        content = bundle.objects[oid][1]
        lines = content.split(b"\n")[:-1]
        for at, line in enumerate(lines):
            fields = line.split(b" ")
            for number in range(len(fields)):
                for value in FIELDS[next(turn) % 5 :: 5]:
                    other = b" ".join([*fields[:number], value, *fields[number + 1 :]])
                    changed = b"\n".join([*lines[:at], other, *lines[at + 1 :]]) + b"\n"
                    if changed != content:
                        count += 1
                        refused += bool(tried(bundle.rebuilt({oid: changed})))
            for changed_lines in ([*lines[:at], *lines[at + 1 :]], [*lines, line], [line, *lines]):
                changed = b"\n".join(changed_lines) + b"\n"
                tried(bundle.rebuilt({oid: changed}))
    assert refused > count / 2


def test_every_entry_of_every_tree(bundle: OpenedBundle, tried: Importer) -> None:
    everything = [
        next(oid for oid, (kind, _) in bundle.objects.items() if kind == wanted) for wanted in (BLOB, TREE, COMMIT)
    ]
    for oid in [oid for oid, (kind, _) in bundle.objects.items() if kind == TREE]:
        items = trees.decode_tree(bundle.objects[oid][1])
        if not items:
            continue  # an empty directory
        for at, (mode, name, target) in list(enumerate(items))[:12]:  # of a large file there are many alike
            others = [
                (other, name, target) for other in (b"100644", b"100755", b"120000", b"40000", b"160000", b"100666")
            ]
            others += [
                (mode, other, target)
                for other in (b".git", b"..", b"a/b", b"=x", b"\xff", b"n" * 600, b"GIT~1", b"=dir")
            ]
            others += [(mode, name, other) for other in (*everything, oid, bytes(20))]
            for other in others:
                changed = trees.encode_tree([*items[:at], other, *items[at + 1 :]])
                if changed != bundle.objects[oid][1]:
                    tried(bundle.rebuilt({oid: changed}))
            without = tried(bundle.rebuilt({oid: trees.encode_tree([*items[:at], *items[at + 1 :]])}))
            assert without or name == names.LINKS  # a tree whose hard links are not listed has none
        assert tried(bundle.rebuilt({oid: bundle.objects[oid][1][:-1]}))
        assert tried(bundle.rebuilt({oid: bundle.objects[oid][1] * 2}))


def test_every_other_blob_and_every_reference(bundle: OpenedBundle, tried: Importer) -> None:
    for oid, (kind, data) in bundle.objects.items():
        if kind == BLOB and oid != bundle.manifest and not data.startswith(b". d"):
            for changed in (b"", data + b"x", data[:-1], bytes(len(data)), b"\n" * 1000, b"a b\n", b"../../x hard\n"):
                tried(bundle.rebuilt({oid: changed}))
    refs = dict(bundle.refs)
    for ref, oid in refs.items():
        for other in [*refs.values(), "0" * 40]:
            bundle.refs = {**refs, ref: other}
            if other in {old.hex() for old in bundle.objects}:
                tried(bundle.rebuilt({}))
        for renamed in (f"{ref}0", f"{ref}.lock", "refs/heads/main", "HEAD", ref.upper(), f"{ref}/../x"):
            bundle.refs = {renamed if name == ref else name: value for name, value in refs.items()}
            if bundle.refs.keys() >= {"refs/ws/workspace"}:
                assert tried(bundle.rebuilt({})), renamed
        assert oid
    bundle.refs = refs
