"""The law: a result crosses from the container to the host as it was, and nothing else crosses in its place."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ws.errors import ProtocolError
from ws.tools.context import Summary, ToolResult
from ws.tools.results import decode_params, decode_result, encode_params, encode_result

TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(["\udc80", "\udcff"]), max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.sampled_from(["ok", "error"]),
    TEXT,
    st.booleans(),
    TEXT,
    st.dictionaries(TEXT, JSON, max_size=4),
    st.none() | st.builds(Summary, st.lists(TEXT, max_size=3).map(tuple), st.integers(0, 2**40), TEXT),
)
def test_a_result_comes_back_as_it_was(
    status: str, message: str, truncated: bool, output: str, data: dict[str, object], summary: Summary | None
) -> None:
    result = ToolResult(status, message, truncated, output, data, summary)  # type: ignore[arg-type]
    assert decode_result(encode_result(result)) == result


@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_parameters_come_back_as_they_were(params: dict[str, object]) -> None:
    assert decode_params(encode_params(params)) == params


def test_a_deep_tree_comes_back_too() -> None:
    tree: dict[str, object] = {"name": "leaf"}
    for _ in range(300):
        tree = {"name": "[{", "children": [tree, {}, {}]}
    result = ToolResult(data=tree)
    assert decode_result(encode_result(result)) == result


GOOD = json.loads(encode_result(ToolResult(summary=Summary(("a",), 1, "d"))))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff",
        "é".encode(),
        b"[" * 200_000,
        b'{"a":' * 200_000,
        b'{"status": NaN}',
        b'{"status": ' + b"9" * 100_000 + b"}",
        json.dumps({**GOOD, "status": "fine"}).encode(),
        json.dumps({**GOOD, "output": 3}).encode(),
        json.dumps({**GOOD, "truncated": "yes"}).encode(),
        json.dumps({**GOOD, "data": []}).encode(),
        json.dumps({**GOOD, "summary": 1}).encode(),
        json.dumps({**GOOD, "summary": {**GOOD["summary"], "files_touched": [1]}}).encode(),
        json.dumps({**GOOD, "summary": {**GOOD["summary"], "bytes_written": True}}).encode(),
        json.dumps({**GOOD, "message": "\ud800"}).encode(),
        json.dumps({key: value for key, value in GOOD.items() if key != "message"}).encode(),
    ],
    ids=lambda data: data[:24].decode("latin-1"),
)
def test_what_is_no_result_is_one_typed_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_result(data)


@given(st.binary(max_size=200))
def test_no_bytes_at_all_make_anything_else(data: bytes) -> None:
    try:
        decode_result(data)
    except ProtocolError:
        pass
