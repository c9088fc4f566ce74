"""tool, tools, events, trash: what models may call, what they called, and what it left to be brought back."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from ws.cli import calling, session
from ws.cli.calling import ToolRequest
from ws.cli.group import Verb, json_option, name_argument
from ws.cli.render import print_json, print_table
from ws.cli.text import escape, paint, say, size
from ws.errors import InvalidRequest, NotFound
from ws.toolbox.approval import POLICIES
from ws.toolbox.dialects import DIALECTS, open_dialect
from ws.toolbox.specs import FORMATS, specs

if TYPE_CHECKING:
    from ws.toolbox.events import Event

_dialect_option = click.option(
    "--dialect", type=click.Choice(DIALECTS), default="standard", help="Under which names. Default: standard."
)


def _complete_tools(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    tools = open_dialect(ctx.params.get("dialect") or "standard").tools
    return [name for name in tools if name.startswith(incomplete)]


_ALL = 100_000  # entries of a trash
TIER_COLOURS = {"safe": "green", "cautious": "yellow", "dangerous": "red"}
_OWN_STATUS = {"10": "the tool could not do it; the files are as they were", "other": "of a command that was run"}


@click.command(
    "tool",
    cls=Verb,
    statuses=(0, 1, 2, 3, 5, 6, 7, 130),
    own_statuses=_OWN_STATUS,
    mounts=False,  # calling.run enters by itself
    examples=[
        ("""ws tool demo read_file '{"path": "src/main.py"}'""", "the file, its first 400 lines"),
        ("cat call.json | ws tool demo str_replace -", "the arguments from a file"),
        ("ws tool demo '!ls -la'", "a command line, under the command policy"),
        (
            """ws tool demo --approval on-dangerous delete '{"path": "old"}'""",
            "show what it would do, and ask",
        ),
        (
            """ws tool demo --dialect convergio glob '{"pattern": "**/*.py"}' --json""",
            "under the names of another contract, the whole result as JSON",
        ),
    ],
)
@name_argument
@click.argument("tool", metavar="TOOL", shell_complete=_complete_tools)
@click.argument("arguments", required=False, metavar="[JSON|-]")
@_dialect_option
@click.option(
    "--approval",
    type=click.Choice(POLICIES),
    help="When you are asked on this terminal before something is changed. Default: never; on-dangerous in agent-q.",
)
@json_option
def tool_verb(name: str, tool: str, arguments: str | None, *, dialect: str, approval: str | None, as_json: bool) -> int:
    """Call a tool in a workspace.

    The arguments are one JSON object, or `-` to read it from stdin. stdout gets the tool's output; --json gives the
    whole result: status, message, truncated, output, data and summary. `ws tools` shows what there is.
    """
    request = ToolRequest(name, tool, arguments, dialect, approval, as_json)
    return calling.run(request)


@click.command(
    "tools",
    cls=Verb,
    statuses=(0, 1, 2),
    mounts=False,
    examples=[
        ("ws tools", "the standard set, and how dangerous each one is"),
        ("ws tools --dialect anthropic --format anthropic > tools.json", "specs to hand to a model"),
        ("ws tools --dialect lincona --format openai --native", "freeform tools in OpenAI's own form"),
    ],
)
@_dialect_option
@click.option("--format", "form", type=click.Choice(FORMATS), help="As JSON, in the form that a client wants.")
@click.option("--native", is_flag=True, help="In the vendor's own form, where its models know one.")
@json_option
def tools_verb(*, dialect: str, form: str | None, native: bool, as_json: bool) -> None:
    """Show the tools that models may call.

    A dialect is a contract that agents were written against: other names and parameters, the same work. --json is
    --format json.
    """
    tools = [tool.spec for tool in open_dialect(dialect).tools.values()]
    chosen = next((known for known in FORMATS if known == form), "json" if as_json else None)
    if chosen is not None:
        print_json(specs(tools, chosen, native=native))
        return
    print_table(
        ["TOOL", "TIER", "WHAT IT DOES"],
        [[tool.name, tool.tier, re.split(r"[.:](?: |$)", tool.description)[0]] for tool in tools],
        colour=lambda column, cell: TIER_COLOURS.get(cell) if column == 1 else None,
    )


@click.command(
    "events",
    cls=Verb,
    statuses=(0, 1, 2, 3, 7, 130),
    examples=[
        ("ws events demo", "what tools did, oldest first"),
        ("ws events demo --follow", "and what they do from now on, until Ctrl-C or the end of the workspace"),
        ("ws events demo --json | jq -r 'select(.event == \"error\").message'", "a JSON object each line"),
    ],
)
@name_argument
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes.")
@json_option
def events_verb(name: str, *, follow: bool, as_json: bool) -> None:
    """Show what tools did in a workspace.

    A line for each start, end and error, with the tool, its arguments, how long it took and what it changed.
    """
    log = session.open_named(name).tools.events.log
    assert log is not None  # the router of a workspace has one
    place = os.path.dirname(log.path)
    for event in log.follow(until=lambda: not os.path.exists(place)) if follow else log.read():
        print(event.to_json() if as_json else _line(event), flush=follow)


def _line(event: Event) -> str:
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
    colour = {"start": "dim", "end": "green", "error": "red"}.get(event.event, "dim")
    words = [moment, paint(f"{event.event:5}", colour, sys.stdout), escape(event.tool)]
    if event.event == "start":
        words.append(escape(json.dumps(event.arguments, ensure_ascii=False)))
    else:
        words.append(f"{event.duration_ms or 0:.1f} ms")
        words.append(escape(f"{event.code}: {event.message}" if event.code else event.message))
    return "  ".join(words)


@click.command(
    "trash",
    cls=Verb,
    statuses=(0, 1, 2, 3, 5, 6, 7, 130),
    own_statuses={"3": "no such workspace, or nothing of that name in its trash", "10": "something stands there now"},
    examples=[
        ("ws trash demo", "what tools deleted, newest first"),
        ("ws trash demo list --path src/main.py", "every version that is kept of a file"),
        ("ws trash demo restore main.py-1c2d3e4f/20260102T030405.000000006Z-0a1b2c3d", "bring one back"),
        ("ws trash demo purge --older-than 7", "remove for good what was deleted a week ago"),
        ("ws trash demo purge --older-than 7 --dry-run", "list what that would be"),
    ],
)
@name_argument
@click.argument(
    "action", type=click.Choice(["list", "restore", "purge"]), default="list", metavar="[list|restore|purge]"
)
@click.argument("entry", required=False, metavar="[ENTRY]")
@click.option("--path", metavar="P", help="list: versions of this path, and of what is below it.")
@click.option("--to", metavar="P", help="restore: where to. Default: where it was.")
@click.option("--overwrite", is_flag=True, help="restore: replace what is there; that goes to the backups.")
@click.option("--older-than", type=click.IntRange(min=0), metavar="DAYS", help="purge: only what is so old.")
@click.option("--dry-run", is_flag=True, help="purge: only list what would be removed.")
@json_option
def trash_verb(name: str, action: str, entry: str | None, *, as_json: bool, **options: Any) -> int:
    """See, bring back and remove what tools deleted.

    What a tool changes or deletes is kept outside of the tree for 30 days, 50 versions of a file, and no restore takes
    it away. `ws tool NAME undo` takes the last change of a path back.
    """
    tool, arguments = _trash_call(action, entry, options)
    if options["dry_run"]:
        tool, arguments = "trash_list", {"path": "." if entry else None, "limit": _ALL}
    workspace = session.open_named(name)
    result = calling.carry_out(lambda: workspace.tools.call(tool, **arguments))
    workspace.close()
    rows = [row for row in result.data.get("entries", ()) if isinstance(row, dict)]
    if options["dry_run"]:
        _show_purge(_purged(rows, entry, options["older_than"]), as_json=as_json)
        return 0
    if action == "list" and not as_json:
        _show_trash(rows)
        return 0
    return calling.show(result, as_json=as_json)


def _purged(rows: list[dict[str, Any]], entry: str | None, days: int | None) -> list[dict[str, Any]]:
    """What of the trash a purge would remove. Raises NotFound."""
    if entry is not None:
        rows = [row for row in rows if row.get("name") == entry]
        if not rows:
            raise NotFound(f"no backup {entry!r}", hint="trash_list shows what there is")
        return rows
    oldest = (datetime.now(UTC) - timedelta(days=days or 0)).isoformat()
    return [row for row in rows if str(row.get("saved_at")) < oldest]


def _show_purge(rows: list[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json({"entries": rows, "dry_run": True})
        return
    _show_trash(rows)
    say("nothing was removed: --dry-run")


def _trash_call(action: str, entry: str | None, options: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The tool and its arguments. Raises InvalidRequest for an option of another action."""
    own = {"list": ("path",), "restore": ("to", "overwrite"), "purge": ("older_than", "dry_run")}[action]
    for option, value in options.items():
        if value and option not in own:
            raise InvalidRequest(f"--{option.replace('_', '-')} is not for {action}", hint="ws trash --help")
    if action == "list":
        if entry is not None:
            raise InvalidRequest("list takes no entry", hint=f"ws trash NAME list --path {entry}")
        return "trash_list", {"path": options["path"], "limit": 1000}
    if action == "restore":
        if entry is None:
            raise InvalidRequest("say which entry", hint="ws trash NAME list shows them")
        return "trash_restore", {"name": entry, "destination": options["to"], "overwrite": options["overwrite"]}
    if entry is None and options["older_than"] is None:
        raise InvalidRequest(
            "say what to remove for good", hint="an entry, or --older-than DAYS; --older-than 0 is all of it"
        )
    return "trash_purge", {"name": entry, "older_than_days": options["older_than"]}


def _show_trash(rows: list[dict[str, Any]]) -> None:
    print_table(
        ["ENTRY", "KIND", "SIZE", "WHY", "WHEN", "PATH"],
        [
            [
                str(row["name"]),
                str(row["kind"]),
                size(row["size_bytes"]) if row["kind"] == "file" else "-",
                str(row["reason"]),
                str(row["saved_at"])[:19].replace("T", " "),
                str(row["path"]),
            ]
            for row in rows
        ],
    )
