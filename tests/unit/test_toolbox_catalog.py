"""The law: a tool's parameters are declared once, and what validates a call, the JSON Schema that models
read, and the pydantic model for frameworks say the same; the specs of every dialect are what they were,
unless someone meant it."""

from __future__ import annotations

import inspect
import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any

import jsonschema
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ws.errors import InvalidRequest, ToolValidationError
from ws.toolbox.catalog import COMMANDS, INTERNAL, STANDARD, TOOLS, Tool
from ws.toolbox.dialects import DIALECTS, open_dialect
from ws.toolbox.parameters import Parameter, check_arguments
from ws.toolbox.specs import FORMATS, check_format, specs
from ws.tools.dispatch import HOMES
from ws.tools.shells import Commands

GOLDEN = Path(__file__).parents[1] / "golden"
ALL_TOOLS = [(name, tool.spec) for name in DIALECTS for tool in open_dialect(name).tools.values()]


def by_name(pairs: list[tuple[str, Tool]]) -> list[str]:
    return [f"{dialect}-{tool.name}" for dialect, tool in pairs]


def test_the_standard_set_is_the_one_of_the_table() -> None:
    expected = {
        "read_file": "safe", "list_dir": "safe", "tree": "safe", "file_info": "safe", "glob": "safe",
        "grep": "safe",
        "str_replace": "cautious", "insert": "cautious",
        "write_file": "dangerous", "apply_patch": "dangerous", "move": "dangerous", "delete": "dangerous",
        "mkdir": "dangerous", "undo": "dangerous", "redo": "dangerous",
        "trash_list": "safe", "trash_restore": "dangerous", "trash_purge": "dangerous",
        "shell": "dangerous", "exec_command": "dangerous", "write_stdin": "dangerous",
    }  # fmt: skip
    assert {tool.name: tool.tier for tool in STANDARD} == expected


DEFAULTS: dict[str, dict[str, Any]] = {
    "read_file": {
        "offset": 0,
        "limit": 400,
        "mode": "slice",
        "view_range": None,
        "line_numbers": False,
        "encoding": None,
    },
    "list_dir": {"path": ".", "depth": 2, "offset": 0, "limit": 200},
    "tree": {"path": ".", "depth": None, "exclude": []},
    "glob": {"path": ".", "max_results": 100, "exclude": []},
    "grep": {
        "path": ".",
        "glob": None,
        "context_before": 0,
        "context_after": 0,
        "ignore_case": False,
        "output_mode": "content",
        "max_matches": 50,
    },
    "str_replace": {"encoding": None, "dry_run": False},
    "insert": {"encoding": None, "dry_run": False},
    "write_file": {"mode": "create", "create_parents": True, "encoding": None, "dry_run": False},
    "apply_patch": {"encoding": None, "dry_run": False},
    "move": {"overwrite": False, "dry_run": False},
    "delete": {"recursive": False, "permanent": False, "dry_run": False},
    "undo": {"dry_run": False},
    "redo": {"dry_run": False},
    "mkdir": {"parents": True, "exist_ok": True},
    "shell": {"workdir": None, "timeout_ms": 60_000},
    "exec_command": {"workdir": None, "yield_time_ms": 250, "max_output_tokens": 8000},
    "write_stdin": {"yield_time_ms": 250, "max_output_tokens": 8000},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_those_of_the_table(name: str) -> None:
    required = {p.name: _some(p) for p in TOOLS[name].parameters if p.required}
    checked = check_arguments(name, TOOLS[name].parameters, required)
    assert {**checked, **required} == {**required, **DEFAULTS[name], **_optional_text(name)}


def _optional_text(name: str) -> dict[str, Any]:
    return {"chars": ""} if name == "write_stdin" else {}


def _some(parameter: Parameter) -> Any:
    return {"string": "x", "integer": 1, "boolean": True, "strings": ["x"], "integers": [1, 2], "object": {}}[
        parameter.kind
    ]


@pytest.mark.parametrize("tool", [*STANDARD, *INTERNAL], ids=lambda tool: tool.name)
def test_what_is_declared_is_what_the_function_takes(tool: Tool) -> None:
    if tool.name in COMMANDS:
        function = getattr(Commands, tool.name)
    else:
        function = getattr(import_module(f"ws.tools.{HOMES[tool.name]}"), tool.name)
    taken = {
        name: parameter
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert set(taken) == {parameter.name for parameter in tool.parameters}
    for parameter in tool.parameters:
        default = taken[parameter.name].default
        if default is inspect.Parameter.empty:
            assert parameter.required, parameter.name
        else:
            assert parameter.default == default, parameter.name


@pytest.mark.parametrize(("dialect", "tool"), ALL_TOOLS, ids=by_name(ALL_TOOLS))
def test_every_schema_is_a_valid_schema_and_every_tool_is_described(dialect: str, tool: Tool) -> None:
    jsonschema.Draft202012Validator.check_schema(tool.schema)
    assert len(tool.description) > 10
    for name, field in tool.schema["properties"].items():
        assert field["description"], name
    assert tool.name.replace("_", "").isalnum()
    assert len(tool.name) <= 64


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_specs_of_a_dialect_are_what_they_were(dialect: str, form: str) -> None:
    tools = [tool.spec for tool in open_dialect(dialect).tools.values()]
    written = specs(tools, check_format(form), native=True)
    path = GOLDEN / f"tools-{dialect}-{form}.json"
    text = json.dumps(written, indent=1, ensure_ascii=False) + "\n"
    if os.environ.get("WS_UPDATE_GOLDEN"):
        path.write_text(text)
    assert path.read_text() == text, "set WS_UPDATE_GOLDEN=1 if this is meant"


def test_each_vendor_reads_its_own_form() -> None:
    patch = TOOLS["apply_patch"]
    (function,) = specs([patch], "openai")
    assert function["type"] == "function"
    assert function["parameters"]["required"] == ["patch"]
    (custom,) = specs([patch], "openai", native=True)
    assert custom["type"] == "custom"
    assert custom["format"]["type"] == "grammar"
    assert custom["format"]["syntax"] == "lark"
    assert "*** Begin Patch" in custom["format"]["definition"]
    (anthropic,) = specs([patch], "anthropic")
    assert set(anthropic) == {"name", "description", "input_schema"}
    (mcp,) = specs([patch], "mcp")
    assert mcp["annotations"]["destructiveHint"] is True
    assert mcp["annotations"]["readOnlyHint"] is False
    (reading,) = specs([TOOLS["read_file"]], "mcp")
    assert reading["annotations"]["readOnlyHint"] is True
    assert reading["annotations"]["destructiveHint"] is False
    (plain,) = specs([patch], "json")
    assert plain["tier"] == "dangerous"


def test_an_unknown_format_or_dialect_is_refused_with_those_there_are() -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_format("yaml")
    assert "anthropic" in (caught.value.hint or "")
    with pytest.raises(InvalidRequest) as caught:
        open_dialect("klingon")
    assert "agent-q" in (caught.value.hint or "")


# validation


def checked(tool: str, **arguments: Any) -> dict[str, Any]:
    return check_arguments(tool, TOOLS[tool].parameters, arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "read_file: path: missing"),
        ({"path": 3}, "path: got 3, takes a string"),
        ({"path": "a", "limit": "many"}, "limit: got 'many', takes an integer, at least 1"),
        ({"path": "a", "limit": 0}, "limit: got 0, takes an integer, at least 1"),
        ({"path": "a", "limit": 10**30}, "limit: got a number beyond all that is counted here, takes an integer"),
        ({"path": "a", "mode": "raw"}, "mode: got 'raw', takes one of 'slice', 'indentation'"),
        ({"path": "a", "view_range": [1]}, r"view_range: got \[1\], takes a list of 2 integers"),
        ({"path": "a", "line_numbers": "maybe"}, "line_numbers: got 'maybe', takes true or false"),
        ({"path": None}, "path: got None, takes a string"),
        ({"path": "a", "lines": 3}, "lines: there is no such parameter"),
        ({"pth": "a"}, r"pth: there is no such parameter; did you mean path\?; path: missing"),
        ({"path": "x" * 500, "limit": "y" * 500}, "limit: got 'yyy.*… .str.,"),
    ],
)
def test_a_refusal_says_which_field_what_it_got_and_what_it_takes(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ToolValidationError, match=message) as caught:
        checked("read_file", **arguments)
    assert caught.value.hint == (
        "call read_file(path, offset=0, limit=400, mode='slice', view_range=null, line_numbers=false, encoding=null)"
    )


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(ToolValidationError, match=r"limit: .*; mode: .*; path: missing"):
        checked("read_file", limit="x", mode="y")


