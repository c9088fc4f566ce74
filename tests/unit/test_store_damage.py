"""Damage in the store is not relied on, is repaired from what is at hand, and stops only who need what is gone."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from ws import bases
from ws.errors import StateUnusable, StoreDamaged
from ws.layout import Home, Ids, open_home
from ws.store import commits, gc, packs, references, trees, vouching
from ws.store.commits import Snapshot
from ws.store.gathering import Owners
from ws.store.packs import BLOB, PackWriter, object_id
from ws.store.reading import Rules
from ws.store.repository import Store
from ws.store.scan import scan_directory, scan_tree
from ws.store.statcache import StatCache
from ws.store.sweeping import sweep
from ws.store.verify import find_damage

CONTENT = random.Random(5).randbytes(3000)
OTHER = random.Random(6).randbytes(3000)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "project/sub").mkdir(parents=True)
    (tmp_path / "project/a").write_bytes(CONTENT)
    (tmp_path / "project/sub/b").write_bytes(OTHER)
    return tmp_path / "project"


def take(path: str, project: Path, workspace: str = "w") -> Snapshot:
    """A snapshot as a new process takes it."""
    top = os.open(project, os.O_RDONLY)
    try:
        with Store(path) as store, store.writing(quick=True) as writer:
            scan = scan_tree(store, writer, top, Rules(os.fstat(top).st_dev, Owners()))
            newest = commits.newest_snapshot(store, workspace)
            snapshot = commits.add_snapshot(
                writer,
                workspace=workspace,
                number=commits.next_number(store, workspace),
                tree=scan.tree.hex(),
                parents=[newest.id] if newest else [],
                created_ns=commits.next_number(store, workspace),
            )
            writer.finish(commits.references(store, snapshot))
    finally:
        os.close(top)
    return snapshot


def flip(path: str, oid: bytes) -> str:
    """Change a byte in the middle of a stored object; the pack it is in."""
    with Store(path) as store:
        for pack in store.all_packs():
            position = pack.find(oid)
            if position >= 0:
                data = pack.read(position)[1]
                with open(pack.name + ".pack", "r+b") as file:
                    file.seek(pack.index.offset(position) + 12 + len(data) // 4)
                    byte = file.read(1)
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([byte[0] ^ 0x41]))
                return pack.name
    raise AssertionError("the object is not stored")


def fsck(path: str) -> int:
    return subprocess.run(["git", "--git-dir", path, "fsck", "--strict"], capture_output=True, check=False).returncode


def tree_ids(path: str, snapshot: Snapshot) -> dict[str, bytes]:
    """One object of each kind that a snapshot is made of."""
    with Store(path) as store:
        root = trees.read_root(store, bytes.fromhex(snapshot.tree))
        listing = trees.read_listing(store, root.node)
        return {
            "content": listing.files[b"a"].oid,
            "content below": trees.read_listing(store, listing.directories[b"sub"]).files[b"b"].oid,
            "tree": listing.directories[b"sub"].data,
            "record": listing.directories[b"sub"].meta,
            "root": bytes.fromhex(snapshot.tree),
        }


@pytest.mark.parametrize("which", ["content", "content below", "tree", "record", "root"])
@pytest.mark.parametrize("large", [False, True])
def test_a_damaged_object_is_stored_again_by_the_next_snapshot_that_has_its_bytes(
    path: str, project: Path, which: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`large`: its pack is beyond what a snapshot checks as a whole, so the object is compared by itself."""
    first = take(path, project)
    flip(path, tree_ids(path, first)[which])
    if large:
        monkeypatch.setattr("ws.store.repository.QUICK_BYTES", 10)
    again = take(path, project)
    assert again.tree == first.tree
    with Store(path) as store:
        assert find_damage(store, again.tree) == []
        assert find_damage(store, first.tree) == []
        gc.collect(store)
        assert find_damage(store, again.tree) == []
    assert fsck(path) == 0, "the collector keeps no damaged copy"


def test_stock_git_reads_the_copy_that_was_stored_again(path: str, project: Path) -> None:
    first = take(path, project)
    oid = tree_ids(path, first)["content"]
    flip(path, oid)
    take(path, project)
    done = subprocess.run(["git", "--git-dir", path, "cat-file", "blob", oid.hex()], capture_output=True, check=True)
    assert done.stdout == CONTENT


