"""An apply that is undone leaves the host as it was before, all of it; what changed since is never overwritten."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from apply_bench import ID, Bench, essence
from tree_picture import picture
from ws import apply_records
from ws.errors import ApplyConflict, ApplyFailed, Busy, StateError
from ws.removing import remove_tree

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for made in (bench.home.root, bench.source, bench.ours):
        remove_tree(str(made))


def change_everything(bench: Bench) -> None:
    source, ours = bench.source, bench.ours
    for name in ("changed", "deleted", "mode", "to-link", "to-directory"):
        (source / name).write_text(name)
    (source / "gone" / "deep").mkdir(parents=True)
    (source / "gone" / "deep" / "file").write_text("x")
    (source / "gone" / "empty").mkdir(mode=0o700)
    (source / "to-file").mkdir()
    (source / "to-file" / "inside").write_text("x")
    (source / "link").symlink_to("changed")
    (source / "large").write_bytes(b"y" * (17 << 20))
    os.mkfifo(source / "pipe")
    (source / os.fsdecode(b"odd\n\xff")).write_text("odd")
    os.utime(source / "deleted", ns=(7, 1_234_567_890_123_456_789))
    bench.begin()
    (ours / "changed").write_text("other")
    for name in ("deleted", "pipe", "large", os.fsdecode(b"odd\n\xff")):
        (ours / name).unlink()
    (ours / "mode").chmod(0o700)
    (ours / "to-link").unlink()
    (ours / "to-link").symlink_to("/etc/passwd")
    (ours / "to-directory").unlink()
    (ours / "to-directory" / "inner").mkdir(parents=True)
    (ours / "to-directory" / "inner" / "file").write_text("new")
    shutil.rmtree(ours / "gone")
    shutil.rmtree(ours / "to-file")
    (ours / "to-file").write_text("a file now")
    (ours / "link").unlink()
    (ours / "link").symlink_to("mode")
    (ours / "new" / "empty").mkdir(parents=True)
    (ours / "new" / "file").write_text("x")


def test_every_kind_of_change_is_taken_back(bench: Bench) -> None:
    change_everything(bench)
    before = essence(bench.source)
    done = bench.apply()
    applied = essence(bench.source)
    assert applied == essence(bench.ours)
    told = bench.undo(dry_run=True)
    assert essence(bench.source) == applied
    undone = bench.undo()
    assert essence(bench.source) == before
    assert {change.path for change in undone.changes} == {change.path for change in done.changes}
    assert [change.path for change in told.changes] == [change.path for change in undone.changes]
    assert bench.apply().changes == done.changes, "what was undone is to be applied again"
    assert essence(bench.source) == applied


def test_applies_are_undone_newest_first(bench: Bench) -> None:
    states = []
    (bench.source / "file").write_text("0")
    bench.begin()
    for text in "123":
        states.append(essence(bench.source))
        (bench.ours / "file").write_text(text)
        (bench.ours / f"new{text}").write_text(text)
        bench.apply()
    bench.apply()  # changes nothing, and is nothing to be undone
    for state in reversed(states):
        bench.undo()
        assert essence(bench.source) == state
    assert apply_records.list_numbers(bench.home, ID) == []


def test_what_changed_since_is_a_conflict_and_nothing_is_touched(bench: Bench) -> None:
    for name in ("a", "b", "c", "same", "d"):
        (bench.source / name).write_text("base")
    (bench.source / "directory").mkdir()
    bench.begin()
    for name in ("a", "b", "same"):
        (bench.ours / name).write_text("ours")
    (bench.ours / "c").unlink()
    (bench.ours / "d").chmod(0o700)
    (bench.ours / "new").write_text("ours")
    (bench.ours / "directory" / "x").write_text("x")
    bench.apply()
    (bench.source / "a").write_text("mine")
    (bench.source / "b").unlink()
    (bench.source / "c").write_text("mine")
    (bench.source / "d").chmod(0o711)
    (bench.source / "new").write_text("mine")
    (bench.source / "same").write_text("base")  # taken back by hand: as it was
    (bench.source / "other").write_text("mine")
    shutil.rmtree(bench.source / "directory")
    (bench.source / "directory").write_text("a file now")
    before = picture(bench.source)
    with pytest.raises(ApplyConflict) as caught:
        bench.undo()
    assert {path for path, _ in caught.value.conflicts} == {"a", "b", "c", "d", "new"}
    assert picture(bench.source) == before
    for name in ("a", "b", "new"):
        (bench.source / name).write_text("ours")
    (bench.source / "c").unlink()
    (bench.source / "d").chmod(0o700)
    bench.undo()
    assert (bench.source / "other").read_text() == "mine"
    assert [(bench.source / name).read_text() for name in ("a", "b", "c", "same")] == ["base"] * 4
    assert not (bench.source / "new").exists()


def test_a_directory_that_the_apply_made_stays_with_what_others_put_there(bench: Bench) -> None:
    bench.begin()
    (bench.ours / "new").mkdir()
    (bench.ours / "new" / "file").write_text("x")
    bench.apply()
    (bench.source / "new" / "mine").write_text("mine")
    assert bench.undo().kept == ("new",)
    assert os.listdir(bench.source / "new") == ["mine"]


def test_a_virtual_environment_that_an_agent_made_anew_comes_back(bench: Bench) -> None:
    bin_directory = bench.source / ".venv" / "bin"
    bin_directory.mkdir(parents=True)
    (bin_directory / "python").symlink_to("/usr/bin/python3")
    (bin_directory / "tool").write_text("#!/usr/bin/python3\n")
    (bin_directory / "tool").chmod(0o755)
    bench.begin()
    before = essence(bench.source)
    shutil.rmtree(bench.ours / ".venv")
    (bench.ours / ".venv" / "bin").mkdir(parents=True)
    (bench.ours / ".venv" / "bin" / "python").symlink_to("/opt/container/python")
    bench.apply()
    assert not (bin_directory / "python").exists()
    bench.undo()
    assert essence(bench.source) == before


@root_only
def test_owners_setuid_bits_and_access_lists_come_back(bench: Bench) -> None:
    source = bench.source
    for name in ("owned", "setuid", "listed", "changed"):
        (source / name).write_text("x")
    (source / "shared").mkdir()
    (source / "shared" / "x").write_text("x")
    (source / "link").symlink_to("x")
    os.chown(source, 1234, 5678)
    os.chown(source / "owned", 1111, 2222)
    os.chown(source / "link", 1111, 2222, follow_symlinks=False)
    for name in ("setuid", "changed"):
        os.chmod(source / name, 0o4755)
    os.chmod(source / "shared", 0o3770)
    os.setxattr(source / "listed", "trusted.note", b"kept")
    bench.begin()
    for name in ("owned", "setuid", "listed", "link"):
        (bench.ours / name).unlink()
    shutil.rmtree(bench.ours / "shared")
    (bench.ours / "changed").write_text("y")

    def facts() -> dict[str, tuple[int, int, int]]:
        looks = {str(path): path.lstat() for path in source.rglob("*")}
        return {path: (look.st_uid, look.st_gid, stat.S_IMODE(look.st_mode)) for path, look in looks.items()}

    before = facts()
    bench.apply()
    assert stat.S_IMODE((source / "changed").stat().st_mode) == 0o755
    bench.undo()
    assert facts() == before
    assert os.getxattr(source / "listed", "trusted.note") == b"kept"


@root_only
def test_an_undo_that_fails_half_way_takes_everything_back(bench: Bench) -> None:
    for name in ("a", "z"):
        (bench.source / name).write_text("base")
    bench.begin()
    for name in ("a", "z"):
        (bench.ours / name).write_text("ours")
    (bench.ours / "new").write_text("x")
    bench.apply()
    try:
        subprocess.run(["chattr", "+i", bench.source / "z"], check=True, capture_output=True)
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("this filesystem has no immutable files")
    applied = essence(bench.source)
    try:
        with pytest.raises(ApplyFailed, match="z cannot be written"):
            bench.undo()
        assert essence(bench.source) == applied
    finally:
        subprocess.run(["chattr", "-i", bench.source / "z"], check=True)
    bench.undo()
    assert (bench.source / "z").read_text() == "base"


@root_only
def test_an_apply_that_took_everything_back_has_nothing_to_be_undone(bench: Bench) -> None:
    (bench.source / "z").write_text("base")
    bench.begin()
    (bench.ours / "z").write_text("ours")
    try:
        subprocess.run(["chattr", "+i", bench.source / "z"], check=True, capture_output=True)
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("this filesystem has no immutable files")
    try:
        with pytest.raises(ApplyFailed):
            bench.apply()
    finally:
        subprocess.run(["chattr", "-i", bench.source / "z"], check=True)
    assert apply_records.list_numbers(bench.home, ID) == []


def test_only_the_newest_applies_are_kept(bench: Bench) -> None:
    bench.begin()
    for number in range(apply_records.KEPT + 3):
        (bench.ours / "file").write_text(str(number))
        bench.apply()
    numbers = apply_records.list_numbers(bench.home, ID)
    assert numbers == list(range(4, apply_records.KEPT + 4))


@pytest.mark.parametrize(
    "damage", [b"", b"[" * 200_000, b"{}", b"[]", b"null", b'{"number": true}', b"\xff", b'{"originals": {"x": [1]}}']
)
def test_a_damaged_record_is_a_typed_error_and_stops_no_collection(bench: Bench, damage: bytes) -> None:
    bench.begin()
    (bench.ours / "file").write_text("x")
    bench.apply()
    path = Path(bench.home.applies(ID)) / "1"
    path.write_bytes(damage)
    with pytest.raises(StateError):
        bench.undo()
    assert apply_records.needed_trees(bench.home, ID) == set()
    (bench.ours / "file").write_text("y")
    bench.apply()
    bench.undo()
    assert (bench.source / "file").read_text() == "x"


def test_a_bare_name_in_the_record_of_another_apply_is_refused(bench: Bench) -> None:
    bench.begin()
    (bench.ours / "file").write_text("x")
    bench.apply()
    applies = Path(bench.home.applies(ID))
    (applies / "1").rename(applies / "7")
    with pytest.raises(StateError):
        bench.undo()


def test_an_index_that_git_only_refreshed_is_as_the_apply_left_it(bench: Bench) -> None:
    """`git status` writes the index whenever a time in it is stale, which it is after every apply."""

    def git(where: Path, *words: str) -> str:
        return subprocess.run(["git", *words], cwd=where, check=True, capture_output=True, text=True).stdout

    (bench.source / "file").write_text("one")
    git(bench.source, "init", "-q")
    git(bench.source, "add", "file")
    bench.begin()
    (bench.ours / "file").write_text("two")
    (bench.ours / "new").write_text("new")
    git(bench.ours, "add", "file", "new")
    os.utime(bench.source / "file", ns=(1, 1))
    git(bench.source, "status")  # before the apply, too
    bench.apply()
    before = (bench.source / ".git" / "index").read_bytes()
    os.utime(bench.source / "file", ns=(2, 2))
    git(bench.source, "status")
    assert (bench.source / ".git" / "index").read_bytes() != before, "git has written it"
    bench.undo()
    assert git(bench.source, "ls-files", "--stage").count("\n") == 1
    assert (bench.source / "file").read_text() == "one"
    # What was staged since is not lost.
    bench.apply()
    (bench.source / "mine").write_text("mine")
    git(bench.source, "add", "mine")
    with pytest.raises(ApplyConflict) as caught:
        bench.undo()
    assert [path for path, _ in caught.value.conflicts] == [".git/index"]


def test_applies_to_one_directory_wait_for_each_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two workspaces that each bring a part of a git directory could complete it together."""
    bench.begin()
    (bench.ours / "file").write_text("x")
    monkeypatch.setattr("ws.applying._LOCK_TIMEOUT_S", 0.2)
    fd = os.open(bench.source, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(Busy):
            bench.apply()
    finally:
        os.close(fd)
    bench.apply()
    assert (bench.source / "file").read_text() == "x"
