"""Of git directories only an allow list comes home from a workspace unasked, each file checked; all else does."""

from __future__ import annotations

import hashlib
import itertools
import os
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from apply_bench import Bench
from ws.removing import remove_tree
from ws.store import git_contents

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
        ".git/a-name-of-a-newer-git",
        ".git/index.lock",
        ".git/sharedindex.0123456789012345678901234567890123456789",
        ".git/sequencer/opts",
        ".git/sequencer/todo",
        ".git/rebase-apply/next",
        ".git/BISECT_NAMES",
        ".git/MERGE_RR",
        ".git/rr-cache/a/preimage",
        ".git/info/exclude",
        ".git/info/sparse-checkout",
        ".git/info/grafts",
        ".git/refs/replace/0123456789012345678901234567890123456789",
        ".git/reftable/tables.list",
        ".git/lfs/tmp/x",
        ".git/objects/info/http-alternates",
        ".git/objects/pack/tmp_pack_x",
        ".git/modules/a/HEAD",
        ".git/modules/a/b/config",
        ".git/modules/.git/b/config",
        ".git/modules/a/hooks/x",
        ".git/modules/a/modules/b/config",
        ".git/worktrees/w/gitdir",
        ".git/worktrees/w/config.worktree",
        ".git/worktrees/w/HEAD",
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


ID = "0123456789012345678901234567890123456789"
LOOSE = ".git/objects/b6/fc4c620b67d95f953a5c1c1230aaab5db5a1b0"  # the blob "hello"


@pytest.mark.parametrize(
    ("path", "good", "bad"),
    [
        (".git/HEAD", "ref: refs/heads/x\n", "ref: ../x\n"),
        (".git/HEAD", f"{ID}\n", f"{ID}\n[core]\n"),
        (".git/ORIG_HEAD", f"{ID}\n", "x"),
        (".git/MERGE_HEAD", f"{ID}\n{ID}\n", f"{ID}\nx\n"),
        (".git/FETCH_HEAD", f"{ID}\tnot-for-merge\tbranch 'x' of u\n", "x\n"),
        (".git/MERGE_MODE", "no-ff", "x"),
        (".git/MERGE_MSG", "Merge\n\n# comment\n", "\x1b]0;x\x07"),
        (".git/shallow", f"{ID}\n", "x\n"),
        (".git/refs/heads/config", f"{ID}\n", "[core]\n"),
        (".git/refs/heads/hooks/x", "ref: refs/heads/y\n", "ref: refs/heads/../../config\n"),
        (".git/refs/remotes/origin/HEAD", "ref: refs/remotes/origin/main\n", "ref: HEAD\n"),
        (".git/packed-refs", f"# pack-refs with: peeled fully-peeled sorted \n{ID} refs/tags/v1\n^{ID}\n", "x\n"),
        (".git/packed-refs", f"{ID} refs/heads/x\n", f"{ID} refs/replace/{ID}\n"),
        (".git/logs/HEAD", f"{ID} {ID} A U Thor <a@b> 1700000000 +0100\tcommit: x\n", "x\n"),
        (".git/logs/refs/heads/config", f"{ID} {ID}  <> 1700000000 -0000\n", "[core]\n"),
        (".git/info/refs", f"{ID}\trefs/heads/x\n", "x\n"),
        (LOOSE, zlib.compress(b"blob 5\0hello"), zlib.compress(b"blob 5\0hallo")),
        (LOOSE, zlib.compress(b"blob 5\0hello", 0), zlib.compress(b"blob 5\0hello") + b"x"),
        (LOOSE, zlib.compress(b"blob 5\0hello", 9), zlib.compress(b"blob 5\0" + bytes(1 << 20))),
    ],
)
def test_what_git_only_reads_comes_if_it_is_what_its_name_says(
    bench: Bench, path: str, good: str | bytes, bad: str | bytes
) -> None:
    bench.begin()
    for content in (bad, good):
        data = content if isinstance(content, bytes) else content.encode()
        (bench.ours / path).parent.mkdir(parents=True, exist_ok=True)
        (bench.ours / path).write_bytes(data)
        done = bench.apply()
        assert done.withheld == (() if content is good else (path,))
        assert (bench.source / path).exists() is (content is good)
    assert (bench.source / path).read_bytes() == data
    (bench.ours / path).unlink()
    bench.apply()
    assert not (bench.source / path).exists(), "it goes as it came"