def test_a_damaged_chunk_of_a_large_file_is_stored_again(path: str, project: Path) -> None:
    data = random.Random(9).randbytes(trees.CHUNKED_FROM_BYTES + 5000)
    (project / "large").write_bytes(data)
    first = take(path, project)
    flip(path, object_id(BLOB, data[trees.CHUNK_BYTES : 2 * trees.CHUNK_BYTES]))
    again = take(path, project)
    with Store(path) as store:
        assert find_damage(store, again.tree) == []
    assert again.tree == first.tree


def test_deltas_of_a_damaged_base_are_read_from_the_copy_that_was_stored_again(path: str, project: Path) -> None:
    snapshots = []
    for number in range(6):
        (project / "a").write_bytes(b"%d" % number + CONTENT)
        snapshots.append(take(path, project))
    with Store(path) as store:
        gc.collect(store)
    newest = tree_ids(path, snapshots[-1])["content"]  # stored whole, and all older ones as differences
    flip(path, newest)
    with Store(path) as store:
        assert find_damage(store, snapshots[0].tree)
    take(path, project)
    with Store(path) as store:
        assert [find_damage(store, one.tree) for one in snapshots] == [[]] * 6


def test_a_file_that_is_taken_from_the_stat_cache_is_read_again_when_its_pack_is_damaged(
    path: str, project: Path
) -> None:
    with Store(path) as store, store.writing() as writer:
        scan = scan_directory(store, writer, str(project))
        writer.finish()
    for file in ("a", "sub/b"):
        os.utime(project / file, ns=(0, 0))
    with Store(path) as store, store.writing() as writer:
        scan = scan_directory(store, writer, str(project), cache=StatCache.from_bytes(scan.cache.to_bytes()))
        writer.finish()
    flip(path, object_id(BLOB, CONTENT))
    (project / "new").write_text("so that the directories are read at all")
    with Store(path) as store, store.writing() as writer:
        scan = scan_directory(store, writer, str(project), cache=StatCache.from_bytes(scan.cache.to_bytes()))
        writer.finish()
    with Store(path) as store:
        assert find_damage(store, scan.tree.hex()) == []


def test_damage_that_comes_while_a_process_lives_is_noticed(path: str, project: Path) -> None:
    """By the times of the file: what was written to is checked again."""
    with Store(path, lasting=True) as store:
        with store.writing() as writer:
            oid = writer.add(BLOB, CONTENT)
            writer.finish()
        with store.writing() as writer:
            writer.add(BLOB, CONTENT)
            assert writer.finish() is None
    flip(path, oid)
    with Store(path, lasting=True) as store, store.writing() as writer:
        writer.add(BLOB, CONTENT)
        assert writer.finish() is not None


