"""`ws exec` itself, without click: parse the plain form, run, stream, end with the command's own status.

Output is written as it comes, as bytes, with no cap. Input is passed on when it is not a terminal, or with -i. With
`--json` nothing is streamed: the result is one object, its output cut at 16 MiB a stream.

The figure this file answers for: `ws exec NAME -- true` in at most 6 times `python3 -c pass`. So it imports no click,
no rich, no pydantic, no pygit2, no SDK and no manager.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from ws.cli import session
from ws.cli.text import paint, say
from ws.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ws.remote.results import ExecResult
    from ws.workspace import Workspace

TIMED_OUT = 124  # as timeout(1) has it
_FLAGS = ("--json", "-i", "--interactive", "--rollback-on-failure")
_VALUED = ("--timeout", "--workdir", "--env", "--user")


class ExecRequest(NamedTuple):
    """One `ws exec`, from whichever parser."""

    name: str
    argv: tuple[str, ...]
    timeout_s: float | None = None
    workdir: str | None = None
    env: tuple[str, ...] = ()
    user: str | None = None
    interactive: bool = False
    as_json: bool = False
    rollback: bool = False


def parse_plain(words: Sequence[str]) -> ExecRequest | None:
    """The words after `ws exec`, when they are what is usually written; None for click to see and to explain."""
    if "--" not in words:
        return None
    split = list(words).index("--")
    names: list[str] = []
    values: dict[str, str] = {}
    env: list[str] = []
    flags: set[str] = set()
    head = iter(words[:split])
    for word in head:
        option, equals, value = word.partition("=")
        if option in _VALUED:
            given = value if equals else next(head, None)
            if given is None:
                return None
            if option == "--env":
                env.append(given)
            else:
                values[option] = given
        elif word in _FLAGS:
            flags.add(word)
        elif word.startswith("-"):
            return None
        else:
            names.append(word)
    timeout_s = None
    if "--timeout" in values:
        try:
            timeout_s = float(values["--timeout"])
        except ValueError:
            return None
    command = tuple(words[split + 1 :])
    if len(names) != 1 or not command or any("=" not in pair for pair in env):
        return None
    return ExecRequest(
        name=names[0],
        argv=command,
        timeout_s=timeout_s,
        workdir=values.get("--workdir"),
        env=tuple(env),
        user=values.get("--user"),
        interactive=bool(flags & {"-i", "--interactive"}),
        as_json="--json" in flags,
        rollback="--rollback-on-failure" in flags,
    )


def run(request: ExecRequest) -> int:
    """Carry out a request; returns the exit status. Raises what `Workspace.exec` raises."""
    if request.timeout_s is not None and not 0 < request.timeout_s < 1e9:
        raise InvalidRequest("--timeout must be a positive number of seconds", hint="leave it out for no limit")
    session.enter_userns()
    workspace = session.open_named(request.name)
    return run_in(workspace, request)


def run_in(workspace: Workspace, request: ExecRequest) -> int:
    """Run the command of a request in a workspace that is open."""
    result, restored = _run_or_roll_back(workspace, request) if request.rollback else (_run(workspace, request), None)
    if request.as_json:
        _print_json(result, rolled_back=restored)
        return status_of(result)
    if result.timed_out:
        say(f"{paint('error:', 'red', sys.stderr)} the command was ended after {request.timeout_s:g} s")
    if result.oom_killed:
        say("note: the kernel ended a process of it: the workspace's memory was used up (`ws create --memory`)")
    if restored:
        say(f"note: the command failed; {workspace.name} is back at {restored}; `ws undo` shows the failure")
    return status_of(result)


def _run(workspace: Workspace, request: ExecRequest) -> ExecResult:
    return workspace.exec(
        request.argv,
        timeout=request.timeout_s,
        workdir=request.workdir,
        env=dict(pair.split("=", 1) for pair in request.env),
        user=request.user,
        stdin=sys.stdin.buffer if _passes_input(request) else None,
        on_output=None if request.as_json else _write,
    )


def _run_or_roll_back(workspace: Workspace, request: ExecRequest) -> tuple[ExecResult, str | None]:
    """Snapshot first; when the command fails, or is interrupted, restore. The id of what was restored."""
    before = workspace.snapshot(f"before {' '.join(request.argv)[:72]}")
    try:
        result = _run(workspace, request)
    except BaseException:
        workspace.restore(before)
        raise
    if status_of(result) == 0:
        return result, None
    workspace.restore(before)
    return result, before.id


def _passes_input(request: ExecRequest) -> bool:
    if request.interactive:
        return True
    if request.user is not None or sys.stdin is None:  # the engine's exec takes none; or it was closed by the caller
        return False
    return not sys.stdin.isatty()


def _write(stream: str, data: bytes) -> None:
    fd = 1 if stream == "stdout" else 2
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def status_of(result: ExecResult) -> int:
    """The command's status as a shell has it: 124 when it ran out of time, 128 + n when signal n ended it."""
    if result.timed_out:
        return TIMED_OUT
    return 128 - result.exit_code if result.exit_code < 0 else result.exit_code


def _print_json(result: ExecResult, *, rolled_back: str | None) -> None:
    import json

    document: dict[str, object] = {
        "exit_code": status_of(result),
        "timed_out": result.timed_out,
        "truncated": result.truncated,
        "oom_killed": result.oom_killed,
        "rolled_back": rolled_back,
    }
    for name, data in (("stdout", result.stdout_bytes), ("stderr", result.stderr_bytes)):
        try:
            document[name], encoding = data.decode("utf-8"), "utf-8"
        except UnicodeDecodeError:
            import base64

            document[name], encoding = base64.b64encode(data).decode("ascii"), "base64"
        document[f"{name}_encoding"] = encoding
    print(json.dumps(document))
