"""Conformance: links and paths, those that stay inside and those that do not."""

from __future__ import annotations

from collections.abc import Callable

from ws.errors import FsViolationError, InvalidRequest
from ws.fs.protocol import Limits
from ws.testing.checking import MakeFilesystem, check, paths_of, raises


@check
def links_are_followed_inside(make: MakeFilesystem) -> None:
    fs = make()
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


@check
def a_path_has_one_spelling(make: MakeFilesystem) -> None:
    fs = make()
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
def links_out_are_refused(make: MakeFilesystem) -> None:
    fs = make()
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
