"""pool fill, ls, drain: containers that wait for workspaces."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from ws.cli import session
from ws.cli.group import Verb, VerbGroup, json_option
from ws.cli.lifecycle import request_of
from ws.cli.render import ProgressBar, print_json, print_table
from ws.cli.text import say, size
from ws.errors import InvalidRequest


@click.group("pool", cls=VerbGroup)
@click.pass_context
def pool_verb(ctx: click.Context, /) -> None:
    """Keep containers warm, so that creating takes milliseconds.

    A container in the pool runs already and has no workspace yet; create, fork and a workspace that has lost its
    container take one that fits: the same engine, image, user, limits and network. Each is used once. With WS_POOL=N
    in the environment every create leaves a process behind that fills the pool up to N again.
    """
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


@pool_verb.command(
    "fill",
    cls=Verb,
    statuses=(0, 1, 2, 3, 5, 6, 7, 9, 130),
    examples=[
        ("ws pool fill --size 4", "four, for workspaces as `ws create` makes them when nothing is said"),
        ("ws pool fill --image localhost/node:22 --memory 4g --size 8", "for workspaces with these options"),
        ("ws pool fill --like 3f2a --size 8", "of a configuration that `ws pool ls` shows"),
    ],
)
@click.option("--size", type=int, required=True, metavar="N", help="How many are to wait. More than that are left.")
@click.option("--like", metavar="KEY", help="A configuration of `ws pool ls`, instead of the options below.")
@click.option("--image", metavar="I", help="The image. Default: WS_IMAGE, else what `ws image build` makes.")
@click.option("--engine", type=click.Choice(["podman", "docker"]), help="Default: as for `ws create`.")
@click.option("--network", type=click.Choice(["none", "bridge"]), help="Default: none.")
@click.option("--memory", metavar="SIZE", help="As 512m or 2g. Default: 2g.")
@click.option("--cpus", type=float, metavar="N", help="Default: 2.")
@click.option("--pids", type=int, metavar="N", help="How many processes. Default: 512.")
@click.option("--user", metavar="U", help="As uid, uid:gid or a name of the image. Default: the image's.")
@click.option("--read-write-root", is_flag=True, help="Let commands write outside /workspace, /tmp and home.")
@click.option("--runtime", metavar="R", help="The OCI runtime, such as runsc or kata. Default: one that works.")
@json_option
def fill_verb(*, size: int, like: str | None, as_json: bool, **options: Any) -> None:
    """Make containers until that many wait.

    Those that have ended, or whose image or ws was replaced since, are removed first. Prints how many were made.
    """
    request = request_of(options)
    if like and request:
        raise InvalidRequest("--like says all there is to say", hint=f"leave --{next(iter(request))} out")
    with (
        session.manager() as manager,
        ProgressBar("warming", "what was ready stays in the pool") as bar,
    ):
        if like:
            made = manager.fill_pool_like(like, size, progress=bar)
        else:
            made = manager.fill_pool(size, progress=bar, **request)
    if as_json:
        print_json({"made": made})
    else:
        print(made)


@pool_verb.command(
    "ls",
    cls=Verb,
    statuses=(0, 1, 2, 7),
    examples=[
        ("ws pool ls", "what waits, by configuration"),
        ("ws pool ls --json | jq '[.[].ready] | add'", "how many there are"),
    ],
)
@json_option
def ls_verb(*, as_json: bool) -> None:
    """List the warm containers, by configuration.

    Stale ones have ended, or belong to another version of ws; filling replaces them, and `ws prune` removes them.
    """
    from ws.warming import look

    found = look(session.settled_home()[0])
    if as_json:
        print_json([dataclasses.asdict(info) for info in found])
        return
    print_table(
        ["KEY", "ENGINE", "IMAGE", "USER", "NETWORK", "MEMORY", "READY", "STALE", "FILLING"],
        [
            [
                info.key,
                info.engine,
                info.image,
                info.user,
                info.network,
                size(info.memory_bytes),
                str(info.ready),
                str(info.stale),
                "yes" if info.filling else "no",
            ]
            for info in found
        ],
    )


@pool_verb.command(
    "drain",
    cls=Verb,
    statuses=(0, 1, 2, 6, 7, 130),
    examples=[
        ("ws pool drain", "remove all warm containers"),
        ("ws pool drain --image localhost/node:22", "those of one image"),
        ("ws pool drain --dry-run", "say how many would be removed"),
    ],
)
@click.option("--image", metavar="I", help="Only of this image, by its name or id.")
@click.option("--dry-run", is_flag=True, help="Only say how many would be removed.")
@json_option
def drain_verb(*, image: str | None, dry_run: bool, as_json: bool) -> None:
    """Remove the warm containers. Workspaces are not touched. Prints how many there were."""
    with (
        session.manager() as manager,
        ProgressBar("draining", "what is left stays in the pool") as bar,
    ):
        removed = manager.drain_pool(image, dry_run=dry_run, progress=bar)
    if as_json:
        print_json({"removed": removed, "dry_run": dry_run})
        return
    print(removed)
    if dry_run:
        say("nothing was removed: --dry-run")
