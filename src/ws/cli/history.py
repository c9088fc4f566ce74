"""snapshot, log, restore, undo, fork: the line of snapshots of a workspace."""

from __future__ import annotations

import dataclasses
import datetime
import time
from typing import TYPE_CHECKING, Any

import click

from ws.cli import interrupts, session
from ws.cli.group import Verb, complete_snapshots, json_option, name_argument
from ws.cli.render import ProgressBar, print_json, print_table
from ws.cli.text import age, escape, say, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from ws.history import Origin, Snapshot, Target
    from ws.layout import History
    from ws.restores import Restored, RestorePlan
    from ws.workspace import Workspace

_NO_SNAPSHOT = {"3": "no such workspace or snapshot"}


def snapshot_facts(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot for machines."""
    return {
        "id": snapshot.id,
        "number": snapshot.number,
        "kind": snapshot.kind,
        "tag": snapshot.tag,
        "message": snapshot.message,
        "created_at": snapshot.created_at.isoformat(),
        "commit": snapshot.commit,
        "tree": snapshot.tree,
        "paths_changed": snapshot.paths_changed,
        "size_bytes": snapshot.size_bytes,
        "skipped": list(snapshot.skipped),
        "parent": snapshot.parent,
        "restored": snapshot.restored,
    }


@click.command(
    "snapshot",
    cls=Verb,
    statuses=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 130),
    own_statuses={
        "3": "no such workspace",
        "4": "the tag is taken",
        "8": "no snapshot was taken: something could not be read",
    },
    examples=[
        ("ws snapshot demo -m 'tests pass' --tag green", "keep everything as it is now; prints the id"),
        ("ws snapshot demo --tag green --force", "move the tag to a new snapshot"),
        ("good=$(ws snapshot demo)", "the id is all that stdout gets"),
        ("ws snapshot demo --max-file 100m --max-total 2g", "fail, and name the file, rather than keep more"),
    ],
)
@name_argument
@click.option("-m", "--message", default="", metavar="TEXT", help="What it is.")
@click.option("--tag", metavar="T", help="A name for it, to restore it by: printable text of up to 200 bytes.")
@click.option("--force", is_flag=True, help="Move the tag from the snapshot that has it.")
@click.option("--max-file", metavar="SIZE", help="Fail if a changed file is larger. Default: no limit.")
@click.option("--max-total", metavar="SIZE", help="Fail if more was changed in all. Default: no limit.")
@json_option
def snapshot_verb(
    name: str,
    *,
    message: str,
    tag: str | None,
    force: bool,
    max_file: str | None,
    max_total: str | None,
    as_json: bool,
) -> None:
    """Keep a workspace as it is now.

    Everything is kept: ignored files, nested repositories, .git, modes, owners and times. No process is ended. The cost
    is that of what changed since the last snapshot. Sockets and devices are named and left out. Prints the id.
    """
    from ws.spec import parse_size

    limits = {
        key: parse_size(value) for key, value in (("max_file", max_file), ("max_total", max_total)) if value is not None
    }
    workspace = session.open_named(name)
    number = workspace.record().history.count + 1

    def fate() -> str:
        taken_id = workspace.snapshot_id(number)
        return f"the snapshot was taken: {taken_id}" if taken_id else "nothing was kept"

    with ProgressBar("snapshot", fate):
        taken = workspace.snapshot(message, tag=tag, force=force, **limits)
    for line in taken.skipped:
        say(f"note: left out {escape(line)}")
    if as_json:
        print_json(snapshot_facts(taken))
    else:
        print(taken.id)


@click.command(
    "log",
    cls=Verb,
    statuses=(0, 1, 2, 3, 7),
    own_statuses={"3": "no such workspace"},
    examples=[
        ("ws log demo", "every snapshot, newest first; what was restored and forked, and where it stands"),
        ("ws log demo --json | jq -r '.[0].id'", "the id of the newest"),
    ],
)
@name_argument
@json_option
def log_verb(name: str, *, as_json: bool) -> None:
    """List the snapshots of a workspace, newest first.

    FILES and SIZE are what changed since the snapshot before. The notes say where the workspace stands (here), when a
    snapshot was restored, which one was restored right after it, which one it grew from when that is not the one before
    it, which workspaces were forked from it, and what the workspace itself was forked from.
    """
    # What restores kept is brought into git first (docs/decisions/0006), which may take a while.
    with session.manager() as manager, session.named(manager.home, name), ProgressBar("reading", "nothing was changed"):
        workspace = manager.open(name)
        line = _Line(workspace.snapshots(), workspace.record().history, workspace.origin())
        for info in manager.list():
            parent, _, number = (info.forked_from or "").partition("/")
            if parent == workspace.id:
                line.add_fork(int(number), info.name)
    if as_json:
        print_json([line.facts(one) for one in reversed(line.snapshots)])
        return
    if not line.snapshots:
        say("; ".join([f"{escape(name)} has no snapshots yet", *map(escape, line.told_of_base())]))
        return
    now = time.time()
    print_table(
        ["AGE", "ID", "TAG", "FILES", "SIZE", "NOTES", "MESSAGE"],
        [
            [
                age(now - one.created_at.timestamp()),
                one.id,
                one.tag or "-",
                str(one.paths_changed),
                size(one.size_bytes),
                ", ".join(line.notes(one)) or "-",
                one.message.partition("\n")[0] or "-",
            ]
            for one in reversed(line.snapshots)
        ],
        colour=lambda column, _cell: "yellow" if column == 1 else None,
    )


class _Line:
    """The snapshots of a workspace, and what is known of each of them beside itself."""

    def __init__(self, snapshots: list[Snapshot], history: History, origin: Origin | None) -> None:
        self.snapshots = snapshots
        self._head = history.head
        self._origin = origin
        self._restores: dict[int, list[float]] = {}
        self._forks: dict[int, list[str]] = {}
        for mark in history.marks:
            if mark.kind == "restore":
                self._restores.setdefault(mark.number, []).append(mark.made_ns / 1e9)
            else:
                self.add_fork(mark.number, mark.name)

    def add_fork(self, number: int, name: str) -> None:
        names = self._forks.setdefault(number, [])
        if name not in names:
            names.append(name)

    def facts(self, one: Snapshot) -> dict[str, Any]:
        return {
            **snapshot_facts(one),
            "head": one.number == self._head,
            "restores": [_iso(when) for when in self._restores.get(one.number, [])],
            "forks": self._forks.get(one.number, []),
            "forked_from": dataclasses.asdict(self._origin) if self._origin and one.number == 0 else None,
        }

    def notes(self, one: Snapshot) -> list[str]:
        notes = ["here"] if one.number == self._head else []
        notes += self.told_of_base() if one.number == 0 else self._told(one.number)
        if one.parent is not None and one.parent != one.number - 1:
            notes.append(f"grew from {self._named(one.parent)}")
        if one.restored is not None:
            notes.append(f"then {self._named(one.restored)} was restored")
        return notes

    def told_of_base(self) -> list[str]:
        return [*([f"forked from {self._origin}"] if self._origin else []), *self._told(0)]

    def _told(self, number: int) -> list[str]:
        times = self._restores.get(number, [])
        often = f" ({len(times)} times)" if len(times) > 1 else ""
        restored = [f"restored {age(time.time() - times[-1])} ago{often}"] if times else []
        return [*restored, *(f"forked as {fork}" for fork in self._forks.get(number, []))]

    def _named(self, number: int) -> str:
        known = self.snapshots[number] if number < len(self.snapshots) else None
        return known.tag or known.id if known else str(number)


def _iso(when: float) -> str:
    return datetime.datetime.fromtimestamp(when, datetime.UTC).isoformat()


@click.command(
    "restore",
    cls=Verb,
    statuses=(0, 1, 2, 3, 5, 6, 7, 8, 130),
    own_statuses={**_NO_SNAPSHOT, "8": "nothing was restored; the workspace is as it was"},
    examples=[
        ("ws restore demo", "the newest snapshot, every path of it"),
        ("ws restore demo green", "by its tag; an id or the beginning of one, `base` and @1 do as well"),
        ("ws restore demo @1 --dry-run", "say what would be done"),
    ],
)
@name_argument
@click.argument("snapshot", required=False, metavar="[SNAPSHOT]", shell_complete=complete_snapshots)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@json_option
def restore_verb(name: str, snapshot: str | None, *, dry_run: bool, as_json: bool) -> None:
    """Bring a workspace back to a snapshot, all of it or nothing.

    Every path is as it was, also what git ignores, also .git. The workspace's processes are ended. What is there now
    is kept in a safety snapshot first, so `ws undo` takes the restore back. SNAPSHOT is an id or a unique beginning of
    one, a tag, `base`, or @N for the N-th before the newest (TAG@N: before that one); by default the newest that was
    taken on purpose.
    """
    workspace = session.open_named(name)
    if dry_run:
        _tell_plan(workspace.plan_restore(snapshot), as_json=as_json)
        return
    with ProgressBar("restoring", _fate_of_restore(workspace)):
        done = workspace.restore(snapshot)
    _tell(name, done, as_json=as_json)


@click.command(
    "undo",
    cls=Verb,
    statuses=(0, 1, 2, 3, 5, 6, 7, 8, 130),
    own_statuses={"3": "no such workspace, or nothing to undo", "8": "nothing was restored; it is as it was"},
    examples=[
        ("ws undo demo", "take the last restore back; once more, and it is restored again"),
        ("ws undo demo --dry-run", "say what would be done"),
    ],
)
@name_argument
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@json_option
def undo_verb(name: str, *, dry_run: bool, as_json: bool) -> None:
    """Take the last restore of a workspace back.

    It is a restore itself, to the state before the last one, and can be undone in the same way.
    """
    workspace = session.open_named(name)
    if dry_run:
        _tell_plan(workspace.plan_undo(), as_json=as_json)
        return
    with ProgressBar("restoring", _fate_of_restore(workspace)):
        done = workspace.undo()
    _tell(name, done, as_json=as_json)


def _fate_of_restore(workspace: Workspace) -> Callable[[], str]:
    """What became of an interrupted restore: a switch of the record notes it, and there is nothing in between."""
    before = workspace.record().history.marks

    def fate() -> str:
        if workspace.record().history.marks == before:
            return "nothing was restored; the workspace is as it was"
        return f"it was restored; `ws undo {escape(workspace.name)}` takes it back"

    return fate


def _target_facts(target: Target) -> dict[str, Any]:
    return {"name": target.name, "number": target.number, "commit": target.commit}


def _tell_plan(plan: RestorePlan, *, as_json: bool) -> None:
    if as_json:
        print_json({"target": _target_facts(plan.target), "plan": plan.describe(), "dry_run": True})
        return
    for line in plan.describe():
        print(escape(line))
    say("nothing was restored: --dry-run")


def _tell(name: str, done: Restored, *, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "target": _target_facts(done.target),
                "safety": {"number": done.safety} if done.safety else None,
                "ended_processes": done.ended_processes,
                "dry_run": False,
            }
        )
        return
    kept = "what was there is kept" if done.safety else "nothing had changed since the last snapshot"
    ended = f", {done.ended_processes} processes were ended" if done.ended_processes else ""
    say(f"restored {escape(done.target.name)}; {kept}{ended}; `ws undo {escape(name)}` takes it back")


@click.command(
    "fork",
    cls=Verb,
    statuses=(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 130),
    own_statuses={**_NO_SNAPSHOT, "8": "nothing was forked: a snapshot could not be taken or rebuilt"},
    examples=[
        ("ws fork demo --name other", "a second workspace that begins as this one is now"),
        ("ws fork demo --at green", "one that begins as a snapshot was; prints its name"),
    ],
)
@name_argument
@click.option(
    "--at",
    metavar="SNAPSHOT",
    shell_complete=complete_snapshots,
    help="Where it begins. Default: a snapshot taken now.",
)
@click.option("--name", "new_name", metavar="N", help="Its name. Default: made from the other's.")
@json_option
def fork_verb(name: str, *, at: str | None, new_name: str | None, as_json: bool) -> None:
    """Make a new workspace that begins as another one is, or was.

    It has a container of its own and shares what has not changed, so it costs no more than a create. Prints its name.
    """
    workspace = session.open_named(name)
    number = workspace.record().history.count + 1
    kept: list[Workspace] = []
    removed = interrupts.removing(kept)

    def fate() -> str:
        taken_id = workspace.snapshot_id(number)
        return f"{removed()}, but the snapshot of {escape(name)}: {taken_id}" if taken_id else removed()

    with ProgressBar("forking", fate):
        made = workspace.fork(at, name=new_name)
        kept.append(made)
    if as_json:
        print_json(dataclasses.asdict(made.info()))
    else:
        print(made.name)
