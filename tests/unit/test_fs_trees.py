"""The law: a tree that must be copied to be moved arrives whole, with all that belongs to it, or not at all."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ws.errors import InvalidRequest, LimitExceeded
from ws.fs.host import HostFilesystem
from ws.fs.memory import MemoryFilesystem
from ws.fs.protocol import WORKSPACE_LIMITS, Filesystem, GrepQuery
from ws.fs.ripgrep import Ripgrep
from ws.fs.transfer import copy_between, move_between


@pytest.fixture
def other_device() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as path:
        yield Path(path)


def plant(root: Path) -> None:
    """A tree with everything that a copy could lose."""
    (root / "d" / "sub" / "empty").mkdir(parents=True)
    (root / "d" / "file").write_text("content")
    (root / "d" / "run").write_text("#!")
    (root / "d" / "run").chmod(0o4711)
    (root / "d" / "sub" / "again").hardlink_to(root / "d" / "file")
    (root / "d" / "link").symlink_to("sub/nowhere")
    (root / "d" / os.fsdecode(b"\xff\n")).write_bytes(b"\0\xff")
    os.mkfifo(root / "d" / "pipe")
    os.setxattr(root / "d" / "file", "user.note", b"kept")
    for path in ("d/file", "d/run", "d/sub/empty", "d/sub", "d"):
        os.utime(root / path, ns=(10**18, 10**18 + 123_456_789))
    (root / "d" / "sub").chmod(0o555)


def picture(root: Path) -> dict[str, object]:
    """Everything about a tree that must survive."""
    seen: dict[str, object] = {}
    for path in [root, *sorted(root.rglob("*"))]:
        status = path.lstat()
        content = path.read_bytes() if path.is_file() else os.readlink(path) if path.is_symlink() else None
        modified = None if path.is_symlink() or path.is_fifo() else status.st_mtime_ns
        seen[str(path.relative_to(root))] = (status.st_mode, status.st_uid, status.st_gid, modified, content)
    seen["same file"] = os.path.samefile(root / "file", root / "sub" / "again")
    seen["xattr"] = os.getxattr(root / "file", "user.note")
    return seen


def test_a_move_to_another_device_loses_nothing(tmp_path: Path, other_device: Path) -> None:
    plant(tmp_path)
    before = picture(tmp_path / "d")
    here = HostFilesystem(str(tmp_path), durable=False)
    there = HostFilesystem(str(other_device), durable=False)
    assert os.stat(tmp_path).st_dev != os.stat(other_device).st_dev
    move_between(here, "d", there, "e")
    assert picture(other_device / "e") == before
    assert os.listdir(tmp_path) == []


@pytest.mark.root
def test_a_directory_of_a_lower_layer_can_be_moved(tmp_path: Path) -> None:
    """Overlayfs answers rename of such a directory with EXDEV; most programs cope by copying, and so do we."""
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    plant(tmp_path / "lower")
    merged = tmp_path / "merged"
    options = f"redirect_dir=nofollow,lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    subprocess.run(["mount", "-t", "overlay", "none", "-o", options, str(merged)], check=True)
    try:
        before = picture(merged / "d")
        with pytest.raises(OSError, match="cross-device") as caught:
            os.rename(merged / "d", merged / "e")
        assert caught.value.errno == errno.EXDEV
        fs = HostFilesystem(str(merged), durable=False)
        fs.move("d", "e")
        assert picture(merged / "e") == before
        assert os.listdir(merged) == ["e"]
        fs.mkdir("full")
        fs.write("full/x", "")
        with pytest.raises(OSError, match="not empty"):
            fs.move("e", "full", overwrite=True)
        with pytest.raises(FileExistsError):
            fs.move("e", "full")
        assert sorted(os.listdir(merged)) == ["e", "full"]
        assert picture(merged / "e") == before
        fs.delete("e", recursive=True)
        assert os.listdir(merged) == ["full"]
    finally:
        subprocess.run(["umount", str(merged)], check=True)


def test_a_copy_that_fails_leaves_the_source_and_no_rest(tmp_path: Path, other_device: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "file").write_text("x")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "d" / "socket"))
        here, there = HostFilesystem(str(tmp_path)), HostFilesystem(str(other_device))
        with pytest.raises(InvalidRequest, match="socket"):
            move_between(here, "d", there, "e")
    assert os.listdir(other_device) == []
    assert sorted(os.listdir(tmp_path / "d")) == ["file", "socket"]


def test_a_tree_3000_deep_is_copied_and_removed(tmp_path: Path, other_device: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    for name in ["d"] * 3_000:
        os.mkdir(name, dir_fd=fd)
        fd, last = os.open(name, os.O_RDONLY, dir_fd=fd), fd
        os.close(last)
    os.close(fd)
    here, there = HostFilesystem(str(tmp_path), durable=False), HostFilesystem(str(other_device), durable=False)
    move_between(here, "d", there, "e")
    assert os.listdir(tmp_path) == []
    assert len(there.glob("**")) == 3_000
    there.delete("e", recursive=True)
    assert os.listdir(other_device) == []


@pytest.mark.parametrize("kinds", [("memory", "host"), ("host", "memory"), ("memory", "memory")])
def test_between_any_two_filesystems_it_goes_through_the_protocol(tmp_path: Path, kinds: tuple[str, str]) -> None:
    (tmp_path / "root").mkdir()

    def make(kind: str) -> Filesystem:
        return MemoryFilesystem() if kind == "memory" else HostFilesystem(str(tmp_path / "root"))

    source, target = make(kinds[0]), make(kinds[1])
    source.write("d/run", "#!")
    source.set_mode("d/run", 0o755)
    source.mkdir("d/empty")
    source.make_link("d/link", "run")
    source.set_modified("d/run", 10**18)
    source.set_mode("d", 0o700)
    copy_between(source, "d", target, "copy")
    move_between(source, "d", target, "e")
    assert not source.exists("d")
    for top in ("copy", "e"):
        assert [match.path for match in target.glob(f"{top}/**")] == [f"{top}/empty", f"{top}/link", f"{top}/run"]
        assert target.stat(f"{top}/run").mode == 0o755
        assert target.stat(top).mode == 0o700
        assert target.glob(f"{top}/run")[0].modified_ns == 10**18
        assert target.read_link(f"{top}/link") == "run"


def test_a_search_that_never_ends_is_ended(tmp_path: Path) -> None:
    sleeper = tmp_path / "rg"
    sleeper.write_text("#!/bin/sh\nexec sleep 60\n")
    sleeper.chmod(0o755)
    (tmp_path / "f").write_text("x")
    rg = Ripgrep((str(sleeper),), timeout_s=0.2)
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(LimitExceeded):
            rg.file_names(GrepQuery("x"), fd)
    finally:
        os.close(fd)
    fs = HostFilesystem(str(tmp_path))
    with pytest.raises(LimitExceeded):
        rg.search_files(GrepQuery("x"), ["f"], fs.open_read, lambda reader: reader.fileno(), 5)  # type: ignore[attr-defined]


def test_a_hundred_thousand_entries_in_one_directory_are_found(other_device: Path) -> None:
    for n in range(100_000):
        os.close(os.open(other_device / f"f{n}", os.O_CREAT | os.O_WRONLY))
    fs = HostFilesystem(str(other_device), limits=WORKSPACE_LIMITS, durable=False)
    assert len(fs.glob("*7")) == 10_000
    fs.mkdir("d")
    shutil.rmtree(other_device / "d")
