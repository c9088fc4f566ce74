"""exec, shell, run: commands in workspaces."""

from __future__ import annotations

from typing import Any

import click

from ws.cli import execution, session
from ws.cli.execution import ExecRequest
from ws.cli.group import CommandVerb, json_option, name_argument
from ws.cli.interrupts import undisturbed
from ws.cli.lifecycle import create_options, pairs, request_of, source_of, tell_made
from ws.cli.render import ProgressBar

_OWN_STATUS = {"other": "the command's own; 128 + n when signal n ended it"}


def _exec_options(function: Any) -> Any:
    for option in (
        click.option("-i", "--interactive", is_flag=True, help="Pass input on, also from a terminal."),
        click.option("--workdir", metavar="D", help="Where it starts. Default: /workspace."),
        click.option("--timeout", metavar="S", help="Seconds, or as 10m; then it is ended with all it started."),
    ):
        function = option(function)
    return function


def _seconds(timeout: str | None) -> float | None:
    from ws.spec import parse_duration

    return None if timeout is None else parse_duration(timeout)


@click.command(
    "exec",
    cls=CommandVerb,
    statuses=(2, 3, 5, 6, 7, 8, 10, 124, 130),
    own_statuses={"8": "with --rollback-on-failure: no snapshot, or none restored", **_OWN_STATUS},
    mounts=False,  # execution.run enters by itself
    examples=[
        ("ws exec demo -- make test", "output comes as it is written; the exit status is make's"),
        ("ws exec demo --timeout 60 --env CI=1 -- pytest -q", "with a limit and a variable"),
        ("ws exec demo -- sh -c 'cd src && ls | wc -l'", "a line for a shell"),
        ("git diff | ws exec demo -- git apply", "input that is not a terminal is passed on"),
        ("ws exec demo --rollback-on-failure -- make migrate", "all of it, or the workspace as it was before"),
    ],
)
@name_argument
@_exec_options
@click.option("--env", multiple=True, metavar="K=V", help="A variable of this command; may be repeated.")
@click.option("--user", metavar="U", help="As another user of the image, through the engine: slower, no input.")
@click.option("--rollback-on-failure", is_flag=True, help="Snapshot first; restore it when the command fails.")
@json_option
def exec_verb(name: str, *, command: tuple[str, ...], **options: Any) -> int:
    """Run a command in a workspace.

    Its output is passed on byte by byte as it comes, its input too when that is not a terminal. Nothing of this
    machine's environment reaches it. With --json the result is one object: exit_code, stdout, stderr, timed_out,
    truncated, oom_killed and rolled_back.
    """
    pairs(options["env"])
    request = ExecRequest(
        name=name,
        argv=command,
        timeout_s=_seconds(options["timeout"]),
        workdir=options["workdir"],
        env=options["env"],
        user=options["user"],
        interactive=options["interactive"],
        as_json=options["as_json"],
        rollback=options["rollback_on_failure"],
    )
    return execution.run(request)


@click.command(
    "shell",
    cls=CommandVerb,
    command_needed=False,
    statuses=(2, 3, 5, 6, 7, 10, 130),
    own_statuses=_OWN_STATUS,
    examples=[
        ("ws shell demo", "the best shell the image has"),
        ("ws shell demo -- python3", "another program that wants a terminal"),
    ],
)
@name_argument
@click.option("--workdir", metavar="D", help="Where it starts. Default: /workspace.")
@click.option("--env", multiple=True, metavar="K=V", help="A variable of this command; may be repeated.")
@json_option
def shell_verb(
    name: str,
    *,
    command: tuple[str, ...],
    workdir: str | None,
    env: tuple[str, ...],
    as_json: bool,  # noqa: ARG001  of errors, which main renders
) -> int:
    """Open a terminal in a workspace.

    It has a terminal of its own there, as large as this one. When the shell ends, this one is as it was before. With
    --json an error is JSON; the terminal is a terminal.
    """
    from ws.cli.shell import attend, check_terminal

    check_terminal(name)
    return attend(session.open_named(name), list(command) or None, workdir=workdir, env=pairs(env))


@click.command(
    "run",
    cls=CommandVerb,
    statuses=(2, 3, 6, 7, 8, 9, 10, 124, 130),
    own_statuses=_OWN_STATUS,
    examples=[
        ("ws run . -- make test", "test this directory as it is, in a workspace that is gone afterwards"),
        ("ws run --network bridge . -- pip download requests", "with network"),
        ("echo 'print(6*7)' | ws run -- python3 -", "an empty workspace, input passed on"),
    ],
)
@click.argument("source", required=False, metavar="[SOURCE]", type=click.Path())
@create_options
@_exec_options
@json_option
def run_verb(source: str | None, *, command: tuple[str, ...], as_json: bool, **options: Any) -> int:
    """Make a workspace, run a command in it, remove it.

    The workspace is removed whatever happens: also when the command fails, and on Ctrl-C.
    """
    request = ExecRequest(
        name="",
        argv=command,
        timeout_s=_seconds(options.pop("timeout")),
        workdir=options.pop("workdir"),
        interactive=options.pop("interactive"),
        as_json=as_json,
    )
    source = source_of(source, options["engine"])
    with session.manager() as manager:
        with ProgressBar("preparing", "nothing was kept") as bar:
            workspace = manager.create(source, progress=bar, **request_of(options))
        try:
            tell_made(workspace.info())
            return execution.run_in(workspace, request)
        finally:
            with undisturbed(), ProgressBar("removing", ""):
                workspace.remove()
