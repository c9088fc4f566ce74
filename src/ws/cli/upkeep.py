"""verify, gc: whether all that is kept is sound, and how little of it is needed."""

from __future__ import annotations

import dataclasses
import time

import click

from ws.cli import session
from ws.cli.group import Verb, complete_names, json_option
from ws.cli.render import ProgressBar, print_json
from ws.cli.text import escape, say, size
from ws.errors import StoreDamaged

_CUT_SHORT = "what was not collected by then stays for the next `ws gc`; every snapshot is whole"


@click.command(
    "verify",
    cls=Verb,
    statuses=(0, 1, 2, 3, 7, 130),
    own_statuses={"3": "no such workspace", "7": "something is damaged"},
    examples=[
        ("ws verify", "read back every snapshot of every workspace, every base and every layer"),
        ("ws verify demo", "of one workspace"),
        ("ws verify --json | jq -r '.findings[].touches[]'", "the snapshots that damage touches"),
    ],
)
@click.argument("name", required=False, metavar="[NAME]", shell_complete=complete_names)
@json_option
def verify_verb(name: str | None, *, as_json: bool) -> int:
    """Read everything back that is kept, and check it.

    Every object of every snapshot is compared with its name; every base, and every layer that a restore would use, with
    the tree it belongs to. What is damaged is named, with the snapshots that it touches. Nothing is locked. Layers are
    a cache: damaged ones are not used again, and the next restore builds the snapshot from git.
    """
    with session.manager() as manager, ProgressBar("verify", "nothing was changed; not everything was checked") as bar:
        if name is None:
            report = manager.verify(progress=bar)
        else:
            with session.named(manager.home, name):
                report = manager.verify(name, progress=bar)
    if as_json:
        print_json({"sound": report.sound, **dataclasses.asdict(report)})
    else:
        for finding in report.findings:
            where = f"{escape(finding.path)}: " if finding.path else ""
            print(f"{where}{escape(finding.problem)}")
            for touched in finding.touches:
                print(f"  touches {escape(touched)}")
        verdict = "sound" if report.sound else f"{len(report.findings)} damaged"
        counts = f"{report.snapshots} snapshots, {report.bases} bases, {report.layers} layers"
        say(f"{verdict}: {report.workspaces} workspaces, {counts}")
    return 0 if report.sound else StoreDamaged.exit_code


@click.command(
    "gc",
    cls=Verb,
    statuses=(0, 1, 2, 5, 7, 130),
    own_statuses={"5": "another collection is under way"},
    examples=[
        ("ws gc", "remove what nothing needs; says how much that freed"),
        ("ws gc --dry-run", "say what would be removed"),
    ],
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@json_option
def gc_verb(*, dry_run: bool, as_json: bool) -> None:
    """Remove what nothing needs, beside running workspaces.

    Objects that no snapshot has, layers of old snapshots (which git brings back when they are restored), bases that no
    workspace was made from for an hour, bases that restores rebuilt, and runtimes of other versions. It says what stays
    for now. No snapshot is ever removed.
    """
    with session.manager() as manager, ProgressBar("collecting", _CUT_SHORT) as bar:
        done = manager.gc(dry_run=dry_run, progress=bar)
    if as_json:
        print_json(dataclasses.asdict(done))
        return
    verb = "would free" if dry_run else "freed"
    print(
        f"{verb} {size(done.bytes_freed)}: {done.objects} objects, {done.layers} layers, {done.bases} bases, "
        f"{done.runtimes} runtimes"
    )
    if done.bases_kept and done.bases_kept_until is not None:
        until = time.strftime("%H:%M", time.localtime(done.bases_kept_until + 60))
        say(f"note: {done.bases_kept} unused bases stay for new workspaces of the same projects; free to go at {until}")
    if done.bases_in_use:
        say(f"note: {done.bases_in_use} unused bases stay while other operations are under way; try again after them")
    for name in done.spared:
        say(f"note: {escape(name)} is damaged: bases and objects stay until `ws rm {escape(name)}`")
