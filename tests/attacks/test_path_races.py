"""The law: whoever exchanges directories, links and files while a tool runs gains not a byte (HARDENING B1,
B2, B5, B9).

A tool is called while another process swaps the directory it is to work in with a link that leads out. Each call ends
inside the root or with a typed error; what lies outside is neither shown nor touched. 100,000 rounds in all;
`scripts/soak-faults` has 100,000 for every tool (WS_ATTACK_ROUNDS).
"""

from __future__ import annotations

import errno
import itertools
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from swapping import CANARY, Arena, arena, exchange, exchanging, rounds, turns

from ws.errors import FsViolationError, NotFound
from ws.fs.host import HostFilesystem
from ws.fs.memory import MemoryFilesystem
from ws.fs.protocol import WORKSPACE_LIMITS
from ws.tools.context import ToolContext, ToolResult
from ws.tools.managing import delete, mkdir, move, redo, trash_restore, undo
from ws.tools.reading import file_info, list_dir, read_file, tree
from ws.tools.searching import glob, grep
from ws.tools.trash import Backups
from ws.tools.writing import write_file

Round = Callable[[ToolContext, int], ToolResult]


def undo_or_redo(context: ToolContext) -> ToolResult:
    """Undo goes back one change at a time: where there is nothing more to undo, what was undone is done again."""
    try:
        return undo(context, path="dir/file")
    except NotFound:
        return redo(context, path="dir/file")


ROUNDS: dict[str, tuple[int, Round]] = {
    "read_file": (24_000, lambda c, n: read_file(c, path="dir/file")),
    "read_file deeper": (10_000, lambda c, n: read_file(c, path="dir/sub/file")),
    "file_info": (10_000, lambda c, n: file_info(c, path="dir/file")),
    "list_dir": (10_000, lambda c, n: list_dir(c, path="dir")),
    "tree": (5_000, lambda c, n: tree(c)),
    "glob": (6_000, lambda c, n: glob(c, pattern="**/file")),
    "glob below": (6_000, lambda c, n: glob(c, pattern="dir/sub/*")),
    "grep in Python": (6_000, lambda c, n: grep(c, pattern=".", path="dir")),
    "write_file": (5_000, lambda c, n: write_file(c, path=f"dir/new{n % 8}", content="x", mode="overwrite")),
    "append": (3_000, lambda c, n: write_file(c, path="dir/file", content="x\n", mode="append")),
    "mkdir": (4_000, lambda c, n: mkdir(c, path=f"dir/made/{n}")),
    "move": (3_000, lambda c, n: move(c, source="dir/file", destination="dir/sub/moved", overwrite=True)),
    "delete": (2_500, lambda c, n: delete(c, path="dir/sub", recursive=True)),
    "delete for good": (2_500, lambda c, n: delete(c, path="dir/sub", recursive=True, permanent=True)),
    "undo": (1_500, lambda c, n: undo_or_redo(c)),
    "trash_restore": (1_500, lambda c, n: restore_file(c)),
}


def restore_file(context: ToolContext) -> ToolResult:
    newest = context.backups.records("dir/file")[0]
    return trash_restore(context, name=newest.id, overwrite=True)


@pytest.fixture(params=["absolute", "relative"])
def place(request: pytest.FixtureRequest) -> Iterator[Arena]:
    with arena(link=request.param) as made:
        yield made


def context_of(place: Arena, **options: object) -> ToolContext:
    filesystem = HostFilesystem(str(place.root), limits=WORKSPACE_LIMITS, durable=False, **options)  # type: ignore[arg-type]
    return ToolContext(filesystem, Backups(filesystem, MemoryFilesystem(limits=WORKSPACE_LIMITS)))


def attempt(call: Callable[[], ToolResult]) -> str:
    """What came of one round. Only errors that a caller can expect may come out."""
    try:
        result = call()
    except FsViolationError:
        return "refused"
    except (FileNotFoundError, NotADirectoryError, FileExistsError, IsADirectoryError):
        return "missed"
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
        return "missed"
    assert CANARY not in repr(result)
    return "done"


