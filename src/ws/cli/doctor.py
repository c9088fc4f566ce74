"""doctor: is this machine fit for workspaces, and if not, what to do."""

from __future__ import annotations

import dataclasses
import sys
from typing import TYPE_CHECKING

import click

from ws.cli.group import Verb, json_option
from ws.cli.render import ProgressBar, print_json
from ws.cli.text import escape, paint
from ws.errors import EngineUnavailable

if TYPE_CHECKING:
    from ws.cli.checks import Check

_MARKS = {"ok": ("ok", "green"), "note": ("note", "yellow"), "bad": ("BAD", "red")}


@click.command(
    "doctor",
    cls=Verb,
    statuses=(0, 1, 2),
    own_statuses={"6": "workspaces cannot be made here"},
    mounts=False,  # it says what an ordinary user can do
    examples=[
        ("ws doctor", "look at the kernel, WS_HOME, the engines, the image, and what crashes left"),
        ("ws doctor --json | jq -r '.checks[] | select(.verdict == \"bad\").hint'", "what to do, for scripts"),
    ],
)
@json_option
def doctor_verb(*, as_json: bool) -> int:
    """Check this machine: kernel, state, engines, image.

    Every check tries the real thing and changes nothing. A note is worth knowing; only what is bad keeps workspaces
    from being made.
    """
    from ws.cli.checks import run_checks, usable
    from ws.cli.session import enter_userns

    try:
        enter_userns()  # before any thread; what is checked is then what every other verb has
        trouble = None
    except EngineUnavailable as error:
        trouble = error
    with ProgressBar("checking", "nothing was changed"):
        checks = run_checks(trouble)
    fit = usable(checks)
    if as_json:
        print_json({"usable": fit, "checks": [dataclasses.asdict(check) for check in checks]})
        return 0 if fit else 6
    width = max(len(_title(check)) for check in checks)
    for check in checks:
        mark, colour = _MARKS[check.verdict]
        print(f"{paint(mark.ljust(4), colour, sys.stdout)}  {_title(check).ljust(width)}  {escape(check.detail)}")
        if check.hint and check.verdict != "ok":
            print(f"{'':4}  {'':{width}}  {paint('hint:', 'yellow', sys.stdout)} {escape(check.hint)}")
    print("workspaces can be made here" if fit else "workspaces cannot be made here")
    return 0 if fit else 6


def _title(check: Check) -> str:
    return f"{check.area} {check.name}"
