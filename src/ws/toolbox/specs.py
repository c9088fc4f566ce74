"""Tools written down the way each kind of client wants to read them.

openai      {"type": "function", "name", "description", "parameters", "strict"}; a freeform tool as
            {"type": "custom", …} with its grammar
anthropic   {"name", "description", "input_schema"}
mcp         {"name", "description", "inputSchema", "annotations"}
json        {"name", "description", "tier", "parameters"}, for everybody else
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from ws.errors import InvalidRequest
from ws.toolbox.catalog import PATCH_GRAMMAR, Tool

SpecFormat = Literal["openai", "anthropic", "mcp", "json"]
FORMATS: tuple[SpecFormat, ...] = ("openai", "anthropic", "mcp", "json")


def specs(tools: Iterable[Tool], form: SpecFormat, *, native: bool = False) -> list[dict[str, Any]]:
    """The tools in a format.

    With `native` those that the vendor's models know in a form of their own are written in it: freeform
    tools for OpenAI, typed tools for Anthropic.
    """
    return [_spec(tool, form, native=native) for tool in tools]


def _spec(tool: Tool, form: SpecFormat, *, native: bool) -> dict[str, Any]:
    named = {"name": tool.name, "description": tool.description}
    match form:
        case "openai" if native and tool.freeform:
            grammar = {"type": "grammar", "syntax": "lark", "definition": PATCH_GRAMMAR}
            return {"type": "custom", **named, "format": grammar}
        case "openai":
            # strict would forbid optional parameters, which every tool here has.
            return {"type": "function", **named, "parameters": tool.schema, "strict": False}
        case "anthropic" if native and tool.native:
            return {"type": tool.native, "name": tool.name}
        case "anthropic":
            return {**named, "input_schema": tool.schema}
        case "mcp":
            return {**named, "inputSchema": tool.schema, "annotations": hints(tool)}
        case "json":
            return {**named, "tier": tool.tier, "parameters": tool.schema}


def hints(tool: Tool) -> dict[str, Any]:
    """MCP's hints: whether the tool only reads, may destroy, and reaches beyond the workspace."""
    return {
        "title": tool.name.replace("_", " ").capitalize(),
        "readOnlyHint": tool.tier == "safe",
        "destructiveHint": tool.tier == "dangerous",
        "idempotentHint": tool.tier == "safe",
        "openWorldHint": tool.runs_commands,
    }


def check_format(form: str) -> SpecFormat:
    """Raises InvalidRequest when there is no such format."""
    for known in FORMATS:
        if form == known:
            return known
    raise InvalidRequest(f"{form!r} is no format for tools", hint=f"take one of {', '.join(FORMATS)}")
