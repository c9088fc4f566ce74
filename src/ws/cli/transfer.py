"""apply, export, import: what leaves a workspace, and what comes from another machine."""

from __future__ import annotations

import base64
import dataclasses
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from ws.cli import interrupts, session
from ws.cli.diffs import change_facts, harmless
from ws.cli.group import Verb, json_option, name_argument
from ws.cli.render import ProgressBar, print_json
from ws.cli.text import escape, say
from ws.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ws.applying import ApplyResult
    from ws.bundle_manifest import ChosenSpec, SpecChange
    from ws.exporting import ExportedPatch
    from ws.undo_apply import UndoneApply
    from ws.workspace import Workspace

_SHOWN = 10  # of the paths that are withheld; --json has them all

_with_git_config = click.option(
    "--with-git-config", is_flag=True, help="Bring all of git directories, as hooks and .git/config, which run as you."
)


def _tell_withheld(reasons: Mapping[str, str]) -> None:
    for path, reason in list(reasons.items())[:_SHOWN]:
        say(f"note: withheld: {escape(path)}: {escape(reason)}")
    if len(reasons) > _SHOWN:
        say(f"note: withheld: {len(reasons) - _SHOWN} more; --json lists all")
    if reasons:
        say("note: git may run or obey what is withheld; check it, and bring it with --with-git-config")


@click.command(
    "apply",
    cls=Verb,
    statuses=(0, 1, 2, 3, 5, 6, 7, 8, 130),
    own_statuses={"3": "no such workspace", "8": "a conflict, or the directory could not be written; it is as it was"},
    examples=[
        ("ws apply demo --dry-run", "say what would be changed, and which conflicts there are"),
        ("ws apply demo", "bring the workspace's changes back to the directory it was made from"),
        ("ws apply demo --to ../other-checkout", "to another directory"),
        ("ws apply demo --with-git-config", "hooks and configuration of git too, which run as you"),
        ("ws apply --undo demo", "take the last apply back"),
    ],
)
@name_argument
@click.option("--to", metavar="DIR", type=click.Path(), help="Where to. Default: the source it was made from.")
@_with_git_config
@click.option("--undo", is_flag=True, help="Take the last apply back that was not undone yet.")
@click.option("--dry-run", is_flag=True, help="Only say what would be changed.")
@json_option
def apply_verb(name: str, *, to: str | None, with_git_config: bool, undo: bool, dry_run: bool, as_json: bool) -> None:
    """Bring a workspace's changes back to its source directory.

    Three-way, path by path: what only the workspace changed is brought over, what only the source changed stays. A path
    that both changed differently is a conflict; then all conflicts are listed and nothing is touched. New files belong
    to the owner of the directory and have no setuid bits; links are written as links, never followed. Prints the letter
    and path of each change, as `ws diff --name-status` does.

    Of git directories, objects, references, logs and the index come, each checked. Everything else there (hooks,
    config, .git files, worktrees, a rebase under way, …) is named and withheld, unless --with-git-config asks for it.

    Files are staged in the directory and then renamed, one by one. An error takes back what was done. A crash in the
    middle leaves some files new and some old; applying again finishes it.

    What an apply replaces or deletes is kept for the last 16 applies. --undo brings it back, with --to the last one to
    that directory. A path that changed since is a conflict; then all are listed and nothing is touched.
    """
    if undo and with_git_config:
        raise InvalidRequest("--undo and --with-git-config contradict each other", hint="choose one")
    workspace = session.open_named(name)
    done: ApplyResult | UndoneApply
    with ProgressBar("undoing" if undo else "applying", "the directory is as it was") as bar:
        if undo:
            done = workspace.undo_apply(to, dry_run=dry_run, progress=bar)
        else:
            done = workspace.apply(to, with_git_config=with_git_config, dry_run=dry_run, progress=bar)
    if as_json:
        print_json({**_plain(done), "changes": [change_facts(change) for change in done.changes]})
        return
    _print_changes(done)
    _tell_apply(done)


