"""What lands on the host is the three-way merge, all of it or nothing, and never outside the directory."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apply_bench import ME, Bench, essence
from tree_picture import picture
from ws import bases, durable
from ws.applying import ApplyResult
from ws.errors import ApplyConflict, ApplyFailed, SourceRefused
from ws.landing import STAGING
from ws.removing import remove_tree

root_only = pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")


def conflicts_of(bench: Bench) -> dict[str, str]:
    before = picture(bench.source)
    with pytest.raises(ApplyConflict) as caught:
        bench.apply()
    assert picture(bench.source) == before
    return dict(caught.value.conflicts)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    for made in (bench.home.root, bench.source, bench.ours):
        remove_tree(str(made))  # deeper than pytest can remove


def paths(result: ApplyResult) -> list[str]:
    return [os.fsdecode(change.path) for change in result.changes]


def test_every_kind_of_change_comes_over(bench: Bench) -> None:
    source, ours = bench.source, bench.ours
    for name in ("changed", "deleted", "mode", "to-link", "to-directory"):
        (source / name).write_text(name)
    (source / "gone" / "deep").mkdir(parents=True)
    (source / "gone" / "deep" / "file").write_text("x")
    (source / "to-file").mkdir()
    (source / "to-file" / "inside").write_text("x")
    (source / "link").symlink_to("changed")
    (source / ".git").mkdir()
    (source / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    bench.begin()
    (ours / "changed").write_text("other")
    os.utime(ours / "changed", ns=(7, 1_234_567_890_123_456_789))
    (ours / "deleted").unlink()
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
    (ours / "new" / "large").write_bytes(b"x" * (17 << 20))
    (ours / "new" / "sparse").touch()
    os.truncate(ours / "new" / "sparse", 40 << 20)
    os.mkfifo(ours / "new" / "pipe")
    (ours / ".git" / "HEAD").write_text("ref: refs/heads/other\n")
    before = picture(source)
    told = bench.apply(dry_run=True)
    assert picture(source) == before
    done = bench.apply()
    assert paths(done) == paths(told)
    assert essence(source) == essence(ours)
    assert (source / "new" / "sparse").stat().st_blocks == 0
    assert bench.apply().changes == ()


def test_what_only_the_source_changed_stays(bench: Bench) -> None:
    for name in ("theirs", "ours", "both-alike", "both-deleted"):
        (bench.source / name).write_text("base")
    bench.begin()
    (bench.source / "theirs").write_text("theirs")
    (bench.source / "added-by-them").write_text("x")
    (bench.ours / "ours").write_text("ours")
    for side in (bench.source, bench.ours):
        (side / "both-alike").write_text("the same")
        (side / "both-deleted").unlink()
        (side / "both-added").write_text("the same")
        (side / "both-made").mkdir()
    (bench.source / "both-made").chmod(0o700)
    assert paths(bench.apply()) == ["ours"]
    assert (bench.source / "theirs").read_text() == "theirs"
    assert (bench.source / "ours").read_text() == "ours"
    assert (bench.source / "added-by-them").exists()


def test_all_conflicts_are_told_and_nothing_is_touched(bench: Bench) -> None:
    source, ours = bench.source, bench.ours
    for name in ("both", "ours-deleted", "theirs-deleted", "modes", "fine"):
        (source / name).write_text("base")
    for name in ("becomes-file", "vanishes", "becomes-link"):
        (source / name).mkdir()
        (source / name / "x").write_text("x")
    bench.begin()
    (source / "both").write_text("theirs")
    (ours / "both").write_text("ours")
    (source / "ours-deleted").write_text("theirs")
    (ours / "ours-deleted").unlink()
    (source / "theirs-deleted").unlink()
    (ours / "theirs-deleted").write_text("ours")
    (source / "modes").chmod(0o600)
    (ours / "modes").chmod(0o755)
    for side in (source, ours):
        (side / "added").write_text(side.name)
    (ours / "fine").write_text("ours")
    shutil.rmtree(ours / "becomes-file")
    (ours / "becomes-file").write_text("file")
    (source / "becomes-file" / "new").write_text("theirs")
    shutil.rmtree(source / "vanishes")
    (ours / "vanishes" / "new").write_text("ours")
    shutil.rmtree(source / "becomes-link")
    (source / "becomes-link").symlink_to("/tmp")
    (ours / "becomes-link" / "new").write_text("ours")
    found = conflicts_of(bench)
    assert found == {
        "both": "changed in the workspace, changed in the source",
        "ours-deleted": "deleted in the workspace, changed in the source",
        "theirs-deleted": "changed in the workspace, deleted in the source",
        "modes": "changed in the workspace, changed in the source",
        "added": "added in the workspace, added in the source",
        "becomes-file": "it holds new, which was not imported",
        "vanishes/new": "added in the workspace, but vanishes is no directory any more",
        "becomes-link/new": "added in the workspace, but becomes-link is no directory any more",
    }


def test_what_was_excluded_is_left_alone_on_both_sides(bench: Bench) -> None:
    (bench.source / "build").mkdir()
    (bench.source / "build" / "made").write_text("x")
    (bench.source / "build" / "keep.log").write_text("theirs")
    (bench.source / "top.log").write_text("theirs")
    bench.begin("*.log", "cache/")
    (bench.ours / "top.log").write_text("ours")
    (bench.ours / "cache").mkdir()
    (bench.ours / "cache" / "file").write_text("ours")
    shutil.rmtree(bench.ours / "build")
    done = bench.apply()
    assert paths(done) == ["build", "build/made"]
    assert done.kept == ("build",)
    assert set(done.left_out) >= {"cache", "cache/file", "top.log"}
    assert (bench.source / "build" / "keep.log").read_text() == "theirs"
    assert os.listdir(bench.source / "build") == ["keep.log"]
    assert (bench.source / "top.log").read_text() == "theirs"


def test_what_was_not_imported_and_stands_in_the_way_is_a_conflict(bench: Bench) -> None:
    (bench.source / "dir").mkdir()
    (bench.source / "dir" / "x.log").write_text("x")
    bench.begin("*.log")
    listener = socket.socket(socket.AF_UNIX)
    with contextlib.chdir(bench.source):
        listener.bind("taken")
    listener.close()
    (bench.ours / "taken").write_text("ours")
    shutil.rmtree(bench.ours / "dir")
    (bench.ours / "dir").write_text("a file")
    assert conflicts_of(bench) == {
        "taken": "something that was not imported stands in its place",
        "dir": "it holds x.log, which was not imported",
    }


@root_only
def test_new_files_belong_to_the_owner_of_the_directory_without_setuid_bits(bench: Bench) -> None:
    (bench.source / "theirs").write_text("x")
    os.chown(bench.source, 1234, 5678)
    os.chown(bench.source / "theirs", 1111, 2222)
    bench.begin()
    (bench.ours / "theirs").write_text("y")
    (bench.ours / "d").mkdir()
    (bench.ours / "d" / "setuid").write_text("x")
    os.chown(bench.ours / "d" / "setuid", 0, 0)
    os.chmod(bench.ours / "d" / "setuid", 0o6755)
    os.chmod(bench.ours / "d", 0o3777)
    os.symlink("x", bench.ours / "d" / "link")
    bench.apply()

    def facts(path: str) -> tuple[int, int, int]:
        look = os.lstat(bench.source / path)
        return look.st_uid, look.st_gid, stat.S_IMODE(look.st_mode)

    assert facts("theirs")[:2] == (1111, 2222)
    assert facts("d") == (1234, 5678, 0o777)
    assert facts("d/setuid") == (1234, 5678, 0o755)
    assert facts("d/link")[:2] == (1234, 5678)


def test_no_link_is_followed_wherever_it_stands(bench: Bench, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary").write_text("untouched")
    (bench.source / "d").mkdir()
    (bench.source / "d" / "file").write_text("x")
    bench.begin()
    (bench.ours / "escape").symlink_to(outside)
    (bench.ours / "d" / "up").symlink_to("../../outside")
    (bench.ours / "d" / "file").unlink()
    (bench.ours / "d" / "file").symlink_to(outside / "canary")
    bench.apply()
    assert os.readlink(bench.source / "escape") == str(outside)
    assert os.readlink(bench.source / "d" / "file") == str(outside / "canary")
    # Now the source's own links lead out, where the workspace has directories.
    shutil.rmtree(bench.source / "d")
    (bench.source / "d").symlink_to(outside)
    bench.base = bases.import_source(bench.home, str(bench.ours), ids=ME).tree
    (bench.ours / "d" / "canary").write_text("overwritten")
    assert list(conflicts_of(bench)) == ["d/canary"]
    assert (outside / "canary").read_text() == "untouched"
    assert os.listdir(outside) == ["canary"]


def test_any_name_and_three_thousand_levels(bench: Bench) -> None:
    bench.begin()
    for name in (b"\xff\xfe", b"new\nline", b"-rf", b".git", b"git~1", b"=x", b"x" * 255):
        with open(os.path.join(os.fsencode(bench.ours), name), "wb") as file:
            file.write(name)
    fd = os.open(bench.ours, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("bottom", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    done = bench.apply(with_git_config=True)  # two of them are names of a git file
    assert len(done.changes) == 7 + 3001
    assert bench.apply().changes == ()
    assert set(os.listdir(os.fsencode(bench.source))) >= {b"\xff\xfe", b"new\nline", b"-rf"}


def test_what_changes_in_the_last_instant_takes_everything_back(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        (bench.source / f"file{number}").write_text("base")
    bench.begin()
    for number in range(4):
        (bench.ours / f"file{number}").write_text("ours")
    (bench.ours / "added").mkdir()
    (bench.ours / "added" / "x").write_text("x")

    def at_the_sync(act: Callable[[], object]) -> None:
        """Somebody acts when everything is staged; the first sync stands between staging and the renames."""
        real, count = durable.sync_filesystem, [0]

        def sync(path: str) -> None:
            real(path)
            count[0] += 1
            if count[0] == 1:
                act()

        monkeypatch.setattr("ws.landing.durable.sync_filesystem", sync)

    at_the_sync(lambda: (bench.source / "file2").write_text("theirs"))
    with pytest.raises(ApplyFailed, match="file2: it changed just now; nothing was changed"):
        bench.apply()
    monkeypatch.undo()
    assert [(bench.source / f"file{n}").read_text() for n in range(4)] == ["base", "base", "theirs", "base"]
    assert sorted(os.listdir(bench.source)) == [f"file{n}" for n in range(4)]


@root_only
def test_an_error_half_way_is_undone_by_the_same_renames(bench: Bench) -> None:
    (bench.source / "a").write_text("base")
    (bench.source / "gone" / "inner").mkdir(parents=True)
    (bench.source / "gone" / "inner" / "x").write_text("x")
    (bench.source / "mode").write_text("m")
    (bench.source / "z").mkdir()
    (bench.source / "z" / "immutable").write_text("base")
    bench.begin()
    (bench.ours / "a").write_text("ours")
    shutil.rmtree(bench.ours / "gone")
    (bench.ours / "made").mkdir()
    (bench.ours / "made" / "file").write_text("x")
    (bench.ours / "mode").chmod(0o600)
    (bench.ours / "z" / "immutable").write_text("ours")
    try:
        subprocess.run(["chattr", "+i", bench.source / "z" / "immutable"], check=True, capture_output=True)
    except (subprocess.CalledProcessError, FileNotFoundError):
        pytest.skip("this filesystem has no immutable files")
    try:
        before = essence(bench.source)
        with pytest.raises(ApplyFailed, match="z/immutable cannot be written"):
            bench.apply()
        assert essence(bench.source) == before
    finally:
        subprocess.run(["chattr", "-i", bench.source / "z" / "immutable"], check=True)
    assert "a" in paths(bench.apply())
    assert essence(bench.source) == essence(bench.ours)


def test_what_a_killed_apply_left_is_removed_by_the_next_and_not_while_one_lives(bench: Bench) -> None:
    (bench.source / "a").write_text("base")
    bench.begin()
    (bench.ours / "a").write_text("ours")
    dead, living = bench.source / f"{STAGING}dead", bench.source / f"{STAGING}living"
    for left in (dead, living):
        (left / "sub").mkdir(parents=True)
    fd = os.open(living, os.O_RDONLY)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        assert paths(bench.apply()) == ["a"]
    finally:
        os.close(fd)
    assert sorted(os.listdir(bench.source)) == [f"{STAGING}living", "a"]
    (bench.ours / f"{STAGING}hostile").mkdir()
    done = bench.apply()
    assert done.left_out == (f"{STAGING}hostile",)


def test_a_directory_that_must_not_be_written_to_is_refused(bench: Bench) -> None:
    with pytest.raises(SourceRefused):
        bases.check_source(bench.home, "/")
    with pytest.raises(SourceRefused):
        bases.check_source(bench.home, bench.home.root)
