"""diff: what changed, for people on a terminal with colour and a pager, for programs as bytes or JSON."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ws.cli import session
from ws.cli.group import Verb, complete_snapshots, json_option, name_argument
from ws.cli.render import ProgressBar, print_json
from ws.cli.text import escape, paint
from ws.errors import InvalidRequest

if TYPE_CHECKING:
    from ws.comparing import Diff
    from ws.store.diffs import Change
    from ws.store.trees import File

_NOT_RUN = (126, 127)  # what a shell says of a command that it cannot run, or find
_KINDS = {"d": "directory", "f": "file", "c": "file", "l": "symlink", "p": "fifo"}


@click.command(
    "diff",
    cls=Verb,
    statuses=(0, 1, 2, 3, 5, 6, 7, 8, 130),
    own_statuses={"3": "no such workspace or snapshot", "8": "the workspace could not be read"},
    examples=[
        ("ws diff demo", "from the newest snapshot to the workspace as it is now"),
        ("ws diff demo base --stat", "all that changed since it was made, in short"),
        ("ws diff demo green @0 --name-status", "between two snapshots, a letter and a path each"),
    ],
)
@name_argument
@click.argument("before", required=False, metavar="[FROM", shell_complete=complete_snapshots)
@click.argument("after", required=False, metavar="[TO]]", shell_complete=complete_snapshots)
@click.option("--stat", is_flag=True, help="How many lines of each file changed.")
@click.option("--name-status", is_flag=True, help="A letter and a path for each change.")
@json_option
def diff_verb(
    name: str, before: str | None, after: str | None, *, stat: bool, name_status: bool, as_json: bool
) -> None:
    """Show what changed in a workspace.

    FROM is a snapshot, by default the newest; TO another one, by default the workspace as it is now. On a terminal
    there are colours and a pager ($PAGER, else less); NO_COLOR is honoured. The letters are A added, D deleted, M other
    content, T another type, P other permissions or owner, X only times or extended attributes. With --json every change
    is listed with both its sides, and with --stat its lines.
    """
    if stat and name_status:
        raise InvalidRequest("--stat and --name-status contradict each other", hint="choose one")
    with ProgressBar("comparing", "nothing was changed"):
        found = session.open_named(name).diff(before, after)
    if as_json:
        print_json(_facts(found, stat=stat))
    elif sys.stdout.isatty():
        _show(lambda: _lines(found, stat=stat, name_status=name_status))
    elif stat or name_status:
        sys.stdout.write(found.stat() if stat else found.name_status())
    else:
        for part in found.patches():
            sys.stdout.buffer.write(part)


def _lines(found: Diff, *, stat: bool, name_status: bool) -> Iterator[str]:
    """What a terminal gets: coloured, and harmless whatever the files hold."""
    if stat or name_status:
        for line in (found.stat() if stat else found.name_status()).splitlines():
            yield harmless(line)
        return
    for part in found.patches():
        text = part.decode("utf-8", "surrogateescape")
        inside = text.startswith("@@ ")
        for line in text.removesuffix("\n").split("\n"):
            yield _coloured(harmless(line), inside=inside)


def harmless(line: str) -> str:
    """A line of a file for a terminal: all but tabs that does not print is spelled out."""
    return "\t".join(map(escape, line.split("\t")))


def _coloured(line: str, *, inside: bool) -> str:
    if not inside:
        return paint(line, "bold", sys.stdout)
    colour = {"@": "cyan", "+": "green", "-": "red"}.get(line[:1])
    return paint(line, colour, sys.stdout) if colour else line


def _show(lines: Callable[[], Iterator[str]]) -> None:
    """Through a pager, which ends by itself when everything fits; plainly when there is none, or it cannot be run."""
    command = os.environ.get("PAGER", "less -R" if shutil.which("less") else "")
    if command in ("", "cat") or _page(command, lines()) in _NOT_RUN:
        for line in lines():
            print(line)


def _page(command: str, lines: Iterator[str]) -> int:
    """Hand the lines to a pager; its status, which may be the shell's word that there is no such command."""
    env = {"LESS": "FRX", **os.environ}
    pager = subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.PIPE, env=env)
    assert pager.stdin is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # the reader has seen enough
            for line in lines:
                pager.stdin.write(line.encode(errors="replace") + b"\n")
        with contextlib.suppress(BrokenPipeError):
            pager.stdin.close()
    finally:
        while True:
            try:
                status = pager.wait()
                break
            except KeyboardInterrupt:
                continue  # Ctrl-C is the pager's to answer
    return status


def change_facts(change: Change) -> dict[str, Any]:
    """A change for machines."""
    from ws.comparing import LETTERS

    return {
        "path": os.fsdecode(change.path) or ".",
        "kind": change.kind,
        "letter": LETTERS[change.kind],
        "old": _side(change.old),
        "new": _side(change.new),
    }


def _side(side: File | None) -> dict[str, Any] | None:
    if side is None:
        return None
    meta = side.meta
    return {
        "type": _KINDS[meta.kind],
        "mode": f"{meta.mode:04o}",
        "uid": meta.uid,
        "gid": meta.gid,
        "size": meta.size,
        "mtime_ns": meta.mtime_ns,
        "xattrs": [os.fsdecode(key) for key, _ in meta.xattrs],
        "id": side.oid.hex() or None,
    }


def _facts(found: Diff, *, stat: bool) -> dict[str, Any]:
    changes = [change_facts(change) for change in found.changes]
    if stat:
        lines = {one.change.path: one.lines for one in found.stats()}
        for change, facts in zip(found.changes, changes, strict=True):
            if change.path in lines:
                one = lines[change.path]
                facts |= {"added": one.added, "removed": one.removed, "binary": one.binary}
    return {"from": found.before, "to": found.after, "changes": changes}