def test_objects_that_say_much_in_few_bytes_are_not_all_unpacked(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_contents.Budget.__init__, "__defaults__", (3 << 20,))
    git(bench.source, "init", "-q")
    bench.begin()
    names = []
    for number in range(5):
        put(bench.ours / "zeros", "0" * (1 << 20) + str(number))
        names.append(git(bench.ours, "hash-object", "-w", "zeros").strip())
    done = bench.apply()
    came = [name for name in names if (bench.source / ".git" / "objects" / name[:2] / name[2:]).exists()]
    assert len(came) == 2
    assert len(done.withheld) == 3


@pytest.mark.parametrize(
    "path", [".gitattributes", ".github/hooks/x", "config", "src/hooks/x", "src/HEAD", "info/attributes", "objects/x"]
)
def test_what_is_no_part_of_a_git_directory_comes(bench: Bench, path: str) -> None:
    bench.begin()
    put(bench.ours / path)
    assert bench.apply().withheld == ()
    assert (bench.source / path).read_text() == "x"


@pytest.mark.parametrize(
    "path",
    ["config", "hooks/pre-push", "info/exclude", "worktrees/w/gitdir", "worktrees/w/HEAD", "sequencer/opts", "newer"],
)
def test_deleting_a_control_file_is_a_change_like_any_other(bench: Bench, path: str) -> None:
    git(bench.source, "init", "-q")
    put(bench.source / ".git" / path)
    bench.begin()
    (bench.ours / ".git" / path).unlink()
    assert bench.apply().withheld == (f".git/{path}",)
    assert (bench.source / ".git" / path).exists()
    assert bench.apply(with_git_config=True).withheld == ()
    assert not (bench.source / ".git" / path).exists()


def test_a_pack_comes_with_its_index_or_not_at_all(bench: Bench) -> None:
    put(bench.source / "file")
    git(bench.source, "init", "-q")
    git(bench.source, "add", "file")
    git(bench.source, "commit", "-qm", "first")
    bench.begin()
    git(bench.ours, "gc", "-q", "--prune=now")
    (index,) = (bench.ours / ".git/objects/pack").glob("*.idx")
    real = index.read_bytes()
    index.chmod(0o644)
    other = hashlib.sha1(real[:-40] + bytes(20)).digest()
    index.write_bytes(real[:-40] + bytes(20) + other)  # of another pack
    done = bench.apply()
    assert f".git/objects/pack/{index.name}" in done.withheld
    # What it would replace stays, so nothing is lost.
    git(bench.source, "fsck", "--strict")
    index.write_bytes(real)
    assert bench.apply().withheld == ()
    git(bench.source, "fsck", "--strict")
    assert git(bench.source, "count-objects", "-v").startswith("count: 0\n")


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
    assert bench.apply().withheld == ("docs",)
    assert not (bench.source / "docs" / "HEAD").exists()
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


@pytest.mark.parametrize("parts", list(itertools.permutations(["HEAD", "objects", "refs", "config"])))
def test_no_order_of_applies_completes_a_git_directory(bench: Bench, tmp_path: Path, parts: tuple[str, ...]) -> None:
    """Also when the workspace deletes again what it had applied before."""
    bench.begin()
    trap = tmp_path / "trap"
    trap.mkdir()
    git(trap, "init", "-q", "--bare")
    git(trap, "config", "core.fsmonitor", TRIPWIRE.format(tmp_path / "wire"))
    git(trap, "config", "core.bare", "false")
    git(trap, "config", "core.worktree", ".")
    for place in ("docs", "removing"):
        for part in parts:
            (bench.ours / place).mkdir(exist_ok=True)
            subprocess.run(["cp", "-a", trap / part, bench.ours / place], check=True)
            done = bench.apply()
            if place == "removing":
                subprocess.run(["rm", "-r", bench.ours / place / part], check=True)
            subprocess.run(["git", "status"], cwd=bench.source / place, check=False, capture_output=True)
            assert not (tmp_path / "wire").exists()
        assert "docs" in done.withheld
        assert not {"HEAD", "objects", "refs"} <= set(os.listdir(bench.source / place))
    subprocess.run(["git", "status"], cwd=trap, check=False, capture_output=True)
    assert (tmp_path / "wire").exists(), "the wire is a real one"


def test_what_the_host_has_and_no_scan_sees_counts_too(bench: Bench) -> None:
    put(bench.source / "docs" / "HEAD", "ref: refs/heads/x\n")
    (bench.source / "docs" / "refs").mkdir()
    bench.begin("HEAD")
    put(bench.ours / "docs" / "objects" / "x")
    assert bench.apply().withheld == ("docs",)


