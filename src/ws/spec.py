"""What a caller may ask for: names, sizes, durations, and the request for a workspace.

pydantic validates at this one door; inside, values are frozen dataclasses (`layout`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from ws.errors import InvalidName, InvalidRequest

NAME_RULE = re.compile(r"[a-z0-9](?:[a-z0-9._-]{0,61}[a-z0-9])?")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)", re.IGNORECASE)
_COMPONENT = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{{1,5}})?/)?{_COMPONENT}(?:/{_COMPONENT})*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@[a-z0-9]+:[0-9a-f]{32,128})?"
)
_IMAGE_ID = re.compile(r"(?:sha256:)?[0-9a-f]{4,64}")
_MAX_IMAGE = 512
_SCALE = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def check_name(name: str) -> str:
    """A name that is safe as a file name, a label and a hostname. Raises InvalidName."""
    if not NAME_RULE.fullmatch(name):
        raise InvalidName(
            f"{name!r} cannot be the name of a workspace",
            hint="use up to 63 of a-z, 0-9, '.', '_' and '-', beginning and ending with a letter or digit",
        )
    return name


def check_image(image: str) -> str:
    """A reference as engines write it: [HOST[:PORT]/]NAME[:TAG][@DIGEST], or an id. Raises InvalidRequest.

    An engine takes the reference as part of a URL: `.` or `..` there would ask it for something else than an image.
    """
    if len(image) > _MAX_IMAGE or not (_IMAGE.fullmatch(image) or _IMAGE_ID.fullmatch(image)):
        raise InvalidRequest(
            f"{image[:80]!r} is not the name of an image",
            hint="write it like localhost/ws-base:latest, in lower case, or give the image's id",
        )
    return image


def default_name(source: str | None, workspace_id: str, taken: Callable[[str], object]) -> str:
    """What a workspace is called that nobody named: after its source, and told apart by the beginning of its id."""
    stem = os.path.basename(os.path.realpath(source)).lower() if source else "ws"
    kept = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in stem).strip("-")[:40]
    return told_apart(kept or "ws", workspace_id, taken)


def told_apart(stem: str, workspace_id: str, taken: Callable[[str], object]) -> str:
    """A name that is free. Of 300 workspaces two are likely to have ids that begin with the same four digits."""
    names = (f"{stem}-{workspace_id[:digits]}" for digits in (4, 8, 12))
    return next((name for name in names if NAME_RULE.fullmatch(name) and not taken(name)), workspace_id)


def parse_size(text: str | int) -> int:
    """Bytes from 512m, 2g, 1.5GiB. Raises InvalidRequest."""
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise InvalidRequest(f"{text!r} is not a size", hint="write it like 512m or 2g")
    return int(float(match[1]) * _SCALE[match[2].lower()])


def parse_duration(text: str | float) -> float:
    """Seconds from 90, 30s, 2h, 1d. Raises InvalidRequest."""
    if isinstance(text, int | float):
        return float(text)
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise InvalidRequest(f"{text!r} is not a duration", hint="write it like 30s, 10m, 2h or 1d")
    return float(match[1]) * _SECONDS[match[2].lower()]


Size = Annotated[int, BeforeValidator(parse_size)]
Duration = Annotated[float, BeforeValidator(parse_duration)]


class WorkspaceSpec(BaseModel):
    """A request for a workspace; every field has the default that is safe."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str | None = None
    name: Annotated[str, BeforeValidator(lambda value: check_name(str(value)))] | None = None
    image: Annotated[str, BeforeValidator(lambda value: check_image(str(value)))] | None = None
    engine: Literal["podman", "docker", "none"] | None = None
    network: Literal["none", "bridge"] = "none"
    memory: Annotated[Size, Field(ge=32 << 20)] = 2 << 30
    cpus: Annotated[float, Field(gt=0, le=1024)] = 2.0
    pids: Annotated[int, Field(ge=16, le=1_000_000)] = 512
    disk: Annotated[Size, Field(ge=1 << 20)] | None = None
    env: dict[str, str] = Field(default_factory=dict)
    user: str | None = None
    ttl: Annotated[Duration, Field(gt=0)] | None = None
    read_write_root: bool = False
    exclude: tuple[str, ...] = ()
    runtime: str | None = None


def check_spec(**fields: Any) -> WorkspaceSpec:
    """Validate a request. Raises InvalidRequest naming the first field that does not fit."""
    try:
        return WorkspaceSpec(**fields)
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        if isinstance(cause, InvalidRequest):
            raise cause from None
        where = ".".join(str(part) for part in first["loc"]) or "request"
        if first["type"] == "extra_forbidden":
            known = f"it is one of {', '.join(WorkspaceSpec.model_fields)}"
            raise InvalidRequest(f"{where} is nothing that can be asked for", hint=known) from None
        message, hint = _explained(first.get("ctx", {}), first["msg"])
        raise InvalidRequest(f"{where}: {first.get('input')!r:.80} {message}", hint=hint) from None


def _explained(limits: Mapping[str, Any], otherwise: str) -> tuple[str, str | None]:
    """What is wrong with a value, and what would not be, in the words of ws and not of a library."""
    for bound, words in (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than")):
        if bound in limits:
            return "is too little" if bound[0] == "g" else "is too much", f"ask for {words} {_readable(limits[bound])}"
    if "expected" in limits:
        return "is none of the choices", f"use {limits['expected']}"
    return f"does not fit: {otherwise[:1].lower()}{otherwise[1:]}", None


def _readable(number: float) -> str:
    return f"{int(number) >> 20}m" if number >= 1 << 20 else f"{number:,.10g}"
