"""A tree with some paths replaced is the tree that a scan of the files would give, hard links included."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from apply_bench import ME
from ws import bases
from ws.layout import Home, open_home
from ws.removing import remove_tree
from ws.store import trees
from ws.store.checkout import materialise
from ws.store.diffs import diff_trees
from ws.store.repository import Store
from ws.store.tree_files import TreeFiles, edit_tree


def tree_of(home: Home, path: Path) -> str:
    return bases.import_source(home, str(path), ids=ME).tree


def change_at_random(top: Path, chance: random.Random) -> None:
    paths = [path for path in top.rglob("*") if path.exists() or path.is_symlink()]
    for path in chance.sample(paths, min(len(paths), 8)):
        if not os.path.lexists(path):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
        kind = chance.choice(["gone", "file", "link", "directory", "fifo"])
        if not path.parent.is_dir():
            continue
        if kind == "file":
            path.write_bytes(chance.randbytes(chance.choice([0, 10, 1000])))
            path.chmod(chance.choice([0o644, 0o755, 0o600]))
        elif kind == "link":
            path.symlink_to("somewhere")
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "directory":
            (path / "inner" / ".git").mkdir(parents=True)
            (path / "inner" / ".git" / "=x\\y").write_text("odd")


@pytest.mark.parametrize("seed", range(25))
def test_the_differences_make_one_tree_the_other(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    home = open_home(str(tmp_path / "home"))
    one, two = tmp_path / "one", tmp_path / "two"
    for number in range(30):
        path = one / chance.choice("abc") / chance.choice("de/") / f"f{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(number))
    subprocess.run(["cp", "-a", one, two], check=True)
    change_at_random(two, chance)
    before, after = tree_of(home, one), tree_of(home, two)
    with Store(home.store) as store:
        edits = {change.path: change.new for change in diff_trees(store, before, after) if change.path}
        with store.writing() as writer:
            made = edit_tree(store, writer, before, edits)
            writer.finish()
        store.refresh()
        assert {change.path for change in diff_trees(store, made, after)} <= {b""}
    subprocess.run(["git", "--git-dir", home.store, "fsck", "--strict"], check=True, capture_output=True)


def test_hard_links_of_paths_that_are_replaced_are_forgotten(tmp_path: Path) -> None:
    home = open_home(str(tmp_path / "home"))
    one = tmp_path / "one"
    one.mkdir()
    (one / "a").write_text("x")
    for name in ("b", "c"):
        os.link(one / "a", one / name)
    tree = tree_of(home, one)
    with Store(home.store) as store:
        file = TreeFiles(store, tree).file(b"a")
        assert file
        with store.writing() as writer:
            made = edit_tree(store, writer, tree, {b"b": None, b"new/deep/copy": file})
            writer.finish()
        store.refresh()
        assert trees.read_links(store, trees.read_root(store, bytes.fromhex(made))) == [[b"a", b"c"]]
        materialise(store, made, str(tmp_path / "out"), ids=ME, plain=True)
    assert os.path.samefile(tmp_path / "out" / "a", tmp_path / "out" / "c")
    assert (tmp_path / "out" / "new" / "deep" / "copy").read_text() == "x"
    assert not (tmp_path / "out" / "b").exists()


def test_removing_what_is_not_there_makes_no_directory(tmp_path: Path) -> None:
    home = open_home(str(tmp_path / "home"))
    (tmp_path / "one").mkdir()
    tree = tree_of(home, tmp_path / "one")
    with Store(home.store) as store, store.writing() as writer:
        made = edit_tree(store, writer, tree, {b"a/b/c": None})
        writer.finish()
        store.refresh()
        assert diff_trees(store, tree, made) == []


def test_three_thousand_levels(tmp_path: Path) -> None:
    home = open_home(str(tmp_path / "home"))
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "x").write_text("x")
    tree = tree_of(home, tmp_path / "one")
    with Store(home.store) as store, store.writing() as writer:
        file = TreeFiles(store, tree).file(b"x")
        path = b"d/" * 3000 + b"x"
        made = edit_tree(store, writer, tree, {path: file})
        writer.finish()
        store.refresh()
        assert TreeFiles(store, made).file(path) == file
    remove_tree(home.root)
