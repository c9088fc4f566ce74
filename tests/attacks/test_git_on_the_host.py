"""After an apply the user works with git: no command that a workspace planted runs, and nothing outside is written.

Each trap is sprung in the workspace's own directory at the end: one that does not work there would prove nothing.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apply_bench import Bench
from forged_index import EXECUTABLE, make_index
from ws.removing import remove_tree


def git(where: Path, *words: str, check: bool = True, **env: str) -> str:
    options = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
    options += ["-c", "protocol.file.allow=always"]
    done = subprocess.run(
        ["git", *options, *words],
        cwd=where,
        check=check,
        capture_output=True,
        text=True,
        env={**os.environ, "GIT_EDITOR": "true", **env},
        timeout=60,
    )
    return done.stdout


def put(path: Path, text: str = "x\n", mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def commit(where: Path, name: str, text: str) -> None:
    put(where / name, text)
    git(where, "add", name)
    git(where, "commit", "-qm", f"{name}: {text.strip()}")


@pytest.fixture
def wire(tmp_path: Path) -> Path:
    return tmp_path / "wire"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A source that is a repository with two branches that contradict each other."""
    bench = Bench(tmp_path)
    git(bench.source, "init", "-q", "-b", "main")
    commit(bench.source, "file", "one\n")
    git(bench.source, "checkout", "-q", "-b", "other")
    commit(bench.source, "file", "other\n")
    commit(bench.source, "more", "more\n")
    git(bench.source, "checkout", "-q", "main")
    commit(bench.source, "file", "two\n")
    bench.begin()
    yield bench
    remove_tree(bench.home.root)


def use_git(where: Path) -> None:
    """What a user may do next; whether it succeeds is not the question."""
    for words in (
        ("status",),
        ("restore", "."),
        ("checkout", "--", "."),
        ("reset", "--hard", "-q"),
        ("diff", "HEAD"),
        ("cherry-pick", "--continue"),
        ("rebase", "--continue"),
        ("merge", "--continue"),
        ("revert", "--continue"),
        ("am", "--continue"),
        ("bisect", "next"),
        ("stash", "pop"),
        ("worktree", "prune"),
        ("submodule", "update", "--init"),
        ("fetch", "--all"),
        ("commit", "-qm", "next", "--allow-empty"),
        ("checkout", "-q", "other"),
        ("gc", "-q"),
    ):
        git(where, *words, check=False)


def plant_script(path: Path, wire: Path) -> None:
    put(path, f"#!/bin/sh\ntouch {wire}\n", 0o755)


def sequencer_options(ours: Path, wire: Path) -> tuple[str, ...]:
    git(ours, "cherry-pick", "other~1", "other", check=False)
    plant_script(ours / "git-merge-" / "x", wire)
    put(ours / ".git" / "sequencer" / "opts", "[options]\n\tstrategy = /x\n")
    put(ours / "file", "resolved\n")
    git(ours, "add", "file", "git-merge-")
    return "cherry-pick", "--continue"


def rebase_commands(ours: Path, wire: Path) -> tuple[str, ...]:
    git(ours, "rebase", "other", check=False)
    put(ours / ".git" / "rebase-merge" / "git-rebase-todo", f"exec touch {wire}\n")
    put(ours / "file", "resolved\n")
    git(ours, "add", "file")
    return "rebase", "--continue"


def hooks(ours: Path, wire: Path) -> tuple[str, ...]:
    plant_script(ours / ".git" / "hooks" / "post-index-change", wire)
    return "reset", "--hard", "-q"


def attributes(ours: Path, wire: Path) -> tuple[str, ...]:
    put(ours / ".git" / "info" / "attributes", "* filter=x\n")
    put(ours / ".git" / "config", f'[core]\n\trepositoryformatversion = 0\n[filter "x"]\n\tsmudge = touch {wire}\n')
    (ours / "file").unlink()
    return "restore", "."


def worktree_configuration(ours: Path, wire: Path) -> tuple[str, ...]:
    git(ours, "config", "extensions.worktreeConfig", "true")
    put(ours / ".git" / "config.worktree", f"[core]\n\tfsmonitor = touch {wire}\n")
    return ("status",)


def common_directory(ours: Path, wire: Path) -> tuple[str, ...]:
    shutil.copytree(ours / ".git", ours / "evil")
    git(ours / "evil", "config", "core.fsmonitor", f"touch {wire}; false")
    put(ours / ".git" / "commondir", "../evil\n")
    return ("status",)


