"""The law: no path, no link and no rule that is got round leads out of the root."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ws.errors import FsViolationError, InvalidRequest
from ws.fs.host import HostFilesystem
from ws.fs.memory import MemoryFilesystem
from ws.fs.protocol import WORKSPACE_LIMITS, Filesystem, Limits

SOURCE = str(Path(__file__).parents[2] / "src")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with a canary beside it, which no test may read or change."""
    (tmp_path / "canary").write_text("secret")
    (tmp_path / "root-evil").mkdir()
    (tmp_path / "root-evil" / "canary").write_text("secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "inside").write_text("fine")
    (root / "d").mkdir()
    return root


@pytest.fixture
def fs(root: Path) -> HostFilesystem:
    return HostFilesystem(str(root), limits=WORKSPACE_LIMITS)


OUTSIDE = [
    "../canary",
    "d/../../canary",
    "./../canary",
    "/etc/passwd",
    "{root}-evil/canary",
    "{root}/../canary",
    "{root}/../root-evil/canary",
    "/proc/self/root/etc/passwd",
    "/dev/fd/0",
    "~",
    "~/x",
    "..",
    "../..",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_a_path_out_of_the_root_is_refused_by_name(fs: HostFilesystem, root: Path, path: str) -> None:
    path = path.format(root=root)
    for call in (fs.read, fs.stat, fs.list, fs.exists, fs.delete, fs.mkdir, lambda p: fs.write(p, "x")):
        with pytest.raises(FsViolationError) as caught:
            call(path)
        assert str(root) in str(caught.value)
        assert path in str(caught.value)
    assert (root.parent / "canary").read_text() == "secret"


@pytest.mark.parametrize("path", ["inside ", " inside", "inside.", "'inside'", '"inside"', "INSIDE", "~inside"])
def test_a_path_is_used_exactly_as_it_is_written(fs: HostFilesystem, path: str) -> None:
    assert not fs.exists(path)
    fs.write(path, path)
    assert fs.read(path) == path
    assert fs.read("inside") == "fine"


@pytest.mark.parametrize(
    "path",
    ["", "a\0b", "x" * 256, "é" * 128, "/".join(["x" * 250] * 20), "d/..", "\ud800", "/".join(["d"] * 257)],
    ids=["empty", "NUL", "256 bytes", "256 bytes of é", "5,000 bytes", "..", "surrogate", "257 segments"],
)
def test_what_is_no_path_is_refused_whole(fs: HostFilesystem, path: str) -> None:
    for call in (fs.read, fs.stat, fs.list, fs.exists, fs.delete, fs.mkdir, lambda p: fs.write(p, "x")):
        with pytest.raises(InvalidRequest):
            call(path)


@pytest.mark.parametrize("name", ["new\nline", "\udc80\udcff", "\u202egnp.exe", "e\u0301", "é", "-rf", "*", "a b"])
def test_any_name_the_kernel_takes_is_a_name(fs: HostFilesystem, name: str) -> None:
    fs.write(name, "x")
    assert [entry.name for entry in fs.list() if entry.name not in ("d", "inside")] == [name]
    assert [match.path for match in fs.glob(f"**/{name}")][-1]
    fs.delete(name)


def test_names_that_differ_in_case_or_composition_are_different(fs: HostFilesystem) -> None:
    names = ["Name", "name", "e\u0301", "é"]
    for name in names:
        fs.write(name, name)
    assert [fs.read(name) for name in names] == names


def test_a_chain_of_links_ends_somewhere(fs: HostFilesystem, root: Path) -> None:
    for n in range(41):
        (root / f"l{n}").symlink_to(f"l{n + 1}" if n < 40 else "inside")
    assert fs.read("l10") == "fine"
    for path in ("l0", "l0/x"):
        with pytest.raises(FsViolationError):
            fs.read(path)


def test_links_into_proc_are_refused(fs: HostFilesystem, root: Path) -> None:
    for name, target in {
        "a": "/proc/self/root",
        "b": "/proc/1/cwd",
        "c": "/dev/fd/0",
        "d2": "/proc/self/fd/0",
    }.items():
        (root / name).symlink_to(target)
        for path in (name, f"{name}/etc/passwd"):
            with pytest.raises(FsViolationError):
                fs.read(path)


@pytest.mark.root
def test_magic_links_inside_the_root_are_refused(root: Path) -> None:
    (root / "proc").mkdir()
    subprocess.run(["mount", "-t", "proc", "none", str(root / "proc")], check=True)
    try:
        fs = HostFilesystem(str(root), limits=WORKSPACE_LIMITS)
        assert fs.exists("proc/self/status")
        for path in ("proc/self/root/etc/passwd", "proc/self/cwd/x", "proc/self/exe"):
            with pytest.raises(FsViolationError):
                fs.read(path)
    finally:
        subprocess.run(["umount", str(root / "proc")], check=True)


def test_a_link_with_an_absolute_target_inside_is_followed(fs: HostFilesystem, root: Path) -> None:
    (root / "d" / "abs").symlink_to(root / "inside")
    (root / "abs-dir").symlink_to(root / "d")
    assert fs.read("d/abs") == "fine"
    assert fs.read("abs-dir/abs") == "fine"
    fs.write("abs-dir/new", "x")
    assert (root / "d" / "new").read_text() == "x"
    fs.write("d/abs", "changed")
    assert (root / "inside").read_text() == "changed"
    assert (root / "d" / "abs").is_symlink()


def test_links_are_resolved_where_they_stand_not_where_they_are_spelt(fs: HostFilesystem, root: Path) -> None:
    (root / "d" / "deep").mkdir()
    (root / "d" / "f").write_text("in d")
    (root / "short").symlink_to("d/deep")
    assert fs.read("short/../f") == "in d"
    assert fs.stat("short/../f").path == "d/f"


# what is neither file nor directory


def test_special_files_are_refused_and_never_hang(fs: HostFilesystem, root: Path) -> None:
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(root / "socket"))
        (root / "to-fifo").symlink_to("fifo")
        for path in ("fifo", "socket", "to-fifo"):
            for call in (fs.read, fs.read_bytes, fs.open_read, fs.open_text, lambda p: fs.write(p, "x")):
                with pytest.raises(InvalidRequest):
                    call(path)
            assert not fs.stat(path).is_file
        assert [match.path for match in fs.grep(".")] == ["inside"]


@pytest.mark.root
def test_devices_are_refused(fs: HostFilesystem, root: Path) -> None:
    os.mknod(root / "zero", 0o666 | 0o020000, os.makedev(1, 5))
    with pytest.raises(InvalidRequest, match="character device"):
        fs.read("zero")
    with pytest.raises(InvalidRequest, match="character device"):
        fs.write("zero", "x")


# allowed and restricted paths


def test_an_allowed_path_wins_over_a_restricted_one(root: Path) -> None:
    (root / "secret" / "public").mkdir(parents=True)
    (root / "secret" / "key").write_text("k")
    (root / "secret" / "public" / "doc").write_text("p")
    (root / "to-key").symlink_to("secret/key")
    fs = HostFilesystem(
        str(root), limits=WORKSPACE_LIMITS, restricted_paths=["secret"], allowed_paths=["secret/public"]
    )
    assert fs.read("secret/public/doc") == "p"
    assert fs.read(str(root / "secret/public/doc")) == "p"
    for path in ("secret", "secret/key", "to-key", "d/../secret/key", str(root / "secret/key")):
        for call in (fs.read, fs.stat, fs.exists, lambda p: fs.write(p, "x")):
            with pytest.raises(FsViolationError, match="restricted"):
                call(path)
    with pytest.raises(FsViolationError):
        fs.delete("secret", recursive=True)
    with pytest.raises(FsViolationError):
        fs.move("inside", "secret/x")
    fs.delete("to-key")
    assert (root / "secret" / "key").read_text() == "k"


def test_a_directory_with_something_restricted_below_neither_goes_nor_moves(root: Path) -> None:
    (root / "d" / "secret").mkdir()
    (root / "d" / "secret" / "key").write_text("k")
    fs = HostFilesystem(str(root), limits=WORKSPACE_LIMITS, restricted_paths=["d/secret"])
    for call in (lambda: fs.delete("d", recursive=True), lambda: fs.move("d", "e")):
        with pytest.raises(FsViolationError, match="below"):
            call()
    fs.write("d/other", "x")


def test_the_home_directory_must_be_allowed(tmp_path: Path, root: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "notes").write_text("mine")
    closed = HostFilesystem(str(root), limits=WORKSPACE_LIMITS, home=str(home))
    with pytest.raises(FsViolationError):
        closed.read("~/notes")
    fs = HostFilesystem(str(root), limits=WORKSPACE_LIMITS, home=str(home), allowed_paths=["~"])
    assert fs.read("~/notes") == "mine"
    assert fs.stat("~/notes").path == str(home / "notes")
    assert fs.read(fs.list("~")[0].path) == "mine"
    assert [match.path for match in fs.glob("**", "~")] == [str(home / "notes")]
    fs.write("~/new", "x")
    assert (home / "new").read_text() == "x"
    (root / "to-home").symlink_to(home)
    assert fs.read("to-home/notes") == "mine"
    with pytest.raises(FsViolationError):
        fs.read("~/../canary")
    with pytest.raises(FsViolationError):
        fs.read(str(tmp_path / "canary"))


def test_memory_keeps_the_same_rules() -> None:
    fs: Filesystem = MemoryFilesystem(
        limits=WORKSPACE_LIMITS, restricted_paths=["secret"], allowed_paths=["secret/public"]
    )
    for path in ("secret/key", "secret/x"):
        with pytest.raises(FsViolationError):
            fs.write(path, "x")
    fs.write("secret/public/doc", "p")
    assert [match.path for match in fs.glob("**/doc")] == ["secret/public/doc"]
    with pytest.raises(FsViolationError):
        fs.delete("secret", recursive=True)


@pytest.mark.parametrize("follow", [False, True])
@pytest.mark.parametrize("kind", ["memory", "host"])
def test_what_is_restricted_is_neither_copied_nor_removed(kind: str, follow: bool, tmp_path: Path) -> None:
    rules: dict[str, Any] = {"limits": Limits(follow_links=follow), "restricted_paths": ["d/secret"]}
    fs = MemoryFilesystem(**rules) if kind == "memory" else HostFilesystem(str(tmp_path), **rules)
    if kind == "host":
        (tmp_path / "d" / "secret").mkdir(parents=True)
        (tmp_path / "d" / "secret" / "key").write_text("key")
    fs.write("d/f", "x")
    fs.make_link("l", "d/secret")
    for source, target in (("d", "e"), ("d/secret", "e"), ("d/secret/key", "e"), ("l/key", "e"), ("d/f", "d/secret/f")):
        with pytest.raises(FsViolationError):
            fs.copy(source, target)
    for path in ("d/secret/key", "l/key"):
        with pytest.raises(FsViolationError):
            fs.unlink(path)
    for path in ("d", "d/secret"):
        with pytest.raises(FsViolationError):
            fs.rmdir(path)
    assert [entry.name for entry in fs.list()] == ["d", "l"]
    if kind == "host":
        assert (tmp_path / "d" / "secret" / "key").read_text() == "key"
        assert sorted(os.listdir(tmp_path)) == ["d", "l"]


# old kernels and old seccomp filters

_FILTERED = """
import ctypes, struct, sys, tempfile, itertools, os
code = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
# If the number is 437 (openat2) answer with the error, otherwise allow.
program = b"".join(struct.pack("HBBI", *step) for step in (
    (0x20, 0, 0, 0), (0x15, 0, 1, 437), (0x06, 0, 0, 0x00050000 | code), (0x06, 0, 0, 0x7FFF0000)))
buffer = ctypes.create_string_buffer(program)
filter = struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer))
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.c_char_p(filter), 0, 0) == 0
from ws.fs import confine
from ws.fs.host import HostFilesystem
from ws.testing.filesystem import check_filesystem
assert not confine.has_openat2()
top, number = tempfile.mkdtemp(dir=sys.argv[2]), itertools.count()
def make(*, limits=None, read_only=False):
    root = f"{top}/{next(number)}"
    os.mkdir(root)
    return HostFilesystem(root, limits=limits, read_only=read_only, durable=False)
check_filesystem(make)
"""


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM], ids=["ENOSYS", "EPERM"])
def test_where_openat2_is_missing_the_walk_does_the_same(tmp_path: Path, code: int) -> None:
    subprocess.run(
        [sys.executable, "-c", _FILTERED, str(code), str(tmp_path)],
        check=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )


