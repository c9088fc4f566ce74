"""The law: `docs/contracts.md` names tests that exist, and every line of a contract that works has one."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADING = re.compile(r"^## .+$", re.M)
DEFAULT_FILE = re.compile(r"Tests: `(tests/[\w/]+\.py)`")
NAMED = re.compile(r"`(tests/[\w/]+\.py|)((?:::\w+)+)`")
STATUSES = ("works", "does not apply: ")


def sections() -> dict[str, str]:
    text = (ROOT / "docs" / "contracts.md").read_text()
    begins = [*HEADING.finditer(text)]
    ends = [begin.start() for begin in begins[1:]] + [len(text)]
    return {begin[0]: text[begin.end() : end] for begin, end in zip(begins, ends, strict=True)}


def rows(section: str) -> list[tuple[str, str, str]]:
    """Line, status and tests of every row that is not a heading of the table."""
    cells = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in section.splitlines() if line.startswith("| ")]
    return [(row[0], row[1], row[2] if len(row) > 2 else "") for row in cells[1:] if len(row) > 1]


@functools.cache
def names_in(file: str) -> frozenset[str]:
    """`::test` and `::Class::test` of every test in a file."""
    found = set()
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found.add(f"::{node.name}")
        elif isinstance(node, ast.ClassDef):
            found |= {f"::{node.name}::{inner.name}" for inner in node.body if isinstance(inner, ast.FunctionDef)}
    return frozenset(name for name in found if name.rpartition("::")[2].startswith("test_"))


def test_every_test_that_the_table_names_exists() -> None:
    missing = []
    for heading, section in sections().items():
        default = DEFAULT_FILE.search(section)
        assert default is not None, f"{heading} names no file"
        for file, name in NAMED.findall(section):
            if name not in names_in(file or default[1]):
                missing.append((heading, file + name))
    assert missing == []


@pytest.mark.parametrize("heading", sections())
def test_every_line_says_how_it_stands_and_one_that_works_names_a_test(heading: str) -> None:
    found = rows(sections()[heading])
    assert len(found) > 20
    for line, status, tests in found:
        assert status.startswith(STATUSES), line
        assert status != "works" or NAMED.search(tests), line


def test_the_table_goes_through_the_documents() -> None:
    documents = {name for section in sections().values() for name in re.findall(r"`([\w-]+\.md)`", section)}
    assert documents >= {
        "agent-q-file-system-tools.md", "lincona-tooling-core.md", "forge-agent-filesystem-contract.md",
        "weakincentives-filesystem-protocol.md", "convergio-advanced-filesystem-tools.md",
    }  # fmt: skip
