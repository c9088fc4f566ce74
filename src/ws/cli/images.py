"""image build: the default image of workspaces, for each engine."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from ws.cli.group import Verb, VerbGroup, json_option
from ws.cli.render import ProgressBar, print_json
from ws.cli.text import escape, say
from ws.errors import EngineUnavailable
from ws.layout import open_home

if TYPE_CHECKING:
    from ws.engine.base import Engine


@click.group("image", cls=VerbGroup)
@click.pass_context
def image_verb(ctx: click.Context, /) -> None:
    """Build the default image of workspaces."""
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


@image_verb.command(
    "build",
    cls=Verb,
    statuses=(0, 1, 2, 6, 7, 130),
    examples=[
        ("ws image build", "for each engine that works here; what is there already is kept"),
        ("ws image build --engine docker --force", "for docker, anew"),
        ("ws image build --source registry --base ubuntu:24.04", "from an image of a registry"),
    ],
)
@click.option(
    "--engine",
    type=click.Choice(["podman", "docker"]),
    help="Default: WS_ENGINE, else each of podman and docker that works.",
)
@click.option(
    "--source",
    type=click.Choice(["debian", "registry"]),
    help="From Debian's packages with mmdebstrap, or from --base. Default: debian where mmdebstrap is installed.",
)
@click.option("--base", metavar="IMAGE", help="The image to build on, with --source registry. Default: Debian's.")
@click.option("--tag", metavar="REF", help="Its name. Default: localhost/ws-base:latest.")
@click.option("--force", is_flag=True, help="Build it although it is there.")
@json_option
def build_verb(*, engine: str | None, tag: str | None, as_json: bool, **options: Any) -> None:
    """Build the default image of workspaces, without a registry or from one.

    It holds git, ripgrep, python3, make, gcc, curl, procps and a user `agent`. Prints engine, name and id, one line for
    each engine.
    """
    from ws.engine.images import DEFAULT_IMAGE, build_image
    from ws.spec import check_image

    home = open_home().root
    reference = check_image(tag or DEFAULT_IMAGE)
    built = []
    for found in _engines(home, engine or os.environ.get("WS_ENGINE")):
        try:
            with ProgressBar(f"image for {found.name}", "no image was made") as bar:
                facts = build_image(found, home=home, reference=reference, progress=bar, **options)
        finally:
            found.close()
        built.append({"engine": found.name, "image": reference, "id": facts.id, "size_bytes": facts.size_bytes})
        if not as_json:
            print(found.name, reference, facts.id)
    if as_json:
        print_json(built)


def _engines(home: str, asked: str | None) -> list[Engine]:
    """The engine asked for, or each that works; says of the others why not. Raises EngineUnavailable."""
    from ws.engine.choose import choose_engine

    if asked:
        return [choose_engine(asked, home=home)]
    found, failures = [], []
    for name in ("podman", "docker"):
        try:
            found.append(choose_engine(name, home=home))
        except EngineUnavailable as error:
            failures.append(error)
    if not found:
        raise failures[0]
    for failure in failures:
        say(f"note: {escape(failure.message)}")
    return found