def test_nothing_is_kept_open_between_calls(fs: HostFilesystem, root: Path) -> None:
    (root / "out").symlink_to("/etc")
    (root / "abs").symlink_to(root / "d")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        fs.write("d/e/f", "x")
        fs.read("d/e/f")
        fs.list("d")
        fs.glob("**")
        fs.grep("x")
        fs.write("abs/g", "x")
        fs.move("d/e/f", "d/e/g")
        fs.delete("d", recursive=True)
        fs.mkdir("d")
        for path in ("out/passwd", "../x", "none/x", "inside/x"):
            for call in (fs.read, fs.list, fs.open_write, fs.delete):
                with pytest.raises((FileNotFoundError, NotADirectoryError, PermissionError)):
                    call(path) if call != fs.open_write else fs.open_write(path, "create", False)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_root_that_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("")
    with pytest.raises(NotADirectoryError):
        HostFilesystem(str(tmp_path / "f"))
    with pytest.raises(FileNotFoundError):
        HostFilesystem(str(tmp_path / "none"))


@pytest.mark.parametrize("kind", ["memory", "host"])
def test_a_restricted_path_has_its_own_reason_and_hint_and_one_outside_another(kind: str, tmp_path: Path) -> None:
    rules = {"limits": WORKSPACE_LIMITS, "restricted_paths": ["private"], "allowed_paths": ["private/shared", "/"]}
    outside_refused = {**rules, "allowed_paths": ["private/shared"]}
    for given in (rules, outside_refused):
        files: Filesystem = (
            MemoryFilesystem(**given) if kind == "memory" else HostFilesystem(str(tmp_path), **given)  # type: ignore[arg-type]
        )
        files.write("private/shared/note", "n", mode="overwrite")
        for path in ("private/key", f"{files.root}/private/key", "private/no/dir/x"):
            for operation in (files.read, files.stat, partial(files.write, content="x"), files.mkdir):
                with pytest.raises(FsViolationError, match="the path is restricted: it leads into") as caught:
                    operation(path)  # type: ignore[operator]
                assert (
                    caught.value.hint
                    == "the path lies inside the root, but is restricted by configuration; use another path"
                )
        assert [entry.name for entry in files.list("private/shared")] == ["note"]
        assert not any(match.path.startswith("private/no") for match in files.glob("**"))
    with pytest.raises(FsViolationError, match="path outside project root") as outside:
        files.read("../x")
    assert outside.value.hint == "use a path inside the root"
