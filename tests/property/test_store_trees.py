"""Whatever a directory holds goes into the store, and comes back from it equal in every respect."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings

from tree_picture import Directory, build, picture, random_trees
from ws import bases
from ws.layout import Ids, open_home
from ws.removing import remove_tree
from ws.store.checkout import materialise
from ws.store.repository import Store
from ws.store.verify import find_damage

ME = Ids(os.geteuid(), os.getegid(), os.geteuid(), os.getegid())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root reads directories of mode 0")
@given(random_trees)
@settings(max_examples=120, deadline=None)
def test_any_tree_comes_back_and_git_finds_nothing_wrong(tree: Directory) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch)
        (top / "source").mkdir()
        build(top / "source", tree)
        try:
            home = open_home(str(top / "home"))
            base = bases.import_source(home, str(top / "source"), ids=ME)
            expected = picture(top / "source")
            assert picture(base.path) == expected
            with Store(home.store) as store:
                materialise(store, base.tree, str(top / "back"), ids=ME)
                assert find_damage(store, base.tree) == []
            assert picture(top / "back") == expected
            again = bases.import_source(open_home(str(top / "home2")), str(top / "back"), ids=ME)
            assert again.tree == base.tree
            done = subprocess.run(
                ["git", "--git-dir", home.store, "fsck", "--strict", "--no-dangling"],
                capture_output=True, text=True, check=True,
            )  # fmt: skip
            assert done.stdout == ""
            assert all(line.startswith("notice: ") for line in done.stderr.splitlines())
        finally:
            for name in os.listdir(top):  # TemporaryDirectory cannot remove what we made
                remove_tree(str(top / name))
