"""The law: a host directory is read as it was found, written whole, and shared by threads without a trace."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ws.errors import NotFound
from ws.fs.host import HostFilesystem
from ws.fs.protocol import WORKSPACE_LIMITS
from ws.tools.context import ToolContext
from ws.tools.managing import delete, undo
from ws.tools.reading import read_file
from ws.tools.trash import Backups
from ws.tools.writing import write_file

SOURCE = str(Path(__file__).parents[2] / "src")


def test_a_file_that_grows_while_it_is_read_is_read_as_far_as_it_was(tmp_path: Path) -> None:
    fs = HostFilesystem(str(tmp_path))
    fs.write("f", "x" * 200_000)
    total = 0
    with fs.open_read("f") as reader, open(tmp_path / "f", "ab") as writer:
        for chunk in reader:
            total += len(chunk)
            writer.write(b"y" * 100_000)
            writer.flush()
    assert total == 200_000


def test_a_file_that_shrinks_while_it_is_read_just_ends(tmp_path: Path) -> None:
    fs = HostFilesystem(str(tmp_path))
    fs.write("f", "x" * 200_000)
    with fs.open_read("f") as reader:
        next(iter(reader))
        os.truncate(tmp_path / "f", 10)
        assert list(reader) == []


def test_the_root_may_be_exchanged_between_two_calls(tmp_path: Path) -> None:
    for name in ("root", "staged"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text(name)
    fs = HostFilesystem(str(tmp_path / "root"))
    assert fs.read("f") == "root"
    (tmp_path / "root").rename(tmp_path / "old")
    (tmp_path / "staged").rename(tmp_path / "root")
    assert fs.read("f") == "staged"


def test_sixteen_threads_share_one_filesystem_and_one_store(tmp_path: Path) -> None:
    for name in ("tree", "kept"):
        (tmp_path / name).mkdir()
    fs = HostFilesystem(str(tmp_path / "tree"), limits=WORKSPACE_LIMITS, durable=False)
    store = HostFilesystem(str(tmp_path / "kept"), limits=WORKSPACE_LIMITS, durable=False)
    context = ToolContext(fs, Backups(fs, store))
    fs.write("shared", "0")

    def work(worker: int) -> None:
        for n in range(20):
            path = f"own/{worker}/{n}"
            write_file(context, path=path, content=f"{worker} {n}")
            assert read_file(context, path=path).output == f"{worker} {n}"
            write_file(context, path="shared", content=f"{worker} {n}\n", mode="overwrite")
            assert len(read_file(context, path="shared").output.split()) == 2 or n == 0
            delete(context, path=path)
            undo(context, path=path)

    before = len(os.listdir("/proc/self/fd"))
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(work, range(16)))
    assert len(os.listdir("/proc/self/fd")) == before
    assert len([match for match in fs.glob("own/**") if match.is_file]) == 320
    assert not fs.glob("**/*.tmp")
    with pytest.raises(NotFound):
        undo(context, path="never")


_UNPRIVILEGED = """
import os, sys
from ws.fs.host import HostFilesystem
os.setgroups([]); os.setgid(65534); os.setuid(65534)
fs = HostFilesystem(sys.argv[1], durable=False)
def refused(call, *arguments):
    try: call(*arguments)
    except PermissionError: return
    raise AssertionError(f"{call.__name__}{arguments} was allowed")
refused(fs.read, "closed")
refused(fs.write, "read-only", "x")
refused(fs.write, "closed-directory/f", "x")
refused(fs.list, "secret")
refused(fs.exists, "secret/f")
refused(fs.delete, "closed-directory/g")
status = fs.stat("read-only")
assert status.readable and not status.writable
assert not fs.stat("closed").readable
assert [m.path for m in fs.glob("**/f")] == []
assert [m.path for m in fs.grep("content")] == ["read-only"]
fs.write("mine", "x"); fs.set_mode("mine", 0o400)
refused(fs.write, "mine", "y")
fs.mkdir("own/deep"); fs.write("own/deep/f", "x")
fs.set_mode("own/deep", 0); fs.set_mode("own", 0o500)
fs.delete("own", recursive=True)
assert not fs.exists("own")
"""


@pytest.mark.root
def test_what_the_kernel_denies_a_user_is_denied(tmp_path: Path) -> None:
    root = Path("/tmp") / f"ws-test-{os.getpid()}"
    root.mkdir()
    try:
        root.chmod(0o777)
        (root / "closed").write_text("content")
        (root / "closed").chmod(0o600)
        (root / "read-only").write_text("content")
        (root / "closed-directory").mkdir()
        (root / "closed-directory" / "g").write_text("")
        (root / "secret").mkdir(mode=0o700)
        (root / "secret" / "f").write_text("content")
        subprocess.run(
            [sys.executable, "-c", _UNPRIVILEGED, str(root)],
            check=True,
            env={**os.environ, "PYTHONPATH": SOURCE, "PYTHONDONTWRITEBYTECODE": "1"},
        )
    finally:
        subprocess.run(["rm", "-rf", str(root)], check=True)
