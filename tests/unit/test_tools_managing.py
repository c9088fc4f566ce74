"""The law: nothing that a tool moves, deletes or replaces is lost before its time."""

from __future__ import annotations

import errno
import os
import tempfile
import time
from pathlib import Path

import pytest
from tool_contexts import BACKENDS, make_context

from ws.errors import FsViolationError, InvalidRequest, NotFound
from ws.tools.context import ToolContext
from ws.tools.editing import str_replace
from ws.tools.managing import delete, mkdir, move, redo, trash_list, trash_purge, trash_restore, undo
from ws.tools.trash import Retention
from ws.tools.writing import write_file


@pytest.fixture(params=BACKENDS)
def context(request: pytest.FixtureRequest, tmp_path: Path) -> ToolContext:
    return make_context(request.param, tmp_path)


def contents(context: ToolContext) -> dict[str, str]:
    """Every path of the tree, with what it holds."""
    found = {}
    for match in context.filesystem.glob("**"):
        status = context.filesystem.stat(match.path, follow_symlinks=False)
        if status.is_symlink:
            found[match.path] = f"-> {status.target}"
        else:
            found[match.path] = context.filesystem.read(match.path) if status.is_file else "/"
    return found


# delete


def test_a_deleted_file_comes_back_with_its_mode(context: ToolContext) -> None:
    context.filesystem.write("f", "content")
    context.filesystem.set_mode("f", 0o750)
    result = delete(context, path="f")
    assert contents(context) == {}
    assert "trash" in result.message
    undo(context, path="f")
    assert contents(context) == {"f": "content"}
    assert context.filesystem.stat("f").mode == 0o750


def test_a_deleted_directory_comes_back_with_all_below(context: ToolContext) -> None:
    context.filesystem.write("d/e/f", "content")
    context.filesystem.mkdir("d/empty")
    context.filesystem.make_link("d/l", "e/f")
    before = contents(context)
    with pytest.raises(OSError, match="not empty") as caught:
        delete(context, path="d")
    assert caught.value.errno == errno.ENOTEMPTY
    delete(context, path="d", recursive=True)
    assert contents(context) == {}
    with pytest.raises(NotFound) as missing:
        undo(context, path="d/e/f")
    assert "'d'" in (missing.value.hint or "")
    undo(context, path="d")
    assert contents(context) == before
    redo(context, path="d")
    assert contents(context) == {}
    assert [entry["path"] for entry in trash_list(context).data["entries"]] == ["d"]


def test_of_a_link_the_link_is_deleted_never_its_target(context: ToolContext) -> None:
    context.filesystem.write("d/f", "content")
    context.filesystem.make_link("l", "d")
    delete(context, path="l", recursive=True)
    assert contents(context) == {"d": "/", "d/f": "content"}
    undo(context, path="l")
    assert contents(context)["l"] == "-> d"
    delete(context, path="l", permanent=True)
    assert contents(context) == {"d": "/", "d/f": "content"}


def test_a_permanent_delete_keeps_nothing(context: ToolContext) -> None:
    context.filesystem.write("d/f", "content")
    delete(context, path="d", recursive=True, permanent=True)
    assert contents(context) == {}
    assert trash_list(context).data["entries"] == []
    with pytest.raises(NotFound):
        undo(context, path="d")


def test_the_root_and_what_is_not_there_cannot_be_deleted(context: ToolContext) -> None:
    with pytest.raises(FileNotFoundError):
        delete(context, path="none")
    with pytest.raises(FsViolationError):
        delete(context, path=".", recursive=True, permanent=True)


# move


def test_a_move_can_be_undone_and_done_again(context: ToolContext) -> None:
    context.filesystem.write("d/f", "content")
    move(context, source="d", destination="e")
    assert contents(context) == {"e": "/", "e/f": "content"}
    with pytest.raises(NotFound) as caught:
        undo(context, path="d/f")
    assert "'d'" in (caught.value.hint or "")
    for again, path in enumerate(("d", "d", "e", "e", "d", "e")):
        before = contents(context)
        (redo if again % 2 else undo)(context, path=path)
        assert contents(context) == {name.translate({100: "e", 101: "d"}): held for name, held in before.items()}


