"""The law: help is complete and exact. Every verb tells its examples and its exit statuses; a change of it is seen.

To accept a change: WS_UPDATE_GOLDEN=1 pytest tests/unit/test_cli_help.py, and read the diff.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import click
import pytest

from ws.cli import group, main

GOLDEN = Path(__file__).parent / "golden"


def every_verb() -> list[tuple[str, ...]]:
    found: list[tuple[str, ...]] = []
    for name in group.VERBS:
        verb = load(name)
        inner = verb.commands if isinstance(verb, click.Group) else {}
        found += [(name, *rest) for rest in [(), *((key,) for key in inner)]]
    return found


def load(*names: str) -> click.Command:
    ctx = click.Context(group.cli)
    verb = group.cli.get_command(ctx, names[0])
    assert verb is not None
    for name in names[1:]:
        assert isinstance(verb, click.Group)
        verb = verb.commands[name]
    return verb


@pytest.mark.parametrize("names", [(), *every_verb()], ids=lambda names: " ".join(("ws", *names)))
def test_help_is_word_for_word_as_agreed(
    names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert main.run([*names, "--help"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    golden = GOLDEN / f"{'-'.join(('ws', *names))}.txt"
    if os.environ.get("WS_UPDATE_GOLDEN"):
        golden.write_text(printed.out)
    assert printed.out == golden.read_text()


@pytest.mark.parametrize("names", every_verb(), ids=" ".join)
def test_every_verb_has_json_examples_and_statuses(names: tuple[str, ...]) -> None:
    verb = load(*names)
    if isinstance(verb, click.Group):
        assert isinstance(verb, group.VerbGroup)  # its help has the examples of all its verbs
        return
    assert isinstance(verb, group.Verb)
    assert "--json" in {option for parameter in verb.params for option in parameter.opts}
    assert verb.examples
    assert {"2", "0"} & set(verb.statuses)
    assert (verb.help or "").splitlines()[0].endswith(".")


@pytest.mark.parametrize("names", every_verb(), ids=" ".join)
def test_every_example_parses(names: tuple[str, ...]) -> None:
    verb = load(*names)
    if not isinstance(verb, group.Verb):
        return
    for line, _ in verb.examples:
        words = shlex.split(line.replace('"$(', " ").replace("$(", " ").replace(')"', "").replace(")", ""))
        words = words[words.index("ws") + 1 :]
        ends = [words.index(mark) for mark in ("|", ">") if mark in words]
        words = words[: min(ends)] if ends else words
        assert tuple(words[: len(names)]) == names
        with verb.make_context("ws", words[len(names) :], resilient_parsing=False):
            pass


@pytest.mark.parametrize("names", [("create",), ("run",), ("fork",), ("pool", "fill")], ids=" ".join)
def test_what_makes_containers_tells_that_there_may_be_too_many(names: tuple[str, ...]) -> None:
    verb = load(*names)
    assert isinstance(verb, group.Verb)
    assert "9" in verb.statuses


def test_the_table_of_verbs_says_what_the_verbs_say() -> None:
    for name, (_, meaning) in group.VERBS.items():
        assert (load(name).help or "").splitlines()[0] == meaning


def test_help_names_the_defaults_that_requests_have() -> None:
    from ws.spec import WorkspaceSpec

    helps = {option.name: option.help or "" for option in load("create").params if isinstance(option, click.Option)}
    defaults = {name: field.default for name, field in WorkspaceSpec.model_fields.items()}
    assert defaults["memory"] == 2 << 30
    assert "Default: 2g." in helps["memory"]
    assert f"Default: {defaults['cpus']:g}." in helps["cpus"]
    assert f"Default: {defaults['pids']}." in helps["pids"]
    assert f"Default: {defaults['network']}." in helps["network"]
    assert set(defaults) - {"source"} <= set(helps)


def test_without_words_ws_shows_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run([]) == 0
    assert capsys.readouterr().out.startswith("Usage: ws")
