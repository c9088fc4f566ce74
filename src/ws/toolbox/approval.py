"""Who is asked before a tool runs.

    never          nobody; the default of most dialects, because a workspace can be thrown away
    on-dangerous   the handler, for dangerous tools
    always         the handler, for everything that changes or runs something
    read-only      nobody; what is not safe is refused

Safe tools run under every policy. A handler sees what the call would do, as a diff where the tool can make
one, and allows it, allows its like for the session, or denies it with a reason, which reaches the model. A
policy that asks, without a handler to ask, denies. A dialect whose contract asks for approval has its own default
(`Dialect.default_approval`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any, Literal

from ws.errors import ApprovalDenied, InvalidRequest
from ws.toolbox.catalog import COMMANDS, Tool

ApprovalPolicy = Literal["never", "on-dangerous", "always", "read-only"]
POLICIES: tuple[ApprovalPolicy, ...] = ("never", "on-dangerous", "always", "read-only")
Verdict = Literal["allow", "allow-session", "deny"]
NO_HANDLER_HINT = (
    'pass approval=Approval("{policy}", handler) to the router, or approval="never" to run without approval; '
    "ws tool asks on a terminal, and with --approval never it does not ask"
)


@dataclass(frozen=True, slots=True)
class ApprovalRequest:
    """A call that waits for a decision: `tool` is the standard tool, `preview` what it would do.

    `called` is the name that the model called, which differs from `tool` in some dialects.
    """

    tool: str
    tier: str
    arguments: Mapping[str, Any]
    preview: str
    called: str = ""


@dataclass(frozen=True, slots=True)
class Decision:
    verdict: Verdict
    reason: str = ""


ALLOW = Decision("allow")
ALLOW_SESSION = Decision("allow-session")


def deny(reason: str) -> Decision:
    return Decision("deny", reason)


ApprovalHandler = Callable[[ApprovalRequest], Decision]


class Approval:
    """A policy, its handler, and what the handler has allowed for this session."""

    def __init__(self, policy: ApprovalPolicy = "never", handler: ApprovalHandler | None = None) -> None:
        if policy not in POLICIES:
            raise InvalidRequest(f"{policy!r} is no approval policy", hint=f"take one of {', '.join(POLICIES)}")
        self.policy = policy
        self._handler = handler
        self._allowed: set[tuple[str, str]] = set()
        self._asking = Lock()  # a person answers one question at a time

    def asks(self, tool: Tool) -> bool:
        """Whether the policy lets somebody else decide on this tool."""
        if self.policy == "on-dangerous":
            return tool.tier == "dangerous"
        return self.policy == "always" and tool.tier != "safe"

    def check(
        self, tool: Tool, arguments: Mapping[str, Any], preview: Callable[[], str], *, called: str | None = None
    ) -> None:
        """Return when the call may run. Raises ApprovalDenied with the reason.

        `called` is the name that messages use; by default that of the standard tool. The preview is made only when the
        handler is asked.
        """
        name = called or tool.name
        if self.policy == "read-only" and tool.tier != "safe":
            raise ApprovalDenied(
                f"{name} changes the workspace, which is read-only for you",
                hint="use the tools that only read",
            )
        if not self.asks(tool) or _likeness(tool, arguments) in self._allowed:
            return
        if self._handler is None:
            raise ApprovalDenied(
                f"{name} needs approval under the policy {self.policy}, and there is no approval handler",
                hint=NO_HANDLER_HINT.format(policy=self.policy),
            )
        with self._asking:
            if _likeness(tool, arguments) in self._allowed:
                return
            decision = self._handler(ApprovalRequest(tool.name, tool.tier, arguments, preview(), name))
            if decision.verdict == "allow-session":
                self._allowed.add(_likeness(tool, arguments))
        if decision.verdict not in ("allow", "allow-session"):
            raise ApprovalDenied(
                f"{name} was not approved: {decision.reason or 'no reason given'}",
                hint="do not repeat the call; do what the reason says, or ask the user",
            )


def _likeness(tool: Tool, arguments: Mapping[str, Any]) -> tuple[str, str]:
    """What "for the session" covers: a file tool whatever its arguments, a command only word for word."""
    return tool.name, str(arguments.get(COMMANDS[tool.name], "")) if tool.name in COMMANDS else ""