def _print_changes(done: ApplyResult | UndoneApply) -> None:
    from ws.comparing import LETTERS, shown_path

    for change in done.changes:
        print(f"{LETTERS[change.kind]}\t{escape(shown_path(change))}")


def _tell_apply(done: ApplyResult | UndoneApply) -> None:
    from ws.applying import ApplyResult

    for path in done.kept:
        say(f"note: {escape(path)} is kept: it holds what was not imported")
    if isinstance(done, ApplyResult):
        if done.left_out:
            say(f"note: {len(done.left_out)} changed paths are excluded and were left out")
        _tell_withheld(done.reasons)
    if done.dry_run:
        say("nothing was changed: --dry-run")


def _plain(done: Any) -> dict[str, Any]:
    return {field.name: getattr(done, field.name) for field in dataclasses.fields(done) if field.name != "changes"}


@click.command(
    "export",
    cls=Verb,
    statuses=(0, 1, 2, 3, 4, 5, 6, 7, 8, 130),
    own_statuses={
        "3": "no such workspace",
        "4": "the file or directory exists",
        "8": "the workspace could not be read",
    },
    examples=[
        ("ws export demo --patch | git apply", "what changed since the import, binary files too"),
        ("ws export demo --dir /tmp/result", "all files, in a new directory that is yours"),
        ("ws export demo --bundle demo.bundle", "the workspace and all its snapshots, for another machine"),
    ],
)
@name_argument
@click.option("--patch", is_flag=True, help="Print a patch for `git apply`.")
@click.option("--dir", "directory", metavar="D", type=click.Path(), help="Write the files into a new directory.")
@click.option("--bundle", metavar="F", type=click.Path(), help="Write everything into a new file, for `ws import`.")
@_with_git_config
@json_option
def export_verb(
    name: str, *, patch: bool, directory: str | None, bundle: str | None, with_git_config: bool, as_json: bool
) -> None:
    """Write a workspace out: as a patch, a directory or a bundle.

    A patch goes from what was imported to what is there now. What git has no words for (empty directories, FIFOs,
    changes inside a .git) is named on stderr. A directory belongs to you, without setuid bits. Of its git
    directories, objects, references, logs and the index are as in the workspace, each checked; everything else there
    (hooks, config, …) is as it was imported, unless --with-git-config asks for it. A bundle is one file that stock git
    can read too, and has everything. Prints the patch, or the path that was written.
    """
    if sum((patch, directory is not None, bundle is not None)) != 1:
        raise InvalidRequest("say what to write", hint="one of --patch, --dir D and --bundle F")
    workspace = session.open_named(name)
    if patch:
        _export_patch(workspace, with_git_config=with_git_config, as_json=as_json)
        return
    written = directory if directory is not None else bundle or ""

    def fate() -> str:
        return f"{escape(written)} was written" if os.path.lexists(written) else "nothing was written"

    with ProgressBar("exporting", fate) as bar:
        done: Any
        if directory is not None:
            done = workspace.export_dir(directory, with_git_config=with_git_config, progress=bar)
        else:
            assert bundle is not None
            done = workspace.export_bundle(bundle, progress=bar)
    if as_json:
        print_json(dataclasses.asdict(done))
        return
    print(escape(done.path))
    if directory is not None:
        _tell_withheld(done.reasons)


def _export_patch(workspace: Workspace, *, with_git_config: bool, as_json: bool) -> None:
    with ProgressBar("exporting", "nothing was written"):
        done = workspace.export_patch(with_git_config=with_git_config)
    if as_json:
        data = done.data()
        try:
            text, encoding = data.decode(), "utf-8"
        except UnicodeDecodeError:
            text, encoding = base64.b64encode(data).decode("ascii"), "base64"
        print_json(
            {
                "patch": text,
                "patch_encoding": encoding,
                "left_out": done.left_out,
                "withheld": done.withheld,
                "reasons": done.reasons,
            }
        )
        return
    if sys.stdout.isatty():
        _show_patch(done)
    else:
        for part in done.parts():
            sys.stdout.buffer.write(part)
        sys.stdout.flush()
    for path in done.left_out:
        say(f"note: not in the patch, git has no words for it: {escape(path)}")
    _tell_withheld(done.reasons)


