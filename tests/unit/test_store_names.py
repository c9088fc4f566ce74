"""Every name that Linux allows goes into git, comes back the same, and stock git has nothing against it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tree_picture import HOSTILE_NAMES, names
from ws.errors import StoreDamaged
from ws.store.names import LINKS, RECORD, escape, unescape
from ws.store.packs import BLOB, COMMIT, TREE
from ws.store.repository import Store
from ws.store.trees import FILE, LINK, Item, encode_tree


@given(names, st.booleans())
@settings(max_examples=500)
def test_a_name_comes_back_and_is_never_one_of_the_reserved_ones(name: bytes, link: bool) -> None:
    escaped = escape(name, link=link)
    assert unescape(escaped) == name
    assert escaped not in (RECORD, LINKS)


@given(st.lists(names, max_size=20, unique=True))
def test_different_names_stay_different(found: list[bytes]) -> None:
    assert len({escape(name) for name in found} | {escape(name, link=True) for name in found}) >= len(found)
    assert len({escape(name) for name in found}) == len(found)


@pytest.mark.parametrize(
    "name", [b".gitignore", b".github", b".gitkeep", b"a.b", b"x~", b"Makefile", b"a b", b"\xc3\xa4"]
)
def test_what_git_takes_stays_readable(name: bytes) -> None:
    assert escape(name) == name


@pytest.mark.parametrize("name", [b".", b"..", b"=.", b"=..", b"=", b"", b"a/b", b"=a/b", b"nul\0"])
def test_a_tree_with_a_name_that_no_file_can_have_is_refused(name: bytes) -> None:
    with pytest.raises(StoreDamaged):
        unescape(name)


def fsck(path: Path) -> str:
    done = subprocess.run(
        ["git", "--git-dir", str(path), "fsck", "--strict", "--no-dangling"],
        capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent"},
    )  # fmt: skip
    return (done.stdout + done.stderr).replace("notice: HEAD points to an unborn branch (main)\n", "").replace(
        "notice: No default references\n", ""
    ) + ("" if done.returncode == 0 else f"status {done.returncode}")


def store_names(store: Store, found: list[bytes]) -> None:
    """A commit whose trees hold the names as files and as symlinks, with content that git would choke on."""
    evil = b'[submodule "../x"]\n\tpath = ../../etc\r\n\turl = -u:evil\n'
    with store.writing() as writer:
        blob = writer.add(BLOB, evil)
        files: list[Item] = [(FILE, escape(name), blob) for name in found]
        links: list[Item] = [(LINK, escape(name, link=True), blob) for name in found]
        trees = writer.add(TREE, encode_tree(files)), writer.add(TREE, encode_tree(links))
        both = writer.add(TREE, encode_tree([(b"40000", b"f", trees[0]), (b"40000", b"l", trees[1])]))
        writer.add(COMMIT, b"tree %s\nauthor a <a> 0 +0000\ncommitter a <a> 0 +0000\n\nx" % both.hex().encode())
        writer.finish()


def test_hostile_names_pass_the_strictest_check_of_git(tmp_path: Path) -> None:
    with Store(str(tmp_path / "store")) as store:
        store_names(store, HOSTILE_NAMES)
    assert fsck(tmp_path / "store") == ""


def test_the_check_would_notice(tmp_path: Path) -> None:
    with Store(str(tmp_path / "store")) as store, store.writing() as writer:
        blob = writer.add(BLOB, b"x")
        writer.add(TREE, encode_tree([(FILE, b".git", blob)]))
        writer.finish()
    assert "hasDotgit" in fsck(tmp_path / "store")


@given(st.lists(names, max_size=30, unique=True))
@settings(max_examples=25, deadline=None)
def test_any_names_pass_the_strictest_check_of_git(
    tmp_path_factory: pytest.TempPathFactory, found: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("names") / "store"
    with Store(str(path)) as store:
        store_names(store, found)
    assert fsck(path) == ""
