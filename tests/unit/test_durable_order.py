"""Data, then sync, then the name, then the directory: the calls that `durable` makes, in their order.

The calls are made as ever; they are only noted on the way. What the order is good for is tried on real disks in
`tests/faults/test_power_cuts.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ws import durable, filesystem_kinds
from ws.layout import open_home
from ws.store.packs import BLOB
from ws.store.repository import Store


class Calls(list[str]):
    """What was called, by the name of the file: `fsync x`, `rename x`."""


def plain(path: str) -> str:
    """The name of a file; staged ones all look alike."""
    name = os.path.basename(os.fspath(path).removesuffix(" (deleted)"))
    return re.sub(r"^\.(.*)\.[0-9a-f]{8}\.tmp$", r"staged \1", name)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    noted = Calls()
    fsync, rename, unlink, close = os.fsync, os.rename, os.unlink, os.close

    def note_fsync(fd: int) -> None:
        fsync(fd)
        noted.append(f"fsync {plain(os.readlink(f'/proc/self/fd/{fd}'))}")

    def note_rename(source: str, destination: str, **options: Any) -> None:
        rename(source, destination, **options)
        noted.append(f"rename {plain(destination)}")

    def note_unlink(path: str, **options: Any) -> None:
        unlink(path, **options)
        noted.append(f"unlink {plain(path)}")

    def note_close(fd: int) -> None:
        target = os.readlink(f"/proc/self/fd/{fd}")
        close(fd)
        if target.endswith(" (deleted)"):
            noted.append(f"let go of {plain(target)}")

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "rename", note_rename)
    monkeypatch.setattr(os, "unlink", note_unlink)
    monkeypatch.setattr(os, "close", note_close)
    yield noted
    monkeypatch.undo()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture(params=[True, False], ids=["journal", "no-journal"])
def journal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """As on an ext4 with a journal, or on one without."""
    monkeypatch.setattr(filesystem_kinds, "_filesystem", lambda _: (0xEF53, b""))
    monkeypatch.setattr(filesystem_kinds, "_has_journal", lambda *_: request.param)
    return bool(request.param)


def test_a_file_is_synced_before_it_has_its_name_and_the_name_after(place: Path, calls: Calls) -> None:
    durable.write_file(str(place / "x"), b"1")
    assert calls == ["fsync staged x", "rename x", "fsync place"]


def test_the_inode_of_a_replaced_file_is_held_until_its_directory_is_synced(place: Path, calls: Calls) -> None:
    durable.write_file(str(place / "x"), b"1")
    calls.clear()
    durable.write_file(str(place / "x"), b"2")
    assert calls == ["fsync staged x", "rename x", "fsync place", "let go of x"]
    calls.clear()
    durable.write_files([(str(place / "x"), b"3")])
    assert [call for call in calls if call.startswith(("fsync place", "let go of x"))] == ["fsync place", "let go of x"]


def test_without_sync_only_a_journal_spares_the_sync(place: Path, calls: Calls, journal: bool) -> None:
    durable.write_file(str(place / "x"), b"1", sync=False)
    assert calls == (["rename x"] if journal else ["fsync staged x", "rename x", "fsync place"])


def test_a_filesystem_without_a_journal_is_synced_twice(
    place: Path, journal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []

    class Library:
        def syncfs(self, fd: int) -> int:
            synced.append(fd)
            return 0

    monkeypatch.setattr(durable, "_libc", Library())
    durable.sync_filesystem(str(place))
    assert len(synced) == (1 if journal else 2)


def test_a_sync_that_fails_is_an_error(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def syncfs(self, fd: int) -> int:
            return -1

    monkeypatch.setattr(durable, "_libc", Library())
    with pytest.raises(OSError, match="place"):
        durable.sync_filesystem(str(place))


def test_a_staged_file_is_durable_when_it_is_in_its_place(place: Path, calls: Calls) -> None:
    staged = durable.stage_file(str(place / "x"), b"1")
    durable.commit_staged(staged, str(place / "x"))
    assert calls == ["rename x", "fsync place"]


def test_files_are_all_synced_before_the_first_has_its_name(place: Path, calls: Calls) -> None:
    (place / "other").mkdir()
    beside = os.open(place / "beside", os.O_CREAT | os.O_RDWR, 0o600)
    files = [(str(place / "one"), b"1"), (str(place / "other" / "two"), b"2")]
    durable.write_files(files, also=[beside], then=lambda: calls.append("then"))
    os.close(beside)
    assert calls[:4] == ["fsync beside", "fsync staged one", "fsync staged two", "then"]
    assert [call for call in calls[4:] if call != "fsync place"] == ["rename one", "rename two", "fsync other"]


def test_without_a_journal_a_name_is_synced_before_the_next_directory_gets_one(
    place: Path, calls: Calls, journal: bool
) -> None:
    (place / "other").mkdir()
    durable.write_files([(str(place / "one"), b"1"), (str(place / "other" / "two"), b"2")])
    order = [call for call in calls if not call.startswith("fsync staged")]
    between = [] if journal else ["fsync place"]
    assert order == ["rename one", *between, "rename two", "fsync other"]


def test_a_directory_is_synced_itself_and_then_its_name(place: Path, calls: Calls) -> None:
    durable.ensure_directory(str(place / "new"))
    assert calls == ["fsync new", "fsync place"]
    calls.clear()
    durable.ensure_directory(str(place / "new"))
    assert calls == []


def test_a_removed_name_is_gone_for_good(place: Path, calls: Calls) -> None:
    (place / "x").touch()
    durable.unlink(str(place / "x"))
    assert calls == ["unlink x", "fsync place"]


def test_both_directories_of_a_move_are_synced(place: Path, calls: Calls) -> None:
    for name in ("from", "to"):
        (place / name).mkdir()
    for move in (durable.rename, durable.rename_new):
        (place / "from" / "x").touch()
        move(str(place / "from" / "x"), str(place / "to" / "x"))
        (place / "to" / "x").unlink()
        assert {"fsync from", "fsync to"} <= set(calls)
        calls.clear()
    for name in ("from", "to"):
        (place / name / "y").touch()
    durable.exchange(str(place / "from" / "y"), str(place / "to" / "y"))
    assert {"fsync from", "fsync to"} <= set(calls)


def test_an_intent_is_durable_before_anything_is_begun(place: Path, calls: Calls) -> None:
    with durable.intent(str(place / "x"), b"1"):
        assert calls == ["fsync staged x", "fsync place"]
    calls.clear()
    with durable.intent(str(place / "y"), b"1", sync=False):
        assert calls == []


def test_a_pack_is_synced_before_its_index_and_that_before_its_references(tmp_path: Path, calls: Calls) -> None:
    with Store(str(tmp_path / "store")) as store:
        calls.clear()
        with store.writing() as writer:
            writer.add(BLOB, b"content")
            name = os.path.basename(writer.path)
            place = writer.finish([(str(tmp_path / "store" / "refs" / "heads" / "x"), b"0" * 40)])
    assert place is not None
    pack = os.path.basename(place)
    kept = [call for call in calls if call.startswith("rename") or call in (f"fsync {name}", "fsync staged x")]
    assert kept == [f"fsync {name}", "fsync staged x", f"rename {pack}", f"rename {pack[:-5]}.idx", "rename x"]


def test_a_store_and_a_home_are_synced_before_they_count(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = durable.sync_filesystem

    def note_sync(path: str) -> None:
        sync(path)
        calls.append("sync")

    monkeypatch.setattr(durable, "sync_filesystem", note_sync)
    home = open_home(str(tmp_path / "home"))
    assert calls[calls.index("rename format") - 2 :][0] == "sync"
    Store(home.store).close()
    assert calls[calls.index("rename HEAD") - 2 :][0] == "sync"