def test_an_edit_before_a_move_does_not_come_between_it_and_its_undo(context: ToolContext) -> None:
    context.filesystem.write("a", "one")
    str_replace(context, path="a", old_str="one", new_str="two")
    move(context, source="a", destination="b")
    for step, after in ((undo, {"a": "two"}), (redo, {"b": "two"}), (undo, {"a": "two"}), (undo, {"a": "one"})):
        step(context, path="a")
        assert contents(context) == after
    for after in ({"a": "two"}, {"b": "two"}):
        redo(context, path="a")
        assert contents(context) == after


@pytest.mark.parametrize("path", ["a", "b"])
def test_what_a_move_replaces_comes_back_with_its_undo(context: ToolContext, path: str) -> None:
    context.filesystem.write("a", "new")
    context.filesystem.write("b", "old")
    with pytest.raises(FileExistsError):
        move(context, source="a", destination="b")
    move(context, source="a", destination="b", overwrite=True)
    for _ in range(3):
        assert contents(context) == {"b": "new"}
        undo(context, path=path)
        assert contents(context) == {"a": "new", "b": "old"}
        redo(context, path=path)


def test_what_has_since_come_where_something_was_moved_away_is_kept(context: ToolContext) -> None:
    context.filesystem.write("a", "first")
    move(context, source="a", destination="b")
    write_file(context, path="a", content="second")
    undo(context, path="b")
    assert contents(context) == {"a": "first"}
    redo(context, path="b")
    assert contents(context) == {"a": "second", "b": "first"}


def test_only_what_was_moved_is_moved_back(context: ToolContext) -> None:
    context.filesystem.write("a", "moved")
    move(context, source="a", destination="b")
    context.filesystem.write("b", "other")
    for path in ("a", "b"):
        with pytest.raises(InvalidRequest, match="something else"):
            undo(context, path=path)
        assert contents(context) == {"b": "other"}
    context.filesystem.write("b", "moved")
    str_replace(context, path="b", old_str="moved", new_str="edited")
    undo(context, path="b")
    undo(context, path="a")
    assert contents(context) == {"a": "moved"}


def test_a_moved_link_is_known_again_by_where_it_leads(context: ToolContext) -> None:
    context.filesystem.make_link("a", "nowhere")
    move(context, source="a", destination="b")
    undo(context, path="b")
    assert context.filesystem.read_link("a") == "nowhere"
    redo(context, path="b")
    context.filesystem.delete("b")
    context.filesystem.make_link("b", "elsewhere")
    with pytest.raises(InvalidRequest):
        undo(context, path="a")


def test_a_directory_may_take_the_place_of_a_full_one_when_asked(context: ToolContext) -> None:
    context.filesystem.write("a/x", "new")
    context.filesystem.write("b/y", "old")
    move(context, source="a", destination="b", overwrite=True)
    assert contents(context) == {"b": "/", "b/x": "new"}
    undo(context, path="b")
    assert contents(context) == {"a": "/", "a/x": "new", "b": "/", "b/y": "old"}


def test_a_move_that_cannot_be_changes_nothing(context: ToolContext) -> None:
    context.filesystem.write("a/x", "1")
    context.filesystem.write("b", "2")
    before = contents(context)
    for source, destination, kind in (
        ("a", "a/inner", InvalidRequest),
        ("none", "c", FileNotFoundError),
        ("b", "no/parent", FileNotFoundError),
        ("b", "../out", FsViolationError),
        ("b", "a/x/y", NotADirectoryError),
    ):
        with pytest.raises(kind):
            move(context, source=source, destination=destination, overwrite=True)
        assert contents(context) == before


# mkdir, undo


def test_undoing_a_creation_deletes_and_redoing_it_brings_back(context: ToolContext) -> None:
    write_file(context, path="f", content="made")
    mkdir(context, path="d")
    undo(context, path="f")
    undo(context, path="d")
    assert contents(context) == {}
    redo(context, path="f")
    redo(context, path="d")
    assert contents(context) == {"f": "made", "d": "/"}


def test_undo_goes_back_one_change_at_a_time_and_redo_forward(context: ToolContext) -> None:
    write_file(context, path="f", content="1")
    for number in (2, 3, 4):
        write_file(context, path="f", content=str(number), mode="overwrite")
    for expected in ("3", "2", "1"):
        undo(context, path="f")
        assert contents(context) == {"f": expected}
    undo(context, path="f")
    assert contents(context) == {}
    with pytest.raises(NotFound):
        undo(context, path="f")
    for expected in ("1", "2", "3", "4"):
        redo(context, path="f")
        assert contents(context) == {"f": expected}
    with pytest.raises(NotFound, match="nothing was undone"):
        redo(context, path="f")
    undo(context, path="f")
    undo(context, path="f")
    write_file(context, path="f", content="other", mode="overwrite")
    with pytest.raises(NotFound):
        redo(context, path="f")
    for expected in ("2", "1"):
        undo(context, path="f")
        assert contents(context) == {"f": expected}