def test_the_top_itself_does_not_become_a_git_directory(bench: Bench) -> None:
    put(bench.source / "file", "one")
    (bench.source / "objects").mkdir()
    (bench.source / "refs").mkdir()
    bench.begin()
    put(bench.ours / "HEAD", "ref: refs/heads/x\n")
    put(bench.ours / "config", "[core]\n")
    put(bench.ours / "hooks" / "x")
    put(bench.ours / "file", "two")
    assert bench.apply().withheld == ("HEAD", "config", "hooks")
    assert (bench.source / "file").read_text() == "two"
    assert sorted(os.listdir(bench.source)) == ["file", "objects", "refs"]


def test_half_a_git_directory_of_the_host_is_not_completed(bench: Bench) -> None:
    """Its configuration may be an old one that nothing obeys any more."""
    put(bench.source / "sub" / ".git" / "config", "[core]\n\tfsmonitor = false\n")
    bench.begin()
    shutil.rmtree(bench.ours / "sub" / ".git")
    git(bench.ours / "sub", "init", "-q")
    assert bench.apply().withheld == ("sub/.git",)
    assert os.listdir(bench.source / "sub" / ".git") == ["config"]


@pytest.mark.parametrize("damage", [".git", ".git/objects", ".git/refs", ".git/HEAD"])
def test_a_repository_that_the_workspace_destroyed_stays_on_the_host(bench: Bench, damage: str) -> None:
    put(bench.source / "sub" / "file")
    git(bench.source / "sub", "init", "-q")
    git(bench.source / "sub", "add", "file")
    git(bench.source / "sub", "commit", "-qm", "first")
    bench.begin()
    subprocess.run(["rm", "-r", bench.ours / "sub" / damage], check=True)
    assert bench.apply().withheld == ("sub/.git",)
    assert git(bench.source / "sub", "log", "--format=%s") == "first\n"
    assert bench.apply(with_git_config=True).withheld == ()
    assert not (bench.source / "sub" / damage).exists()


def test_a_directory_around_a_repository_stays_as_long_as_that_does(bench: Bench) -> None:
    for name in ("deleted", "linked"):
        put(bench.source / name / "file")
        git(bench.source / name, "init", "-q")
    bench.begin()
    shutil.rmtree(bench.ours / "deleted")
    shutil.rmtree(bench.ours / "linked")
    (bench.ours / "linked").symlink_to("/etc")
    done = bench.apply()
    assert (done.withheld, done.kept) == (("deleted/.git", "linked"), ("deleted",))
    assert os.listdir(bench.source / "deleted") == [".git"]
    assert sorted(os.listdir(bench.source / "linked")) == [".git", "file"]
    git(bench.source / "linked", "status")


def test_commits_of_a_submodule_come_and_a_new_submodule_does_not(bench: Bench, tmp_path: Path) -> None:
    put(tmp_path / "library" / "file")
    git(tmp_path / "library", "init", "-q")
    git(tmp_path / "library", "add", "file")
    git(tmp_path / "library", "commit", "-qm", "first")
    git(bench.source, "init", "-q")
    add = ["-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(tmp_path / "library")]
    git(bench.source, *add, "deep/lib")
    bench.begin()
    put(bench.ours / "deep/lib/file", "y")
    git(bench.ours / "deep/lib", "commit", "-qam", "second")
    git(bench.ours / "deep/lib", "config", "core.fsmonitor", "x")
    git(bench.ours, *add, "new")
    assert bench.apply().withheld == (".git/config", ".git/modules/deep/lib/config", ".git/modules/new", "new/.git")
    assert git(bench.source / "deep/lib", "log", "--format=%s") == "second\nfirst\n"


def test_an_allowed_file_that_was_refused_comes_once_it_is_good(bench: Bench) -> None:
    """What was withheld is not taken for applied: the next version of it has no conflict with the host's."""
    git(bench.source, "init", "-q")
    put(bench.source / "file")
    git(bench.source, "add", "file")
    bench.begin()
    put(bench.ours / "other")
    git(bench.ours, "add", "other")
    index = bench.ours / ".git" / "index"
    real = index.read_bytes()
    index.write_bytes(real[:-1] + bytes([real[-1] ^ 1]))
    assert bench.apply().withheld == (".git/index",)
    assert git(bench.source, "ls-files") == "file\n"
    index.write_bytes(real)
    assert bench.apply().withheld == ()
    assert git(bench.source, "ls-files") == "file\nother\n"


def test_a_git_directory_that_a_file_replaced_stays_whole(bench: Bench) -> None:
    git(bench.source, "init", "-q")
    bench.begin()
    shutil.rmtree(bench.ours / ".git")
    put(bench.ours / ".git", "gitdir: /tmp/elsewhere\n")
    done = bench.apply()
    assert (done.changes, done.withheld) == ((), (".git",))
    git(bench.source, "status")
