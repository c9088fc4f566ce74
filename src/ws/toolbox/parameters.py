"""Parameters of tools, declared once as plain tables; everything else is derived from them.

    check_arguments   validates a call; standard library only, because `ws tool` has no time to import
    pydantic json_schema       the JSON Schema that models see
    pydantic_model    a typed model for frameworks that want one, built on first use

All of them convert with the same function, so they accept the same arguments. Numbers and booleans that
arrive as text (`"3"`, `"true"`) are taken for what they say: models send them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ws.errors import ToolValidationError

if TYPE_CHECKING:
    from pydantic import BaseModel

Kind = Literal["string", "integer", "boolean", "strings", "integers", "object"]

REQUIRED: Any = ...
MAX_INTEGER = 2**53 - 1
"""What every JSON parser holds exactly; beyond it an integer is a mistake, wherever it stands."""

_SAID = {
    "string": "a string",
    "integer": "an integer",
    "boolean": "true or false",
    "strings": "a list of strings",
    "integers": "a list of integers",
    "object": "an object",
}
_TRUE, _FALSE = frozenset({"true", "yes", "on", "1"}), frozenset({"false", "no", "off", "0"})


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter: a default of REQUIRED means that it must be given, one of None that it may be null."""

    name: str
    kind: Kind
    description: str
    default: Any = REQUIRED
    choices: tuple[str, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    length: int | None = None  # of a list, exactly
    aliases: tuple[str, ...] = ()  # accepted, never advertised
    advertised: bool = True

    @property
    def required(self) -> bool:
        return self.default is REQUIRED

    @property
    def nullable(self) -> bool:
        return self.default is None

    def fresh_default(self) -> Any:
        """The default, as a value that the callee may change."""
        if isinstance(self.default, tuple):
            return list(self.default)
        return dict(self.default) if isinstance(self.default, dict) else self.default

    def takes(self) -> str:
        """What may stand here, in words."""
        text = _SAID[self.kind]
        if self.choices:
            text = "one of " + ", ".join(repr(choice) for choice in self.choices)
        if self.length is not None:
            text = text.replace("a list of", f"a list of {self.length}")
        if self.minimum is not None and self.maximum is not None:
            text += f" from {self.minimum} to {self.maximum}"
        elif self.minimum is not None:
            text += f", at least {self.minimum}"
        return text

    def schema(self) -> dict[str, Any]:
        """This parameter in JSON Schema."""
        kind: str = {"strings": "array", "integers": "array"}.get(self.kind, self.kind)
        schema: dict[str, Any] = {"type": kind, "description": self.description}
        if kind == "array":
            schema["items"] = {"type": self.kind.removesuffix("s")}
            if self.length is not None:
                schema["minItems"] = schema["maxItems"] = self.length
        if self.choices:
            schema["enum"] = list(self.choices)
        if self.minimum is not None:
            schema["minimum"] = self.minimum
        if self.maximum is not None:
            schema["maximum"] = self.maximum
        if self.nullable:
            schema["type"] = [kind, "null"]
            if self.choices:
                schema["enum"].append(None)
        if not self.required and self.default is not None:
            schema["default"] = self.fresh_default()
        return schema


Parameters = tuple[Parameter, ...]


def check_arguments(tool: str, parameters: Parameters, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with their defaults, each of the type that the tool takes.

    Raises ToolValidationError that says which field, what it got and what it takes, for all fields at once.
    """
    known = {name: parameter for parameter in parameters for name in (parameter.name, *parameter.aliases)}
    advertised = [parameter.name for parameter in parameters if parameter.advertised]
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in arguments.items():
        parameter = known.get(name)
        if parameter is None:
            problems.append(f"{name}: there is no such parameter{did_you_mean(name, advertised)}")
        elif parameter.name in values:
            problems.append(f"{parameter.name}: given twice, as {name} too")
        else:
            try:
                values[parameter.name] = _convert(parameter, value)
            except ValueError:
                problems.append(f"{parameter.name}: got {_shown(value)}, takes {parameter.takes()}")
    missing = [p.name for p in parameters if p.required and p.name not in values]
    named_wrongly = {line.split(":")[0] for line in problems}
    problems += [f"{name}: missing" for name in missing if name not in named_wrongly]
    if problems:
        raise ToolValidationError(f"{tool}: " + "; ".join(problems), hint=usage(tool, parameters))
    for parameter in parameters:
        if parameter.name not in values:
            values[parameter.name] = parameter.fresh_default()
    return values


def usage(tool: str, parameters: Parameters) -> str:
    """A call with its parameters and their defaults, in one line."""
    words = [
        parameter.name if parameter.required else f"{parameter.name}={_default_shown(parameter.default)}"
        for parameter in parameters
        if parameter.advertised
    ]
    return f"call {tool}({', '.join(words)})"


def did_you_mean(name: str, known: Sequence[str] | Mapping[str, Any]) -> str:
    """`: did you mean X?`, or what there is, or nothing where that is too much."""
    from difflib import get_close_matches  # 3 ms that only a mistake pays

    close = get_close_matches(name, list(known), n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; there are {', '.join(known)}" if 0 < len(known) <= 24 else ""


def _convert(parameter: Parameter, value: Any) -> Any:
    if value is None:
        if parameter.nullable:
            return None
        raise ValueError
    if parameter.kind == "strings" and isinstance(value, str):
        value = [value]
    if parameter.kind in {"strings", "integers"}:
        if not isinstance(value, list | tuple) or parameter.length not in {None, len(value)}:
            raise ValueError
        one = _string if parameter.kind == "strings" else _integer
        return [one(item) for item in value]
    if parameter.kind == "object":
        if not isinstance(value, dict):
            raise ValueError
        return value
    converted: Any = {"string": _string, "integer": _integer, "boolean": _boolean}[parameter.kind](value)
    if parameter.choices and converted not in parameter.choices:
        raise ValueError
    if parameter.minimum is not None and converted < parameter.minimum:
        raise ValueError
    if parameter.maximum is not None and converted > parameter.maximum:
        raise ValueError
    return converted


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError
    return value


def _integer(value: Any) -> int:
    number_as_text = isinstance(value, str) and len(value) < 20 and value.isascii()
    if number_as_text or (isinstance(value, float) and value.is_integer()):
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) > MAX_INTEGER:
        raise ValueError
    return value


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    if isinstance(value, int) and value in (0, 1):
        return bool(value)
    raise ValueError


def _shown(value: Any) -> str:
    if isinstance(value, int | float) and abs(value) > MAX_INTEGER:
        return "a number beyond all that is counted here"
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:60]}… ({type(value).__name__})"


def _default_shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return "[]" if value == () else repr(value)


def json_schema(parameters: Parameters) -> dict[str, Any]:
    """The JSON Schema (2020-12) of a call's arguments."""
    return {
        "type": "object",
        "properties": {p.name: p.schema() for p in parameters if p.advertised},
        "required": [parameter.name for parameter in parameters if parameter.required],
        "additionalProperties": False,
    }


def pydantic_model(tool: str, parameters: Parameters) -> type[BaseModel]:
    """A frozen pydantic model of a call's arguments; unknown fields are refused."""
    from pydantic import BeforeValidator, ConfigDict, Field, create_model

    types: dict[str, Any] = {
        "string": str,
        "integer": int,
        "boolean": bool,
        "strings": list[str],
        "integers": list[int],
        "object": dict[str, Any],
    }
    fields: dict[str, Any] = {}
    for parameter in parameters:
        kind = Literal[parameter.choices] if parameter.choices else types[parameter.kind]
        if parameter.nullable:
            kind = kind | None
        kind = _annotated(kind, BeforeValidator(_before(parameter)))
        fields[parameter.name] = (kind, Field(parameter.fresh_default(), description=parameter.description))
    name = "".join(word.capitalize() for word in tool.split("_")) + "Arguments"
    return create_model(name, __config__=ConfigDict(frozen=True, extra="forbid"), **fields)


def _annotated(kind: Any, validator: Any) -> Any:
    from typing import Annotated

    return Annotated[kind, validator]


def _before(parameter: Parameter) -> Any:
    def convert(value: Any) -> Any:
        try:
            return _convert(parameter, value)
        except ValueError:
            raise ValueError(f"got {_shown(value)}, takes {parameter.takes()}") from None

    return convert
