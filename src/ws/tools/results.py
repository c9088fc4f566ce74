"""Results and parameters of tools as bytes, for the way between the shim and the host.

JSON in ASCII, so that names which are no UTF-8 survive as the surrogates that stand for their bytes (PEP 383). What
comes from the shim was written by whoever has the container by then: `decode_result` takes nothing on trust, and raises
ProtocolError for everything that is not a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from ws.errors import ProtocolError
from ws.tools.context import Summary, ToolResult

if TYPE_CHECKING:
    from json import JSONDecoder

MAX_RESULT_BYTES = 64 << 20
_MAX_NESTING = 1000  # a tree of 256 levels has two for each of them


def encode_params(params: Mapping[str, Any]) -> bytes:
    """Validated parameters as bytes."""
    from json import dumps

    return dumps(dict(params)).encode("ascii")


def decode_params(data: bytes) -> dict[str, Any]:
    """Parameters from bytes of the host; text in them may still be none. Raises ProtocolError."""
    from json import loads

    try:
        value = loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the host sent what are no parameters: {error}"[:200]) from None
    if not isinstance(value, dict):
        raise ProtocolError("the host sent parameters that are no object")
    return value


def encode_result(result: ToolResult) -> bytes:
    """A result as bytes."""
    from json import dumps

    summary = result.summary
    fields = {
        "status": result.status,
        "message": result.message,
        "truncated": result.truncated,
        "output": result.output,
        "data": dict(result.data),
        "summary": None
        if summary is None
        else {
            "files_touched": list(summary.files_touched),
            "bytes_written": summary.bytes_written,
            "diff": summary.diff,
        },
    }
    return dumps(fields).encode("ascii")


def decode_result(data: bytes) -> ToolResult:
    """A result from bytes that anybody may have written. Raises ProtocolError, and nothing else."""
    fields = _object(data)
    status = _field(fields, "status", str)
    if status not in ("ok", "error"):
        raise ProtocolError("the peer sent a result that is neither ok nor error")
    return ToolResult(
        status="ok" if status == "ok" else "error",
        message=_field(fields, "message", str),
        truncated=_field(fields, "truncated", bool),
        output=_field(fields, "output", str),
        data=_field(fields, "data", dict),
        summary=_summary(fields.get("summary")),
    )


def _summary(value: object) -> Summary | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ProtocolError("the peer sent a summary that is no object")
    touched = _field(value, "files_touched", list)
    if not all(isinstance(path, str) for path in touched):
        raise ProtocolError("the peer sent a path that is no string")
    return Summary(tuple(touched), _field(value, "bytes_written", int), _field(value, "diff", str))


def _field(fields: dict[str, Any], name: str, kind: type) -> Any:
    value = fields.get(name)
    if type(value) is not kind:
        raise ProtocolError(f"the peer sent a result whose {name} is no {kind.__name__}")
    return value


def _object(data: bytes) -> dict[str, Any]:
    value = decode_value(data)
    if not isinstance(value, dict):
        raise ProtocolError("the peer sent a result that is no object")
    return value


def decode_value(data: bytes) -> Any:
    """A value from bytes that anybody may have written. Raises ProtocolError, and nothing else."""
    if len(data) > MAX_RESULT_BYTES:
        raise ProtocolError("the peer sent a result that is too long")
    _check_nesting(data)
    try:
        value = _decoder().decode(data.decode("ascii"))
        # Half of a surrogate pair would make some later encode() fail; those that stand for bytes do not.
        if b"\\ud" in data or b"\\uD" in data:  # the one way to write either
            _check_encodable(value)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"the peer sent what is no result: {error}"[:200]) from None
    return value


@cache
def _decoder() -> JSONDecoder:
    from json import JSONDecoder

    return JSONDecoder(parse_constant=_no_constant)


def _check_nesting(data: bytes) -> None:
    """Raises ProtocolError. The C scanner recurses on the C stack, and how deep that may go is nowhere written."""
    if data.count(b"[") + data.count(b"{") <= _MAX_NESTING:
        return
    depth = deepest = 0
    in_string = escaped = False
    for byte in data:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif byte in b"]}":
            depth -= 1
    if deepest > _MAX_NESTING:
        raise ProtocolError("the peer sent a result that is nested too deeply")


def _check_encodable(value: object) -> None:
    if isinstance(value, str):
        value.encode("utf-8", "surrogateescape")
    elif isinstance(value, dict):
        for key, inner in value.items():
            _check_encodable(key)
            _check_encodable(inner)
    elif isinstance(value, list):
        for inner in value:
            _check_encodable(inner)


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is no number")
