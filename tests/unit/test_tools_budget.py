"""Backups and trash stay within a budget of bytes and entries: the oldest go first, and the result says so."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest
from tool_contexts import BACKENDS, make_context

from ws.errors import LimitExceeded, NotFound
from ws.tools.budget import Size, size_of
from ws.tools.context import ToolContext
from ws.tools.dispatch import run_tool
from ws.tools.trash import Retention

pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def kept(context: ToolContext) -> Size:
    return size_of(context.backups._records._store, ".")


def test_the_oldest_go_first_and_the_result_says_so(backend: str, tmp_path: Path) -> None:
    context = make_context(backend, tmp_path, retention=Retention(max_bytes=10_000))
    told = 0
    for number in range(30):
        context.filesystem.write(f"file-{number}", "x" * 1_000)
        result = run_tool(context, "delete", {"path": f"file-{number}"})
        told += result.data.get("backups_removed", 0)
        assert kept(context).size_bytes < 20_000
    assert told >= 15
    assert "removed to make room" in result.message
    names = [entry["path"] for entry in run_tool(context, "trash_list", {}).data["entries"]]
    assert names == [f"file-{number}" for number in range(29, 29 - len(names), -1)]
    run_tool(context, "undo", {"path": "file-29"})
    assert context.filesystem.exists("file-29")


def test_entries_count_too(backend: str, tmp_path: Path) -> None:
    context = make_context(backend, tmp_path, retention=Retention(max_entries=50))
    for number in range(20):
        for each in range(10):
            context.filesystem.write(f"d{number}/{each}", "")
        run_tool(context, "delete", {"path": f"d{number}", "recursive": True})
        assert kept(context).entries < 110
    assert len(run_tool(context, "trash_list", {}).data["entries"]) <= 4


@pytest.mark.parametrize("large", ["file", "tree", "many"])
def test_what_is_larger_than_the_budget_is_refused_with_a_hint_and_stays(
    backend: str, tmp_path: Path, large: str
) -> None:
    context = make_context(backend, tmp_path, retention=Retention(max_bytes=2_000_000, max_entries=20))
    context.filesystem.write("small", "kept")
    run_tool(context, "delete", {"path": "small"})
    sizes = {"file": [3_000_000], "tree": [600_000] * 4, "many": [1] * 30}[large]
    for number, size in enumerate(sizes):
        context.filesystem.write(f"large/{number}", "x" * size)
    path = "large/0" if large == "file" else "large"
    with pytest.raises(LimitExceeded) as refused:
        run_tool(context, "delete", {"path": path, "recursive": True})
    assert "permanent" in (refused.value.hint or "")
    assert len(context.filesystem.list("large")) == len(sizes)
    run_tool(context, "undo", {"path": "small"})  # nothing had to go for what cannot be kept
    run_tool(context, "delete", {"path": path, "recursive": True, "permanent": True})
    assert not context.filesystem.exists(path)


def test_the_backups_of_edits_count(backend: str, tmp_path: Path) -> None:
    context = make_context(backend, tmp_path, retention=Retention(max_bytes=100_000))
    for number in range(40):
        run_tool(context, "write_file", {"path": "a", "content": f"{number}" * 5_000, "mode": "overwrite"})
    assert kept(context).size_bytes < 200_000
    run_tool(context, "undo", {"path": "a"})
    assert context.filesystem.read_bytes("a").startswith(b"3838")


def test_another_process_finds_what_was_kept_before(backend: str, tmp_path: Path) -> None:
    if backend == "memory":
        pytest.skip("a filesystem in memory is of one process")
    for number in range(12):
        context = make_context(backend, tmp_path, retention=Retention(max_bytes=5_000))
        context.filesystem.write(f"{number}", "x" * 1_000)
        run_tool(context, "delete", {"path": f"{number}"})
    assert kept(context).size_bytes < 10_000


@pytest.mark.parametrize("tool", ["str_replace", "insert", "write_file", "apply_patch"])
def test_a_file_larger_than_the_budget_is_edited_without_a_backup_and_the_result_says_so(
    backend: str, tmp_path: Path, tool: str
) -> None:
    context = make_context(backend, tmp_path, retention=Retention(max_bytes=10_000))
    context.filesystem.write("large", "first\n")
    run_tool(context, "write_file", {"path": "large", "content": "one\n" + "x\n" * 20_000, "mode": "overwrite"})
    params = {
        "str_replace": {"path": "large", "old_str": "one", "new_str": "two"},
        "insert": {"path": "large", "line": 0, "text": "two"},
        "write_file": {"path": "large", "content": "two\n", "mode": "overwrite"},
        "apply_patch": {"patch": "*** Begin Patch\n*** Update File: large\n@@\n-one\n+two\n*** End Patch\n"},
    }[tool]
    result = run_tool(context, tool, params)
    assert context.filesystem.read_bytes("large").startswith(b"two\n")
    assert result.data["not_kept"] == ["large"]
    assert "no backup of large was kept" in result.message
    with pytest.raises(NotFound) as refused:  # not the content of two changes ago
        run_tool(context, "undo", {"path": "large"})
    assert "snapshot" in (refused.value.hint or "")
    assert context.filesystem.read_bytes("large").startswith(b"two\n")
    context.filesystem.write("small", "1")
    assert "not_kept" not in run_tool(context, "str_replace", {"path": "small", "old_str": "1", "new_str": "2"}).data


def test_a_deep_tree_does_not_evade_the_budget(backend: str, tmp_path: Path) -> None:
    if backend == "memory":
        pytest.skip("a filesystem in memory has nothing below the paths that it takes")
    context = make_context(backend, tmp_path, retention=Retention(max_bytes=10_000))
    context.filesystem.mkdir("deep")
    place = os.open(context.filesystem.root, os.O_RDONLY)
    for name in ["deep", *["d"] * 400]:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, dir_fd=place)
        below = os.open(name, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = below
    fd = os.open("hidden", os.O_CREAT | os.O_WRONLY, dir_fd=place)
    os.write(fd, b"x" * 50_000)
    os.close(fd)
    os.close(place)
    with pytest.raises(LimitExceeded, match="too large"):
        run_tool(context, "delete", {"path": "deep", "recursive": True})
    assert context.filesystem.exists("deep")
    run_tool(context, "delete", {"path": "deep", "recursive": True, "permanent": True})
    assert not context.filesystem.exists("deep")