def test_a_pack_is_checked_once_in_a_boot(path: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    real = vouching.is_whole
    monkeypatch.setattr(vouching, "is_whole", lambda path: checked.append(path) or real(path))  # type: ignore[func-returns-value]
    take(path, project)
    for _ in range(3):
        take(path, project)
    assert len(checked) == len(set(checked)), "never one twice"
    before = len(checked)
    monkeypatch.setattr(vouching, "boot_id", lambda: "another-boot")
    take(path, project)
    assert len(checked) > before
    again = len(checked)
    take(path, project)
    assert len([one for one in checked[again:] if one in checked[:again]]) == 0


def test_what_a_snapshot_checks_is_bounded(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store(path) as store, store.writing() as writer:
        writer.add(BLOB, os.urandom(vouching.QUICK_BYTES + 1000))
        writer.add(BLOB, CONTENT)
        writer.finish()
    monkeypatch.setattr(vouching, "is_whole", lambda path: pytest.fail(f"{path} is too large to be read for this"))
    with Store(path) as store, store.writing(quick=True) as writer:
        writer.add(BLOB, CONTENT)
        assert writer.finish() is None


def test_a_ledger_that_cannot_be_read_or_written_fails_nothing(path: str, project: Path) -> None:
    take(path, project)
    for content in (b"", b"\xff" * 100, b"x y z\n" * 100, None):
        shutil.rmtree(os.path.join(path, "ws.checked"), ignore_errors=True)
        if content is None:
            os.unlink(os.path.join(path, "ws.checked"))
            os.mkdir(os.path.join(path, "ws.checked"))
        else:
            Path(path, "ws.checked").write_bytes(content)
        assert take(path, project).tree


def test_damaged_packs_are_not_merged_into_one_with_a_checksum_that_fits(path: str) -> None:
    ids = []
    for number in range(12):
        with Store(path) as store, store.writing() as writer:
            ids.append(writer.add(BLOB, b"%d" % number + CONTENT))
            writer.finish()
    damaged = flip(path, ids[3])
    with Store(path) as store:
        store.refresh()
        assert gc.consolidate(store)
        assert os.path.exists(damaged + ".pack")
        with store.writing() as writer:
            writer.add(BLOB, b"3" + CONTENT)
            assert writer.finish()
        assert store.read(ids[3], BLOB) == b"3" + CONTENT


# -- indexes, references, and things in the place of files --------------------------------------------------------


def truncate(path: str) -> None:
    os.truncate(path, 1050)


def garble(path: str) -> None:
    data = bytearray(Path(path).read_bytes())
    data[1100] ^= 1
    Path(path).write_bytes(data)


def replace_by_directory(path: str) -> None:
    os.unlink(path)
    os.makedirs(os.path.join(path, "with something in it"))


def replace_by_fifo(path: str) -> None:
    os.unlink(path)
    os.mkfifo(path)


def replace_by_link(path: str) -> None:
    os.rename(path, path + ".moved")
    os.symlink(path + ".moved", path)


def empty(path: str) -> None:
    os.truncate(path, 0)


def put_another(path: str) -> None:
    with Store(os.path.dirname(path) + "-other") as other, other.writing() as writer:
        writer.add(BLOB, os.urandom(50))
        pack = writer.finish()
    shutil.copy(str(pack).replace(".pack", ".idx"), path)


DAMAGES = [truncate, garble, replace_by_directory, replace_by_fifo, replace_by_link, empty, put_another, os.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("deltas", [False, True])
def test_a_bad_index_is_built_anew_from_its_pack(path: str, project: Path, damage: object, deltas: bool) -> None:
    first = take(path, project)
    (project / "a").write_bytes(b"x" + CONTENT)
    second = take(path, project)
    if deltas:
        with Store(path) as store:
            gc.collect(store)
    with Store(path) as store:
        indexes = {pack.name + ".idx": Path(pack.name + ".idx").read_bytes() for pack in store.all_packs()}
    for index in indexes:
        damage(index)  # type: ignore[operator]
    third = take(path, project, "another")
    with Store(path) as store:
        assert [find_damage(store, one.tree) for one in (first, second, third)] == [[]] * 3
        assert sweep(store)
    for index, data in indexes.items():
        assert Path(index).read_bytes() == data, "the same index, byte for byte"
    with Store(path) as store:
        gc.collect(store)
        assert find_damage(store, first.tree) == []
    assert fsck(path) == 0


def test_of_a_pack_that_is_damaged_too_what_comes_before_the_damage_is_kept(path: str) -> None:
    with Store(path) as store, store.writing() as writer:
        ids = [writer.add(BLOB, random.Random(number).randbytes(9000)) for number in range(10)]
        pack = writer.finish()
    assert pack
    os.truncate(pack, 50_000)
    os.unlink(pack.replace(".pack", ".idx"))
    with Store(path) as store:
        assert store.read(ids[0], BLOB) == random.Random(0).randbytes(9000)
        assert store.read(ids[4], BLOB) == random.Random(4).randbytes(9000)
        with pytest.raises(StoreDamaged):
            store.read(ids[8], BLOB)


@pytest.mark.parametrize("damage", [replace_by_directory, replace_by_fifo, empty, os.unlink])
def test_a_bad_pack_stops_only_those_who_need_it(path: str, project: Path, tmp_path: Path, damage: object) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/x").write_bytes(b"of its own" * 100)
    sound = take(path, tmp_path / "elsewhere", "v")
    victim = take(path, project)
    with Store(path) as store:
        oid = tree_ids(path, victim)["content"]
        (pack,) = (pack.name for pack in store.all_packs() if pack.find(oid) >= 0)
    damage(pack + ".pack")  # type: ignore[operator]
    with Store(path) as store:
        assert find_damage(store, sound.tree) == []
        assert find_damage(store, victim.tree)
        assert gc.collect(store).lost == ("w",)
    again = take(path, project, "new")
    with Store(path) as store:
        assert find_damage(store, again.tree) == []


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("content", [b"", b"garbage", b"\xff" * 41, b"0" * 40, None, "gone"])
def test_a_bad_reference_is_found_again_and_breaks_nothing(
    path: str, project: Path, content: bytes | str | None, packed: bool
) -> None:
    snapshots = []
    for number in range(4):
        (project / "a").write_bytes(b"%d" % number)
        snapshots.append(take(path, project))
    ids = [one.id for one in snapshots]
    with Store(path) as store:
        if packed:
            assert references.pack_references(store)
        bad = os.path.join(path, "refs/workspaces/w/3")
        if content is None:
            shutil.rmtree(bad, ignore_errors=True)
            Path(bad).unlink(missing_ok=True)
            os.mkdir(bad)
        elif isinstance(content, bytes):
            Path(bad).write_bytes(content)
        elif packed:
            listing = Path(path, "packed-refs").read_text()
            Path(path, "packed-refs").write_text(listing.replace(f"{ids[3]} refs/workspaces/w/3\n", ""))
        else:
            os.unlink(bad)
        assert commits.find_snapshot(store, "w", ids[1][:12]).id == ids[1]
        done = gc.collect(store, counts=lambda: {"w": 4})
        assert done.lost == ()
        assert commits.snapshot_ids(store, "w") == ids
        assert [find_damage(store, one.tree) for one in snapshots] == [[]] * 4
    assert fsck(path) == 0


@pytest.mark.parametrize("damage", [replace_by_directory, replace_by_fifo, empty, os.unlink])
def test_a_bad_list_of_references_is_written_anew(path: str, project: Path, damage: object) -> None:
    ids = []
    for number in range(4):
        (project / "a").write_bytes(b"%d" % number)
        ids.append(take(path, project).id)
    with Store(path) as store:
        references.pack_references(store)
        damage(os.path.join(path, "packed-refs"))  # type: ignore[operator]
        assert gc.collect(store, counts=lambda: {"w": 4}).lost == ()
        assert commits.snapshot_ids(store, "w") == ids


def test_a_damaged_count_hides_no_reference_that_can_be_found_again(path: str, project: Path) -> None:
    ids = []
    for number in range(4):
        (project / "a").write_bytes(b"%d" % number)
        ids.append(take(path, project).id)
    os.unlink(os.path.join(path, "refs/workspaces/w/2"))
    with Store(path) as store:
        assert gc.collect(store, counts=lambda: {"w": 1 << 31}).lost == ("w",)
        assert commits.snapshot_ids(store, "w") == ids


def test_nothing_is_collected_while_a_reference_is_lost_for_good(path: str, project: Path) -> None:
    take(path, project)
    with Store(path) as store:
        with store.writing() as writer:
            rubbish = writer.add(BLOB, b"that nothing needs")
            writer.finish()
        done = gc.collect(store, counts=lambda: {"w": 2})
        assert done.lost == ("w",)
        assert store.read(rubbish, BLOB)


@pytest.mark.parametrize("name", ["ws.lock", "ws.gc.lock", "ws.refs.lock"])
@pytest.mark.parametrize(
    "damage", [os.unlink, replace_by_directory, replace_by_fifo, replace_by_link, "empty directory"]
)
def test_a_bad_lock_file_is_made_anew_or_named(path: str, project: Path, name: str, damage: object) -> None:
    take(path, project)
    lock = os.path.join(path, name)
    Path(lock).touch()
    if damage == "empty directory":
        os.unlink(lock)
        os.mkdir(lock)
    else:
        damage(lock)  # type: ignore[operator]
    mended = damage in (os.unlink, "empty directory")
    (project / "a").write_text("changed")
    with contextlib.nullcontext() if mended else pytest.raises(StateUnusable, match=name):
        take(path, project)
        with Store(path) as store:
            gc.collect(store)
            sweep(store)
    if mended:
        assert Path(lock).is_file()


def test_without_its_pack_directory_the_store_says_so(path: str, project: Path) -> None:
    take(path, project)
    os.rename(os.path.join(path, "objects/pack"), os.path.join(path, "objects/moved"))
    for put in (lambda: None, lambda: Path(path, "objects/pack").write_bytes(b"")):
        put()
        with pytest.raises(StoreDamaged, match="pack directory"):
            take(path, project)
        with Store(path) as store, pytest.raises(StoreDamaged, match="pack directory"):
            gc.collect(store)


def test_a_writer_that_only_hashes_needs_no_judge() -> None:
    writer = PackWriter("", lambda _: True)
    assert writer.add(BLOB, CONTENT) == packs.object_id(BLOB, CONTENT)
    assert not writer.doubts(bytes(20))


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return open_home(str(tmp_path / "home"))


def test_an_import_repairs_what_the_source_still_has(home: Home, project: Path) -> None:
    ids = Ids(1000, 1000, os.geteuid(), os.getegid())
    first = bases.import_source(home, str(project), ids=ids)
    flip(home.store, object_id(BLOB, CONTENT))
    (project / "new").write_text("changed")
    bases.import_source(home, str(project), ids=ids)
    with Store(home.store) as store:
        assert find_damage(store, first.tree) == []