def test_a_dry_run_of_what_destroys_changes_nothing_and_says_what_it_would(context: ToolContext) -> None:
    write_file(context, path="f", content="1")
    write_file(context, path="f", content="2", mode="overwrite")
    results = [
        delete(context, path="f", dry_run=True),
        delete(context, path="f", permanent=True, dry_run=True),
        move(context, source="f", destination="g", dry_run=True),
        undo(context, path="f", dry_run=True),
    ]
    assert [result.message for result in results] == [
        "f would be moved to the trash",
        "f would be deleted for good",
        "f would be moved to g",
        "f would be brought back as it was",
    ]
    assert contents(context) == {"f": "2"}
    undo(context, path="f")
    assert redo(context, path="f", dry_run=True).message == "f would be brought back as it was"
    assert contents(context) == {"f": "1"}
    with pytest.raises(FileNotFoundError):
        delete(context, path="none", dry_run=True)


def test_mkdir_says_whether_it_made_something(context: ToolContext) -> None:
    assert mkdir(context, path="a/b").data["created"]
    assert not mkdir(context, path="a/b").data["created"]
    with pytest.raises(FileExistsError):
        mkdir(context, path="a/b", exist_ok=False)
    with pytest.raises(FileNotFoundError):
        mkdir(context, path="x/y", parents=False)


def test_undo_through_a_link_writes_to_what_it_leads_to(context: ToolContext) -> None:
    context.filesystem.write("f", "old")
    context.filesystem.make_link("l", "f")
    write_file(context, path="l", content="new", mode="overwrite")
    undo(context, path="l")
    assert contents(context) == {"f": "old", "l": "-> f"}


def test_a_change_through_a_link_is_undone_by_either_name(context: ToolContext) -> None:
    context.filesystem.write("f", "old")
    context.filesystem.make_link("l", "f")
    write_file(context, path="l", content="new", mode="overwrite")
    undo(context, path="f")
    assert contents(context) == {"f": "old", "l": "-> f"}
    context.filesystem.make_link("dangling", "made")
    write_file(context, path="dangling", content="new")
    undo(context, path="dangling")
    assert contents(context) == {"f": "old", "l": "-> f", "dangling": "-> made"}


def test_a_path_through_a_link_means_the_same_file_to_delete_and_to_undo(context: ToolContext) -> None:
    fs = context.filesystem
    for name in ("dd/f", "other/dd/f"):
        fs.write(name, name)
    fs.mkdir("other/deep")
    fs.make_link("link", "other/deep")
    before = contents(context)
    delete(context, path="link/../dd/f")
    assert contents(context) == {name: held for name, held in before.items() if name != "other/dd/f"}
    undo(context, path="link/../dd/f")
    delete(context, path="link/../dd", recursive=True)
    assert contents(context) == {name: held for name, held in before.items() if not name.startswith("other/dd")}
    undo(context, path="other/dd")
    move(context, source="link/../dd", destination="link/moved")
    assert fs.read("other/deep/moved/f") == "other/dd/f"
    undo(context, path="link/../dd")
    assert contents(context) == before


def test_a_path_that_leads_out_is_refused_by_undo_and_the_trash(context: ToolContext) -> None:
    write_file(context, path="f", content="one")
    delete(context, path="f")
    name = trash_list(context).data["entries"][0]["name"]
    for call in (
        lambda: undo(context, path="../../f"),
        lambda: undo(context, path="/etc/passwd"),
        lambda: trash_list(context, path="../.."),
        lambda: trash_restore(context, name=name, destination="../../../etc/f"),
    ):
        with pytest.raises(FsViolationError, match=context.filesystem.root):
            call()
    assert contents(context) == {}


def test_one_path_has_one_history_however_it_is_spelt(context: ToolContext) -> None:
    write_file(context, path="./d//f", content="one")
    write_file(context, path=f"{context.filesystem.root}/d/f", content="two", mode="overwrite")
    undo(context, path="d/../d/f")
    assert context.filesystem.read("d/f") == "one"


