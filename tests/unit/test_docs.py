"""What the documents show works: each call in docs/tools.md and the README is made; each test that is named exists."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
from pathlib import Path

import ws
from ws.fs.memory import MemoryFilesystem
from ws.toolbox.local import open_local
from ws.toolbox.router import Router

ROOT = Path(__file__).parents[2]
TOOLS = (ROOT / "docs" / "tools.md").read_text()
CALL = re.compile(r"^\| `([\w-]+)` \| `(\w+)` \| `(\{.*\})` \|$", re.MULTILINE)


def test_the_calls_in_the_tools_document_succeed_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("one\n")
    backend = open_local(str(tmp_path), MemoryFilesystem())
    rows = CALL.findall(TOOLS)
    assert rows == CALL.findall((ROOT / "README.md").read_text())
    assert {dialect for dialect, _, _ in rows} == {"standard", "agent-q", "convergio", "lincona", "forge", "anthropic"}
    try:
        for dialect, tool, arguments in rows:
            result = Router(backend, dialect=dialect).call(tool, **json.loads(arguments))
            assert result.status == "ok", (dialect, result)
    finally:
        backend.close()
    assert (tmp_path / "notes.txt").read_text() == "three\n"
    assert (tmp_path / "new.txt").read_text() == "hello\n"


NAMES = re.compile(r"`(?:from )?(ws(?:\.\w+)+)(?:\(|`| import (\w+(?:, \w+)*))")
IMPORTS = re.compile(r"^\s*from (ws[\w.]*) import ([\w, ]+)$", re.MULTILINE)


def test_every_name_that_a_document_names_can_be_imported() -> None:
    documents = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    missing, count = [], 0
    for document in documents:
        text = document.read_text()
        wanted = [
            (module, name) for module, names in IMPORTS.findall(text) for name in names.replace(" ", "").split(",")
        ]
        wanted += [tuple(dotted.rpartition(".")[::2]) for dotted, _ in NAMES.findall(text)]
        wanted += [("ws", name) for name in re.findall(r"\bws\.(?=[A-Z])(\w+)", text)]
        for module, name in wanted:
            if module == "ws" and name in ("toml", "lock"):  # names of files
                continue
            count += 1
            try:
                if importlib.util.find_spec(f"{module}.{name}".removeprefix(".")) is not None:
                    continue  # a module
            except ModuleNotFoundError:
                pass  # what is before the dot is not a package
            try:
                getattr(importlib.import_module(module), name)
            except (ImportError, AttributeError) as error:
                missing.append(f"{document.name}: {module}.{name}: {error}")
    assert missing == []
    assert count > 5


def test_the_public_names_are_where_one_looks() -> None:
    from ws.fs import GrepQuery, HostFilesystem, Limits, MemoryFilesystem
    from ws.toolbox import CommandPolicy, Router, open_local

    assert (ws.Limits, ws.GrepQuery, ws.CommandPolicy) == (Limits, GrepQuery, CommandPolicy)
    assert ws.errors.NotFound
    for package in (ws, ws.fs, ws.toolbox):
        for name in package.__all__:
            assert getattr(package, name) is not None, name
    assert all((Router, open_local, HostFilesystem, MemoryFilesystem))


def test_the_example_for_openai_answers_function_calls_and_custom_ones(tmp_path: Path) -> None:
    from types import SimpleNamespace

    code = next(block for block in re.findall(r"```python\n(.*?)```", TOOLS, re.DOTALL) if "custom_tool_call" in block)
    (tmp_path / "a.txt").write_text("one\n")
    backend = open_local(str(tmp_path), MemoryFilesystem())
    try:
        scope = {"box": SimpleNamespace(router=lambda dialect: Router(backend, dialect=dialect))}
        exec(code, scope)
        patch = "*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+two\n*** End Patch"
        asked = [
            SimpleNamespace(type="custom_tool_call", call_id="1", name="apply_patch_freeform", input=patch),
            SimpleNamespace(type="function_call", call_id="2", name="read_file", arguments='{"path": "a.txt"}'),
            SimpleNamespace(type="message"),
        ]
        outputs = scope["answer"](SimpleNamespace(output=asked))  # type: ignore[operator]
    finally:
        backend.close()
    assert [each["type"] for each in outputs] == ["custom_tool_call_output", "function_call_output"]
    assert outputs[1]["output"] == "two"


def test_every_test_that_the_list_of_attacks_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", (ROOT / "docs" / "hardening.md").read_text())
    assert len(named) > 70
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
    assert missing == []
