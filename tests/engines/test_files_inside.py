"""The law of files in a container: streams hold nothing but themselves, fail typed when the workspace goes from under
them, and leave nothing behind; what tools keep outlives restores and containers, and belongs to one workspace alone."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shim_process import memory_kb
from workspaces import SharedWorkspaces
from ws import overlay
from ws.engine import WORKSPACE
from ws.engine.base import Engine
from ws.errors import ContainerDied, NotFound, WorkspaceNotFound
from ws.fs.memory import MemoryFilesystem
from ws.fs.protocol import GrepQuery
from ws.layout import EngineName
from ws.manager import Manager
from ws.remote.calls import MAX_REPLY_BYTES
from ws.workspace import Workspace

SOURCE = str(Path(__file__).parents[2] / "src")
LARGE = 3 << 20  # more than one window of a stream
GIGABYTE = 1 << 30


@pytest.fixture(scope="module")
def boxes(engine: Engine, shared: Callable[[str], SharedWorkspaces]) -> SharedWorkspaces:
    return shared(engine.name)


@pytest.fixture
def box(boxes: SharedWorkspaces) -> Workspace:
    return boxes.take()


@pytest.fixture
def own_box(engine_name: EngineName, boxes: SharedWorkspaces) -> Iterator[Workspace]:
    """One that may be removed, restored and broken."""
    with Manager(home=boxes.home, engine=engine_name) as manager:
        box = manager.create()
        try:
            yield box
        finally:
            box.remove()


def pid_of(box: Workspace) -> int:
    container = box.record().container
    assert container is not None
    return container.pid


def names_in(box: Workspace) -> list[str]:
    return box.exec(["ls", "-A"]).stdout.split()


class TestStreams:
    def test_nothing_is_held_open_between_requests(self, box: Workspace) -> None:
        box.fs.write_bytes("large", bytes(LARGE))
        with box.fs.open_read("large") as reader:
            assert sum(map(len, reader)) == LARGE
        with box.fs.open_read("large") as reader:
            reader.read(10)
        box.tools.call("grep", pattern="x")
        box.tools.call("write_file", path="a", content="x")
        deadline = time.monotonic() + 2
        while not overlay.is_idle(pid_of(box), WORKSPACE):
            assert time.monotonic() < deadline, "the shim holds the mount"
            time.sleep(0.01)

    def test_readers_seek_anywhere_in_what_does_not_fit_a_window(self, box: Workspace) -> None:
        data = os.urandom(LARGE)
        box.fs.write_bytes("large", data)
        with box.fs.open_read("large") as reader:
            for at, size in ((0, 10), (2 << 20, 100), (5, 5), (LARGE - 3, 50), (1 << 20, 2 << 20), (70_000, 64)):
                assert reader.seek(at) == at
                assert reader.read(size) == data[at : at + size]
            reader.seek(0)
            assert b"".join(reader) == data

    def test_a_file_that_shrinks_under_a_reader_ends(self, box: Workspace) -> None:
        box.fs.write_bytes("large", bytes(LARGE))
        with box.fs.open_read("large") as reader:
            assert len(reader.read(10)) == 10
            box.exec(["sh", "-c", "echo short > large"])
            assert len(reader.read()) < LARGE

    def test_a_file_that_is_replaced_is_read_as_it_was(self, box: Workspace) -> None:
        box.fs.write_bytes("large", b"a" * LARGE)
        with box.fs.open_read("large") as reader:
            reader.read(10)
            box.fs.write_bytes("large", b"b" * LARGE)
            assert set(reader.read()) == {ord("a")}

    def test_a_writer_is_not_in_the_tree_before_its_end(self, box: Workspace) -> None:
        with box.fs.open_write("new") as writer:
            writer.write(bytes(LARGE))
            assert names_in(box) == []
        assert names_in(box) == ["new"]

    def test_a_writer_whose_process_dies_leaves_nothing(self, boxes: SharedWorkspaces, box: Workspace) -> None:
        box.fs.write("old", "before")
        script = (
            "import os, sys, ws\n"
            "box = ws.Manager(home=sys.argv[1]).open(sys.argv[2])\n"
            "for path in ('old', 'new'):\n"
            "    box.fs.open_write(path).write(bytes(3 << 20))\n"
            "os.kill(os.getpid(), 9)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, boxes.home, box.name], check=False, env={**os.environ, "PYTHONPATH": SOURCE}
        )
        assert done.returncode == -9
        assert names_in(box) == ["old"]
        assert box.fs.read("old") == "before"

    def test_a_disk_that_is_full_fails_the_write_and_leaves_what_was_there(self, box: Workspace) -> None:
        inside = box.filesystem(allowed_paths=["/dev/shm"])  # 64 MiB of memory
        inside.write("/dev/shm/old", "before")
        with pytest.raises(OSError, match="No space left"), inside.open_write("/dev/shm/old") as writer:
            writer.write_all(bytes(1 << 20) for _ in range(200))
        assert inside.read("/dev/shm/old") == "before"
        assert [entry.name for entry in inside.list("/dev/shm")] == ["old"]
        inside.delete("/dev/shm/old")

    def test_a_snapshot_goes_on_beside_streams_and_has_no_half_of_them(self, own_box: Workspace) -> None:
        own_box.fs.write_bytes("large", b"x" * LARGE)
        with own_box.fs.open_read("large") as reader, own_box.fs.open_write("new") as writer:
            reader.read(10)
            writer.write(bytes(LARGE))
            taken = own_box.snapshot("during")
            writer.write(b"more")
            assert len(reader.read()) == LARGE - 10
        assert sorted(names_in(own_box)) == ["large", "new"]
        own_box.restore(taken)
        assert names_in(own_box) == ["large"]

    def test_streams_fail_typed_when_the_workspace_is_restored_under_them(self, own_box: Workspace) -> None:
        own_box.fs.write_bytes("large", b"x" * LARGE)
        taken = own_box.snapshot("before")
        reader, writer = own_box.fs.open_read("large"), own_box.fs.open_write("new")
        reader.read(10)
        writer.write(bytes(LARGE))
        own_box.restore(taken)
        for step in (reader.read, reader.read, writer.close):
            with pytest.raises(OSError, match="was restored while the file was open") as caught:
                step()
            assert caught.value.errno == errno.ESTALE
        reader.close()
        assert names_in(own_box) == ["large"]

    def test_streams_fail_typed_when_the_workspace_is_removed_under_them(self, own_box: Workspace) -> None:
        own_box.fs.write_bytes("large", b"x" * LARGE)
        reader, writer = own_box.fs.open_read("large"), own_box.fs.open_write("new")
        own_box.remove()
        with pytest.raises(ContainerDied):
            reader.read()
        with pytest.raises((ContainerDied, WorkspaceNotFound)):
            writer.close()
        reader.close()
        with pytest.raises(WorkspaceNotFound):
            own_box.fs.exists("large")

    @pytest.mark.parametrize(
        "body",
        [
            "with fs.open_write('big') as w:\n    for _ in range(16384): w.write(bytes(65536))",
            "with fs.open_read('big') as r: assert sum(map(len, r)) == 1 << 30",
            "with fs.open_read('big') as r, fs.open_write('copy') as w: assert w.write_all(r) == 1 << 30",
        ],
        ids=["in", "out", "through"],
    )
    def test_a_gigabyte_goes_through_in_64_mb_on_both_sides(
        self, boxes: SharedWorkspaces, box: Workspace, body: str
    ) -> None:
        box.exec(["truncate", "-s", str(GIGABYTE), "big"])
        before = memory_kb(pid_of(box), "Rss")
        script = f"""