def _show_patch(done: ExportedPatch) -> None:
    """On a terminal, control characters of the files are spelled out: they could hide lines or retitle it."""
    escaped = False
    for part in done.parts():
        for line in part.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n"):
            shown = harmless(line)
            escaped = escaped or shown != line
            print(shown)
    if escaped:
        say("note: control characters are shown escaped; write the patch to a file to apply it")


@click.command(
    "import",
    cls=Verb,
    statuses=(0, 1, 2, 3, 4, 5, 6, 7, 9, 130),
    own_statuses={
        "2": "the file is no bundle of ws, or a damaged one; nothing of it was taken in",
        "3": "the engine does not have the image",
    },
    examples=[
        ("ws import demo.bundle", "a workspace with all its snapshots; prints its name"),
        ("ws import demo.bundle --name copy --image localhost/other", "under another name, in another image"),
        ("ws import demo.bundle --trust-spec", "with the user, network, limits and environment that it had"),
        ("ws import big.bundle --max-paths 5000000 --max-bytes 100g", "one that is larger than the default limits"),
    ],
)
@click.argument("bundle", metavar="F", type=click.Path())
@click.option("--name", metavar="N", help="Its name. Default: the one it had.")
@click.option("--image", metavar="I", help="Its image. Default: the one it had; this machine must have it.")
@click.option("--engine", type=click.Choice(["podman", "docker", "none"]), help="Default: as for `ws create`.")
@click.option("--trust-spec", is_flag=True, help="Take user, network, limits, env, … from the bundle.")
@click.option("--max-objects", metavar="N", type=int, help="Git objects in the bundle. Default: 1000000.")
@click.option("--max-paths", metavar="N", type=int, help="Paths in one snapshot. Default: 1000000.")
@click.option("--max-bytes", metavar="SIZE", help="Unpacked, and in one snapshot. Default: 16g.")
@click.option("--max-time", metavar="TIME", help="For reading and checking. Default: 10m.")
@json_option
def import_verb(
    bundle: str,
    *,
    max_objects: int | None,
    max_paths: int | None,
    max_bytes: str | None,
    max_time: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Make a workspace from a bundle that `ws export` wrote.

    Everything in it is checked before anything is kept, within limits on objects, paths, bytes and time; a bundle that
    is refused leaves nothing behind. Its snapshots keep their ids. The directory it was made from is one of another
    machine, so `ws apply` needs --to. Prints its name.

    What the bundle asks for its container (user, network, limits, environment, excluded patterns, a writable root, a
    runtime) is shown and not taken, unless --trust-spec says so.
    """
    from ws.spec import parse_duration, parse_size
    from ws.store.import_limits import ImportLimits

    asked: dict[str, Any] = {
        "objects": max_objects,
        "paths": max_paths,
        "bytes": parse_size(max_bytes) if max_bytes is not None else None,
        "time_s": parse_duration(max_time) if max_time is not None else None,
    }
    limits = ImportLimits(**{name: value for name, value in asked.items() if value is not None})
    chosen: list[ChosenSpec] = []
    kept: list[Workspace] = []
    with session.manager() as manager, ProgressBar("importing", interrupts.removing(kept)) as bar:
        made = manager.import_bundle(bundle, limits=limits, report=chosen.append, progress=bar, **options)
        kept.append(made)
    changes, trusted = chosen[0].changes, chosen[0].trusted
    if as_json:
        spec = {"trusted": trusted, "asked": [dataclasses.asdict(change) for change in changes]}
        print_json({**dataclasses.asdict(made.info()), "bundle_spec": spec})
        return
    print(made.name)
    for change in changes:
        taken = "taken from the bundle" if change.asked == change.used else "not taken from the bundle"
        say(f"note: {taken}: {change.field} {escape(change.asked)}{_instead(change)}")
    if changes and not trusted:
        say("note: --trust-spec takes what the bundle asks for")


def _instead(change: SpecChange) -> str:
    return "" if change.asked == change.used else f"; here it is {escape(change.used)}"
