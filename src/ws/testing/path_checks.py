"""Conformance: links and paths, those that stay inside and those that do not."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

from ws.errors import FsViolationError, InvalidRequest
from ws.fs.protocol import WORKSPACE_LIMITS, Filesystem, Limits
from ws.testing.checking import MakeFilesystem, check, paths_of, raises


@check
def links_are_followed_inside_where_the_limits_say_so(make: MakeFilesystem) -> None:
    fs = make(limits=WORKSPACE_LIMITS)
    fs.write("d/f", "content")
    fs.make_link("to-f", "d/f")
    fs.make_link("to-d", "d")
    fs.make_link("d/up", "../to-f")
    fs.make_link("absolute", f"{fs.root}/d/f")
    for path in ("to-f", "to-d/f", "d/up", "absolute", "to-d/up"):
        assert fs.read(path) == "content"
    assert fs.stat("to-f").is_file
    link = fs.stat("to-f", follow_symlinks=False)
    assert (link.is_symlink, link.is_file, link.target) == (True, False, "d/f")
    assert fs.read_link("to-f") == "d/f"
    with raises(OSError):
        fs.read_link("d/f")
    entries = {entry.name: entry for entry in fs.list()}
    assert (entries["to-d"].is_symlink, entries["to-d"].is_directory) == (True, True)
    assert (entries["to-f"].is_symlink, entries["to-f"].is_file) == (True, True)
    fs.write("to-f", "changed")
    assert fs.read("d/f") == "changed"
    assert fs.stat("to-f", follow_symlinks=False).is_symlink
    assert paths_of(fs.glob("**/f")) == ["d/f"]
    fs.delete("to-d")
    assert fs.read("d/f") == "changed"
    fs.move("to-f", "renamed")
    assert fs.read_link("renamed") == "d/f"
    fs.make_link("dangling", "nowhere")
    assert not fs.exists("dangling")
    with raises(FileNotFoundError):
        fs.read("dangling")
    with raises(FileExistsError):
        fs.make_link("dangling", "x")
    fs.make_link("again", "d")
    fs.mkdir("again")
    with raises(FileExistsError):
        fs.mkdir("dangling")


@check
def a_path_has_one_spelling(make: MakeFilesystem) -> None:
    fs = make(limits=WORKSPACE_LIMITS)
    fs.write("other/x", "other")
    fs.mkdir("other/deep")
    fs.write("x", "top")
    fs.make_link("link", "other/deep")
    fs.make_link("to-x", f"{fs.root}/x")
    fs.make_link("dangling", "new/y")
    fs.make_link("out", "/etc/passwd")
    for path, real in {
        ".": ".",
        f"{fs.root}/x": "x",
        "./other//x": "other/x",
        "link": "other/deep",
        "link/../x": "other/x",
        "to-x": "x",
        "dangling": "new/y",
        "none/../link/z": "other/deep/z",
        "link/none/z": "other/deep/none/z",
        "none/../x": "x",
        "x/y": "x/y",
    }.items():
        assert fs.resolve(path) == real
    for path in ("link", "to-x", "dangling", "out"):
        assert fs.resolve(path, follow_symlinks=False) == path
    assert fs.resolve("link/../to-x", follow_symlinks=False) == "other/to-x"
    for path in ("out", "../x", "link/../../../x", "none/../../x", "/etc/passwd"):
        with raises(FsViolationError, path, fs.root):
            fs.resolve(path)


@check
def errors_name_the_path_as_it_was_given(make: MakeFilesystem) -> None:
    fs = make()
    fs.mkdir("d")
    calls: list[Callable[[str], object]] = [
        fs.read,
        fs.stat,
        lambda path: fs.stat(path, follow_symlinks=False),
        fs.read_link,
        fs.list,
        fs.delete,
        lambda path: fs.move(path, "e"),
        lambda path: fs.set_mode(path, 0o600),
        lambda path: fs.set_modified(path, 0),
    ]
    for path in ("d/none", "./d/none", "none/none"):
        for call in calls:
            with raises(FileNotFoundError, repr(path)):
                call(path)


@check
def links_are_not_followed_by_default(make: MakeFilesystem) -> None:
    fs = make()
    assert not fs.limits.follow_links
    fs.write("d/f", "content")
    fs.make_link("to-f", "d/f")
    fs.make_link("to-d", "d")
    fs.make_link("d/up", "..")
    fs.make_link("dangling", "nowhere")
    through = {
        "to-f": "to-f",
        "to-d": "to-d",
        "to-d/f": "to-d",
        "./to-d/../d/f": "to-d",
        "d/up/d/f": "d/up",
        f"{fs.root}/to-d/f": "to-d",
        "dangling": "dangling",
    }
    for path, link in through.items():
        calls: list[Callable[[], object]] = [
            partial(call, path)
            for call in (fs.read, fs.read_whole, fs.open_read, fs.open_text, fs.exists, fs.stat, fs.list, fs.scan)
        ]
        calls += [
            partial(fs.resolve, path),
            partial(fs.write, path, "x"),
            partial(fs.open_write, path),
            partial(fs.glob, "*", path),
            partial(fs.grep, "x", path),
            partial(fs.set_mode, path, 0o600),
        ]
        for call in calls:
            with raises(FsViolationError, repr(link), "not followed", fs.root):
                call()
    inside: list[Callable[[], object]] = [
        lambda: fs.stat("to-d/f", follow_symlinks=False),
        lambda: fs.resolve("to-d/f", follow_symlinks=False),
        lambda: fs.add("to-d/new", b""),
        lambda: fs.mkdir("to-d/new"),
        lambda: fs.delete("to-d/f"),
        lambda: fs.unlink("to-d/f"),
        lambda: fs.rmdir("to-d/f"),
        lambda: fs.move("to-d/f", "g"),
        lambda: fs.move("d/f", "to-d/g"),
        lambda: fs.copy("to-d/f", "g"),
        lambda: fs.copy("d/f", "to-d/g"),
        lambda: fs.make_link("to-d/l", "x"),
        lambda: fs.read_link("to-d/up"),
        lambda: fs.set_modified("to-d/f", 0),
    ]
    for call in inside:
        with raises(FsViolationError, "'to-d'", "not followed"):
            call()
    with raises(FileExistsError):
        fs.mkdir("to-d")
    assert paths_of(fs.list("d")) == ["d/f", "d/up"]
    assert paths_of(fs.list()) == ["d", "dangling", "to-d", "to-f"]
    assert not any(entry.is_file or entry.is_directory for entry in fs.list() if entry.is_symlink)
    assert not any(match.is_file for match in fs.glob("to-*"))
    assert fs.stat("to-f", follow_symlinks=False).target == fs.read_link("to-f") == "d/f"
    assert fs.resolve("to-f", follow_symlinks=False) == "to-f"
    fs.set_modified("to-f", 1_600_000_000_000_000_000)
    fs.move("to-f", "moved")
    fs.copy("moved", "copied")
    assert fs.read_link("copied") == "d/f"
    for name in ("moved", "copied"):
        fs.unlink(name)
    fs.delete("to-d", recursive=True)
    assert fs.read("d/f") == "content"
    assert fs.stat("d/f").modified_at.year > 2020


@check
def violations_are_permission_errors_with_a_number_and_a_path(make: MakeFilesystem) -> None:
    for fs in (make(), make(limits=WORKSPACE_LIMITS)):
        fs.make_link("out", "/etc")
        for path in ("../x", "/etc/passwd", "out/passwd", "./out", "~/x"):
            error = _refusal(fs, path)
            assert (error.errno, error.filename) == (errno.EACCES, path)
            assert fs.root in str(error)


def _refusal(fs: Filesystem, path: str) -> FsViolationError:
    try:
        fs.read(path)
    except FsViolationError as error:
        return error
    raise AssertionError(f"{path} was read")


@check
def links_out_are_refused(make: MakeFilesystem) -> None:
    for limits in (Limits(), WORKSPACE_LIMITS):
        _refuse_links_out(make(limits=limits))


def _refuse_links_out(fs: Filesystem) -> None:
    fs.mkdir("d")
    targets = {
        "etc": "/etc",
        "up": "..",
        "d/far": "../../../../etc/passwd",
        "magic": "/proc/self/root/etc",
        "sibling": f"{fs.root}-evil",
        "loop": "loop",
    }
    for path, target in targets.items():
        fs.make_link(path, target)
        for call in (
            fs.read,
            fs.list,
            fs.stat,
            fs.glob,
            lambda p: fs.write(p, "x"),
            lambda p: fs.grep("x", p),
        ):
            with raises(PermissionError, path, fs.root):
                call(path) if call != fs.glob else fs.glob("*", path)
        with raises(PermissionError):
            fs.write(f"{path}/inner", "x")
    assert {entry.path for entry in fs.list() if entry.is_file} == set()
    fs.delete("etc")


@check
def paths_are_checked(make: MakeFilesystem) -> None:
    fs = make()
    fs.write("d/f", "x")
    for path in ("../x", "/etc/passwd", "d/../../x", f"{fs.root}-evil/x", f"{fs.root}/../x", "..", "~/x"):
        for call in (fs.read, fs.exists, fs.stat, fs.list, fs.delete, fs.mkdir):
            with raises(FsViolationError, fs.root):
                call(path)
    for path in ("", "a\0b", "d/..", "\ud800", "x" * 81, "/".join("x" * 17), "x" * 5_000):
        for call in (fs.read, fs.exists, fs.stat, fs.list, fs.delete, fs.mkdir):
            with raises(InvalidRequest):
                call(path)
    for path in ("./d//f", "d/./f", f"{fs.root}/d/f", "d/../d/f"):
        assert fs.read(path) == "x"
        assert fs.stat(path).path == "d/f"
    assert fs.write("d/../new", "x").path == "new"
    fs.delete("d/../new")
    for name in ("new\nline", " space ", "quo'te\"", "dot.", "-dash", "\udc80"):
        fs.write(name, name[:3].encode("utf-8", "replace").decode())
        assert name in paths_of(fs.list())
        fs.delete(name)
    fs.write("/".join("x" * 16), "deep enough")
    wide = make(limits=Limits(max_segments=256, max_segment_chars=255))
    wide.write("y" * 255, "wide enough")
    with raises(InvalidRequest):
        wide.write("é" * 128, "256 bytes")