import sys, ws.layout, ws.workspace
fs = ws.workspace.open_workspace(ws.layout.open_home(sys.argv[1]), sys.argv[2], None).fs
{body}
peak = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
assert peak < 64 * 1024, f"{{peak}} KB"
"""
        subprocess.run(
            [sys.executable, "-c", script, boxes.home, box.name], check=True, env={**os.environ, "PYTHONPATH": SOURCE}
        )
        assert memory_kb(pid_of(box), "Rss") - before < 16 * 1024
        assert memory_kb(pid_of(box), "Rss") < 64 * 1024


class TestWhatIsKept:
    def test_backups_outlive_a_restore(self, own_box: Workspace) -> None:
        own_box.fs.write("a", "one\n")
        taken = own_box.snapshot("first")
        own_box.tools.call("str_replace", path="a", old_str="one", new_str="two")
        own_box.tools.call("delete", path="a")
        own_box.restore(taken)
        entries = own_box.tools.call("trash_list").data["entries"]
        assert [entry["path"] for entry in entries] == ["a"]
        own_box.tools.call("trash_restore", name=entries[0]["name"], overwrite=True)
        assert own_box.fs.read("a") == "two\n"

    def test_backups_outlive_their_container(self, own_box: Workspace, engine: Engine) -> None:
        own_box.tools.call("write_file", path="a", content="one\n")
        own_box.tools.call("delete", path="a")
        container = own_box.record().container
        assert container is not None
        engine.remove(container.id)
        own_box.tools.call("undo", path="a")
        assert own_box.fs.read("a") == "one\n"
        assert own_box.record().container != container

    def test_backups_of_one_workspace_are_not_those_of_another(self, own_box: Workspace, box: Workspace) -> None:
        own_box.tools.call("write_file", path="mine", content="x")
        with pytest.raises(NotFound):
            box.tools.call("undo", path="mine")

    def test_they_are_no_part_of_the_tree_and_nothing_there_can_be_run(self, box: Workspace) -> None:
        box.tools.call("write_file", path="a", content="x")
        assert names_in(box) == ["a"]
        options = box.exec(["sh", "-c", "grep ' /.ws/run/kept ' /proc/self/mountinfo | cut -d' ' -f6"]).stdout
        assert {"nosuid", "nodev", "noexec"} <= set(options.strip().split(","))

    def test_they_go_with_the_workspace(self, own_box: Workspace, boxes: SharedWorkspaces) -> None:
        own_box.tools.call("write_file", path="a", content="x")
        kept = Path(boxes.home) / "workspaces" / own_box.id
        assert (kept / "kept").is_dir()
        own_box.remove()
        assert not kept.exists()


class TestManyAtOnce:
    def test_sixteen_threads_read_edit_and_search(self, box: Workspace) -> None:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                path = f"t{number}"
                box.tools.call("write_file", path=path, content=f"{number} 0\n")
                for turn in range(10):
                    box.tools.call("str_replace", path=path, old_str=f"{number} {turn}", new_str=f"{number} {turn + 1}")
                    assert box.tools.call("read_file", path=path).output == f"{number} {turn + 1}"
                assert box.tools.call("grep", pattern=f"^{number} 10$").data["matches"][0]["path"] == path
                for turn in reversed(range(10)):
                    box.tools.call("undo", path=path)
                    if turn == 9:
                        assert box.fs.read(path) == f"{number} 9\n"
            except BaseException as error:  # noqa: BLE001 - reported by the test's own thread
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures

    def test_files_go_on_while_the_workspace_is_snapshot_over_and_over(self, own_box: Workspace) -> None:
        stop = threading.Event()
        failures: list[BaseException] = []

        def write() -> None:
            number = 0
            try:
                while not stop.is_set():
                    number += 1
                    own_box.fs.write("counter", str(number))
                    with own_box.fs.open_write("stream") as writer:
                        writer.write(str(number).encode() * 100_000)
            except BaseException as error:  # noqa: BLE001 - reported by the test's own thread
                failures.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        for _ in range(8):
            own_box.snapshot()
        stop.set()
        thread.join()
        assert not failures
        assert sorted(names_in(own_box)) == ["counter", "stream"]


class TestSearchInAnyImage:
    def test_ripgrep_and_python_find_the_same_in_an_image_that_has_neither(
        self, engine: Engine, busybox_image: str, boxes: SharedWorkspaces
    ) -> None:
        files = {
            "a.py": "import os\nDEF x\ndef y():\n    pass\n",
            "d/b.txt": "one def\r\ntwo\r\n",
            "d/.hidden": "def hidden\n",
            "d/e/binary": "def\0def\n",
            "odd \n name": "def odd\n",
            "latin": "def caf\\xe9\n",
        }
        memory = MemoryFilesystem()
        queries = (
            GrepQuery("def"),
            GrepQuery("def", ignore_case=True, context_before=1, context_after=1),
            GrepQuery("def", glob="*.py"),
            GrepQuery("d.f", path="d", count_only=True),
            GrepQuery(r"(?<=one )def"),
            GrepQuery("^def", max_matches=2),
        )
        with (
            Manager(home=boxes.home, engine=engine.name) as manager,
            manager.create(image=busybox_image, remove_on_exit=True) as box,
        ):
            assert box.ping().rg
            for name, text in files.items():
                for filesystem in (memory, box.fs):
                    filesystem.write(name, text)
            for query in queries:
                assert box.fs.search(query) == memory.search(query), query
            assert [m.path for m in box.fs.glob("**/*")] == [m.path for m in memory.glob("**/*")]


def test_a_listing_too_large_for_a_frame_is_whole(box: Workspace) -> None:
    made = box.exec(
        ["sh", "-c", "i=0; while [ $i -lt 12000 ]; do : > a-rather-long-name-of-a-file-$i; i=$((i+1)); done"]
    )
    assert made.exit_code == 0
    assert len(box.fs.list()) == len(box.fs.scan()) == len(box.fs.glob("*")) == 12_000


def test_a_file_of_32_mb_goes_in_one_piece_and_no_more(box: Workspace) -> None:
    data = os.urandom(1 << 20) * 32
    box.fs.write_bytes("large", data)
    assert box.fs.read_bytes("large") == data
    assert len(data) < MAX_REPLY_BYTES
    with pytest.raises(ValueError, match="in one piece"):
        box.fs.write_bytes("larger", data + b"x")