def test_numbers_and_booleans_that_come_as_text_are_taken_for_what_they_say() -> None:
    values = checked("read_file", path="a", limit="20", line_numbers="true", offset=3.0)
    assert (values["limit"], values["line_numbers"], values["offset"]) == (20, True, 3)
    assert checked("glob", pattern="*", exclude="*.pyc")["exclude"] == ["*.pyc"]


def test_true_is_no_number() -> None:
    with pytest.raises(ToolValidationError):
        checked("read_file", path="a", limit=True)


def test_a_parameter_that_is_given_twice_under_two_names_is_refused() -> None:
    tool = open_dialect("agent-q").tools["str_replace"].spec
    with pytest.raises(ToolValidationError, match="path: given twice"):
        check_arguments(tool.name, tool.parameters, {"path": "a", ":path": "b", "old_str": "", "new_str": ""})


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 500),
    st.floats(0, 9),
    st.sampled_from(["", "x", "5", "true", "slice", "content"]),
    st.lists(st.integers(-2, 9), max_size=3),
    st.lists(st.text(max_size=2), max_size=2),
    st.just({}),
)


@given(st.sampled_from(STANDARD), st.data())
@settings(max_examples=400, deadline=None)
def test_all_three_say_the_same_of_any_arguments(tool: Tool, data: st.DataObject) -> None:
    """What JSON Schema accepts, validation accepts; what validation accepts, pydantic accepts as the same."""
    required = [parameter.name for parameter in tool.parameters if parameter.required]
    optional = [parameter.name for parameter in tool.parameters if not parameter.required]
    arguments = data.draw(
        st.fixed_dictionaries(dict.fromkeys(required, VALUES), optional=dict.fromkeys([*optional, "bogus"], VALUES))
    )
    try:
        values = check_arguments(tool.name, tool.parameters, arguments)
    except ToolValidationError:
        assert not jsonschema.Draft202012Validator(tool.schema).is_valid(arguments)
        with pytest.raises(pydantic.ValidationError):
            tool.model(**arguments)
    else:
        assert tool.model(**arguments).model_dump() == values
        assert jsonschema.Draft202012Validator(tool.schema).is_valid(values)


def test_the_pydantic_model_is_frozen_and_says_what_a_field_takes() -> None:
    model = TOOLS["read_file"].model
    assert model.__name__ == "ReadFileArguments"
    with pytest.raises(pydantic.ValidationError, match="takes an integer, at least 1"):
        model(path="a", limit="x")
    assert model.model_json_schema()["properties"]["path"]["description"]
