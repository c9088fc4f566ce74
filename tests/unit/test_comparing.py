"""A diff tells every change once, in words that `git apply` takes where git has words for it; nothing bends it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tree_picture import picture
from ws import bases
from ws.comparing import Diff
from ws.layout import Home, Ids, open_home
from ws.store import patches
from ws.store.diffs import diff_trees
from ws.store.repository import Store

ME = Ids(1000, 1000, os.geteuid(), os.getegid())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return open_home(str(tmp_path / "home"))


@pytest.fixture
def before(tmp_path: Path) -> Path:
    root = tmp_path / "before"
    root.mkdir()
    (root / "text").write_text("one\ntwo\nthree\n")
    (root / "no-end").write_text("one\ntwo")
    (root / "binary").write_bytes(bytes(range(256)) * 40)
    (root / "gone").write_text("gone\n")
    (root / "run").write_text("#!/bin/sh\n")
    (root / "link").symlink_to("text")
    (root / "becomes-link").write_text("a file\n")
    (root / "with space").write_text("x\n")
    (root / 'odd"\t\xff'.encode("latin-1").decode("utf-8", "surrogateescape")).write_text("x\n")
    (root / "touched").write_text("same\n")
    (root / "empty-dir").mkdir()
    (root / ".gitattributes").write_text("* -diff binary\n*.x filter=evil\n")
    return root


def change(root: Path) -> None:
    (root / "text").write_text("one\n2\nthree\nfour\n")
    (root / "no-end").write_text("one\ntwo\nthree")
    (root / "binary").write_bytes(bytes(range(255)) * 41 + b"tail")
    (root / "gone").unlink()
    (root / "run").chmod(0o755)
    (root / "link").unlink()
    (root / "link").symlink_to("run")
    (root / "becomes-link").unlink()
    (root / "becomes-link").symlink_to("nowhere")
    (root / "with space").write_text("y\n")
    (root / 'odd"\t\xff'.encode("latin-1").decode("utf-8", "surrogateescape")).write_text("y\n")
    os.utime(root / "touched", ns=(5, 5))
    (root / "new" / "inner").mkdir(parents=True)
    (root / "new" / "inner" / "file").write_text("new\n")
    (root / "new" / "empty").write_text("")
    (root / "crlf").write_bytes(b"a\r\nb\r\n")


def tree_of(home: Home, path: Path) -> str:
    return bases.import_source(home, str(path), ids=ME).tree


def diff_of(home: Home, old: str, new: str) -> Diff:
    with Store(home.store) as store:
        return Diff("old", "new", tuple(diff_trees(store, old, new)), home.store)


def for_git(home: Home, diff: Diff) -> bytes:
    with Store(home.store) as store:
        return b"".join(part for one in diff.changes for part in patches.write_patch(store, one, for_git=True))


def test_git_apply_makes_the_new_tree_of_the_old_one(home: Home, before: Path, tmp_path: Path) -> None:
    old = tree_of(home, before)
    applied = tmp_path / "applied"
    subprocess.run(["cp", "-a", before, applied], check=True)
    change(before)
    text = for_git(home, diff_of(home, old, tree_of(home, before)))
    subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], cwd=applied, input=text, check=True)

    def essence(root: Path) -> dict[bytes, object]:
        return {path: (*facts[:2], facts[5]) for path, facts in picture(root).items()}

    assert essence(applied) == essence(before)
    subprocess.run(["git", "apply", "-R", "--whitespace=nowarn", "-"], cwd=applied, input=text, check=True)
    assert (applied / "gone").read_text() == "gone\n"


def test_a_large_file_that_is_kept_in_chunks_can_be_applied_too(home: Home, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for root in (old, new):
        root.mkdir()
        (root / "large").write_bytes(b"0123456789abcdef" * (17 << 16))
    with open(new / "large", "r+b") as file:
        file.seek(5 << 20)
        file.write(b"changed")
    diff = diff_of(home, tree_of(home, old), tree_of(home, new))
    assert diff.text().splitlines()[-1] == "Binary files a/large and b/large differ"
    text = for_git(home, diff)
    subprocess.run(["git", "apply", "-"], cwd=old, input=text, check=True)
    assert (old / "large").read_bytes() == (new / "large").read_bytes()


def test_every_change_has_its_letter_and_times_alone_are_no_noise_in_the_text(home: Home, before: Path) -> None:
    old = tree_of(home, before)
    change(before)
    diff = diff_of(home, old, tree_of(home, before))
    letters = dict(line.split("\t", 1)[::-1] for line in diff.name_status().splitlines())
    assert letters == {
        "text": "M", "no-end": "M", "binary": "M", "gone": "D", "run": "P", "link": "M", "becomes-link": "T",
        "with space": "M", '"odd\\"\\t\\377"': "M", "touched": "X", "new/": "A", "new/inner/": "A",
        "new/inner/file": "A", "new/empty": "A", "crlf": "A",
    }  # fmt: skip
    text = diff.text()
    assert "touched" not in text
    assert "old mode 100644\nnew mode 100755\n" in text
    assert "-two\n+2\n" in text
    assert "\\ No newline at end of file" in text
    assert "Binary files a/binary and b/binary differ\n" in text
    assert "deleted file mode 100644" in text
    assert str(diff) == text
    stat = diff.stat()
    assert " binary         | Bin 10240 -> 10459 bytes\n" in stat
    assert " text           | 3 ++-\n" in stat
    assert stat.endswith(" 12 files changed, 11 insertions(+), 7 deletions(-)\n")


def test_no_attribute_and_no_configuration_has_a_say(
    home: Home, before: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gitconfig").write_text("[diff]\n\tcontext = 0\n\tnoprefix = true\n\texternal = false\n")
    (tmp_path / ".gitconfig").write_text("[diff]\n\tcontext = 0\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    old = tree_of(home, before)
    (before / "text").write_text("one\n2\nthree\n")
    diff = diff_of(home, old, tree_of(home, before))
    assert "--- a/text\n+++ b/text\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n" in diff.text()


def test_what_git_has_no_words_for_is_named(home: Home, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    (new / "sub" / ".GIT").mkdir(parents=True)
    (new / "sub" / ".GIT" / "config").write_text("x")
    (new / "git~1").write_text("x")
    (new / "a\\.git").write_text("x")
    (new / ".github").write_text("fine")
    (new / ".gitmodules").write_text("fine")
    (new / "empty").mkdir()
    os.mkfifo(new / "pipe")
    diff = diff_of(home, tree_of(home, old), tree_of(home, new))
    sayable = {one.path for one in diff.changes if patches.is_expressible(one)}
    assert sayable == {b".github", b".gitmodules"}
    subprocess.run(["git", "apply", "-"], cwd=old, input=for_git(home, diff), check=True)
    assert sorted(os.listdir(old)) == [".github", ".gitmodules"]
    assert "new file mode 010644" in diff.text()


def test_equal_states_make_a_false_and_empty_diff(home: Home, before: Path) -> None:
    tree = tree_of(home, before)
    diff = diff_of(home, tree, tree)
    assert not diff
    assert (diff.text(), diff.stat(), diff.name_status()) == ("", "", "")
