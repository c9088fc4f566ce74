"""The law: nothing that a container or a record says can do more to a terminal than be read."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ws.cli.calling import show
from ws.cli.render import print_facts, print_json, print_table
from ws.cli.text import age, closest, colours_wanted, decodable, escape, paint, size
from ws.tools.context import ToolResult


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@given(st.text(st.characters(codec=None, categories=None)))
def test_what_is_escaped_is_one_printable_line(text: str) -> None:
    shown = escape(text)
    assert shown.isprintable()
    shown.encode()  # no surrogates are left


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, and ünïcode 漢字 too", "plain, and ünïcode 漢字 too"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("two\nlines\r", r"two\nlines\r"),
        ("right-to-left \u202e", r"right-to-left \u202e"),
        ("C1 \x9b31m", r"C1 \x9b31m"),
        (b"not utf-8 \xff".decode("utf-8", "surrogateescape"), r"not utf-8 \xff"),
    ],
)
def test_control_characters_are_spelled_out(text: str, shown: str) -> None:
    assert escape(text) == shown


@given(st.text(st.characters(codec=None, categories=None)))
def test_json_is_valid_utf8_whatever_a_name_holds(text: str) -> None:
    decodable(text).encode()


def test_json_output_keeps_its_shape_and_loses_only_what_json_cannot_say(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"source": "/tmp/\udcff\x1b[31m", "layers": ("a",), "n": 1, "none": None})
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert json.loads(printed) == {"source": "/tmp/\\xff\x1b[31m", "layers": ["a"], "n": 1, "none": None}


def test_a_table_is_aligned_and_its_cells_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(["NAME", "SOURCE"], [["a", "/x\x1b[2J"], ["longer", "/y"]])
    assert capsys.readouterr().out.splitlines() == ["NAME    SOURCE", "a       /x\\x1b[2J", "longer  /y"]


def test_facts_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_facts([("name", "demo"), ("source", "/a\nforged  fact")])
    assert capsys.readouterr().out.splitlines() == ["name    demo", r"source  /a\nforged  fact"]


@pytest.mark.parametrize(
    ("environment", "coloured"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),  # no-color.org: set, and not empty
        ({"TERM": "dumb"}, False),
        ({}, False),
    ],
)
def test_colours_are_for_terminals_that_want_them(
    environment: dict[str, str], coloured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert colours_wanted(Terminal()) is coloured
    assert not colours_wanted(io.StringIO())
    assert paint("x", "red", Terminal()) == ("\x1b[31mx\x1b[0m" if coloured else "x")


def test_sizes_and_ages_read_as_one_says_them() -> None:
    assert [size(n) for n in (0, 512, 1536, 2 << 30, 5 << 40)] == ["0 B", "512 B", "1.5 KiB", "2 GiB", "5 TiB"]
    assert [age(n) for n in (-5, 119, 120, 7199, 7200, 172800)] == ["0s", "119s", "2m", "119m", "2h", "2d"]


def test_a_near_miss_is_named_and_a_far_one_is_not() -> None:
    assert closest("crate", ["create", "exec"]) == "create"
    assert closest("zebra", ["create", "exec"]) is None


def test_what_a_tool_has_to_say_goes_to_stderr_where_the_output_does_not_say_it(
    capfd: pytest.CaptureFixture[str],
) -> None:
    failed = ToolResult(message="exit status 3", output="hi", data={"exit_code": 3})
    runs_on = ToolResult(message="session 7 is running", output="hi\n", data={"session_id": 7, "exit_code": None})
    whole = ToolResult(message="lines 1-1 of 1", output="hi")
    for result, status, said in (
        (failed, 3, "exit status 3\n"),
        (runs_on, 0, "session 7 is running\n"),
        (whole, 0, ""),
    ):
        assert show(result, as_json=False) == status
        assert tuple(capfd.readouterr()) == ("hi\n", said)