def test_a_deleted_file_whose_place_was_taken_comes_back_by_undo(context: ToolContext) -> None:
    context.filesystem.write("x", "file")
    delete(context, path="x")
    context.filesystem.mkdir("x/y")
    undo(context, path="x")
    assert contents(context) == {"x": "file"}
    redo(context, path="x")
    assert contents(context) == {"x": "/", "x/y": "/"}


# trash


def test_the_trash_is_listed_newest_first_and_restored_by_name(context: ToolContext) -> None:
    for content in ("one", "two"):
        context.filesystem.write("f", content)
        delete(context, path="f")
    context.filesystem.write("d/g", "three")
    delete(context, path="d", recursive=True)
    entries = trash_list(context).data["entries"]
    assert [(entry["path"], entry["kind"]) for entry in entries] == [
        ("d", "directory"),
        ("f", "file"),
        ("f", "file"),
    ]
    assert len({entry["name"] for entry in entries}) == 3
    assert trash_list(context, limit=1).truncated
    assert [entry["path"] for entry in trash_list(context, path="d").data["entries"]] == ["d"]
    trash_restore(context, name=entries[2]["name"])
    assert contents(context) == {"f": "one"}
    with pytest.raises(FileExistsError):
        trash_restore(context, name=entries[1]["name"])
    trash_restore(context, name=entries[1]["name"], destination="new/place")
    trash_restore(context, name=entries[0]["name"], destination="f", overwrite=True)
    assert contents(context) == {"f": "/", "f/g": "three", "new": "/", "new/place": "two"}
    undo(context, path="f")
    assert contents(context)["f"] == "one"


@pytest.mark.parametrize("kind", ["file", "link"])
def test_what_was_deleted_comes_back_with_its_time(context: ToolContext, kind: str) -> None:
    if kind == "file":
        context.filesystem.write("f", "content")
    else:
        context.filesystem.make_link("f", "nowhere")
    context.filesystem.set_modified("f", 1_600_000_000_123_456_000)
    then = context.filesystem.stat("f", follow_symlinks=False).modified_at
    delete(context, path="f")
    trash_restore(context, name=trash_list(context).data["entries"][0]["name"], destination="g")
    assert context.filesystem.stat("g", follow_symlinks=False).modified_at == then


def test_an_edit_that_is_undone_is_seen_by_whoever_compares_times(context: ToolContext) -> None:
    context.filesystem.write("f", "old")
    context.filesystem.set_modified("f", 1_600_000_000_000_000_000)
    str_replace(context, path="f", old_str="old", new_str="new")
    undo(context, path="f")
    assert context.filesystem.stat("f").modified_at.year > 2020


def test_the_rules_hold_for_what_is_kept_as_for_what_is_there(tmp_path: Path) -> None:
    free = make_context("host", tmp_path)
    write_file(free, path="top/private/key", content="secret")
    write_file(free, path="open", content="open")
    str_replace(free, path="top/private/key", old_str="secret", new_str="SECRET")
    edited = free.backups.records("top/private/key")[0].id
    delete(free, path="open")
    delete(free, path="top", recursive=True)
    whole = free.backups.records("top")[0].id
    bound = make_context("host", tmp_path, restricted_paths=["top/private"])
    assert [entry["path"] for entry in trash_list(bound, path=".").data["entries"]] == ["top", "open", "open"]
    for call in (
        lambda: undo(bound, path="top/private/key"),
        lambda: undo(bound, path="top"),
        lambda: trash_list(bound, path="top/private"),
        lambda: trash_restore(bound, name=edited, destination="leak"),
        lambda: trash_restore(bound, name=whole, destination="leak"),
        lambda: trash_purge(bound, name=edited),
    ):
        with pytest.raises(FsViolationError, match=r"'top.*root: "):
            call()
    assert contents(bound) == {}
    undo(free, path="top")
    assert free.filesystem.read("top/private/key") == "SECRET"


def test_names_that_are_none_are_refused(context: ToolContext) -> None:
    for name in ("", "x", "../x", "a/b", "a/b/c", "../../etc/passwd", "/etc/passwd", "./."):
        with pytest.raises(NotFound):
            trash_restore(context, name=name)
        if name:
            with pytest.raises(NotFound):
                trash_purge(context, name=name)


def test_purging_removes_for_good(context: ToolContext) -> None:
    for name in ("a", "b", "c"):
        context.filesystem.write(f"{name}/f", name)
        delete(context, path=name, recursive=True)
    write_file(context, path="kept", content="1")
    entries = trash_list(context).data["entries"]
    assert trash_purge(context, name=entries[0]["name"]).data["removed"] == 1
    assert trash_purge(context).data["removed"] == 0
    assert trash_purge(context, older_than_days=1).data["removed"] == 0
    assert trash_purge(context, older_than_days=0).data["removed"] == 2
    assert trash_list(context).data["entries"] == []
    undo(context, path="kept")
    assert contents(context) == {}


