"""`ws tool` itself, without click: parse the plain form, call, print the output, end with a status that tells.

stdout gets the tool's output and nothing else; what there is to say about it goes to stderr. Shown on a terminal, the
output has its control characters spelled out: it may come from a file that somebody else wrote. With `--json` the whole
result is one object.

The figure this file answers for: `ws tool NAME read_file …` in at most 6 times `python3 -c pass`. So it imports no
click, no rich, no pydantic, no pygit2, no SDK and no manager.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from ws.cli import session
from ws.cli.text import escape, paint, say
from ws.errors import InvalidRequest, WorkspaceError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ws.toolbox.approval import Approval, ApprovalRequest, Decision
    from ws.toolbox.router import Router
    from ws.tools.context import ToolResult

TOOL_FAILED = 10
_VALUED = ("--dialect", "--approval")
_ANSWERS = "allow it? [y]es, [s]ession, [n]o and why: "


class ToolRequest(NamedTuple):
    """One `ws tool`, from whichever parser."""

    name: str
    tool: str
    arguments: str | None = None
    dialect: str = "standard"
    approval: str | None = None  # None: what the dialect's contract asks for
    as_json: bool = False


def parse_plain(words: Sequence[str]) -> ToolRequest | None:
    """The words after `ws tool`, when they are what is usually written; None for click to see and to explain."""
    plain: list[str] = []
    values: dict[str, str] = {}
    as_json = False
    rest = iter(words)
    for word in rest:
        option, equals, value = word.partition("=")
        if option in _VALUED:
            given = value if equals else next(rest, None)
            if given is None:
                return None
            values[option] = given
        elif word == "--json":
            as_json = True
        elif word.startswith("-") and word != "-":
            return None
        else:
            plain.append(word)
    if not 2 <= len(plain) <= 3:
        return None
    return ToolRequest(
        name=plain[0],
        tool=plain[1],
        arguments=plain[2] if len(plain) == 3 else None,
        dialect=values.get("--dialect", "standard"),
        approval=values.get("--approval"),
        as_json=as_json,
    )


def run(request: ToolRequest) -> int:
    """Carry out a request; returns the exit status. Raises what `Router.call` raises, of ws's own errors."""
    session.enter_userns()
    workspace = session.open_named(request.name)
    router = workspace.router(request.dialect, approval=_approval(request))
    try:
        result = carry_out(lambda: _call(router, request))
    finally:
        workspace.close()
    return show(result, as_json=request.as_json)


def _approval(request: ToolRequest) -> Approval:
    """The policy of a request; the person at the terminal is its handler. Raises InvalidRequest."""
    from ws.toolbox.approval import POLICIES, Approval
    from ws.toolbox.dialects import open_dialect

    policy = request.approval or open_dialect(request.dialect).default_approval
    for known in POLICIES:
        if policy == known:
            return Approval(known, ask if sys.stdin.isatty() and sys.stderr.isatty() else None)
    raise InvalidRequest(f"{policy!r} is no approval policy", hint=f"take one of {', '.join(POLICIES)}")


def _call(router: Router, request: ToolRequest) -> ToolResult:
    if request.tool.startswith(("!", "$")):
        if request.arguments is not None:
            raise InvalidRequest("a command line stands alone", hint=f"quote it: ws tool {request.name} '!ls -la'")
        return router.run_line(request.tool)
    text = sys.stdin.read() if request.arguments == "-" else request.arguments
    return router.call_json(request.tool, text or "")


def carry_out(work: Callable[[], ToolResult]) -> ToolResult:
    """The result of a call; a builtin exception of the Filesystem protocol leaves as an error of ws with its words."""
    try:
        return work()
    except WorkspaceError:
        raise
    except (OSError, ValueError, RuntimeError) as error:
        from ws.toolbox.problems import explain

        problem = explain(error)
        raise _failed(problem.code, problem.message, problem.hint) from error


def _failed(code: str, message: str, hint: str) -> WorkspaceError:
    from ws.errors import ToolError

    failed = ToolError(message, hint=hint)
    failed.code = code  # type: ignore[misc]  # of this one: what the tool met has a code of its own
    return failed


def ask(request: ApprovalRequest) -> Decision:
    """Show what a call would do and have the person at the terminal decide."""
    from ws.toolbox.approval import ALLOW, ALLOW_SESSION, deny

    say(paint(f"{request.called or request.tool} ({request.tier}) wants to:", "yellow", sys.stderr))
    for line in request.preview.splitlines():
        say(f"  {paint(escape(line), {'+': 'green', '-': 'red'}.get(line[:1], 'dim'), sys.stderr)}")
    sys.stderr.write(_ANSWERS)
    sys.stderr.flush()
    answer = sys.stdin.readline().strip()
    word, _, why = answer.partition(" ")
    if word.lower() in ("y", "yes"):
        return ALLOW
    if word.lower() in ("s", "session"):
        return ALLOW_SESSION
    return deny(why.strip() if word.lower() in ("n", "no") else answer)


def show(result: ToolResult, *, as_json: bool) -> int:
    """Print a result; returns the exit status: the command's own, where the tool ran one to its end."""
    if as_json:
        _print_json(result)
    else:
        _print_text(result)
    if result.status != "ok":
        return TOOL_FAILED
    code = result.data.get("exit_code")
    return code if isinstance(code, int) and not isinstance(code, bool) and 0 <= code <= 255 else 0


def _print_text(result: ToolResult) -> None:
    if result.output:
        text = result.output
        if sys.stdout.isatty():
            text = "\n".join(escape(line.replace("\t", "    ")) for line in text.split("\n"))
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        if not text.endswith("\n"):
            sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()
    if result.note:
        say(escape(result.note))


def _print_json(result: ToolResult) -> None:
    from ws.cli.render import print_json

    summary = result.summary
    print_json(
        {
            "status": result.status,
            "message": result.message,
            "truncated": result.truncated,
            "output": result.output,
            "data": dict(result.data),
            "summary": summary
            and {
                "files_touched": list(summary.files_touched),
                "bytes_written": summary.bytes_written,
                "diff": summary.diff,
            },
        }
    )
