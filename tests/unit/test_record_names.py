"""Backups are `{filename}.{timestamp}.bak`, trash is `{timestamp}_{basename}`, whatever a file is called."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from tool_contexts import make_context

from ws.errors import NotFound
from ws.fs.memory import MemoryFilesystem
from ws.fs.protocol import WORKSPACE_LIMITS, Limits
from ws.toolbox.dialects import DIALECTS, open_dialect
from ws.toolbox.dialects.forge import OPERATIONS
from ws.toolbox.local import LocalBackend
from ws.toolbox.router import Router
from ws.tools import record_names, records
from ws.tools.context import ToolContext
from ws.tools.managing import delete, move, trash_list, trash_restore, undo
from ws.tools.record_names import directory_of, record_name, stamp, stamp_of, tree_of
from ws.tools.writing import write_file

NOW = 1_790_000_000_123_456_789
STAMP = stamp(NOW)
NAMES = (
    "a.c",
    ".hidden",
    "x.bak",
    "x.tree",
    "x.tree.tree",
    f"{STAMP}_x",
    f"x.{stamp(NOW - 10**15)}.bak",
    f"{stamp(NOW - 10**15)}_x",
    f"{stamp(NOW - 10**15)}-0123abcd.bak",
    f"{stamp(NOW - 10**15)}_x.{stamp(NOW - 10**14)}.bak",
    "new\nline",
    "é" * 127,
    "x" * 255,
    "\udc80",
)


@pytest.mark.parametrize("limits", [Limits(), WORKSPACE_LIMITS], ids=["contract", "workspace"])
@pytest.mark.parametrize("suffix", ["", "0123abcd"])
@pytest.mark.parametrize("trash", [False, True])
@pytest.mark.parametrize("base", NAMES, ids=ascii)
def test_a_name_says_when_it_was_whatever_the_file_is_called(
    base: str, trash: bool, suffix: str, limits: Limits
) -> None:
    name = record_name(f"d/{base}", STAMP, trash=trash, limits=limits, suffix=suffix)
    assert stamp_of(name) == STAMP
    assert stamp_of(tree_of(name)) is None
    assert len(tree_of(name)) <= limits.max_segment_chars
    assert len(tree_of(name).encode("utf-8", "surrogateescape")) <= 255


def test_the_names_are_those_of_the_contract() -> None:
    assert record_name("src/a.c", STAMP, trash=False, limits=WORKSPACE_LIMITS) == f"a.c.{STAMP}.bak"
    assert record_name("src/a.c", STAMP, trash=True, limits=WORKSPACE_LIMITS) == f"{STAMP}_a.c"


@pytest.mark.parametrize("kind", ["memory", "host"])
def test_records_with_one_timestamp_get_a_suffix(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers that do not know of each other, at the same nanosecond."""
    monkeypatch.setattr(records.time, "time_ns", lambda: NOW)
    context = make_context(kind, tmp_path)
    store = context.backups._records._store
    names = []
    for n in range(3):
        write_file(context, path="f", content=str(n))
        context.filesystem.mkdir("d")
        context.filesystem.write("d/g", str(n))
        context = ToolContext(context.filesystem, type(context.backups)(context.filesystem, store))
        context.backups._records._look_up = lambda _: ([], 0)  # type: ignore[method-assign]
        for path in ("f", "d"):
            names.append(str(delete(context, path=path, recursive=True).data["trash_name"]))
    assert len(set(names)) == 6
    assert [name.rpartition("/")[2] for name in names[:2]] == [f"{STAMP}_f", f"{STAMP}_d"]
    for name in names[2:]:
        assert re.fullmatch(rf"{re.escape(STAMP)}-[0-9a-f]{{8}}_[fd]", name.rpartition("/")[2])
    for n, (file, directory) in enumerate(zip(names[::2], names[1::2], strict=True)):
        trash_restore(context, name=file, destination=f"f{n}")
        trash_restore(context, name=directory, destination=f"d{n}")
        assert (context.filesystem.read(f"f{n}"), context.filesystem.read(f"d{n}/g")) == (str(n), str(n))


