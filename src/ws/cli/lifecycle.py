"""create, ls, show, rm, prune: the life of workspaces."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from ws.cli import interrupts, session
from ws.cli.group import INTERRUPTED, Verb, complete_names, json_option, name_argument
from ws.cli.main import report
from ws.cli.render import STATUS_COLOURS, ProgressBar, print_facts, print_json, print_table
from ws.cli.text import age, escape, say, size
from ws.errors import InvalidRequest, WorkspaceError
from ws.toolbox.roots import find_root, git_root

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ws.history import Origin
    from ws.layout import WorkspaceRecord
    from ws.listing import WorkspaceInfo
    from ws.manager import Manager
    from ws.workspace import Workspace

_CREATE_OPTIONS = [
    click.option("--name", metavar="N", help="Its name. Default: made from the source's."),
    click.option("--image", metavar="I", help="The image. Default: WS_IMAGE, else what `ws image build` makes."),
    click.option(
        "--engine",
        type=click.Choice(["podman", "docker", "none"]),
        help="Default: WS_ENGINE, else the first of podman and docker that works. none is no isolation.",
    ),
    click.option("--network", type=click.Choice(["none", "bridge"]), help="Default: none."),
    click.option("--memory", metavar="SIZE", help="As 512m or 2g. Default: 2g."),
    click.option("--cpus", type=float, metavar="N", help="Default: 2."),
    click.option("--pids", type=int, metavar="N", help="How many processes. Default: 512."),
    click.option("--disk", metavar="SIZE", help="How much it may write. Default: no limit."),
    click.option("--env", multiple=True, metavar="K=V", help="A variable of all its commands; may be repeated."),
    click.option(
        "--user", metavar="U", help="As uid, uid:gid or a name of the image. Default: the image's, never root."
    ),
    click.option("--ttl", metavar="TIME", help="As 30m or 2h; `ws prune` removes it afterwards. Default: for ever."),
    click.option("--read-write-root", is_flag=True, help="Let commands write outside /workspace, /tmp and home."),
    click.option("--exclude", multiple=True, metavar="G", help="A glob of the source to leave out; may be repeated."),
    click.option("--runtime", metavar="R", help="The OCI runtime, such as runsc or kata. Default: one that works."),
]


def create_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a new workspace, for create and run."""
    for option in reversed(_CREATE_OPTIONS):
        function = option(function)
    return function


def source_of(source: str | None, engine: str | None) -> str | None:
    """The directory to import: SOURCE; without one the project's root where no container bounds the tools, else none.

    Raises SourceRefused where the project's root would be `/` or the home directory.
    """
    if source is not None or (engine or os.environ.get("WS_ENGINE")) != "none":
        return source
    root = find_root()
    kind = "git repository" if git_root(root) == root else "directory"
    say(f"note: took the {kind} {escape(root)}: with engine none SOURCE defaults to the project around this directory")
    return root


def request_of(options: dict[str, Any]) -> dict[str, Any]:
    """What was given, as `Manager.create` takes it; what was not has the default of `WorkspaceSpec`."""
    # Not `value in (None, (), False)`: 0 equals False, and --cpus 0 must be refused, not passed over.
    given = {key: value for key, value in options.items() if value is not None and value is not False and value != ()}
    if "env" in given:
        given["env"] = pairs(given["env"])
    return given


def pairs(words: tuple[str, ...]) -> dict[str, str]:
    """K=V words as a mapping. Raises InvalidRequest."""
    for word in words:
        if "=" not in word or word.startswith("="):
            raise InvalidRequest(f"--env takes K=V, not {word!r}", hint="write it like --env DEBUG=1")
    return dict(word.split("=", 1) for word in words)


@click.command(
    "create",
    cls=Verb,
    statuses=(0, 1, 2, 3, 4, 6, 7, 8, 9, 130),
    examples=[
        ("ws create . --name demo", "a workspace of this directory, as it is now, dirty files too"),
        ("ws create ~/src/app --network bridge --memory 4g --ttl 2h", "with network, more memory, and an end"),
        ("box=$(ws create)", "an empty one; its name is all that stdout gets"),
        ("ws create . --name try --count 8", "eight at once: try-1 to try-8"),
    ],
)
@click.argument("source", required=False, metavar="[SOURCE]", type=click.Path())
@create_options
@click.option("--count", type=int, metavar="N", help="As many of them: NAME-1 to NAME-N. All are made, or none.")
@json_option
def create_verb(source: str | None, *, count: int | None, as_json: bool, **options: Any) -> None:
    """Make a workspace from a source directory, or an empty one.

    Without SOURCE it is empty; with --engine none it takes the git repository around the working directory, else the
    working directory. The source is imported whole: changed, untracked and ignored files, and its .git. It is only
    read, and nothing that happens in the workspace changes it. Prints the workspace's name. A container that waits in
    the pool is used (`ws pool --help`); with WS_POOL=N the pool is filled again afterwards, in the background.
    """
    made: list[Workspace] = []
    source = source_of(source, options["engine"])
    with session.manager() as manager, ProgressBar("preparing", interrupts.removing(made)) as bar:
        request = request_of(options)
        if count is None:
            made.append(manager.create(source, progress=bar, **request))
        else:
            made += manager.create_many(source, count=count, progress=bar, **request)
        infos = [workspace.info() for workspace in made]
        for workspace in made:
            workspace.close()
    tell_made(infos[0])
    if as_json:
        described = [dataclasses.asdict(info) for info in infos]
        print_json(described[0] if count is None else described)
    else:
        print("\n".join(info.name for info in infos))


