"""Every record is read by one reader: bounded in size and depth, never blocking, each field of its type."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import damage
from ws import base_directories, last_look, layout, pool, stacks
from ws.errors import StateError, StateUnusable
from ws.layout import Ids, Options, WorkspaceRecord, open_home
from ws.record_files import MAX_DEPTH, parse_json, read_cached_json, read_json, read_state_file
from ws.record_types import RULES

ROOT = Path(__file__).parents[2] / "src" / "ws"
RECORD = WorkspaceRecord(
    id="0123456789ab",
    name="demo",
    state="ready",
    engine="podman",
    created_at=1.5,
    base="base",
    tree="7" * 40,
    upper="u1",
    ids=Ids(1000, 1000, 201000, 201000),
    options=Options(image="localhost/x"),
    layers=("l2", "l1"),
)

# Who may call json.loads or json.load: what is read there is no file of the state, or the call is the reader itself.
PARSERS = {
    "record_files.py": "the reader",
    "strict_json.py": "the reader of bundles, with the same limits",
    "engine/imaging.py": "events of the engine",
    "engine/endpoints.py": "errors of the engine",
    "toolbox/router.py": "arguments of a model, which catches RecursionError",
    "remote/gathering.py": "the output of our own interpreter",
    "tools/records.py": "records inside the container",
    "shim/wire.py": "frames, capped",
}


@pytest.mark.parametrize("kind", [name for name in damage.DAMAGES if name not in ("mode", "missing", "types")])
def test_a_damaged_file_is_a_typed_error_that_names_it(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "record.json"
    path.write_text('{"a": [1, 2, 3]}')
    damage.DAMAGES[kind](str(path))
    with pytest.raises(StateError, match="record.json is damaged"):  # noqa: RUF043
        read_json(str(path))
    assert read_cached_json(str(path)) is None


def test_a_missing_file_is_not_damage(tmp_path: Path) -> None:
    assert read_json(str(tmp_path / "none")) is None
    (tmp_path / "file").touch()
    assert read_json(str(tmp_path / "file" / "below")) is None
    with pytest.raises(FileNotFoundError):
        read_state_file(str(tmp_path / "none"))


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_what_json_writes_is_read_unless_it_is_too_deep(value: Any) -> None:
    data = json.dumps(value).encode()
    try:
        assert parse_json(data) == value
    except ValueError:
        assert _depth(value) > MAX_DEPTH


def _depth(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, inner), default=0) if isinstance(value, list | dict) else 0


def test_brackets_in_strings_do_not_count() -> None:
    assert parse_json(json.dumps({"a": '[{"\\' * 1000}).encode()) == {"a": '[{"\\' * 1000}
    with pytest.raises(ValueError, match="levels"):
        parse_json(b'{"a": ' * 100 + b"1" + b"}" * 100)


def test_every_field_of_every_record_has_a_rule() -> None:
    built = {layout.History, layout.WorkspaceRecord, pool.Configuration}
    classes = [Ids, Options, layout.ContainerRecord, layout.Unsettled, layout.Mark, layout.Intent, *built]
    nested = {"Ids", "Options", "ContainerRecord | None", "History", "tuple[Unsettled, ...]", "tuple[Mark, ...]"}
    for cls in (*classes, stacks.Stack, last_look.LastLook, base_directories._Info):
        for field in dataclasses.fields(cls):
            assert field.type in RULES or (cls in built and field.type in nested), f"{cls.__name__}.{field.name}"


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(WorkspaceRecord)])
@pytest.mark.parametrize("value", [[[]], {"a": {}}, 10**30, -1, "../up", "a/b", True, 1e300, "\0"], ids=repr)
def test_a_field_of_the_wrong_kind_is_refused_or_harmless(name: str, value: Any) -> None:
    fields = {**json.loads(RECORD.to_bytes()), name: value}
    try:
        read = WorkspaceRecord.from_bytes(json.dumps(fields).encode())
    except StateError:
        return
    harmless = {("source", str), ("image_id", str), ("created_at", int), ("expires_at", int)}
    assert (name, type(value)) in harmless, read


@pytest.mark.parametrize("damaged", [b"", b"\xff\xc3", b"one", b"1" * 65], ids=["empty", "bytes", "word", "long"])
def test_a_damaged_format_is_written_again_where_the_rest_says_what_it_is(tmp_path: Path, damaged: bytes) -> None:
    home = open_home(str(tmp_path / "home"))
    os.mkdir(home.store)
    Path(home.at("format")).write_bytes(damaged)
    assert open_home(home.root) == home
    assert Path(home.at("format")).read_bytes() == b"1\n"


@pytest.mark.parametrize("kind", ["directory", "fifo", "link", "huge", "missing"])
def test_what_is_no_format_file_is_replaced_without_waiting(tmp_path: Path, kind: str) -> None:
    home = open_home(str(tmp_path / "home"))
    os.mkdir(home.store)
    damage.DAMAGES[kind](home.at("format"))
    assert open_home(home.root) == home
    assert Path(home.at("format")).read_bytes() == b"1\n"


def test_a_directory_with_a_damaged_format_and_nothing_of_ours_is_refused(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o700)
    (tmp_path / "format").write_bytes(b"\xff")
    with pytest.raises(StateUnusable, match="format is damaged"):
        open_home(str(tmp_path))
    (tmp_path / "format").write_bytes(b"2\n")
    with pytest.raises(StateUnusable, match="has format 2"):
        open_home(str(tmp_path))


def test_only_the_reader_parses_files_of_the_state() -> None:
    for path in ROOT.rglob("*.py"):
        calls = [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("load", "loads")
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id == "json"
        ]
        assert not calls or str(path.relative_to(ROOT)) in PARSERS, f"{path}: read records through record_files"
