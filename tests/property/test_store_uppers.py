"""A snapshot from the upper alone is the snapshot of the whole tree: on a real overlay, after any changes."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tree_picture import (
    Directory,
    Fifo,
    File,
    Link,
    build,
    file_modes,
    leaves,
    make,
    names,
    picture,
    random_trees,
    times,
)
from ws import bases
from ws.errors import LimitExceeded, SnapshotFailed
from ws.layout import Home, Ids, open_home
from ws.removing import remove_tree
from ws.store.checkout import host_layer, materialise, to_host
from ws.store.copying import Copier
from ws.store.gathering import Owners
from ws.store.reading import Rules
from ws.store.repository import Store
from ws.store.scan import scan_tree
from ws.store.statcache import StatCache
from ws.store.trees import read_listing, read_root
from ws.store.uppers import UpperScan, merge_upper, scan_upper
from ws.store.walking import gather_upper, read_ahead

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts")]

IDS = Ids(1000, 1000, 1000, 1000)

changes = st.lists(
    st.tuples(
        st.sampled_from(
            ["write", "append", "touch", "chmod", "chown", "xattr", "remove", "rmtree", "mkdir", "make",
             "link", "rename", "replace", "same", "open"]
        ),
        st.integers(0, 1000),
        names,
        leaves,
        file_modes,
        times,
    ),
    max_size=8,
)  # fmt: skip


@contextmanager
def mounted(lowers: list[str], upper: str, work: str, at: str) -> Iterator[None]:
    options = "metacopy=off,redirect_dir=nofollow,index=off,xino=off,nfs_export=off"
    options += f",lowerdir={':'.join(lowers)},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, at], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", at], check=True)


def paths_of(top: str) -> tuple[list[bytes], list[bytes]]:
    """Directories, and everything else, below a mount."""
    directories, others = [os.fsencode(top)], []
    for directory in directories:
        for entry in os.scandir(directory):
            (directories if entry.is_dir(follow_symlinks=False) else others).append(entry.path)
    return directories, sorted(others)


def change(top: str, kind: str, choice: int, name: bytes, node: Any, mode: int, time_ns: int) -> None:
    """One step of what happens in a container; what cannot be done is not done."""
    directories, others = paths_of(top)
    directory = directories[choice % len(directories)]
    other = others[choice % len(others)] if others else None
    fresh = os.path.join(directory, name)
    try:
        if kind == "mkdir":
            os.mkdir(fresh, mode)
        elif kind == "rmtree":
            if directory != os.fsencode(top):
                shutil.rmtree(directory)
        elif kind == "make":
            make(fresh, node, [other] if other and os.path.isfile(other) else [])
        elif kind == "replace":
            if directory != os.fsencode(top):
                shutil.rmtree(directory)
                make(directory, node, [])
        elif kind == "chown":
            os.chown(
                directory if choice % 2 or not other else other,
                choice % 3,
                1000,
                follow_symlinks=False,
            )
        elif kind == "xattr":
            os.setxattr(directory, "user.overlay.opaque" if choice % 2 else "user.k", b"y", follow_symlinks=False)
        elif kind == "touch":
            os.utime(directory, ns=(time_ns, time_ns))
        elif not other:
            return
        elif kind == "remove":
            os.unlink(other)
        elif kind == "link":
            os.link(other, fresh, follow_symlinks=False)
        elif kind == "rename":
            os.rename(other, fresh)
        elif os.path.islink(other) or not os.path.isfile(other):
            return
        elif kind == "chmod":
            os.chmod(other, mode)
        elif kind == "open":
            os.close(os.open(other, os.O_RDWR))
        elif kind == "same":
            data = Path(os.fsdecode(other)).read_bytes()
            Path(os.fsdecode(other)).write_bytes(data)
        elif kind == "write":
            Path(os.fsdecode(other)).write_bytes(b"written %d" % choice)
        elif kind == "append":
            with open(other, "ab") as file:
                file.write(b"more")
    except OSError:
        pass


def whole(store: Store, directory: str) -> str:
    """The tree that a look at everything gives."""
    top = os.open(directory, os.O_RDONLY)
    try:
        with store.writing() as writer:
            scan = scan_tree(store, writer, top, Rules(os.fstat(top).st_dev, Owners.seen_by(IDS)))
            writer.finish()
    finally:
        os.close(top)
    return scan.tree.hex()


def from_upper(store: Store, before: str, upper: str, cache: StatCache | None = None) -> UpperScan:
    with store.writing() as writer:
        scan = scan_upper(store, writer, before, upper, ids=IDS, cache=cache, remember=True)
        writer.finish()
    return scan


def children_time() -> float:
    """What the children of this process used that it has waited for."""
    used = os.times()
    return used.children_user + used.children_system


def prepare_upper(store: Store, tree: str, directory: str, *, ids: Ids) -> None:
    """An empty upper for a tree: the root of an overlay shows the metadata of its uppermost layer."""
    own = read_listing(store, read_root(store, bytes.fromhex(tree)).node).meta
    os.mkdir(directory, 0o700)
    top = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    copier = Copier(top, layer=host_layer())
    try:
        copier.enter(b"")
        if not copier.leave((), own.mode, own.mtime_ns, own.xattrs, to_host(ids, own.uid, own.gid)):
            os.fchmod(top, own.mode)
    finally:
        copier.close()
        os.close(top)


@contextmanager
def imported(tree: Directory) -> Iterator[tuple[Path, Home, bases.Base]]:
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch)
        try:
            (top / "source").mkdir()
            build(top / "source", tree)
            home = open_home(str(top / "home"))
            (top / "mnt").mkdir()
            yield top, home, bases.import_source(home, str(top / "source"), ids=IDS)
        finally:
            for name in os.listdir(top):
                remove_tree(str(top / name))


@given(random_trees, st.lists(changes, min_size=1, max_size=3))
@settings(max_examples=60, deadline=None)
def test_the_tree_from_the_uppers_is_the_tree_that_the_container_sees(
    tree: Directory, rounds: list[list[tuple[Any, ...]]]
) -> None:
    with imported(tree) as (top, home, base), Store(home.store) as store:
        layers, before = [base.path], base.tree
        for number, steps in enumerate(rounds):
            upper, work = str(top / f"upper{number}"), str(top / f"work{number}")
            prepare_upper(store, before, upper, ids=IDS)
            os.mkdir(work)
            with mounted(layers, upper, work, str(top / "mnt")):
                cache = None
                for step in steps:
                    change(str(top / "mnt"), *step)
                    live = from_upper(store, before, upper, cache)  # as a frozen scan would, again and again
                    assert live.cache
                    cache = StatCache.from_bytes(live.cache.to_bytes())
                expected = picture(top / "mnt")
                seen = whole(store, str(top / "mnt"))
                with store.writing() as writer:
                    ahead = read_ahead(writer, upper, ids=IDS)
                    assert scan_upper(store, writer, before, upper, ids=IDS, cache=ahead).tree == seen
            sealed = from_upper(store, before, upper)
            assert sealed.tree == seen
            assert not steps or live.tree == seen
            materialise(store, sealed.tree, str(top / f"back{number}"), ids=IDS)
            assert picture(top / f"back{number}") == expected
            layers, before = [upper, *layers], sealed.tree


@pytest.fixture
def workspace(tmp_path: Path) -> Iterator[tuple[Path, Store, bases.Base]]:
    files = {
        b"a": File(b"a"),
        b"b": File(b"b", 0o755),
        b"d": Directory({b"x": File(b"x"), b"y": Link(b"x")}),
        b"p": Fifo(),
    }
    source = tmp_path / "source"
    source.mkdir()
    build(source, Directory(files))
    os.link(source / "a", source / "a2")
    os.link(source / "a", source / "d" / "a3")
    home = open_home(str(tmp_path / "home"))
    base = bases.import_source(home, str(source), ids=IDS)
    (tmp_path / "mnt").mkdir()
    (tmp_path / "work").mkdir()
    with Store(home.store) as store:
        prepare_upper(store, base.tree, str(tmp_path / "upper"), ids=IDS)
        with mounted([base.path], str(tmp_path / "upper"), str(tmp_path / "work"), str(tmp_path / "mnt")):
            yield tmp_path, store, base


def test_nothing_changed_is_the_same_tree_and_writes_nothing(
    workspace: tuple[Path, Store, bases.Base],
) -> None:
    top, store, base = workspace
    with store.writing() as writer:
        scan = scan_upper(store, writer, base.tree, str(top / "upper"), ids=IDS)
        assert writer.finish() is None
    assert (scan.tree, scan.paths_changed) == (base.tree, 0)


def test_being_copied_up_is_not_being_changed(workspace: tuple[Path, Store, bases.Base]) -> None:
    top, store, base = workspace
    os.close(os.open(top / "mnt/b", os.O_RDWR))
    assert (top / "upper/b").exists()
    scan = from_upper(store, base.tree, str(top / "upper"))
    assert (scan.tree, scan.paths_changed, scan.size_bytes) == (base.tree, 0, 0)


def test_a_hard_link_broken_by_the_kernel_is_broken_in_the_snapshot(
    workspace: tuple[Path, Store, bases.Base],
) -> None:
    top, store, base = workspace
    (top / "mnt/a2").write_text("changed")
    expected = picture(top / "mnt")
    scan = from_upper(store, base.tree, str(top / "upper"))
    assert scan.paths_changed == 1
    materialise(store, scan.tree, str(top / "back"), ids=IDS)
    assert picture(top / "back") == expected
    assert os.stat(top / "back/a").st_nlink == 2


def test_what_is_counted(workspace: tuple[Path, Store, bases.Base]) -> None:
    top, store, base = workspace
    (top / "mnt/new").write_text("12345")
    (top / "mnt/b").unlink()
    shutil.rmtree(top / "mnt/d")
    (top / "mnt/p").chmod(0o666)
    scan = from_upper(store, base.tree, str(top / "upper"))
    assert (scan.paths_changed, scan.size_bytes) == (4, 5)


def test_notes_of_the_kernel_that_say_the_content_lies_elsewhere_fail_the_snapshot(
    workspace: tuple[Path, Store, bases.Base],
) -> None:

    top, store, base = workspace
    for key in ("trusted.overlay.metacopy", "trusted.overlay.redirect"):
        (top / "upper/planted").write_text("")
        os.setxattr(top / "upper/planted", key, b"/elsewhere")
        with pytest.raises(SnapshotFailed, match=key):
            from_upper(store, base.tree, str(top / "upper"))
        (top / "upper/planted").unlink()


def test_notes_in_the_namespace_that_the_mount_does_not_use_are_plain_data(
    workspace: tuple[Path, Store, bases.Base],
) -> None:
    top, store, base = workspace
    for key in (
        "user.overlay.opaque",
        "user.overlay.redirect",
        "user.overlay.metacopy",
        "user.overlay.whiteout",
    ):
        os.setxattr(top / "mnt/d", key, b"y")
        os.setxattr(top / "mnt/b", key, b"y")
    expected = picture(top / "mnt")
    scan = from_upper(store, base.tree, str(top / "upper"))
    materialise(store, scan.tree, str(top / "back"), ids=IDS)
    assert picture(top / "back") == expected


def test_owners_are_recorded_as_the_container_sees_them(workspace: tuple[Path, Store, bases.Base]) -> None:
    top, store, base = workspace
    shifted = Ids(1000, 1000, 201000, 201000)  # the container's root is 200000 on the host
    for name, owner in {"root": 200000, "user": 201000, "host": 0}.items():
        (top / "mnt" / name).write_text("")
        os.chown(top / "mnt" / name, owner, owner)
    with store.writing() as writer:
        scan = scan_upper(store, writer, base.tree, str(top / "upper"), ids=shifted)
        writer.finish()
    listing = read_listing(store, read_root(store, bytes.fromhex(scan.tree)).node)
    assert {name: listing.files[name].meta.uid for name in (b"root", b"user", b"host")} == {
        b"root": 0,
        b"user": 1000,
        b"host": 65534,
    }
    materialise(store, scan.tree, str(top / "back"), ids=shifted)
    assert os.stat(top / "back/root").st_uid == 200000


def test_limits_fail_the_snapshot_whole_and_name_the_file(workspace: tuple[Path, Store, bases.Base]) -> None:

    top, store, base = workspace
    (top / "mnt/d/large").write_bytes(b"x" * 5000)
    with store.writing() as writer, pytest.raises(LimitExceeded, match="d/large"):
        scan_upper(store, writer, base.tree, str(top / "upper"), ids=IDS, max_file_bytes=4999)
    with store.writing() as writer, pytest.raises(LimitExceeded, match="d/large with 5000"):
        scan_upper(store, writer, base.tree, str(top / "upper"), ids=IDS, max_total_bytes=4999)
    with store.writing() as writer:
        scan_upper(store, writer, base.tree, str(top / "upper"), ids=IDS, max_file_bytes=5000, max_total_bytes=5000)


def test_with_a_second_process_it_is_the_same_tree(workspace: tuple[Path, Store, bases.Base]) -> None:
    top, store, base = workspace
    for number in range(40):
        directory = top / f"mnt/packages/p{number}/lib"
        directory.mkdir(parents=True)
        for name in range(60):
            (directory / f"f{name}").write_text(f"{number % 7} {name}")
        (directory / "link").symlink_to("f0")
        os.link(directory / "f1", top / f"mnt/hard{number}")
    (top / "mnt/b").unlink()
    before = children_time()
    helped = from_upper(store, base.tree, str(top / "upper"))
    assert children_time() > before, "there was enough to do for a second one"
    with store.writing() as writer:
        alone = merge_upper(store, writer, base.tree, gather_upper(writer, str(top / "upper"), ids=IDS))
    assert (alone.tree, alone.paths_changed, alone.size_bytes) == (helped.tree, helped.paths_changed, helped.size_bytes)
    expected = picture(top / "mnt")
    materialise(store, helped.tree, str(top / "back"), ids=IDS)
    assert picture(top / "back") == expected


def test_what_the_second_process_cannot_take_fails_the_snapshot(workspace: tuple[Path, Store, bases.Base]) -> None:
    top, store, base = workspace
    for number in range(40):
        directory = top / f"mnt/p{number}"
        directory.mkdir()
        for name in range(60):
            (directory / f"f{name}").write_text("")
        (directory / "large").write_bytes(b"x" * number * 100)
    with store.writing() as writer, pytest.raises(LimitExceeded, match="large"):
        scan_upper(store, writer, base.tree, str(top / "upper"), ids=IDS, max_file_bytes=3800)
    assert not [name for name in os.listdir(store.pack_directory) if name.startswith("tmp_")]
