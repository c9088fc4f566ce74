"""Every file that git itself makes in a git directory comes home, checked, or is withheld by name."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from apply_bench import Bench
from ws.removing import remove_tree
from ws.store.git_index import staged_content

COMES = re.compile(
    r"HEAD|(ORIG|FETCH|MERGE|CHERRY_PICK|REVERT|REBASE)_HEAD|AUTO_MERGE|index|packed-refs|shallow|description"
    r"|(COMMIT_EDIT|MERGE_|SQUASH_|TAG_EDIT|NOTES_EDIT)MSG|MERGE_MODE|logs/HEAD|logs/refs/.*|refs/.*|info/refs"
    r"|objects/[0-9a-f]{2}/[0-9a-f]{38}|objects/pack/(pack|multi-pack-index).*|objects/info/(packs|commit-graph.*)"
    r"|lfs/objects/.*"
)
STAYS = re.compile(
    r"config|config\.worktree|hooks/.*|info/(exclude|sparse-checkout|attributes|grafts)|branches/.*|worktrees/.*|modules/.*"
    r"|sequencer/.*|rebase-(merge|apply)/.*|BISECT_.*|MERGE_RR|rr-cache/.*|NOTES_MERGE.*|refs/replace/.*|sharedindex\..*"
    r"|index|objects/info/alternates|fsmonitor--daemon.*|gc\.(pid|log)|lfs/(tmp|cache)/.*|MERGE_AUTOSTASH|filter-.*"
)


def git(where: Path, *words: str, check: bool = True) -> str:
    options = [
        "-c",
        "user.name=x",
        "-c",
        "user.email=x@x",
        "-c",
        "protocol.file.allow=always",
        "-c",
        "core.editor=true",
    ]
    done = subprocess.run(["git", *options, *words], cwd=where, check=check, capture_output=True, text=True, timeout=60)
    return done.stdout


def commit(where: Path, name: str, text: str) -> None:
    (where / name).write_text(text)
    git(where, "add", name)
    git(where, "commit", "-qm", f"{name} {text}")


def rebase(ours: Path) -> set[str]:
    git(ours, "rebase", "-i", "other", check=False)
    return {"rebase-merge/git-rebase-todo"}


def apply_mail(ours: Path) -> set[str]:
    (ours / "mail").write_text(git(ours, "format-patch", "--stdout", "-1", "other"))
    git(ours, "am", "mail", check=False)
    return {"rebase-apply/next"}


def cherry_pick(ours: Path) -> set[str]:
    git(ours, "cherry-pick", "other~1", "other", check=False)
    return {"sequencer/todo"}


def revert(ours: Path) -> set[str]:
    git(ours, "revert", "HEAD~1", "HEAD~2", check=False)
    return {"sequencer/todo"}


def merge(ours: Path) -> set[str]:
    git(ours, "config", "rerere.enabled", "true")
    git(ours, "merge", "other", check=False)
    return {"MERGE_RR", "config"}


def squash(ours: Path) -> set[str]:
    git(ours, "merge", "--squash", "clean")
    return set()


def bisect(ours: Path) -> set[str]:
    git(ours, "bisect", "start", "HEAD", "HEAD~2")
    return {"BISECT_LOG", "BISECT_NAMES"}


def stash_and_notes(ours: Path) -> set[str]:
    (ours / "file").write_text("stashed")
    git(ours, "stash")
    git(ours, "notes", "add", "-m", "note")
    git(ours, "tag", "-a", "v1", "-m", "one")
    return set()


def worktree(ours: Path) -> set[str]:
    git(ours, "worktree", "add", "-q", "tree", "other")
    return {"worktrees"}


def submodule(ours: Path) -> set[str]:
    git(ours, "submodule", "--quiet", "add", str(ours.parent / "source"), "sub")
    return {"modules/sub", "config"}


def sparse(ours: Path) -> set[str]:
    git(ours, "sparse-checkout", "set", "x")
    return {"info/sparse-checkout", "config.worktree", "config"}


def shallow(ours: Path) -> set[str]:
    git(ours, "remote", "add", "far", f"file://{ours.parent / 'source'}")
    git(ours, "fetch", "-q", "--depth=1", "far", "other")
    return {"config"}


def packs_of_all_kinds(ours: Path) -> set[str]:
    git(ours, "config", "pack.writeReverseIndex", "true")
    git(ours, "repack", "-adq", "--write-bitmap-index")
    commit(ours, "file", "again")
    git(ours, "repack", "-dq", "--write-midx", "--cruft")
    git(ours, "commit-graph", "write", "--reachable", "--split")
    commit(ours, "file", "once more")
    git(ours, "commit-graph", "write", "--reachable", "--split=no-merge")
    git(ours, "pack-refs", "--all")
    git(ours, "update-server-info")
    return {"config"}


def multi_pack_bitmap(ours: Path) -> set[str]:
    git(ours, "repack", "-adq")
    commit(ours, "file", "again")
    git(ours, "repack", "-dq")
    git(ours, "multi-pack-index", "write", "--bitmap")
    git(ours, "commit-graph", "write", "--reachable")
    return set()


def split_index(ours: Path) -> set[str]:
    git(ours, "update-index", "--split-index")
    return {"index"}


def untracked_cache(ours: Path) -> set[str]:
    (ours / "staged").write_text("x")
    git(ours, "add", "staged")
    git(ours, "update-index", "--force-untracked-cache")
    git(ours, "status")
    return {"index"}


def replaced(ours: Path) -> set[str]:
    git(ours, "replace", "HEAD", "HEAD~1")
    return {"refs/replace/" + git(ours, "--no-replace-objects", "rev-parse", "HEAD").strip()}


def partial_clone(ours: Path) -> set[str]:
    git(ours.parent / "source", "config", "uploadpack.allowFilter", "true")
    git(ours, "remote", "add", "far", f"file://{ours.parent / 'source'}")
    git(ours, "fetch", "-q", "--filter=blob:none", "far")
    return {"config"}


def large_files(ours: Path) -> set[str]:
    """As git-lfs lays them out."""
    for place in ("objects", "tmp"):
        name = hashlib.sha256(b"large").hexdigest()
        path = ours / ".git" / "lfs" / place / name[:2] / name[2:4] / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"large")
    return {"lfs/tmp"}


def maintenance(ours: Path) -> set[str]:
    git(ours, "gc", "-q", "--prune=now")
    git(ours, "maintenance", "run", "--task=loose-objects", "--task=incremental-repack", "--task=commit-graph")
    git(ours, "reflog", "expire", "--all", "--expire=now")
    return set()


def content_of(path: Path) -> bytes:
    """An index counts by what it stages."""
    data = path.read_bytes()
    return (staged_content(data) if path.name == "index" else None) or data


def files_of(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if not path.is_dir()]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    git(bench.source, "init", "-q", "-b", "main")
    for text in ("one", "two"):
        commit(bench.source, "file", text)
    git(bench.source, "checkout", "-q", "-b", "clean")
    commit(bench.source, "clean", "clean")
    git(bench.source, "checkout", "-q", "-b", "other", "main")
    for text in ("other", "others"):
        commit(bench.source, "file", text)
    git(bench.source, "checkout", "-q", "main")
    commit(bench.source, "file", "three")
    bench.begin()
    yield bench
    remove_tree(bench.home.root)


@pytest.mark.parametrize(
    "scene",
    [
        rebase, apply_mail, cherry_pick, revert, merge, squash, bisect, stash_and_notes, worktree, submodule, sparse,
        shallow, packs_of_all_kinds, multi_pack_bitmap, split_index, untracked_cache, replaced, partial_clone,
        large_files, maintenance,
    ],
)  # fmt: skip
def test_what_git_leaves_comes_or_is_withheld_by_name(bench: Bench, scene: Callable[[Path], set[str]]) -> None:
    before = {
        str(path.relative_to(bench.source / ".git")): path.read_bytes() for path in files_of(bench.source / ".git")
    }
    expected = scene(bench.ours)
    done = bench.apply()
    shown = {path.removeprefix(".git/") for path in done.withheld}
    assert {path for path in expected if not any(each in (path, path.rpartition("/")[0]) for each in shown)} == set()
    ours, source = bench.ours / ".git", bench.source / ".git"
    for path in files_of(ours):
        name = str(path.relative_to(ours))
        same = (source / name).exists() and content_of(source / name) == content_of(path)
        is_shown = any(name == each or name.startswith(each + "/") for each in shown)
        assert same is not is_shown, f"{name} came: {same}, withheld: {is_shown}"
        known = before.get(name) == path.read_bytes()
        assert known or (STAYS if is_shown else COMES).fullmatch(name), f"{name} is in neither list"
    assert git(bench.source, "rev-parse", "HEAD") == git(bench.ours, "rev-parse", "HEAD")
    git(bench.source, "fsck", "--connectivity-only", check=scene not in (partial_clone,))
    git(bench.source, "status")
