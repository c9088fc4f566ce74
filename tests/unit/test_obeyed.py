"""What git runs or obeys does not come home from a workspace unasked, however it is spelled; everything else does."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from apply_bench import Bench
from ws.removing import remove_tree

TRIPWIRE = "touch {}; false"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    remove_tree(bench.home.root)


def git(where: Path, *words: str) -> str:
    options = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *options, *words], cwd=where, check=True, capture_output=True, text=True)
    return done.stdout


def put(path: Path, text: str = "x") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def arm(repository: Path, wire: Path) -> None:
    """Everything in a git directory that the next look at it would run."""
    hook = repository / "hooks" / "post-index-change"
    put(hook, f"#!/bin/sh\ntouch {wire}\n")
    hook.chmod(0o755)
    git(repository, "config", "core.fsmonitor", TRIPWIRE.format(wire))


def test_neither_a_hook_nor_a_setting_of_the_workspace_runs_on_the_host(bench: Bench, tmp_path: Path) -> None:
    put(bench.source / "file", "one\n")
    git(bench.source, "init", "-q")
    git(bench.source, "add", "file")
    bench.begin()
    put(bench.ours / "file", "two\n")
    git(bench.ours, "commit", "-qm", "first")
    put(bench.ours / "nested" / "inner", "x")
    git(bench.ours / "nested", "init", "-q")
    git(bench.ours / "nested", "add", "inner")
    for repository in (bench.ours / ".git", bench.ours / "nested" / ".git"):
        arm(repository, tmp_path / "wire")
    (tmp_path / "wire").unlink(missing_ok=True)

    done = bench.apply()
    assert {".git/config", ".git/hooks/post-index-change", "nested/.git/config"} <= set(done.withheld)
    assert not (bench.source / ".git" / "hooks" / "post-index-change").exists()
    # What git reads came, and works: the commit, and a whole repository.
    for repository in (bench.source, bench.source / "nested"):
        git(repository, "status")
    assert git(bench.source, "log", "--format=%s") == "first\n"
    assert git(bench.source / "nested", "ls-files") == "inner\n"
    assert not (tmp_path / "wire").exists()

    git(bench.ours, "status")
    assert (tmp_path / "wire").exists(), "the wire is a real one"


@pytest.mark.parametrize(
    "path",
    [
        ".git/config",
        ".git/config.worktree",
        ".git/hooks/pre-commit",
        ".git/info/attributes",
        ".git/objects/info/alternates",
        ".git/commondir",
        ".git/remotes/origin",
        ".git/branches/origin",
        ".git/rebase-merge/git-rebase-todo",
        ".git/modules/a/b/config",
        ".git/modules/.git/b/config",
        ".git/modules/a/hooks/x",
        ".git/modules/a/modules/b/config",
        ".git/worktrees/w/gitdir",
        ".git/worktrees/w/config.worktree",
        "deep/.git/config",
        ".GIT/Config",
        "git~1/config",
        ".git./config ",
        ".git::$INDEX_ALLOCATION/config",
        ".g\u200cit/config",
        ".git/hoo\u212as/x",  # a Kelvin sign is a k to who ignores case
        "sub/.git",
    ],
)
def test_what_git_obeys_stays_unless_it_is_asked_for(bench: Bench, path: str) -> None:
    bench.begin()
    put(bench.ours / path)
    told = bench.apply()
    assert len(told.withheld) == 1
    assert path.startswith(told.withheld[0])
    assert not os.path.lexists(bench.source / path)
    assert bench.apply(with_git_config=True).withheld == ()
    assert (bench.source / path).read_text() == "x"


@pytest.mark.parametrize(
    "path",
    [
        ".git/HEAD",
        ".git/refs/heads/config",
        ".git/refs/heads/hooks/x",
        ".git/logs/refs/heads/config",
        ".git/objects/ab/cdef",
        ".git/info/exclude",
        ".git/modules/a/HEAD",
        ".gitattributes",
        ".github/hooks/x",
        "config",
        "src/hooks/x",
        "src/HEAD",
        "info/attributes",
    ],
)
def test_what_git_only_reads_and_what_is_none_of_its_business_comes(bench: Bench, path: str) -> None:
    bench.begin()
    put(bench.ours / path)
    assert bench.apply().withheld == ()
    assert (bench.source / path).read_text() == "x"


def test_links_lead_git_nowhere(bench: Bench) -> None:
    git(bench.source, "init", "-q")
    (bench.source / "sub").mkdir()
    bench.begin()
    put(bench.ours / "evil" / "attributes")
    shutil.rmtree(bench.ours / ".git" / "info")
    (bench.ours / ".git" / "info").symlink_to("../evil")
    (bench.ours / "sub" / ".git").symlink_to("../evil")
    done = bench.apply()
    assert set(done.withheld) == {".git/info", "sub/.git"}
    assert (bench.source / ".git" / "info" / "exclude").exists(), "what the link stood for is whole"


def test_a_git_directory_by_any_other_name_is_none_on_the_host(bench: Bench, tmp_path: Path) -> None:
    """`git status` in a directory with HEAD, objects and refs obeys the config beside them."""
    bench.begin()
    trap = bench.ours / "docs"
    git(bench.ours, "init", "-q", "--bare", "docs")
    arm(trap, tmp_path / "wire")
    git(trap, "config", "core.bare", "false")
    git(trap, "config", "core.worktree", ".")
    head = trap / "HEAD"
    head.rename(tmp_path / "HEAD")
    # Without its HEAD it is a directory like any other; and the HEAD does not follow once it is there.
    assert bench.apply().withheld == ()
    shutil.copy(tmp_path / "HEAD", head)
    assert bench.apply().withheld == ("docs/HEAD",)
    (tmp_path / "wire").unlink(missing_ok=True)
    subprocess.run(["git", "status"], cwd=bench.source / "docs", check=False, capture_output=True)
    assert not (tmp_path / "wire").exists()
    subprocess.run(["git", "status"], cwd=trap, check=False, capture_output=True)
    assert (tmp_path / "wire").exists(), "the wire is a real one"


def test_a_bare_repository_of_the_host_keeps_its_configuration_and_takes_commits(bench: Bench) -> None:
    git(bench.source, "init", "-q", "--bare", "store.git")
    bench.begin()
    put(bench.ours / "store.git" / "HEAD", "ref: refs/heads/other\n")
    put(bench.ours / "store.git" / "config", "[core]\n\tfsmonitor = true\n")
    put(bench.ours / "store.git" / "objects" / "info" / "alternates", "/etc\n")
    assert bench.apply().withheld == ("store.git/config", "store.git/objects/info/alternates")
    assert (bench.source / "store.git" / "HEAD").read_text() == "ref: refs/heads/other\n"


def test_a_repository_that_goes_goes_whole_and_a_hook_alone_stays(bench: Bench) -> None:
    for name in ("gone", "stays"):
        (bench.source / name).mkdir()
        git(bench.source / name, "init", "-q")
        put(bench.source / name / ".git" / "hooks" / "pre-push")
    bench.begin()
    shutil.rmtree(bench.ours / "gone")
    shutil.rmtree(bench.ours / "stays" / ".git" / "hooks")
    assert bench.apply().withheld == ("stays/.git/hooks",)
    assert not (bench.source / "gone").exists()
    assert (bench.source / "stays" / ".git" / "hooks" / "pre-push").exists()


def test_a_git_directory_that_a_file_replaced_stays_whole(bench: Bench) -> None:
    git(bench.source, "init", "-q")
    bench.begin()
    shutil.rmtree(bench.ours / ".git")
    put(bench.ours / ".git", "gitdir: /tmp/elsewhere\n")
    done = bench.apply()
    assert (done.changes, done.withheld) == ((), (".git",))
    git(bench.source, "status")