def tell_made(info: WorkspaceInfo) -> None:
    """Notes on a new workspace, on stderr: no isolation, part of a repository, files that were left out."""
    if info.engine == "none":
        say("note: engine none gives no isolation: commands run on this machine as you")
    repository = git_root(info.source) if info.source else None
    if repository is not None and repository != info.source:
        whole = escape(shlex.quote(repository))
        say(f"note: took {escape(info.source or '')} alone, a part of a git repository; SOURCE {whole} takes all of it")
    for line in info.skipped:
        say(f"note: left out {escape(line)}")


@click.command(
    "ls",
    cls=Verb,
    statuses=(0, 1, 2, 7),
    examples=[
        ("ws ls", "all workspaces, oldest first"),
        ("ws ls --json | jq -r '.[] | select(.status == \"stopped\").name'", "the names of those that do not run"),
    ],
)
@json_option
def ls_verb(*, as_json: bool) -> None:
    """List the workspaces.

    A workspace that is stopped, by a reboot for instance, has its files and starts with its next use.
    """
    from ws.listing import list_workspaces

    found = list_workspaces(session.settled_home()[0])
    if as_json:
        print_json([dataclasses.asdict(info) for info in found])
        return
    now = time.time()
    print_table(
        ["NAME", "STATUS", "ENGINE", "IMAGE", "SOURCE", "AGE"],
        [
            [info.name, info.status, info.engine, info.image, info.source or "-", age(now - info.created_at)]
            for info in found
        ],
        colour=lambda column, cell: STATUS_COLOURS.get(cell) if column == 1 else None,
    )


@click.command(
    "show",
    cls=Verb,
    statuses=(0, 1, 2, 3, 7),
    examples=[
        ("ws show demo", "where it came from, what it may use, how it is"),
        ("ws show demo --json | jq .container.id", "the id of its container"),
    ],
)
@name_argument
@json_option
def show_verb(name: str, *, as_json: bool) -> None:
    """Show all that is known of a workspace."""
    with session.manager() as manager, session.named(manager.home, name):
        workspace = manager.open(name)
        record, info, origin = workspace.record(), workspace.info(), workspace.origin()
    if as_json:
        told = dataclasses.asdict(origin) if origin else None
        print_json({**dataclasses.asdict(record), "status": info.status, "origin": told})
    else:
        print_facts(_facts(record, info, origin))


def _facts(record: WorkspaceRecord, info: WorkspaceInfo, origin: Origin | None) -> list[tuple[str, str]]:
    options = record.options
    container = f"{record.container.id[:12]}, process {record.container.pid}" if record.container else "none"
    container += ", warm: it was in the pool" if info.warm else ""
    return [
        ("name", record.name),
        ("id", record.id),
        ("status", info.status),
        ("engine", record.engine),
        ("image", f"{options.image} ({record.image_id.removeprefix('sha256:')[:12]})"),
        ("source", record.source or "none"),
        *([("forked from", str(origin))] if origin else []),
        *([("excluded", ", ".join(record.exclude))] if record.exclude else []),
        *(("left out", line) for line in record.skipped),
        ("base", record.base),
        ("layers", str(len(record.layers))),
        ("user", info.user),
        ("network", options.network),
        ("memory", size(options.memory_bytes)),
        ("cpus", f"{options.cpus:g}"),
        ("pids", str(options.pids)),
        ("disk", size(options.disk_bytes) if options.disk_bytes else "no limit"),
        ("root", "writable" if options.read_write_root else "read-only"),
        *([("runtime", options.runtime)] if options.runtime else []),
        *((("environment", f"{key}={value}")) for key, value in sorted(options.env.items())),
        ("container", container),
        ("created", _moment(record.created_at)),
        ("expires", _moment(record.expires_at) if record.expires_at else "never"),
    ]


def _moment(when: float) -> str:
    shown = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(when))
    away = when - time.time()
    return f"{shown} (in {age(away)})" if away > 0 else f"{shown} ({age(-away)} ago)"