def test_records_of_earlier_versions_are_read_and_are_older(tmp_path: Path) -> None:
    context = make_context("host", tmp_path)
    then = time.time_ns() - 10**13  # within the retention
    old = stamp(then)
    fields = {
        "path": "f",
        "kind": "file",
        "reason": "edit",
        "saved_ns": then,
        "mode": 0o644,
        "modified_ns": then,
    }
    trashed = {"path": "d", "kind": "directory", "reason": "delete", "saved_ns": then, "mode": 0o755}
    place = tmp_path / "kept" / directory_of("f")
    place.mkdir(parents=True)
    (place / f"{old}-0123abcd.bak").write_bytes(json.dumps({**fields, "exact": 4}).encode() + b"\nold\n")
    tree = tmp_path / "kept" / directory_of("d") / f"{old}-0123abcd.tree"
    tree.mkdir(parents=True)
    (tree / "g").write_text("kept")
    tree.with_suffix(".bak").write_bytes(json.dumps(trashed).encode() + b"\n")
    write_file(context, path="f", content="new\n", mode="overwrite")
    assert [(record.kind, record.saved_ns > then) for record in context.backups.records("f")] == [
        ("absent", True),
        ("file", False),
    ]
    assert [entry["path"] for entry in trash_list(context).data["entries"]] == ["d"]
    undo(context, path="f")
    undo(context, path="f")
    assert context.filesystem.read("f") == "old\n"
    trash_restore(context, name=f"{directory_of('d')}/{old}-0123abcd")  # an id as it was written then
    assert context.filesystem.read("d/g") == "kept"
    assert not tree.exists()
    with pytest.raises(NotFound):
        trash_restore(context, name=f"{directory_of('d')}/{old}-0123abcd")


@pytest.mark.parametrize("kind", ["memory", "host"])
def test_both_paths_of_a_move_lead_back_under_their_own_names(kind: str, tmp_path: Path) -> None:
    context = make_context(kind, tmp_path)
    context.filesystem.write("a", "a")
    context.filesystem.write("b", "b")
    for path in ("a", "b"):
        move(context, source="a", destination="b", overwrite=True)
        undo(context, path=path)
        assert (context.filesystem.read("a"), context.filesystem.read("b")) == ("a", "b")


def test_a_record_that_cannot_be_written_leaves_the_tree_and_no_claim(tmp_path: Path) -> None:
    class Full(MemoryFilesystem):
        def open_write(self, path: str, mode: object = "overwrite", create_parents: bool = True) -> object:  # type: ignore[override]
            raise OSError(28, "No space left on device", path)

    context = make_context("host", tmp_path)
    store = Full(limits=WORKSPACE_LIMITS)
    store.add = lambda path, content: MemoryFilesystem.open_write(store, path, "create").close()  # type: ignore[method-assign]
    context = ToolContext(context.filesystem, type(context.backups)(context.filesystem, store))
    context.filesystem.write("d/f", "content")
    with pytest.raises(OSError, match="No space"):
        delete(context, path="d", recursive=True)
    assert context.filesystem.read("d/f") == "content"
    assert [match.path for match in store.glob("**") if match.is_file] == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_dialect_has_instructions_that_name_its_own_tools(dialect: str) -> None:
    router = Router(LocalBackend(ToolContext(filesystem=MemoryFilesystem())), dialect=dialect)
    text = router.instructions()
    tools = open_dialect(dialect).tools
    own = {*tools, *(parameter.name for tool in tools.values() for parameter in tool.spec.parameters)}
    own |= set(OPERATIONS) if dialect == "forge" else set()
    commands = {"cat", "ls", "find", "grep", "sed", "mv", "rm"}
    named = set(re.findall(r"`(\w+)`", text))
    assert named - commands <= own
    assert named & set(tools)
    assert len(text.splitlines()) < 20


def test_the_module_is_the_one_that_names_records() -> None:
    assert record_names.nanoseconds(STAMP) == NOW
