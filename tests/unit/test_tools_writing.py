"""The law: a file is written whole or not at all, and what was there can be had back."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tool_contexts import BACKENDS, make_context

from ws.errors import FsViolationError, InvalidRequest, ToolValidationError
from ws.fs.host import HostFilesystem
from ws.tools.context import ToolContext
from ws.tools.diffs import unified_diff
from ws.tools.managing import undo
from ws.tools.writing import write_file


@pytest.fixture(params=BACKENDS)
def context(request: pytest.FixtureRequest, tmp_path: Path) -> ToolContext:
    return make_context(request.param, tmp_path)


def test_create_makes_a_file_and_refuses_one_that_exists(context: ToolContext) -> None:
    result = write_file(context, path="d/f", content="one\n")
    assert context.filesystem.read("d/f") == "one\n"
    assert result.summary is not None
    assert result.summary.files_touched == ("d/f",)
    assert result.summary.bytes_written == 4
    assert result.summary.diff == "--- /dev/null\n+++ b/d/f\n@@ -0,0 +1 @@\n+one\n"
    with pytest.raises(FileExistsError):
        write_file(context, path="d/f", content="two\n")
    assert context.filesystem.read("d/f") == "one\n"


def test_overwrite_and_append_show_what_they_changed(context: ToolContext) -> None:
    write_file(context, path="f", content="one\ntwo\n")
    changed = write_file(context, path="f", content="one\n2\n", mode="overwrite")
    assert changed.summary is not None
    assert changed.summary.diff == "--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
    added = write_file(context, path="f", content="three\n", mode="append")
    assert added.summary is not None
    assert added.summary.diff.endswith("+three\n")
    assert context.filesystem.read("f") == "one\n2\nthree\n"


def test_a_dry_run_tells_and_does_nothing(context: ToolContext) -> None:
    result = write_file(context, path="a/f", content="x\n", dry_run=True)
    assert result.summary is not None
    assert result.summary.bytes_written == 0
    assert "+x" in result.summary.diff
    assert "would be" in result.message
    assert not context.filesystem.exists("a")
    assert context.backups.records() == []
    with pytest.raises(FileNotFoundError):
        write_file(context, path="a/f", content="x", create_parents=False, dry_run=True)
    with pytest.raises(FileNotFoundError):
        write_file(context, path="a/f", content="x", create_parents=False)
    with pytest.raises(FsViolationError):
        write_file(context, path="../f", content="x", dry_run=True)


def test_bad_writes_are_refused(context: ToolContext) -> None:
    context.filesystem.mkdir("d")
    with pytest.raises(ToolValidationError):
        write_file(context, path="f", content="x", mode="truncate")
    with pytest.raises(IsADirectoryError):
        write_file(context, path="d", content="x", mode="overwrite")
    with pytest.raises(InvalidRequest):
        write_file(context, path="f", content="lone \ud800 surrogate")
    assert not context.filesystem.exists("f")


def test_every_write_can_be_undone(context: ToolContext) -> None:
    write_file(context, path="f", content="one\n")
    write_file(context, path="f", content="two\n", mode="overwrite")
    undo(context, path="f")
    assert context.filesystem.read("f") == "one\n"
    undo(context, path="f")
    assert not context.filesystem.exists("f")


# on a host directory


def test_mode_owner_and_attributes_survive_a_write(tmp_path: Path) -> None:
    fs = HostFilesystem(str(tmp_path))
    path = tmp_path / "f"
    path.write_text("old")
    path.chmod(0o6751)
    os.setxattr(path, "user.note", b"kept")
    if os.geteuid() == 0:
        os.chown(path, 1234, 5678)
        path.chmod(0o6751)
    before = path.stat()
    for mode in ("overwrite", "append"):
        fs.write("f", "new", mode)  # type: ignore[arg-type]
        after = path.stat()
        assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
        assert after.st_mode & 0o7777 == 0o751, "as after any write, setuid is gone"
        assert os.getxattr(path, "user.note") == b"kept"


def test_new_files_get_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        HostFilesystem(str(tmp_path)).write("f", "x")
    finally:
        os.umask(old)
    assert (tmp_path / "f").stat().st_mode & 0o777 == 0o640


def test_hard_links_to_the_old_file_keep_the_old_bytes(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    HostFilesystem(str(tmp_path)).write("a", "new")
    assert (tmp_path / "b").read_text() == "old"


@pytest.mark.root
def test_a_full_disk_leaves_the_old_file_and_no_temporary(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(mount)], check=True)
    try:
        fs = HostFilesystem(str(mount))
        fs.write("f", "old")
        with pytest.raises(OSError, match="No space") as caught:
            fs.write("f", "x" * 100_000)
        assert caught.value.errno == errno.ENOSPC
        assert os.listdir(mount) == ["f"]
        assert fs.read("f") == "old"
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_a_write_is_synced_before_it_is_renamed_unless_declined(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom ws.fs.host import HostFilesystem\n"
        "HostFilesystem(sys.argv[1], durable=sys.argv[2] == 'yes').write('f', 'x')\n"
    )
    calls: dict[str, list[str]] = {}
    for durable in ("yes", "no"):
        trace = tmp_path / f"trace-{durable}"
        (tmp_path / durable).mkdir()
        subprocess.run(
            [
                *("strace", "-f", "-o", trace, "-e", "trace=fsync,rename,renameat,renameat2"),
                *(sys.executable, "-c", script, str(tmp_path / durable), durable),
            ],
            check=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        )
        lines = trace.read_text().splitlines()
        calls[durable] = [name for line in lines for name in ("fsync", "rename") if f" {name}" in line]
    assert calls == {"yes": ["fsync", "rename", "fsync"], "no": ["rename"]}


# diffs


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a\nb\nc\n", "a\nB\nc\n"),
        ("a\n" * 20, "a\n" * 10 + "new\n" + "a\n" * 10),
        ("x", "x\n"),
        ("x\n", "x"),
        ("", "new\n"),
        ("old\n", ""),
        ("1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\n13\n14\n", "1\nX\n3\n4\n5\n6\n7\n8\n9\n10\n11\n12\nY\n14\n"),
        ("a\r\nb\r\n", "a\r\nc\r\n"),
        ("same\n", "same\n"),
    ],
)
def test_diffs_are_what_patch_takes(tmp_path: Path, before: str, after: str) -> None:
    (tmp_path / "f").write_bytes(before.encode())
    diff = unified_diff("f", before, after)
    if before == after:
        assert diff == ""
        return
    subprocess.run(["patch", "--binary", "-s", "-p1"], cwd=tmp_path, input=diff.encode(), check=True)
    left = (tmp_path / "f").read_bytes() if (tmp_path / "f").exists() else b""
    assert left == after.encode()


def test_a_diff_of_long_files_with_nothing_in_common_takes_no_time() -> None:
    before = "".join(f"old {n}\n" for n in range(50_000))
    after = "".join(f"new {n}\n" for n in range(50_000))
    diff = unified_diff("f", before, after)
    assert diff.count("\n-old") == 50_000