@click.command(
    "rm",
    cls=Verb,
    statuses=(0, 1, 2, 3, 5, 7, 130),
    examples=[
        ("ws rm demo", "remove one"),
        ("ws rm --all --dry-run", "say what would be removed"),
        ("ws rm --all --yes", "remove every workspace, without being asked"),
    ],
)
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=complete_names)
@click.option("--all", "everything", is_flag=True, help="Every workspace there is.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@json_option
def rm_verb(names: tuple[str, ...], *, everything: bool, yes: bool, dry_run: bool, as_json: bool) -> int:
    """Remove workspaces with all their files.

    Works whatever state they are in, also when their engine is gone. The sources they were made from are not touched. A
    name that does not exist is refused before anything is removed. Prints the names removed.
    """
    if bool(names) == everything:
        raise InvalidRequest("say which workspaces", hint="ws rm NAME…, or ws rm --all")
    with session.manager() as manager:
        meant: dict[str, str] = {}  # ids, and the names to print
        for name in names:
            found = manager.find_removable(name)
            if found is None:
                session.raise_not_found(manager.home, name)
            meant[found[0]] = found[1]
        if everything:
            meant = {info.id: info.name for info in sorted(manager.list(), key=lambda info: info.name)}
        wanted = list(meant.values())
        if everything and wanted and not yes and not dry_run and not _confirmed(len(wanted)):
            say("nothing was removed")
            return INTERRUPTED
        failures: dict[str, WorkspaceError] = {}
        troubles: list[WorkspaceError] = []
        if not dry_run:
            with ProgressBar("removing", lambda: _fate_of_removal(manager, meant)) as bar:
                for done, (workspace_id, name) in enumerate(meant.items()):
                    bar(f"removing {name}", done, len(wanted))
                    try:
                        trouble = manager.remove(workspace_id)
                        troubles += [trouble] if trouble else []
                    except WorkspaceError as error:
                        failures[name] = error
    removed = [name for name in wanted if name not in failures]
    if as_json:
        failed = [{"name": name, **_described(error)} for name, error in failures.items()]
        notes = [_described(trouble) for trouble in troubles]
        print_json({"removed": removed, "failed": failed, "notes": notes, "dry_run": dry_run})
    else:
        _print_removed(removed, dry_run=dry_run)
        for trouble in troubles:
            say(f"note: {escape(trouble.message)}; {escape(trouble.hint or '')}")
        for failure in failures.values():
            _report(failure)
    return next((error.exit_code for error in failures.values()), 0)


def _fate_of_removal(manager: Manager, meant: Mapping[str, str]) -> str:
    """What an interrupted removal has and has not removed. Past its commit point the next command finishes it."""
    from ws.records import read_record

    states: dict[str, str] = {}
    for workspace_id, name in meant.items():
        with contextlib.suppress(WorkspaceError):
            record = read_record(manager.home, workspace_id)
            states[name] = record.state if record else "removed"
    kept = [escape(name) for name in meant.values() if states.get(name, "damaged") not in ("removing", "removed")]
    begun = [escape(name) for name, state in states.items() if state == "removing"]
    parts = [f"not removed: {', '.join(kept)}"] if kept else []
    if begun:
        parts.append(f"half removed: {', '.join(begun)}; the next ws command removes the rest")
    return "; ".join(parts) or f"removed: {', '.join(map(escape, states))}"


def _confirmed(count: int) -> bool:
    if not sys.stdin.isatty():
        raise InvalidRequest("removing everything needs a yes", hint="add --yes")
    return click.confirm(f"Remove all {count} workspaces with their files?", err=True)


def _described(error: WorkspaceError) -> dict[str, str | None]:
    return {"code": error.code, "message": error.message, "hint": error.hint}


def _report(error: WorkspaceError) -> None:
    report(error.code, error.message, error.hint, status=error.exit_code, as_json=False)


def _print_removed(names: Sequence[str], *, dry_run: bool) -> None:
    for name in names:
        print(name)
    if dry_run:
        say("nothing was removed: --dry-run")


@click.command(
    "prune",
    cls=Verb,
    statuses=(0, 1, 2, 5, 6, 7, 130),
    examples=[
        ("ws prune", "remove what has outlived its --ttl, and containers that belong to no workspace"),
        ("ws prune --dry-run", "say what has expired, and what crashes left"),
    ],
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@json_option
def prune_verb(*, dry_run: bool, as_json: bool) -> int:
    """Remove expired workspaces, and what crashes left behind.

    A workspace expires when the time given to `ws create --ttl` is over. Every engine that answers is asked for
    containers that belong to no workspace; one that should answer and does not keeps them, and the status tells. Prints
    the names of the workspaces removed; what else was is said on stderr.
    """
    with (
        session.manager() as manager,
        ProgressBar("pruning", "what is left stays for the next `ws prune`"),
    ):
        done = manager.prune(dry_run=dry_run)
    if as_json:
        print_json(
            {
                "removed": done.workspaces,
                "containers": done.containers,
                "leftovers": done.leftovers,
                "failed": [_described(trouble) for trouble in done.troubles],
                "dry_run": dry_run,
            }
        )
    else:
        for container in done.containers:
            say(f"container {container}")
        for path in done.leftovers:
            say(f"leftover {escape(path)}")
        _print_removed(done.workspaces, dry_run=dry_run)
        for trouble in done.troubles:
            _report(trouble)
    return next((trouble.exit_code for trouble in done.troubles), 0)