@pytest.mark.parametrize("name", ROUNDS)
def test_a_swapped_directory_leads_no_tool_out(place: Arena, name: str) -> None:
    few, run = ROUNDS[name]
    context = context_of(place)
    if name in ("undo", "trash_restore"):
        write_file(context, path="dir/file", content="one\n", mode="overwrite")
    before = place.outside_now()
    seen: dict[str, int] = {}
    silent = name in ("tree", "glob", "glob below")  # these go past a link without a word
    wanted = {"done"} if silent else {"done", "refused"}
    with exchanging(place.real, place.decoy):
        for n in turns(rounds(few) // 2, lambda: wanted <= seen.keys()):  # the other half: the other kind of link
            what = attempt(lambda n=n: run(context, n))  # type: ignore[misc]
            seen[what] = seen.get(what, 0) + 1
            if name in ("move", "delete", "delete for good") and what == "done":
                replenish(place)
    assert place.outside_now() == before
    assert silent or seen.get("refused"), f"the attack did not take place: {seen}"
    assert seen.get("done"), f"the attack left no chance: {seen}"


def replenish(place: Arena) -> None:
    """Put back what the tool took away, in the real directory whatever its name is at the moment."""
    for place_now in itertools.cycle((place.real, place.decoy)):
        try:
            fd = os.open(place_now, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            break
        except OSError:
            continue  # it has the other name, or had
    try:
        for name in ("file", "sub/file"):
            if "/" in name and not os.path.isdir(f"/proc/self/fd/{fd}/sub"):
                os.mkdir("sub", dir_fd=fd)
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    finally:
        os.close(fd)


def test_all_rounds_together_are_100_000() -> None:
    assert sum(few for few, _ in ROUNDS.values()) == 100_000


def test_ripgrep_shows_nothing_that_lies_outside(place: Arena) -> None:
    rg = shutil.which("rg") or pytest.fail("ripgrep is not installed")
    for n in range(200):
        (place.root / "dir" / f"more{n}").write_text("inside\n")
        (place.outside / f"more{n}").write_text(f"{CANARY}\n")
    context = context_of(place, rg=(rg,))
    found = 0
    with exchanging(place.real, place.decoy):
        for _ in range(rounds(40) // 8):  # of each kind of link, with four calls
            for mode in ("content", "count", "files_with_matches"):
                outside = grep(context, pattern=CANARY, output_mode=mode)
                assert outside.output == ""
            found += len(grep(context, pattern="inside", max_matches=500).data["matches"])
    assert found


# B2


def test_a_parent_swapped_before_the_rename_does_not_take_the_file_with_it(place: Arena) -> None:
    fs = HostFilesystem(str(place.root), limits=WORKSPACE_LIMITS, durable=False)
    before = place.outside_now()
    for n, mode in itertools.product(range(rounds(1_500) // 3), ("create", "overwrite", "append")):
        with fs.open_write(f"dir/{mode}{n}", mode) as writer:  # type: ignore[arg-type]
            writer.write(b"written")
            exchange(place.real, place.decoy)
        assert (place.decoy / f"{mode}{n}").read_text() == "written"
        exchange(place.real, place.decoy)
    assert place.outside_now() == before


# B5


@pytest.mark.parametrize("kind", ["fifo", "socket", "device", "directory", "link"])
def test_a_file_that_becomes_something_else_neither_hangs_nor_leads_out(place: Arena, kind: str) -> None:
    other = place.root / "other"
    if kind == "fifo":
        os.mkfifo(other)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(other))
    elif kind == "device":
        try:
            os.mknod(other, 0o600 | 0o020000, os.makedev(1, 5))
        except PermissionError:
            pytest.skip("needs root to make a device")
    elif kind == "directory":
        other.mkdir()
    else:
        other.symlink_to(place.outside / "file")
    fs = HostFilesystem(str(place.root), limits=WORKSPACE_LIMITS, durable=False)

    def stream(path: str) -> bytes:
        with fs.open_read(path) as chunks:
            return b"".join(chunks)

    outcomes = set()
    with exchanging(place.real / "file", other):
        for _ in range(rounds(6_000) // 3):
            for call in (fs.read_bytes, stream, lambda p: fs.grep("y", p)):
                try:
                    data = call("dir/file")
                    assert data in (b"inside\n", ())
                    outcomes.add("read")
                except (ValueError, IsADirectoryError, FsViolationError) as error:
                    outcomes.add(type(error).__name__)
    assert len(outcomes) > 1
    assert CANARY in (place.outside / "file").read_text()


# B9


def test_a_directory_that_is_moved_out_takes_at_most_what_was_meant_for_it(place: Arena) -> None:
    fs = HostFilesystem(str(place.root), limits=WORKSPACE_LIMITS, durable=False)
    elsewhere = place.root.parent / "elsewhere"
    writer = fs.open_write("dir/new")
    writer.write(b"written")
    place.real.rename(elsewhere)
    place.real.mkdir()
    writer.close()
    assert (elsewhere / "new").read_text() == "written"
    assert os.listdir(place.real) == []
    assert not any(name.endswith(".tmp") for name in os.listdir(elsewhere))


def test_a_directory_that_goes_in_and_out_is_never_followed_upwards(place: Arena) -> None:
    """`dir/sub` is exchanged with a directory outside: `..` from there would be outside."""
    stranger = place.root.parent / "stranger"
    stranger.mkdir()
    (stranger / "file").write_text("stranger\n")
    (place.root.parent / "file").write_text(f"{CANARY}\n")
    fs = HostFilesystem(str(place.root), limits=WORKSPACE_LIMITS, durable=False)
    seen = set()
    with exchanging(place.real / "sub", stranger):
        for n in range(rounds(5_000)):
            try:
                seen.add(fs.read("dir/sub/../file"))
                fs.write(f"dir/sub/../new{n % 10}", "x")
            except (FileNotFoundError, FsViolationError):
                seen.add("refused")
    assert seen <= {"inside\n", "refused"}
    assert "inside\n" in seen
    assert sorted(path.name for path in place.root.parent.iterdir()) == ["file", "outside", "root", "stranger"]


def test_the_temporary_file_of_a_killed_writer_is_all_that_is_left(tmp_path: Path) -> None:
    """What a crash leaves has a name that tells what it is, and the old file is whole."""
    fs = HostFilesystem(str(tmp_path), limits=WORKSPACE_LIMITS, durable=False)
    fs.write("f", "old")
    pid = os.fork()
    if pid == 0:
        writer = fs.open_write("f")
        writer.write(b"half")
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert fs.read("f") == "old"
    left = [name for name in os.listdir(tmp_path) if name != "f"]
    assert len(left) == 1
    assert left[0].startswith(".ws-")
    assert left[0].endswith(".tmp")