@pytest.mark.parametrize("backend", BACKENDS)
def test_old_and_surplus_records_are_let_go(backend: str, tmp_path: Path) -> None:
    context = make_context(backend, tmp_path, retention=Retention(max_per_path=3))
    for n in range(6):
        write_file(context, path="f", content=str(n), mode="overwrite")
    assert [record.kind for record in context.backups.records("f")] == ["file"] * 3
    assert Retention() == Retention(max_per_path=50, max_age_s=30 * 86_400)


@pytest.mark.parametrize("backend", BACKENDS)
def test_records_past_their_age_go_with_the_next_change(backend: str, tmp_path: Path) -> None:
    context = make_context(backend, tmp_path, retention=Retention(max_age_s=0.05))
    write_file(context, path="old", content="x")
    time.sleep(0.1)
    assert context.backups.purge(older_than_s=0.05) == 1
    assert context.backups.records("old") == []


def test_what_a_killed_writer_left_is_no_record(tmp_path: Path) -> None:
    context = make_context("host", tmp_path)
    write_file(context, path="f", content="first\n")
    for old, new in (("first", "second"), ("second", "third")):
        str_replace(context, path="f", old_str=old, new_str=new)
    newest = context.backups.records("f")[0]
    with open(tmp_path / "kept" / newest.id, "r+b") as file:
        file.truncate(os.fstat(file.fileno()).st_size - 1)
    assert [record.kind for record in context.backups.records("f")] == ["file", "absent"]
    undo(context, path="f")
    assert contents(context) == {"f": "first\n"}


def test_backups_lie_outside_the_tree(tmp_path: Path) -> None:
    context = make_context("host", tmp_path)
    write_file(context, path="d/main.py", content="one")
    write_file(context, path="d/main.py", content="two", mode="overwrite")
    delete(context, path="d", recursive=True)
    assert os.listdir(tmp_path / "tree") == []
    kept = sorted(path.name for path in (tmp_path / "kept").rglob("*") if path.is_file())
    assert any(name.endswith(".bak") for name in kept)
    assert [path.read_text() for path in (tmp_path / "kept").rglob("main.py")] == ["two"]


def test_a_tree_3000_deep_goes_to_the_trash_and_for_good() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as top:
        context = make_context("host", Path(top))

        def dig(name: str) -> None:
            fd = os.open(f"{top}/tree", os.O_RDONLY)
            for _ in range(3_000):
                os.mkdir(name, dir_fd=fd)
                fd, last = os.open(name, os.O_RDONLY, dir_fd=fd), fd
                os.close(last)
            os.close(fd)

        dig("d")
        delete(context, path="d", recursive=True)
        dig("e")
        delete(context, path="e", recursive=True, permanent=True)
        assert os.listdir(f"{top}/tree") == []
        assert trash_purge(context, older_than_days=0).data["removed"] == 1


def test_directories_that_their_owner_closed_can_be_deleted(tmp_path: Path) -> None:
    context = make_context("host", tmp_path)
    context.filesystem.write("d/e/f", "x")
    (tmp_path / "tree/d/e").chmod(0)
    (tmp_path / "tree/d").chmod(0o111)
    delete(context, path="d", recursive=True, permanent=True)
    assert contents(context) == {}


@pytest.mark.parametrize("backend", BACKENDS)
def test_large_files_go_to_the_trash_and_come_back(backend: str, tmp_path: Path) -> None:
    context = make_context(backend, tmp_path)
    context.filesystem.write("big", "x" * (1 << 21))
    delete(context, path="big")
    assert contents(context) == {}
    context.filesystem.write("big", "small")
    undo(context, path="big")
    assert contents(context) == {"big": "x" * (1 << 21)}
    redo(context, path="big")
    assert contents(context) == {"big": "small"}


def test_special_files_can_only_be_deleted_for_good(tmp_path: Path) -> None:
    context = make_context("host", tmp_path)
    os.mkfifo(tmp_path / "tree/pipe")
    with pytest.raises(InvalidRequest):
        delete(context, path="pipe")
    delete(context, path="pipe", permanent=True)
    assert contents(context) == {}
