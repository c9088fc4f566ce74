"""What the documents show works: each call in docs/tools.md and the README is made; each test that is named exists."""

from __future__ import annotations

import json
import re
from pathlib import Path

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


def test_every_test_that_the_list_of_attacks_names_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", (ROOT / "docs" / "hardening.md").read_text())
    assert len(named) > 70
    missing = [f"{file}::{name}" for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
    assert missing == []
