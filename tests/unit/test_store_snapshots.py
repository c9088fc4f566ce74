"""Snapshots in the store are published, found, compared and collected, and stock git reads them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tree_picture import Directory, File, Link, build, picture
from ws import bases
from ws.errors import Busy, InvalidName, LimitExceeded, SnapshotAmbiguous, SnapshotNotFound, StoreDamaged, TagExists
from ws.fs.tags import check_tag
from ws.layout import Home, Ids, open_home
from ws.removing import remove_tree
from ws.store import commits, gc, locking, references
from ws.store.checkout import materialise
from ws.store.commits import Snapshot
from ws.store.diffs import diff_trees, read_content
from ws.store.gathering import Owners
from ws.store.packs import BLOB
from ws.store.reading import Rules
from ws.store.repository import Store
from ws.store.scan import scan_directory, scan_tree
from ws.store.statcache import StatCache
from ws.store.sweeping import sweep
from ws.store.verify import Verifier, find_damage

ME = Ids(os.geteuid(), os.getegid(), os.geteuid(), os.getegid())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return open_home(str(tmp_path / "home"))


@pytest.fixture
def store(home: Home) -> Iterator[Store]:
    with Store(home.store) as opened:
        yield opened


def take(
    store: Store,
    directory: Path,
    workspace: str = "w1",
    *,
    tag: str | None = None,
    force: bool = False,
    message: str = "",
) -> Snapshot:
    """A snapshot of a host directory, as a workspace without a container takes one."""
    top = os.open(directory, os.O_RDONLY)
    try:
        with store.writing() as writer:
            scan = scan_tree(store, writer, top, Rules(os.fstat(top).st_dev, Owners()))
            number = commits.next_number(store, workspace)
            newest = commits.newest_snapshot(store, workspace)
            snapshot = commits.add_snapshot(
                writer,
                workspace=workspace,
                number=number,
                tree=scan.tree.hex(),
                parents=[newest.id] if newest else [],
                message=message,
                created_ns=1_700_000_000_000_000_000 + number,
                tag=tag,
                facts={"files": scan.files},
            )
            writer.finish()
            commits.publish(store, snapshot, force=force)
    finally:
        os.close(top)
    store.refresh()
    return snapshot


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    tree = {
        b"a": File(b"one\n"),
        b"b": File(b"two\n", 0o755),
        b"sub": Directory({b"c": File(b"three\n"), b"l": Link(b"c"), b"deep": Directory({b"d": File(b"four\n")})}),
    }
    build(root, Directory(tree))
    return root


def git(store: Store, *arguments: str) -> str:
    command = ["git", "--git-dir", store.path, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_a_snapshot_is_read_back_with_all_that_was_said_of_it(store: Store, project: Path) -> None:
    message = 'första ✓\n\nWs: {"a": 1}\nmore'
    first = take(store, project, message=message, tag="green")
    second = take(store, project)
    assert commits.read_snapshot(store, first.id) == first
    assert first.message == message
    assert first.facts == {"files": 5}
    assert commits.list_snapshots(store, "w1") == [first, second]
    assert second.parents == (first.id,)
    assert second.tree == first.tree
    assert second.id != first.id
    assert commits.newest_snapshot(store, "w1") == second
    assert commits.newest_snapshot(store, "none") is None


def test_stock_git_reads_the_store(store: Store, project: Path) -> None:
    first = take(store, project, message="first")
    (project / "a").write_text("one changed\n")
    second = take(store, project, message="second")
    assert git(store, "log", "--format=%s", second.ref).split() == ["second", "first"]
    assert "+one changed" in git(store, "diff", f"{first.id}:data", f"{second.id}:data")
    assert git(store, "diff", "--name-only", f"{first.id}:data", f"{second.id}:data") == "a\n"
    git(store, "fsck", "--strict")
    gc.collect(store)
    assert git(store, "log", "--format=%s", second.ref).split() == ["second", "first"]
    assert git(store, "fsck", "--strict") == ""


def test_a_user_finds_snapshots_by_id_prefix_tag_and_age(store: Store, project: Path) -> None:
    taken = [take(store, project, tag=f"t{number}" if number % 2 else None) for number in range(6)]
    for snapshot in taken:
        assert commits.find_snapshot(store, "w1", snapshot.id) == snapshot
        assert commits.find_snapshot(store, "w1", snapshot.id[:12]) == snapshot
        others = [one.id for one in taken if one != snapshot]
        shortest = next(n for n in range(1, 41) if not any(other.startswith(snapshot.id[:n]) for other in others))
        assert commits.find_snapshot(store, "w1", snapshot.id[:shortest]) == snapshot
    assert commits.find_snapshot(store, "w1", "t3") == taken[3]
    assert commits.find_snapshot(store, "w1", "base") == taken[0]
    for missing in ("~0", "@0", "t2", "zzz", "deadbeef", "", "~", "../../etc", "a b"):
        with pytest.raises(SnapshotNotFound):
            commits.find_snapshot(store, "w1", missing)
    with pytest.raises(SnapshotNotFound):
        commits.find_snapshot(store, "w2", taken[0].id)


def test_a_prefix_of_several_is_ambiguous(store: Store, project: Path) -> None:
    seen: dict[str, str] = {}
    for _ in range(2000):
        snapshot = take_empty(store)
        if snapshot.id[:4] in seen:
            break
        seen[snapshot.id[:4]] = snapshot.id
    else:
        pytest.fail("no two ids began alike")
    for length in (4, 1):
        with pytest.raises(SnapshotAmbiguous):
            commits.find_snapshot(store, "w1", snapshot.id[:length])


def take_empty(store: Store) -> Snapshot:
    """A commit without a pack of its own work: many of them, quickly."""
    with store.writing() as writer:
        number = commits.next_number(store, "w1")
        snapshot = commits.add_snapshot(writer, workspace="w1", number=number, tree="0" * 40, created_ns=number)
        writer.finish()
    directory = os.path.join(store.path, "refs/workspaces/w1")
    os.makedirs(directory, exist_ok=True)
    Path(directory, str(number)).write_text(snapshot.id + "\n")
    if number % 50 == 49:
        gc.consolidate(store)
    return snapshot


def test_a_tag_is_unique_in_its_workspace_and_free_in_another(store: Store, project: Path) -> None:
    first = take(store, project, tag="green")
    with pytest.raises(TagExists):
        take(store, project, tag="green")
    assert commits.list_snapshots(store, "w1") == [first]
    assert take(store, project, "w2", tag="green").tag == "green"
    gc.collect(store)
    with pytest.raises(TagExists):
        take(store, project, tag="green")
    assert commits.find_snapshot(store, "w1", "green") == first


def test_a_tag_left_by_a_crash_before_its_snapshot_was_published_is_free(store: Store, project: Path) -> None:
    lost = take(store, project, tag="green")
    os.unlink(os.path.join(store.path, lost.ref))
    assert commits.find_tag(store, "w1", "green") is None
    again = take(store, project, tag="green")
    assert commits.find_snapshot(store, "w1", "green") == again


ODD_TAGS = [
    "tests pass",
    "v1:2",
    "a..b",
    "a.lock",
    ".a",
    "a.",
    "a/b",
    "-a",
    "grün ✓",
    "x" * 200,
    "é" * 100,
    "100%",
    "x@1",
]


@pytest.mark.parametrize("tag", ODD_TAGS)
def test_a_tag_may_be_any_printable_text(store: Store, project: Path, tag: str) -> None:
    assert check_tag(tag) == tag
    taken = take(store, project, tag=tag)
    take(store, project)
    assert commits.find_snapshot(store, "w1", tag) == taken
    with pytest.raises(TagExists):
        take(store, project, tag=tag)
    references.pack_references(store)
    assert commits.find_snapshot(store, "w1", tag) == taken
    subprocess.run(["git", "--git-dir", store.path, "fsck", "--strict"], check=True, capture_output=True)
    listed = subprocess.run(["git", "--git-dir", store.path, "for-each-ref"], check=True, capture_output=True).stdout
    assert listed.count(taken.id.encode()) == 2


BAD_TAGS = ["", "base", "source", "@", "@1", "~1", "turn:3", "a\nb", "a\x00", "a\x1b[m", "x" * 201, " a", "\ud800"]


@pytest.mark.parametrize("tag", BAD_TAGS, ids=ascii)
def test_a_tag_that_is_not_text_or_means_something_else_is_refused(tag: str) -> None:
    with pytest.raises(InvalidName):
        check_tag(tag)


def test_an_id_wins_over_a_tag_and_a_tag_like_an_id_is_found(store: Store, project: Path) -> None:
    first = take(store, project)
    second = take(store, project, tag=first.id[:6])
    third = take(store, project, tag="0" * 39)
    assert commits.find_snapshot(store, "w1", first.id[:6]) == first
    assert commits.find_snapshot(store, "w1", second.id) == second
    assert commits.find_snapshot(store, "w1", "0" * 39) == third


def test_a_tag_is_moved_by_force_alone_and_stands_on_one_snapshot(store: Store, project: Path) -> None:
    first = take(store, project, tag="green")
    with pytest.raises(TagExists, match="is on snapshot"):
        take(store, project, tag="green")
    second = take(store, project, tag="green", force=True)
    assert commits.find_snapshot(store, "w1", "green") == second
    listed = [(one.id, one.tag) for one in commits.list_snapshots(store, "w1")]
    assert listed == [(first.id, None), (second.id, "green")]


def test_differences_are_told_by_kind(store: Store, project: Path) -> None:
    before = take(store, project).tree
    (project / "a").write_text("changed\n")
    (project / "b").chmod(0o644)
    os.utime(project / "sub/c", ns=(5, 5))
    (project / "sub/l").unlink()
    (project / "sub/l").write_text("a file now")
    remove_tree(str(project / "sub/deep"))
    (project / "sub/deep").write_text("was a directory")
    (project / "new").mkdir()
    (project / "new/x").write_text("x")
    after = take(store, project).tree
    changes = {change.path: change for change in diff_trees(store, before, after)}
    kinds = {path: change.kind for path, change in changes.items() if path not in (b"", b"sub")}
    assert kinds == {
        b"a": "modified",
        b"b": "mode",
        b"new": "added",
        b"new/x": "added",
        b"sub/c": "metadata",
        b"sub/deep": "type",
        b"sub/deep/d": "deleted",
        b"sub/l": "type",
    }
    assert changes[b""].kind == "metadata"
    assert changes[b"new"].is_directory
    assert b"".join(read_content(store, changes[b"a"].old)) == b"one\n"
    assert b"".join(read_content(store, changes[b"a"].new)) == b"changed\n"
    assert b"".join(read_content(store, changes[b"sub/l"].old)) == b"c"
    assert b"".join(read_content(store, changes[b"new/x"].old)) == b""
    assert [change.kind for change in diff_trees(store, after, before) if change.path == b"new/x"] == ["deleted"]
    assert diff_trees(store, after, after) == []


class CountingStore(Store):
    """A store that knows what was asked of it."""

    reads = 0

    def read(self, oid: bytes, kind: int, *, path: bytes = b"") -> bytes:
        self.reads += 1
        return super().read(oid, kind, path=path)


def test_a_difference_reads_only_where_ids_differ(store: Store, project: Path, home: Home) -> None:
    for number in range(200):
        (project / f"dir{number}").mkdir()
        (project / f"dir{number}/file").write_text(f"{number}")
    before = take(store, project).tree
    (project / "dir7/file").write_text("changed")
    after = take(store, project).tree
    with CountingStore(store.path) as fresh:
        assert [change.path for change in diff_trees(fresh, before, after)] == [b"dir7/file"]
        assert 0 < fresh.reads < 20


def history(store: Store, project: Path, count: int) -> list[Snapshot]:
    taken = []
    for number in range(count):
        (project / "sub/c").write_text(f"version {number}\n" * 50)
        (project / f"file{number}").write_text(f"{number}")
        taken.append(take(store, project))
    return taken


def pictures(store: Store, snapshots: list[Snapshot], top: Path) -> list[object]:
    found = []
    for snapshot in snapshots:
        materialise(store, snapshot.tree, str(top / "back"), ids=ME)
        found.append(picture(top / "back"))
        remove_tree(str(top / "back"))
    return found


def test_collecting_keeps_every_snapshot_and_frees_the_rest(store: Store, project: Path, tmp_path: Path) -> None:
    taken = history(store, project, 12)
    before = pictures(store, taken, tmp_path)
    (project / "large").write_bytes(os.urandom(3 << 20))
    take(store, project, "w2")
    assert gc.collect(store).bytes_freed >= 0
    assert len(store.all_packs()) == 1
    assert pictures(store, taken, tmp_path) == before
    references.drop_refs(store, "w2")
    references.drop_refs(store, "w2")
    done = gc.collect(store)
    assert done.bytes_freed > 2 << 20
    assert done.objects_removed > 0
    with Store(store.path) as fresh:
        assert commits.list_snapshots(fresh, "w1") == taken
        assert pictures(fresh, taken, tmp_path) == before
        assert [find_damage(fresh, snapshot.tree) for snapshot in taken] == [[]] * 12
        assert references.workspaces(fresh) == {"w1"}
    assert git(store, "fsck", "--strict") == ""
    assert gc.collect(store).objects_removed == 0


def test_collecting_keeps_the_trees_that_it_is_told_to_keep(home: Home, project: Path) -> None:
    base = bases.import_source(home, str(project), ids=ME)
    with Store(home.store) as store:
        gc.collect(store, lambda: [base.tree])
        assert find_damage(store, base.tree) == []
        gc.collect(store)
        assert find_damage(store, base.tree) != []
        assert store.all_packs() == []


def test_older_versions_are_kept_as_differences(store: Store, project: Path) -> None:
    for number in range(300):
        (project / f"sub/neighbour{number}").write_text(f"{number}")
    history(store, project, 60)
    before = sum(os.path.getsize(pack.name + ".pack") for pack in store.all_packs())
    gc.collect(store)
    after = sum(os.path.getsize(pack.name + ".pack") for pack in store.all_packs())
    assert after < before / 8
    listing = git(store, "verify-pack", "-v", store.all_packs()[0].name + ".idx")
    depths = [int(fields[5]) for line in listing.splitlines() if len(fields := line.split()) == 7]
    assert max(depths) <= 50


def test_small_packs_are_merged_when_they_are_many(store: Store, project: Path, tmp_path: Path) -> None:
    taken = []
    for number in range(40):
        (project / "a").write_text(f"{number}")
        taken.append(take(store, project))
        gc.consolidate(store)
        assert len(store.all_packs()) <= 10
    before = pictures(store, taken[::10], tmp_path)
    gc.collect(store)
    assert pictures(store, taken[::10], tmp_path) == before


def test_a_reader_survives_the_packs_going_away_under_it(store: Store, project: Path) -> None:
    taken = history(store, project, 3)
    with Store(store.path) as reader:
        assert reader.contains(bytes.fromhex(taken[0].id))
        gc.collect(store)
        assert [find_damage(reader, snapshot.tree) for snapshot in taken] == [[]] * 3


def test_what_a_writer_takes_for_known_is_there_when_it_ends(store: Store, project: Path) -> None:
    """Rubbish that becomes needed again while the collector runs must not be collected."""
    (project / "a").write_bytes(os.urandom(100_000))
    take(store, project, "gone")
    references.drop_refs(store, "gone")
    with Store(store.path) as other:
        with other.writing() as writer:
            revived = writer.add(BLOB, (project / "a").read_bytes())
            assert writer.finish() is None  # it was known
            finished: list[object] = []
            collecting = threading.Thread(target=lambda: finished.append(collect_in_another_process(store.path)))
            collecting.start()
            collecting.join(1.5)
            assert collecting.is_alive()  # it waits for us
            assert other.read(revived, BLOB)
            published = take(other, project, "w1")
        collecting.join(30)
    assert finished == [0]
    with Store(store.path) as fresh:
        assert find_damage(fresh, published.tree) == []


def collect_in_another_process(path: str) -> int:
    package = os.path.dirname(os.path.dirname(bases.__file__))
    script = (
        f"import sys; sys.path.insert(0, {package!r}); from ws.store import gc;"
        "from ws.store.repository import Store; gc.collect(Store(sys.argv[1]))"
    )
    return subprocess.run([sys.executable, "-c", script, path], check=False).returncode


def test_two_collections_at_once_do_not_meet(store: Store, project: Path) -> None:
    take(store, project)
    with locking.maintaining(store, timeout_s=0), pytest.raises(Busy), locking.maintaining(store, timeout_s=0):
        pass
    with locking.maintaining(store, timeout_s=0):
        assert gc.consolidate(store) is False


def test_a_damaged_store_is_not_collected(store: Store, project: Path) -> None:
    take(store, project)
    for pack in store.all_packs():
        os.truncate(pack.name + ".pack", 200)
    with Store(store.path) as fresh:
        assert gc.collect(fresh).lost == ("w1",)
        assert len([name for name in os.listdir(store.pack_directory) if name.endswith(".pack")]) == 1


def test_what_dead_writers_left_is_swept_away(store: Store, project: Path) -> None:
    snapshot = take(store, project)
    leftovers = ["tmp_pack_dead", "pack-" + "0" * 40 + ".pack", ".pack-x.idx.1234.tmp"]
    for name in leftovers:
        Path(store.pack_directory, name).write_bytes(b"x")
    with Store(store.path) as other, other.writing():
        assert sweep(store) is False
        assert set(leftovers) < set(os.listdir(store.pack_directory))
    assert sweep(store) is True
    assert len(os.listdir(store.pack_directory)) == 2
    assert find_damage(store, snapshot.tree) == []


def test_damage_is_named_with_the_paths_it_touches(store: Store, project: Path) -> None:
    (project / "sub/deep/victim").write_bytes(os.urandom(50_000))
    snapshot = take(store, project)
    (pack,) = store.all_packs()
    path = pack.name + ".pack"
    data = bytearray(Path(path).read_bytes())
    data[len(data) // 2] ^= 1
    Path(path).write_bytes(data)
    with Store(store.path) as fresh:
        damage = find_damage(fresh, snapshot.tree)
        assert [found.path for found in damage] == ["sub/deep/victim"]
        assert "object " in damage[0].problem
        with pytest.raises(StoreDamaged, match="sub/deep/victim"):
            materialise(fresh, snapshot.tree, str(project) + "-back", ids=ME)


def test_damage_is_told_of_every_snapshot_that_it_touches(store: Store, project: Path) -> None:
    (project / "sub/deep/victim").write_bytes(os.urandom(50_000))
    damaged = take(store, project)
    (pack,) = store.all_packs()
    (project / "a").write_text("only this differs")
    also = take(store, project)
    (project / "sub/deep/victim").unlink()
    sound = take(store, project)
    path = pack.name + ".pack"
    data = bytearray(Path(path).read_bytes())
    data[len(data) // 2] ^= 1
    Path(path).write_bytes(data)
    with Store(store.path) as fresh:
        verifier = Verifier(fresh)
        found = [[one.path for one in verifier.check(snapshot.tree)] for snapshot in (sound, damaged, also)]
        assert found == [[], ["sub/deep/victim"], ["sub/deep/victim"]]
        assert find_damage(fresh, also.tree, since=damaged.tree) == []
        assert find_damage(fresh, also.tree, since=sound.tree) != []


def test_verifying_many_snapshots_costs_little_more_than_one(store: Store, project: Path) -> None:
    taken = history(store, project, 30)
    verifier = Verifier(store)
    assert all(verifier.check(snapshot.tree) == [] for snapshot in taken)
    assert verifier.files < 2 * 30 + 10


def test_a_host_directory_is_scanned_at_one_instant_and_again_for_one_look_a_file(store: Store, project: Path) -> None:
    with store.writing() as writer:
        first = scan_directory(store, writer, str(project))
        writer.finish()
    cache = StatCache.from_bytes(first.cache.to_bytes())
    with store.writing() as writer:
        again = scan_directory(store, writer, str(project), cache=cache)
        assert writer.finish() is None
    assert (again.tree, again.files, again.size_bytes) == (first.tree, first.files, first.size_bytes)
    assert again.cache is cache
    (project / "a").write_text("other")
    with store.writing() as writer:
        changed = scan_directory(store, writer, str(project), cache=cache)
        writer.finish()
    assert [c.path for c in diff_trees(store, first.tree.hex(), changed.tree.hex())] == [b"a"]


def test_a_limit_on_all_of_a_directory_names_the_file_that_is_too_much(store: Store, project: Path) -> None:
    (project / "sub/large").write_bytes(b"x" * 5000)
    with store.writing() as writer, pytest.raises(LimitExceeded, match="sub/large with 5000"):
        scan_directory(store, writer, str(project), max_total_bytes=4000)
