"""The way of a call: from what a model sent to what it gets back.

    call → _answer (turns, events) → the dialect's tool (names, parameters) → _allow (policy, approval) → backend

A backend runs a standard tool where the files are, in this process or in the container. `call` raises typed
errors; `call_safely` makes them into results that a model can act on. A router may be used by several
threads.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Callable, Mapping, MutableMapping
from os import urandom
from typing import Any, NoReturn, Protocol

from ws.errors import CommandTimeoutError, InvalidRequest, ToolValidationError
from ws.toolbox.approval import Approval, ApprovalPolicy
from ws.toolbox.catalog import COMMANDS, TOOLS, Tool
from ws.toolbox.dialects import Dialect, DialectTool, Session, open_dialect
from ws.toolbox.events import Event, Events, shorten
from ws.toolbox.parameters import did_you_mean
from ws.toolbox.policy import CommandPolicy
from ws.toolbox.problems import explain
from ws.toolbox.turns import Turns
from ws.tools.context import Caps, ToolResult

PREFIXES = ("!", "$")
_ONE_OBJECT = "send one JSON object with the parameters"


class Backend(Protocol):
    """Where standard tools run."""

    @property
    def root(self) -> str:
        """The absolute path that tools see as the root."""
        ...

    def run(self, tool: str, params: Mapping[str, Any]) -> ToolResult:
        """Run a standard tool with validated parameters. Raises what the tool raises."""
        ...


class Router:
    """The tools of one workspace in one dialect.

    `snapshot` tells the id of the workspace's newest snapshot, for the events. `memory` holds what a dialect
    keeps between calls (the session of a persistent shell); it may be kept beyond the router. `caps` bounds what
    a dialect writes itself; the backend has its own. `turns` is that of a backend which lets go of it while it waits.
    Without `approval` the policy is the one that the dialect's contract asks for.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        dialect: str = "standard",
        approval: Approval | ApprovalPolicy | None = None,
        events: Events | None = None,
        commands: CommandPolicy | None = None,
        snapshot: Callable[[], str | None] = lambda: None,
        memory: MutableMapping[str, Any] | None = None,
        caps: Caps | None = None,
        turns: Turns | None = None,
    ) -> None:
        self._backend = backend
        self.dialect: Dialect = open_dialect(dialect)
        policy = self.dialect.default_approval if approval is None else approval
        self.approval = Approval(policy) if isinstance(policy, str) else policy
        self.events = events or Events()
        self._commands = CommandPolicy() if commands is None else commands
        self._snapshot = snapshot
        self._turns = turns or Turns()
        self._while_backend_runs = contextlib.nullcontext if turns else self._turns.outside
        self._root = backend.root
        self._memory = {} if memory is None else memory
        self._caps = caps or Caps()

    @property
    def tools(self) -> tuple[Tool, ...]:
        """What a model of this dialect may call."""
        return tuple(tool.spec for tool in self.dialect.tools.values())

    def specs(self, form: str = "json", *, native: bool = False) -> list[dict[str, Any]]:
        """The tools written down for openai, anthropic, mcp or json; see `specs.specs`."""
        from ws.toolbox.specs import check_format, specs

        return specs(self.tools, check_format(form), native=native)

    def instructions(self) -> str:
        """The preferences of the dialect as a text for a system prompt: which tool to take for what."""
        from ws.toolbox.instructions import instructions_for

        return instructions_for(self.dialect)

    def call(self, name: str, /, **arguments: Any) -> ToolResult:
        """Run a tool of the dialect.

        Raises ToolValidationError, ApprovalDenied, and whatever the tool raises; a command that fails is a
        result.
        """
        return self._call(name, arguments)

    def call_json(self, name: str, text: str) -> ToolResult:
        """The same, with the arguments as a JSON object; a freeform tool also takes its text as it is."""
        return self._call(name, text)

    def call_safely(self, name: str, arguments: Mapping[str, Any] | str | None = None, /) -> ToolResult:
        """The same, where a failure is a result with a code, one sentence, and what to try next."""
        try:
            return self._call(name, {} if arguments is None else arguments)
        except Exception as error:  # noqa: BLE001 - the one place where every error becomes an answer
            return failed(error)

    def run_line(self, line: str) -> ToolResult:
        """Run `!command` or `$command` in a shell, under the same policies as every command."""
        text = line.strip()
        if not text.startswith(PREFIXES) or not text[1:].strip():
            raise InvalidRequest(f"{text[:80]!r} is no command line", hint="write it like !ls -la")
        arguments = {"command": text[1:].strip()}
        return self._answer("shell", arguments, lambda: self._session("shell").run("shell", **arguments))

    def _call(self, name: str, given: object) -> ToolResult:
        """Run a tool with what was sent as its arguments; what are none are told of like any other mistake."""
        try:
            arguments = self._arguments(name, given)
        except ToolValidationError as error:
            refused = error
            return self._answer(name, {"arguments": given}, lambda: _refuse(refused))
        return self._answer(name, arguments, lambda: self._tool(name).call(self._session(name), arguments))

    def _session(self, called: str) -> Session:
        """What one call of the dialect's tool `called` works with."""
        return Session(
            lambda tool, params: self._allow(tool, params, called),
            self._execute,
            root=self._root,
            memory=self._memory,
            caps=self._caps,
        )

    def _tool(self, name: str) -> DialectTool:
        tool = self.dialect.tools.get(name)
        if tool is None:
            raise ToolValidationError(
                f"there is no tool {name!r} in the dialect {self.dialect.name}"
                + did_you_mean(name, self.dialect.tools),
                hint="the tools are " + ", ".join(self.dialect.tools),
            )
        return tool

    def _arguments(self, name: str, given: object) -> dict[str, Any]:
        """What was sent as an object, or as the text of one. Raises ToolValidationError."""
        value = self._parsed(name, given) if isinstance(given, str) else given
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise ToolValidationError(
                f"{name}: the arguments are {type(value).__name__}, not an object of named parameters", hint=_ONE_OBJECT
            )
        return dict(value)

    def _parsed(self, name: str, text: str) -> object:
        freeform = self._tool(name).spec.freeform
        try:
            return json.loads(text) if text.strip() else {}
        except (ValueError, RecursionError) as error:
            if freeform and not text.lstrip().startswith("{"):
                return {freeform: text}
            problem = str(error) if isinstance(error, ValueError) else "nested too deeply"
            raise ToolValidationError(f"{name}: the arguments are no JSON: {problem}", hint=_ONE_OBJECT) from None

    def _answer(self, name: str, arguments: Mapping[str, Any], work: Callable[[], ToolResult]) -> ToolResult:
        with self._turns:
            return self._report(name, arguments, work)

    def _report(self, name: str, arguments: Mapping[str, Any], work: Callable[[], ToolResult]) -> ToolResult:
        """Do the work between its start and its end in the events."""
        known = self.dialect.tools.get(name)
        begin = time.perf_counter()
        start = Event(
            "start",
            call=urandom(6).hex(),
            tool=name,
            at=time.time(),
            arguments=shorten(arguments),
            dialect=self.dialect.name,
            tier=known.spec.tier if known else "",
            snapshot=self._snapshot(),
        )
        self._emit(start)
        try:
            result = work()
            result = dataclasses.replace(result, message=self.dialect.say(result.message))
        except BaseException as error:
            self.dialect.reword(error)
            problem = explain(error)
            self._emit(
                dataclasses.replace(
                    start,
                    event="error",
                    at=time.time(),
                    duration_ms=round((time.perf_counter() - begin) * 1000, 3),
                    code=problem.code,
                    message=problem.message,
                )
            )
            raise
        changed = result.summary
        self._emit(
            dataclasses.replace(
                start,
                event="end",
                at=time.time(),
                duration_ms=round((time.perf_counter() - begin) * 1000, 3),
                bytes=len(result.output.encode("utf-8", "surrogateescape")),
                lines=len(result.output.splitlines()),
                truncated=result.truncated,
                files_touched=changed.files_touched if changed else (),
                bytes_written=changed.bytes_written if changed else 0,
                message=result.message,
            )
        )
        return result

    def _emit(self, event: Event) -> None:
        if self.events.watched:
            with self._turns.outside():  # a subscriber may do anything, also wait for another thread's call
                self.events.emit(event)
        else:
            self.events.emit(event)

    def _allow(self, name: str, params: Mapping[str, Any], called: str) -> None:
        """Return when a standard call may run, which the dialect's tool `called` makes. Raises ApprovalDenied."""
        tool = TOOLS[name]
        if name in COMMANDS:
            self._commands.check(params[COMMANDS[name]])
        if not params.get("dry_run"):
            with self._turns.outside() if self.approval.asks(tool) else contextlib.nullcontext():
                self.approval.check(tool, params, lambda: self._preview(tool, params), called=called)

    def _execute(self, name: str, params: Mapping[str, Any]) -> ToolResult:
        with self._while_backend_runs():
            result = self._backend.run(name, params)
        if result.data.get("code") == CommandTimeoutError.code:
            raise CommandTimeoutError(
                f"{name}: {result.message}",
                hint="allow more time, or start it with `exec_command` and look again later",
                output=result.output,
            )
        return result

    def _preview(self, tool: Tool, params: Mapping[str, Any]) -> str:
        """What a call would do: its diff where the tool can make one, else its arguments."""
        if tool.previews:
            result = self._backend.run(tool.name, {**params, "dry_run": True})
            return (result.summary.diff if result.summary else "") or result.message
        return f"{tool.name} " + ", ".join(
            f"{name}={value!r}" for name, value in shorten(params).items() if value is not None
        )


def _refuse(error: ToolValidationError) -> NoReturn:
    raise error


def failed(error: BaseException) -> ToolResult:
    """The result that stands for an error."""
    problem = explain(error)
    said = f"error [{problem.code}]: {problem.message}\ntry: {problem.hint}"
    if isinstance(error, CommandTimeoutError) and error.output:
        said += f"\noutput so far:\n{error.output}"
    return ToolResult(
        status="error",
        message=problem.message,
        output=said,
        data={"code": problem.code, "hint": problem.hint},
    )
