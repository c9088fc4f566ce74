"""A host directory comes back whole, in one exchange, and its history lies outside it."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import ws
from ws.errors import InvalidRequest, StoreDamaged, TagExists
from ws.fs.protocol import SnapshotableFilesystem
from ws.testing import check_filesystem


def picture(root: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for directory, names, files in os.walk(root):
        for name in [".", *names, *files]:
            path = Path(directory, name)
            status = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
            found[str(path.relative_to(root))] = (status.st_mode, status.st_mtime_ns, status.st_nlink, content)
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "main.py").write_text("print(1)\n")
    (root / ".gitignore").write_text("*.log\n")
    (root / "debug.log").write_text("ignored\n")
    (root / "empty").mkdir()
    (root / "link").symlink_to("src/main.py")
    os.link(root / "debug.log", root / "again.log")
    (root / "src" / "main.py").chmod(0o4755)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    return root


def open_directory(root: Path) -> ws.RewindableDirectory:
    return ws.RewindableDirectory(root, git_dir=root.parent / "history.git")


def test_everything_comes_back_and_nothing_else_stays(project: Path) -> None:
    fs: SnapshotableFilesystem = open_directory(project)
    before = picture(project)
    kept = fs.snapshot("good")
    fs.write("new.txt", "new")
    fs.delete("src", recursive=True)
    (project / "debug.log").write_text("changed")
    subprocess.run(["rm", "-rf", str(project / ".git"), str(project / "empty")], check=True)
    fs.restore(kept)
    assert picture(project) == before
    assert sorted(os.listdir(project.parent)) == [
        "history.git",
        "project",
    ]
    assert fs.read("src/main.py") == "print(1)\n"


def test_an_unchanged_directory_gives_the_same_tree_under_another_id(project: Path) -> None:
    fs = open_directory(project)
    one, two = fs.snapshot(), fs.snapshot()
    assert one.snapshot_id != two.snapshot_id
    tree = "{}^{{tree}}"
    git = ["git", "--git-dir", str(one.git_dir), "rev-parse"]
    shown = [
        subprocess.run([*git, tree.format(each.commit_ref)], capture_output=True, check=True).stdout
        for each in (one, two)
    ]
    assert shown[0] == shown[1]


def test_a_handle_made_later_restores_what_an_earlier_one_kept(project: Path) -> None:
    kept = open_directory(project).snapshot()
    (project / "src" / "main.py").unlink()
    open_directory(project).restore(kept)
    assert (project / "src" / "main.py").exists()


def test_a_snapshot_of_another_directory_and_a_tag_twice_are_refused(project: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    fs = open_directory(project)
    foreign = ws.RewindableDirectory(other, git_dir=tmp_path / "history.git").snapshot()
    with pytest.raises(InvalidRequest):
        fs.restore(foreign)
    kept = fs.snapshot("once")
    with pytest.raises(TagExists):
        fs.snapshot("once")
    with pytest.raises(InvalidRequest):
        fs.restore(replace(kept, commit_ref="0" * 40))


def test_a_read_only_directory_is_not_restored(project: Path) -> None:
    kept = open_directory(project).snapshot()
    (project / "src" / "main.py").write_text("changed")
    changed = picture(project)
    with pytest.raises(PermissionError, match="read-only"):
        ws.RewindableDirectory(project, git_dir=project.parent / "history.git", read_only=True).restore(kept)
    assert picture(project) == changed


def test_a_history_inside_the_directory_is_refused(project: Path) -> None:
    with pytest.raises(InvalidRequest, match="in one another"):
        ws.RewindableDirectory(project, git_dir=project / "history")


def test_a_damaged_history_is_refused_before_anything_is_changed(project: Path) -> None:
    fs = open_directory(project)
    kept = fs.snapshot()
    (project / "src" / "main.py").write_text("changed")
    changed = picture(project)
    (pack,) = Path(str(kept.git_dir), "objects", "pack").glob("*.pack")
    data = bytearray(pack.read_bytes())
    for position in range(len(data) // 2, len(data) // 2 + 40):
        data[position] ^= 0xFF
    pack.write_bytes(data)
    with pytest.raises(StoreDamaged):
        open_directory(project).restore(kept)
    assert picture(project) == changed
    assert sorted(os.listdir(project.parent)) == ["history.git", "project"]


def test_what_a_killed_restore_left_is_removed_by_the_next(project: Path) -> None:
    fs = open_directory(project)
    kept = fs.snapshot()
    assert fs._history is not None
    left = project.parent / f".project.ws-{fs._history._line[-8:]}-dead"
    left.mkdir()
    fs.restore(kept)
    assert not left.exists()


def test_it_is_a_filesystem_like_any_other(tmp_path: Path) -> None:
    numbers = iter(range(10_000))

    def make(**rules: object) -> ws.RewindableDirectory:
        root = tmp_path / f"fs{next(numbers)}"
        root.mkdir()
        return ws.RewindableDirectory(root, git_dir=tmp_path / "history.git", **rules)

    check_filesystem(make)
