"""The law of copies: what is planned is what is done; a tree that lies about its names, or has no end, harms nobody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ws.errors import InvalidRequest, LimitExceeded, ProtocolError
from ws.fs import copying
from ws.fs.copying import carry_out, plan_copy
from ws.fs.host import HostFilesystem
from ws.fs.memory import MemoryFilesystem
from ws.fs.protocol import WORKSPACE_LIMITS, FileStat, Filesystem


@pytest.fixture
def here(tmp_path: Path) -> HostFilesystem:
    return HostFilesystem(str(tmp_path), limits=WORKSPACE_LIMITS, durable=False)


@pytest.fixture
def tree() -> MemoryFilesystem:
    source = MemoryFilesystem(limits=WORKSPACE_LIMITS)
    source.write("d/a", "one")
    source.write("d/e/b", "two")
    source.make_link("d/link", "a")
    source.set_mode("d/a", 0o640)
    source.set_modified("d/a", 1_000_000_000_000_001_000)
    return source


def test_a_plan_says_what_will_be_done_and_nothing_is_done_by_it(tree: MemoryFilesystem, here: HostFilesystem) -> None:
    plan = plan_copy(tree, "d", here, "copy")
    assert (plan.target, plan.files, plan.size_bytes) == ("copy", 3, 6)
    assert plan.steps[0].target == "copy"
    assert not here.exists("copy")


def test_a_tree_arrives_whole(tree: MemoryFilesystem, here: HostFilesystem, tmp_path: Path) -> None:
    told: list[tuple[str, int, int]] = []
    plan = plan_copy(tree, "d", here, "copy")
    carry_out(plan, tree, here, progress=lambda *step: told.append(step))
    assert (tmp_path / "copy/a").read_text() == "one"
    assert (tmp_path / "copy/e/b").read_text() == "two"
    assert os.readlink(tmp_path / "copy/link") == "a"
    status = (tmp_path / "copy/a").stat()
    assert (status.st_mode & 0o7777, status.st_mtime_ns) == (0o640, 1_000_000_000_000_001_000)
    assert told[-1] == ("copying", 6, 6)
    tree.write("d/a", "new")
    carry_out(plan_copy(tree, "d/.", here, "copy"), tree, here)
    assert (tmp_path / "copy/a").read_text() == "new"
    assert os.readlink(tmp_path / "copy/link") == "a"


def test_permissions_of_a_directory_that_was_there_are_left_alone(tree: MemoryFilesystem, here: HostFilesystem) -> None:
    here.mkdir("copy/e")
    here.set_mode("copy/e", 0o700)
    carry_out(plan_copy(tree, "d/.", here, "copy"), tree, here)
    assert here.stat("copy/e").mode == 0o700


def test_setuid_does_not_travel(here: HostFilesystem) -> None:
    source = MemoryFilesystem()
    source.write("f", "x")
    source.set_mode("f", 0o6755)
    carry_out(plan_copy(source, "f", here, "f"), source, here)
    assert here.stat("f").mode == 0o755


def test_pipes_are_named_and_left_out(here: HostFilesystem, tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    os.mkfifo(tmp_path / "d" / "pipe")
    (tmp_path / "d" / "file").write_text("x")
    target = MemoryFilesystem()
    plan = plan_copy(here, "d", target, "d")
    carry_out(plan, here, target)
    assert plan.left_out == ("d/pipe",)
    assert [entry.name for entry in target.list("d")] == ["file"]
    with pytest.raises(InvalidRequest):
        plan_copy(here, "d/pipe", target, "pipe")


class Lying(MemoryFilesystem):
    """A filesystem that says of every directory that these names are in it."""

    names: tuple[str, ...] = ()

    def scan(self, path: str = ".") -> list[FileStat]:
        top = self.stat(".")
        return [
            FileStat(
                name, False, True, 0, top.created_at, top.modified_at, top.accessed_at, 0o755
            )
            for name in self.names
        ]  # fmt: skip

    def stat(self, path: str, *, follow_symlinks: bool = True) -> FileStat:
        return super().stat(".")


@pytest.mark.parametrize("name", ["..", "a/..", ".", "x/", "a\0b"])
def test_a_name_that_is_none_is_refused(name: str, here: HostFilesystem) -> None:
    source = Lying()
    source.names = (name,)
    with pytest.raises(ProtocolError):
        plan_copy(source, "d", here, "copy")


def test_a_tree_without_an_end_is_refused(here: HostFilesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Lying()
    source.names = ("deeper",)
    with pytest.raises((LimitExceeded, InvalidRequest)):
        plan_copy(source, "d", MemoryFilesystem(), "copy")
    monkeypatch.setattr(copying, "MAX_STEPS", 1000)
    source.names = tuple(f"n{number}" for number in range(50))
    with pytest.raises(LimitExceeded):
        plan_copy(source, "d", MemoryFilesystem(), "copy")


@pytest.mark.parametrize(("new", "old"), [("f", "d/"), ("d", "f2"), ("link", "d/")])
def test_kinds_do_not_take_each_others_place(new: str, old: str) -> None:
    source, target = MemoryFilesystem(), MemoryFilesystem()
    source.write("top/f", "x")
    source.write("top/d/x", "x")
    source.make_link("top/link", "f")
    place = f"top/{new}"
    if old.endswith("/"):
        target.mkdir(place)
    else:
        target.write(place, "a file")
    with pytest.raises((IsADirectoryError, NotADirectoryError)):
        plan_copy(source, "top/.", target, "top")
    assert isinstance(target, Filesystem)