def git_file(ours: Path, wire: Path) -> tuple[str, ...]:
    (ours / ".git").rename(ours / "evil")
    git(ours / "evil", "config", "core.fsmonitor", f"touch {wire}; false")
    put(ours / ".git", "gitdir: evil\n")
    return ("status",)


@pytest.mark.parametrize(
    "trap",
    [sequencer_options, rebase_commands, hooks, attributes, worktree_configuration, common_directory, git_file],
)
def test_no_command_of_the_workspace_runs(
    bench: Bench, wire: Path, trap: Callable[[Path, Path], tuple[str, ...]]
) -> None:
    spring = trap(bench.ours, wire)
    wire.unlink(missing_ok=True)
    assert bench.apply().withheld
    use_git(bench.source)
    assert not wire.exists()
    git(bench.ours, *spring, check=False)
    assert wire.exists(), "the trap is a real one"


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize(
    "name", [".git/hooks/post-checkout", ".git/config", "../outside", "sub/../../outside", "ABSOLUTE"]
)
def test_a_forged_index_writes_nothing(bench: Bench, tmp_path: Path, wire: Path, name: str, version: int) -> None:
    outside = tmp_path / "outside"
    name = name.replace("ABSOLUTE", str(outside))
    put(bench.ours / "script", f"#!/bin/sh\ntouch {wire}\n")
    oid = bytes.fromhex(git(bench.ours, "hash-object", "-w", "script").strip())
    names = sorted((name.encode(), b"file"))
    (bench.ours / ".git" / "index").write_bytes(make_index(names, version=version, mode=EXECUTABLE, oid=oid))
    config = (bench.source / ".git" / "config").read_bytes()

    done = bench.apply()
    assert done.withheld == (".git/index",)
    assert "not a path that git checks out" in done.reasons[".git/index"]
    for command in (("restore", "."), ("checkout", "--", "."), ("status",)):
        git(bench.source, *command, check=False)
    use_git(bench.source)
    assert not outside.exists()
    assert not wire.exists()
    assert (bench.source / ".git" / "config").read_bytes() == config
    assert not (bench.source / ".git" / "hooks" / "post-checkout").exists()

    git(bench.ours, "checkout", "--", ".", check=False)
    target = Path(os.path.normpath(bench.ours / name))
    assert target.read_text() == (bench.ours / "script").read_text(), "git writes it where the index does come"


def test_a_table_of_offsets_hides_no_entry(bench: Bench) -> None:
    """Threads of git start where it says: in the middle of another extension, for one."""
    hidden = make_index([b".git/hooks/post-checkout"], mode=EXECUTABLE)[12:-20]
    clean = make_index([b"file"])
    start = len(clean) - 20
    offsets = struct.pack(">III", 1, start + 8 + 6, 1)
    forged = make_index([b"file"], extensions=[(b"TREE", b"\0-1 0\n" + hidden), (b"IEOT", offsets)])
    (bench.ours / ".git" / "index").write_bytes(forged)
    assert bench.apply().withheld == (".git/index",)


def test_a_pruned_worktree_of_the_user_lives_on(bench: Bench, tmp_path: Path) -> None:
    shutil.rmtree(bench.ours)
    git(bench.source, "worktree", "add", "-q", str(tmp_path / "worktree"), "other")
    bench.begin()
    (tmp_path / "worktree").rename(tmp_path / "elsewhere")  # the container does not have it
    git(bench.ours, "worktree", "prune")
    (tmp_path / "elsewhere").rename(tmp_path / "worktree")
    assert not (bench.ours / ".git" / "worktrees").exists()
    assert bench.apply().withheld == (".git/worktrees",)
    git(bench.source, "worktree", "prune")
    assert git(tmp_path / "worktree", "log", "-1", "--format=%s") == "more: more\n"


def test_what_an_agent_does_every_day_comes_whole(bench: Bench) -> None:
    commit(bench.ours, "new", "new\n")
    git(bench.ours, "checkout", "-q", "-b", "feature")
    commit(bench.ours, "new", "newer\n")
    git(bench.ours, "tag", "-a", "v1", "-m", "one")
    git(bench.ours, "notes", "add", "-m", "note")
    put(bench.ours / "new", "stashed\n")
    git(bench.ours, "stash")
    put(bench.ours / "staged")
    git(bench.ours, "add", "staged")
    git(bench.ours, "gc", "-q")
    done = bench.apply()
    assert done.withheld == ()
    for words in (("log", "--all", "--format=%H %s"), ("status", "--porcelain"), ("stash", "list"), ("notes", "show")):
        assert git(bench.source, *words) == git(bench.ours, *words)
    git(bench.source, "fsck", "--strict")
    git(bench.source, "commit", "-qm", "staged")
