"""The README says what is, and nothing more: its errors, tests, files and verbs exist."""

from __future__ import annotations

import re
from pathlib import Path

from ws import errors
from ws.cli.group import VERBS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_table_of_errors_is_the_tree() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (\d+) \| (.+) \|$", README, re.MULTILINE)
    real = {
        (cls.__name__, code, str(cls.exit_code), (cls.__doc__ or "").strip().splitlines()[0])
        for code, cls in errors.all_errors().items()
    }
    assert set(rows) == real
    assert len(rows) == len(real)


def test_every_test_and_file_that_is_named_exists() -> None:
    named = set(re.findall(r"`((?:tests|scripts|docs|src)/[\w./-]+)", README))
    named |= set(re.findall(r"\]\(((?:docs|LICENSE|CHANGELOG|CONTRIBUTING)[\w./-]*)\)", README))
    assert len(named) > 10
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_every_verb_is_named_and_every_named_verb_exists() -> None:
    named = set(re.findall(r"(?:`|· |^    |\$ )ws ([a-z]+)\b", README, re.MULTILINE))
    assert named - set(VERBS) == set()
    assert set(VERBS) - named == set()


def test_every_group_of_the_bench_that_is_named_exists() -> None:
    table = re.search(r"^GROUPS = \{\n(.+?)^\}", (ROOT / "bench" / "__main__.py").read_text(), re.DOTALL | re.MULTILINE)
    assert table
    named = {word for words in re.findall(r"`scripts/bench((?: [a-z]+)+)", README) for word in words.split()}
    assert named
    assert named - set(re.findall(r'^    "(\w+)":', table[1], re.MULTILINE)) == set()
