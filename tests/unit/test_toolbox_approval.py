"""The law: safe tools always run; what a policy does not allow by itself is decided by the handler, which
sees what would happen; a denial reaches the model with its reason; blocked commands run under no policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ws.errors import ApprovalDenied, InvalidRequest
from ws.toolbox.approval import ALLOW, ALLOW_SESSION, POLICIES, Approval, ApprovalRequest, Decision, deny
from ws.toolbox.catalog import TOOLS
from ws.toolbox.dialects import DIALECTS, open_dialect
from ws.toolbox.policy import ALLOW_ALL, CommandPolicy
from ws.toolbox.router import Router
from ws.tools.context import ToolResult

SAFE, CAUTIOUS, DANGEROUS = TOOLS["read_file"], TOOLS["str_replace"], TOOLS["delete"]


class Handler:
    def __init__(self, *decisions: Decision) -> None:
        self.decisions = list(decisions)
        self.seen: list[ApprovalRequest] = []

    def __call__(self, request: ApprovalRequest) -> Decision:
        self.seen.append(request)
        return self.decisions.pop(0)


def no_preview() -> str:
    raise AssertionError("nobody looks at this preview")


@pytest.mark.parametrize("policy", POLICIES)
def test_safe_tools_run_under_every_policy_without_a_question(policy: str) -> None:
    Approval(policy, Handler()).check(SAFE, {"path": "a"}, no_preview)  # type: ignore[arg-type]


def test_never_asks_nobody() -> None:
    handler = Handler()
    approval = Approval("never", handler)
    for tool in TOOLS.values():
        approval.check(tool, {}, no_preview)
    assert not handler.seen


def test_on_dangerous_asks_about_dangerous_tools_alone() -> None:
    handler = Handler(ALLOW)
    approval = Approval("on-dangerous", handler)
    approval.check(CAUTIOUS, {"path": "a"}, no_preview)
    approval.check(DANGEROUS, {"path": "a"}, lambda: "delete a")
    assert [(r.tool, r.tier, r.arguments, r.preview) for r in handler.seen] == [
        ("delete", "dangerous", {"path": "a"}, "delete a")
    ]


def test_always_asks_about_everything_that_changes_something() -> None:
    handler = Handler(ALLOW, ALLOW)
    approval = Approval("always", handler)
    approval.check(CAUTIOUS, {}, lambda: "diff")
    approval.check(DANGEROUS, {}, lambda: "diff")
    assert [request.tool for request in handler.seen] == ["str_replace", "delete"]


def test_read_only_refuses_what_is_not_safe_without_asking() -> None:
    handler = Handler()
    for tool in (CAUTIOUS, DANGEROUS, TOOLS["shell"]):
        with pytest.raises(ApprovalDenied, match="read-only"):
            Approval("read-only", handler).check(tool, {}, no_preview)
    assert not handler.seen


def test_a_denial_carries_its_reason() -> None:
    with pytest.raises(ApprovalDenied, match="not on a Friday"):
        Approval("on-dangerous", Handler(deny("not on a Friday"))).check(DANGEROUS, {}, lambda: "")


def test_a_policy_that_asks_denies_without_a_handler_and_says_how_to_give_one() -> None:
    with pytest.raises(ApprovalDenied, match="there is no approval handler") as caught:
        Approval("on-dangerous").check(DANGEROUS, {}, no_preview)
    assert 'approval=Approval("on-dangerous", handler)' in (caught.value.hint or "")


def test_messages_and_the_handler_get_the_name_that_was_called() -> None:
    handler = Handler(deny("no"))
    with pytest.raises(ApprovalDenied, match=r"^delete_file was not approved"):
        Approval("on-dangerous", handler).check(DANGEROUS, {}, lambda: "", called="delete_file")
    assert [(request.tool, request.called) for request in handler.seen] == [("delete", "delete_file")]
    for policy in ("on-dangerous", "read-only"):
        with pytest.raises(ApprovalDenied, match=r"^delete_file "):
            Approval(policy).check(DANGEROUS, {}, no_preview, called="delete_file")  # type: ignore[arg-type]


def test_a_dialect_whose_contract_asks_for_approval_has_that_default_and_the_others_ask_nothing() -> None:
    defaults = {dialect: open_dialect(dialect).default_approval for dialect in DIALECTS}
    assert defaults == {**dict.fromkeys(DIALECTS, "never"), "agent-q": "on-dangerous"}
    for dialect, policy in defaults.items():
        assert Router(Nowhere(), dialect=dialect).approval.policy == policy
        assert Router(Nowhere(), dialect=dialect, approval="always").approval.policy == "always"


class Nowhere:
    root = "/workspace"

    def run(self, tool: str, params: Mapping[str, Any]) -> ToolResult:
        raise AssertionError("nothing is called")


def test_allowing_once_is_asked_again_the_next_time() -> None:
    handler = Handler(ALLOW, ALLOW)
    approval = Approval("on-dangerous", handler)
    for _ in range(2):
        approval.check(DANGEROUS, {"path": "a"}, lambda: "")
    assert len(handler.seen) == 2


def test_allowing_for_the_session_is_not_asked_again() -> None:
    handler = Handler(ALLOW_SESSION)
    approval = Approval("on-dangerous", handler)
    approval.check(DANGEROUS, {"path": "a"}, lambda: "")
    approval.check(DANGEROUS, {"path": "b"}, no_preview)
    assert len(handler.seen) == 1


def test_a_command_is_allowed_for_the_session_word_for_word() -> None:
    handler = Handler(ALLOW_SESSION, deny("no"))
    approval = Approval("on-dangerous", handler)
    approval.check(TOOLS["shell"], {"command": "make test"}, lambda: "")
    approval.check(TOOLS["shell"], {"command": "make test"}, no_preview)
    with pytest.raises(ApprovalDenied):
        approval.check(TOOLS["shell"], {"command": "make install"}, lambda: "")


def test_an_unknown_policy_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(InvalidRequest) as caught:
        Approval("sometimes")  # type: ignore[arg-type]
    assert "on-dangerous" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf /",
        "rm -rf / --no-preserve-root",
        "rm -r -f ~",
        "rm -fr $HOME; echo done",
        "cd x && rm -rf /*",
        "mkfs.ext4 /dev/sda1",
        "dd if=/dev/zero of=/dev/sda bs=1M",
        "cat x > /dev/sda",
        ":(){ :|:& };:",
        "shutdown -h now",
        "sudo reboot",
        "/sbin/poweroff",
        "true; halt",
        "echo $(reboot)",
        "env A=1 'shutdown' now",
        "A=1 reboot",
        "yes | xargs reboot",
    ],
)
def test_commands_on_the_block_list_do_not_run(command: str) -> None:
    with pytest.raises(ApprovalDenied, match="command policy"):
        CommandPolicy().check(command)


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf build /tmp/x",
        "rm -rf ./",
        "echo reboot",
        "grep -r shutdown .",
        "dd if=a of=/dev/null",
        "ls > /dev/null",
        "git commit -m 'halt; fix'",
        "rm -rf ~/project/build",
    ],
)
def test_ordinary_commands_are_not_on_it(command: str) -> None:
    CommandPolicy().check(command)


def test_the_block_list_can_be_added_to_and_emptied() -> None:
    stricter = CommandPolicy().also(programs=["curl"], patterns=[r"\bgit\s+push\b"])
    for command in ("curl example.org", "cd a && git  push"):
        with pytest.raises(ApprovalDenied):
            stricter.check(command)
    ALLOW_ALL.check("reboot")
