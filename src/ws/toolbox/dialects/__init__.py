"""The names and manners under which models know the tools.

A dialect is a table of tools, each a few lines over standard calls: it renames parameters, and says the
result in its own words. Nothing here touches a file or runs a command; policy and approval see the standard
calls alone. Each dialect is a module of its own and is imported when it is asked for.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from ws.errors import InvalidRequest, WorkspaceError
from ws.toolbox.approval import ApprovalPolicy
from ws.toolbox.catalog import STANDARD, TOOLS, Tool
from ws.toolbox.parameters import check_arguments
from ws.tools.context import Caps, ToolResult

Words = tuple[tuple[str, str], ...]
"""What a dialect says instead: regular expressions, and what stands in the place of each. Names of tools and
parameters stand in backquotes in what standard tools say, so that no path is taken for one."""

NO_COMMANDS: Words = (
    (r"look into it with a command such as xxd", "tools for text leave it alone"),
    (r"; change it with a command", ""),
)
NO_PAGES: Words = (
    (r"^(lines .*) with `offset=(\d+)`", r"\1 after line \2"),
    (r", go on with `offset=\d+`", ""),
)
NO_RECURSION: Words = ((r"; use recursive to delete it with all below", "; delete what it holds first"),)
NO_ENCODING: Words = (
    (r"name the encoding that the file has as `encoding`, such as .*", "tools for text leave it alone"),
    (r": name its `encoding` to read and edit it", ""),
)
NO_SESSIONS: Words = ((r", or start it with `exec_command` and look again later", ""),)
NO_UNDO: Words = ((r"; undo brings it back", ""),)

DIALECTS = ("standard", "agent-q", "convergio", "lincona", "forge", "anthropic")


class Session:
    """What a dialect's tool works with: standard calls, and what it must remember between its own."""

    def __init__(
        self,
        allow: Callable[[str, Mapping[str, Any]], None],
        execute: Callable[[str, Mapping[str, Any]], ToolResult],
        *,
        root: str,
        memory: MutableMapping[str, Any],
        caps: Caps,
    ) -> None:
        self._allow = allow
        self._execute = execute
        self.root = root
        self.memory = memory
        self.caps = caps

    def run(self, tool: str, **arguments: Any) -> ToolResult:
        """A standard call, validated, under policy and approval."""
        return self.run_valid(tool, check_arguments(tool, TOOLS[tool].parameters, arguments))

    def run_valid(self, tool: str, params: dict[str, Any]) -> ToolResult:
        """The same with parameters that have been validated."""
        self._allow(tool, params)
        return self._execute(tool, params)

    def check(self, tool: str, **arguments: Any) -> None:
        """Ask whether a standard call may run, and do not run it."""
        self._allow(tool, check_arguments(tool, TOOLS[tool].parameters, arguments))

    def execute(self, tool: str, **arguments: Any) -> ToolResult:
        """Run a standard call that is part of one already allowed."""
        return self._execute(tool, check_arguments(tool, TOOLS[tool].parameters, arguments))


@dataclass(frozen=True, slots=True)
class DialectTool:
    """A tool of a dialect: how it looks, and which standard calls it makes."""

    spec: Tool
    perform: Callable[[Session, dict[str, Any]], ToolResult]

    def call(self, session: Session, arguments: Mapping[str, Any]) -> ToolResult:
        """Raises ToolValidationError, and what the standard calls raise."""
        return self.perform(session, check_arguments(self.spec.name, self.spec.parameters, arguments))


@dataclass(frozen=True, slots=True)
class Dialect:
    """A table of tools. `default_approval` is what its contract asks for where the caller sets no policy.

    `instructions` is the text for a system prompt that its contract has, if it has one (`ws.toolbox.instructions`).
    """

    name: str
    tools: Mapping[str, DialectTool] = field(default_factory=dict)
    words: Words = ()
    default_approval: ApprovalPolicy = "never"
    instructions: str = ""

    @classmethod
    def of(
        cls,
        name: str,
        *tools: DialectTool,
        words: Words = (),
        default_approval: ApprovalPolicy = "never",
        instructions: str = "",
    ) -> Dialect:
        return cls(name, {tool.spec.name: tool for tool in tools}, words, default_approval, instructions)

    def say(self, text: str) -> str:
        """What a standard tool says, with the names that this dialect has."""
        for standard, own in self.words:
            text = re.sub(standard, own, text)
        return text

    def reword(self, error: BaseException) -> None:
        """Have an error say its message and its hint so."""
        if isinstance(error, WorkspaceError):
            error.message = self.say(error.message)
            error.hint = error.hint and self.say(error.hint)
        elif isinstance(error, OSError) and error.strerror:
            error.strerror = self.say(error.strerror)


def as_is(spec: Tool) -> DialectTool:
    """A standard tool under its own name, with its own parameters or some of them."""
    whole = spec.parameters == TOOLS[spec.name].parameters

    def perform(session: Session, arguments: dict[str, Any]) -> ToolResult:
        return session.run_valid(spec.name, arguments) if whole else session.run(spec.name, **arguments)

    return DialectTool(spec, perform)


def open_dialect(name: str) -> Dialect:
    """Raises InvalidRequest when there is no such dialect."""
    if name == "standard":
        return Dialect.of("standard", *map(as_is, STANDARD))
    if name not in DIALECTS:
        raise InvalidRequest(f"{name!r} is no dialect", hint=f"take one of {', '.join(DIALECTS)}")
    module = importlib.import_module(f"ws.toolbox.dialects.{name.replace('-', '_')}")
    dialect: Dialect = module.DIALECT
    return dialect
