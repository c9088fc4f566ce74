"""Mutations: one small change each that breaks a promise, and the tests that must notice it.

`scripts/mutate` applies them one by one to a copy of the tree and runs the tests that they name. A mutation whose old
text is not found exactly once fails the run, and `tests/unit/test_mutations.py`: it has to be renewed with the code.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """Replace `old` by `new` in `file`, which breaks `promise`; one of `tests` must fail then."""

    name: str
    file: str  # below src/ws
    old: str
    new: str
    promise: str
    tests: tuple[str, ...]  # below tests

    def apply(self, source: str) -> str:
        """The source with the mutation. Raises ValueError when the old text is not there exactly once."""
        found = source.count(self.old)
        if found != 1:
            raise ValueError(f"{self.name}: its old text is {found} times in src/ws/{self.file}")
        return source.replace(self.old, self.new)


def all_mutations() -> dict[str, list[Mutation]]:
    """By area, which is the name of a module of this package."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name: importlib.import_module(f"{__name__}.{name}").MUTATIONS for name in names}


def table() -> str:
    """All of them as a table of Markdown."""
    lines = ["| area | mutation | promise | noticed by |", "|---|---|---|---|"]
    for area, mutations in all_mutations().items():
        for one in mutations:
            tests = ", ".join(f"`{test}`" for test in one.tests)
            lines.append(f"| {area} | {one.name} | {one.promise} | {tests} |")
    return "\n".join(lines) + "\n"
