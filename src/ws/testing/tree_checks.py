"""Conformance: metadata, searching, mutations."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from ws.fs.protocol import Filesystem, FilesystemSnapshot, GrepMatch, GrepQuery, Limits, SnapshotableFilesystem
from ws.testing.checking import MakeFilesystem, check, paths_of, raises

# metadata


@check
def stat_tells_what_there_is(make: MakeFilesystem) -> None:
    fs = make()
    fs.write("d/f", "12345")
    now = datetime.now(UTC)
    status = fs.stat("d/f")
    assert (status.path, status.is_file, status.is_directory, status.size_bytes) == ("d/f", True, False, 5)
    for moment in (status.created_at, status.modified_at, status.accessed_at):
        assert abs(moment - now) < timedelta(minutes=5)
    assert status.mode & 0o600 == 0o600
    assert status.readable
    assert status.writable
    assert not status.is_symlink
    assert status.target is None
    directory = fs.stat("d/")
    assert (directory.path, directory.is_file, directory.is_directory) == ("d", False, True)
    assert fs.stat(".").path == "."
    with raises(FileNotFoundError):
        fs.stat("none")
    with raises(NotADirectoryError):
        fs.stat("d/f/g")


@check
def exists_is_true_for_what_is_there(make: MakeFilesystem) -> None:
    fs = make()
    fs.write("d/f", "")
    assert fs.exists(".")
    assert fs.exists("d")
    assert fs.exists("d/f")
    assert not fs.exists("d/g")
    assert not fs.exists("d/f/g")


@check
def listings_are_sorted_and_typed(make: MakeFilesystem) -> None:
    fs = make()
    for path in ("b", "a/x", ".hidden", "c d", "é"):
        fs.write(path, path)
    found = fs.list()
    assert [(e.name, e.path, e.is_file, e.is_directory) for e in found] == [
        (".hidden", ".hidden", True, False),
        ("a", "a", False, True),
        ("b", "b", True, False),
        ("c d", "c d", True, False),
        ("é", "é", True, False),
    ]
    assert [(e.name, e.path) for e in fs.list("a")] == [("x", "a/x")]
    assert [(s.path, s.size_bytes) for s in fs.scan("a")] == [("a/x", 3)]
    with raises(NotADirectoryError):
        fs.list("b")
    with raises(FileNotFoundError):
        fs.list("none")


@check
def globs_know_three_wildcards(make: MakeFilesystem) -> None:
    fs = make()
    for path in ("a.py", "b.txt", "src/a.py", "src/deep/er/a.py", "src/[x].py", ".h/a.py", "src/x.py"):
        fs.write(path, "")
    assert paths_of(fs.glob("*.py")) == ["a.py"]
    assert paths_of(fs.glob("**/a.py")) == [".h/a.py", "a.py", "src/a.py", "src/deep/er/a.py"]
    assert paths_of(fs.glob("src/**/a.py")) == ["src/a.py", "src/deep/er/a.py"]
    assert paths_of(fs.glob("src/*.py")) == ["src/[x].py", "src/a.py", "src/x.py"]
    assert paths_of(fs.glob("src/?.py")) == ["src/a.py", "src/x.py"]
    assert paths_of(fs.glob("src/[x].py")) == ["src/[x].py"]
    assert paths_of(fs.glob("*.py", "src")) == ["src/[x].py", "src/a.py", "src/x.py"]
    assert [(m.path, m.is_file) for m in fs.glob("src/**")][:2] == [("src/[x].py", True), ("src/a.py", True)]
    assert [m.path for m in fs.glob("*") if not m.is_file] == [".h", "src"]
    assert all(match.modified_ns > 0 for match in fs.glob("**"))
    assert paths_of(fs.glob("{a,b}.py")) == []
    for pattern in ("", "../*", "/etc/*"):
        with raises(ValueError):
            fs.glob(pattern)


@check
def grep_finds_lines(make: MakeFilesystem) -> None:
    fs = make()
    fs.write("b.py", "one\ntwo été one\r\nthree\n")
    fs.write("a/x.txt", "no\none")
    fs.write_bytes("bin", b"one\0one\n")
    assert list(fs.grep("o[n]e")) == [
        GrepMatch("a/x.txt", 2, "one", 0, 3),
        GrepMatch("b.py", 1, "one", 0, 3),
        GrepMatch("b.py", 2, "two été one", 8, 11),
    ]
    assert paths_of(fs.grep("one", glob="*.py")) == ["b.py", "b.py"]
    assert paths_of(fs.grep("one", "a")) == ["a/x.txt"]
    assert paths_of(fs.grep("one", "b.py", max_matches=1)) == ["b.py"]
    assert list(fs.grep("nowhere")) == []
    with raises(ValueError):
        fs.grep("(")
    with raises(FileNotFoundError):
        fs.grep("x", "none")
    report = fs.search(GrepQuery("ONE", ignore_case=True, max_matches=2))
    assert (paths_of(report.matches), report.truncated) == (["a/x.txt", "b.py"], True)
    counted = fs.search(GrepQuery("one", count_only=True))
    assert counted.counts == (("a/x.txt", 1), ("b.py", 2))
    assert fs.search(GrepQuery("one", "bin")).binary_files == ("bin",)
    around = fs.search(GrepQuery("two", context_before=3, context_after=1)).matches[0]
    assert (around.before, around.after) == (("one",), ("three",))


@check
def grep_stops_at_the_limit(make: MakeFilesystem) -> None:
    fs = make(limits=Limits(max_matches=5))
    fs.write("f", "x\n" * 20)
    assert [match.line_number for match in fs.grep("x")] == [1, 2, 3, 4, 5]
    assert len(fs.grep("x", max_matches=2)) == 2


# mutations


@check
def deleting_is_careful(make: MakeFilesystem) -> None:
    fs = make()
    fs.write("d/e/f", "")
    fs.mkdir("empty")
    fs.delete("empty")
    with raises(OSError, "not empty"):
        fs.delete("d")
    assert fs.exists("d/e/f")
    fs.delete("d/e/f")
    fs.write("d/e/g", "")
    fs.delete("d", recursive=True)
    assert not fs.exists("d")
    with raises(FileNotFoundError):
        fs.delete("d")
    for path in (".", fs.root):
        with raises(PermissionError):
            fs.delete(path, True)


@check
def files_are_unlinked_and_directories_removed(make: MakeFilesystem) -> None:
    fs = make()
    fs.write("d/f", "")
    fs.make_link("l", "d")
    with raises(IsADirectoryError):
        fs.unlink("d")
    for path in ("d/f", "l"):
        with raises(NotADirectoryError, repr(path)):
            fs.rmdir(path)
    with raises(OSError, "not empty"):
        fs.rmdir("d")
    fs.unlink("l")
    assert fs.exists("d/f")
    fs.unlink("d/f")
    fs.rmdir("d")
    assert list(fs.list()) == []
    for call in (fs.unlink, fs.rmdir):
        for path in ("none", "none/none"):
            with raises(FileNotFoundError, repr(path)):
                call(path)
        for path in (".", fs.root):
            with raises(PermissionError):
                call(path)


@check
def directories_are_made(make: MakeFilesystem) -> None:
    fs = make()
    fs.mkdir("a/b/c")
    fs.mkdir("a/b/c")
    with raises(FileExistsError):
        fs.mkdir("a/b", True, False)
    with raises(FileNotFoundError):
        fs.mkdir("x/y", parents=False)
    fs.write("f", "")
    with raises(FileExistsError):
        fs.mkdir("f")
    with raises(NotADirectoryError):
        fs.mkdir("f/g")


@check
def moving_keeps_everything(make: MakeFilesystem) -> None:
    fs = make()
    fs.write("d/f", "content")
    fs.set_mode("d/f", 0o750)
    fs.move("d", "e")
    assert fs.read("e/f") == "content"
    assert fs.stat("e/f").mode == 0o750
    assert not fs.exists("d")
    fs.write("g", "other")
    with raises(FileExistsError):
        fs.move("g", "e/f")
    fs.move("g", "e/f", overwrite=True)
    assert fs.read("e/f") == "other"
    with raises(ValueError):
        fs.move("e", "e/inside")
    with raises(FileNotFoundError):
        fs.move("none", "x")
    with raises(FileNotFoundError):
        fs.move("e/f", "no/parent")


@check
def copying_keeps_everything_and_the_original(make: MakeFilesystem) -> None:
    fs = make()
    fs.write("d/e/f", "content")
    fs.set_mode("d/e/f", 0o750)
    fs.set_modified("d/e/f", 1_600_000_000_000_000_000)
    fs.make_link("d/l", "e/f")
    fs.copy("d/e/f", "g")
    fs.copy("d", "copy")
    for path in ("g", "copy/e/f"):
        status = fs.stat(path)
        assert (fs.read(path), status.mode) == ("content", 0o750)
        assert status.modified_at == datetime.fromtimestamp(1_600_000_000, UTC)
    assert fs.read_link("copy/l") == "e/f"
    fs.write("copy/e/f", "changed")
    assert fs.read("d/e/f") == "content"
    with raises(FileExistsError):
        fs.copy("g", "copy/e/f")
    with raises(FileExistsError):
        fs.copy("g", "g")
    assert fs.read("copy/e/f") == "changed"
    fs.copy("g", "copy/e/f", overwrite=True)
    fs.copy("g", "g", True)
    fs.copy("d", "d", True)
    assert fs.read("copy/e/f") == fs.read("g") == fs.read("d/e/f") == "content"
    with raises(IsADirectoryError):
        fs.copy("g", "d", True)
    with raises(NotADirectoryError):
        fs.copy("d", "g", True)
    with raises(OSError, "not empty"):
        fs.copy("copy", "d", True)
    fs.mkdir("empty")
    fs.copy("d", "empty", True)
    assert fs.read("empty/e/f") == "content"
    for inside in ("d/inside", "d/e/inside"):
        with raises(ValueError):
            fs.copy("d", inside)
    for source, target in (("none", "x"), ("g", "no/parent")):
        with raises(FileNotFoundError):
            fs.copy(source, target)
    for source, target in ((".", "x"), ("g", ".")):
        with raises(PermissionError):
            fs.copy(source, target, True)
    assert paths_of(fs.list()) == ["copy", "d", "empty", "g"]
    assert paths_of(fs.list("d")) == ["d/e", "d/l"]


@check
def a_file_is_read_as_a_whole_and_added_once(make: MakeFilesystem) -> None:
    fs = make()
    fs.add("new/f", b"bytes")
    with raises(FileExistsError):
        fs.add("new/f", b"other")
    fs.set_mode("new/f", 0o640)
    fs.set_modified("new/f", 1_700_000_000_123_456_000)
    whole = fs.read_whole("new/f")
    assert (whole.content, whole.mode, whole.modified_ns) == (b"bytes", 0o640, 1_700_000_000_123_456_000)
    for call in (fs.read_whole, fs.read_bytes):
        with raises(FileNotFoundError):
            call("none")
        with raises(IsADirectoryError):
            call("new")


@check
def overwriting_keeps_the_mode(make: MakeFilesystem) -> None:
    fs = make()
    fs.write("run", "one")
    fs.set_mode("run", 0o755)
    fs.write("run", "two")
    fs.write("run", "+", "append")
    assert fs.stat("run").mode == 0o755
    assert fs.read("run") == "two+"


@check
def directories_are_no_files(make: MakeFilesystem) -> None:
    fs = make()
    fs.write("d/f", "")
    for call in (fs.open_read, fs.read, fs.read_bytes, fs.open_text, fs.open_write):
        with raises(IsADirectoryError):
            call("d")
    with raises(IsADirectoryError):
        fs.write("new/", "")
    with raises(NotADirectoryError):
        fs.read("d/f/g")
    with raises(FileNotFoundError):
        fs.read("d/none")


@check
def times_can_be_set(make: MakeFilesystem) -> None:
    fs = make()
    fs.write("f", "")
    fs.set_modified("f", 1_600_000_000_000_000_000)
    assert fs.stat("f").modified_at == datetime.fromtimestamp(1_600_000_000, UTC)
    assert fs.glob("f")[0].modified_ns == 1_600_000_000_000_000_000


@check
def a_read_only_filesystem_stays_as_it_is(make: MakeFilesystem) -> None:
    fs = make(read_only=True)
    assert fs.read_only
    assert not make().read_only
    calls: list[Callable[[], object]] = [
        lambda: fs.write("f", "x"),
        lambda: fs.open_write("f"),
        lambda: fs.add("f", b"x"),
        lambda: fs.mkdir("d"),
        lambda: fs.delete("f"),
        lambda: fs.move("f", "g"),
        lambda: fs.copy("f", "g"),
        lambda: fs.unlink("f"),
        lambda: fs.rmdir("f"),
        lambda: fs.make_link("l", "t"),
        lambda: fs.set_mode(".", 0o700),
        lambda: fs.set_modified(".", 0),
    ]
    if isinstance(fs, SnapshotableFilesystem):
        kept = FilesystemSnapshot("0" * 12, datetime.now(UTC), "0" * 40, fs.root)
        calls.append(lambda: fs.restore(kept))
    for call in calls:
        with raises(PermissionError):
            call()
    assert list(fs.list()) == []


@check
def the_root_is_absolute_and_the_limits_are_the_contracts(make: MakeFilesystem) -> None:
    fs = make()
    assert isinstance(fs, Filesystem)
    assert fs.root.startswith("/")
    assert fs.limits == Limits(16, 80, 32 * 1024 * 1024, 1_000, False)


@check
def snapshots_bring_everything_back(make: MakeFilesystem) -> None:
    fs = make()
    if not isinstance(fs, SnapshotableFilesystem):
        return
    fs.write("keep", "one")
    fs.write("d/gone", "two")
    fs.mkdir("empty")
    fs.make_link("link", "keep")
    tag = f"before-{os.urandom(4).hex()}"  # the filesystem may have been snapshotted by this very check before
    before = fs.snapshot(tag)
    assert (before.tag, before.root_path) == (tag, fs.root)
    assert before.snapshot_id
    assert before.commit_ref
    fs.write("keep", "changed")
    fs.write("extra", "new")
    fs.delete("d", recursive=True)
    fs.delete("link")
    fs.delete("empty")
    after = fs.snapshot()
    assert after.snapshot_id != before.snapshot_id
    assert after.tag is None
    fs.restore(before)
    assert (fs.read("keep"), fs.read("d/gone"), fs.read_link("link")) == ("one", "two", "keep")
    assert paths_of(fs.list()) == ["d", "empty", "keep", "link"]
    fs.restore(after)
    assert paths_of(fs.list()) == ["extra", "keep"]
    other = make()
    assert isinstance(other, SnapshotableFilesystem)
    with raises(ValueError):
        other.restore(before)
