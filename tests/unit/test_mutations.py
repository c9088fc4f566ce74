"""The mutations are kept up to date: each still changes the code, and names tests that are there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from mutation_run import INTRODUCTION, PAGE
from mutations import Mutation, all_mutations, table

TESTS = Path(__file__).parents[1]
SOURCE = TESTS.parent / "src" / "ws"
MUTATIONS = [one for mutations in all_mutations().values() for one in mutations]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_changes_the_code_in_one_place(mutation: Mutation) -> None:
    mutated = mutation.apply((SOURCE / mutation.file).read_text())
    ast.parse(mutated)
    for test in mutation.tests:
        file, _, name = test.partition("::")
        functions = {
            node.name for node in ast.walk(ast.parse((TESTS / file).read_text())) if isinstance(node, ast.FunctionDef)
        }
        assert not name or name.partition("[")[0] in functions, f"there is no test {test}"


def test_there_are_enough_and_none_twice() -> None:
    names = [one.name for one in MUTATIONS]
    assert len(names) == len(set(names))
    assert len(names) >= 80


def test_the_page_is_what_the_mutations_say() -> None:
    assert PAGE.read_text() == INTRODUCTION + table(), "run scripts/mutate --table"
