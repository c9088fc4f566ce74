"""The law of documents: what docs/tools.md shows in Python runs as it stands, on a real engine."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workspaces import SharedWorkspaces
from ws.engine.base import Engine
from ws.workspace import Workspace

TOOLS = (Path(__file__).parents[2] / "docs" / "tools.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", TOOLS, re.MULTILINE | re.DOTALL)
WHOLE = [block for block in BLOCKS if "ws.create" in block]
PARTS = [block for block in BLOCKS if "ws.create" not in block]


@pytest.fixture
def box(engine: Engine, shared: Callable[[str], SharedWorkspaces]) -> Workspace:
    return shared(engine.name).take()


def run(block: str, **given: Any) -> dict[str, Any]:
    names = dict(given)
    exec(compile(block, "docs/tools.md", "exec"), names)
    return names


def test_there_is_something_to_run() -> None:
    assert (len(WHOLE), len(PARTS)) == (1, 4)


@pytest.mark.parametrize("number", range(len(PARTS)))
def test_every_part_runs(number: int, box: Workspace) -> None:
    run(PARTS[number], box=box)


def test_what_a_model_calls_is_answered(box: Workspace) -> None:
    box.fs.write("notes.txt", "one\n")
    answer = run(PARTS[0], box=box)["answer"]
    blocks = [
        SimpleNamespace(type="text", text="let me look"),
        SimpleNamespace(type="tool_use", id="1", name="bash", input={"command": "cat notes.txt"}),
        SimpleNamespace(type="tool_use", id="2", name="bush", input={}),
    ]
    good, bad = answer(SimpleNamespace(content=blocks))["content"]
    assert (good["tool_use_id"], good["content"].strip(), good["is_error"]) == ("1", "one", False)
    assert bad["is_error"]
    assert "did you mean bash" in bad["content"]

    answer = run(PARTS[1], box=box)["answer"]
    patch = "*** Begin Patch\n*** Update File: notes.txt\n-one\n+two\n*** End Patch"
    items = [
        SimpleNamespace(type="reasoning"),
        SimpleNamespace(
            type="function_call", call_id="c", name="apply_patch_freeform", arguments=json.dumps({"patch": patch})
        ),
    ]
    (done,) = answer(SimpleNamespace(output=items))
    assert done["call_id"] == "c"
    assert box.fs.read("notes.txt") == "two\n"


def test_the_whole_example_runs_in_a_project(
    engine: Engine, default_image: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, session_home: str
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "main.py").write_text("x = 1\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WS_HOME", session_home)
    monkeypatch.setenv("WS_ENGINE", engine.name)
    names = run(WHOLE[0])
    assert names["answer"].output.strip() == "main.py"
    assert {spec["name"] for spec in names["specs"]} == {"bash", "str_replace_based_edit_tool"}
