"""The law: a project's root is what was said, else the git root, else the working directory; never `/`, and
never the home directory unless that was said."""

from __future__ import annotations

from pathlib import Path

import pytest

from ws.errors import SourceRefused
from ws.fs.memory import MemoryFilesystem
from ws.toolbox.local import open_local
from ws.toolbox.roots import find_root


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "home"
    deep = home / "code" / "project" / "src" / "deep"
    deep.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    return home / "code" / "project"


def test_what_was_said_comes_before_everything(project: Path) -> None:
    (project / ".git").mkdir()
    said = project / "src"
    assert find_root(str(said), cwd=str(project)) == str(said)


def test_the_git_root_comes_before_the_working_directory(project: Path) -> None:
    (project / ".git").mkdir()
    assert find_root(cwd=str(project / "src" / "deep")) == str(project)


def test_a_git_file_marks_a_worktree_as_well_as_a_directory_does(project: Path) -> None:
    (project / ".git").write_text("gitdir: elsewhere\n")
    assert find_root(cwd=str(project / "src")) == str(project)


def test_without_a_repository_the_working_directory_is_the_root(project: Path) -> None:
    assert find_root(cwd=str(project / "src")) == str(project / "src")


def test_the_repository_can_be_left_out_of_it(project: Path) -> None:
    (project / ".git").mkdir()
    assert find_root(cwd=str(project / "src"), git=False) == str(project / "src")


def test_links_are_resolved(project: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(project)
    assert find_root(str(tmp_path / "link")) == str(project)


@pytest.mark.parametrize("said", ["/", "/..", "//"])
def test_the_whole_machine_is_never_a_project(said: str) -> None:
    with pytest.raises(SourceRefused, match="whole machine"):
        find_root(said)
    with pytest.raises(SourceRefused, match="whole machine"):
        find_root(cwd=said)


def test_the_home_directory_is_a_project_only_when_said(project: Path) -> None:
    home = project.parents[1]
    assert find_root("~") == str(home)
    with pytest.raises(SourceRefused, match="home directory"):
        find_root(cwd=str(home))


def test_a_repository_of_the_home_directory_does_not_make_it_a_project(project: Path) -> None:
    (project.parents[1] / ".git").mkdir()
    assert find_root(cwd=str(project / "src")) == str(project / "src")


def test_what_is_no_directory_is_refused(project: Path) -> None:
    with pytest.raises(SourceRefused, match="not a directory"):
        find_root(str(project / "missing"))


def test_tools_without_a_root_work_in_the_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / ".git").mkdir()
    monkeypatch.chdir(project / "src" / "deep")
    assert open_local(None, MemoryFilesystem(), commands=False).root == str(project)
    assert open_local("..", MemoryFilesystem(), commands=False).root == str(project / "src")
    assert open_local(None, MemoryFilesystem(), commands=False, fs_mode="restricted").root == str(
        project / "src" / "deep"
    )
    monkeypatch.chdir(project.parent.parent)
    for fs_mode in (None, "restricted", "unrestricted"):
        for root in (None, "/", "/proc/self/root"):
            with pytest.raises(SourceRefused):
                open_local(root, MemoryFilesystem(), fs_mode=fs_mode)  # type: ignore[arg-type]
    assert open_local("~", MemoryFilesystem(), commands=False).root == str(project.parent.parent)
