"""cp: files and directories into a workspace, and out of one."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

import click

from ws.cli import session
from ws.cli.group import Verb, complete_names, json_option
from ws.cli.render import ProgressBar, print_json
from ws.cli.text import escape, say
from ws.errors import InvalidRequest, ToolError, WorkspaceError

if TYPE_CHECKING:
    from ws.files import WorkspaceFilesystem
    from ws.fs.copying import CopyPlan
    from ws.fs.host import HostFilesystem


def split_place(word: str) -> tuple[str | None, str]:
    """A workspace's name and a path in it, or None and a path of this machine.

    What stands before the first colon is a name unless it holds a slash: `./a:b` is a file.
    """
    name, colon, path = word.partition(":")
    if not colon or not name or "/" in name:
        return None, word
    return name, path or "."


@click.command(
    "cp",
    cls=Verb,
    statuses=(0, 1, 2, 3, 5, 6, 7, 130),
    own_statuses={"10": "a file could not be read or written; those before it are copied"},
    examples=[
        ("ws cp notes.txt demo:docs/", "a file into a directory of the workspace"),
        ("ws cp demo:build/report.html .", "a file out of it, to here"),
        ("ws cp demo:/workspace/dist ./dist", "a directory, with all that is in it"),
        ("ws cp src/. demo:src", "what is in a directory, into another"),
    ],
)
@click.argument("source", metavar="SRC", shell_complete=complete_names)
@click.argument("target", metavar="DST", shell_complete=complete_names)
@json_option
def cp_verb(source: str, target: str, *, as_json: bool) -> None:
    """Copy files and directories into a workspace, or out of one.

    One of SRC and DST is NAME:PATH, a path in a workspace, relative to its root. A file of this machine with a colon in
    its name is written ./a:b. A directory is copied whole; when DST is a directory, the copy goes into it under its own
    name, and SRC/. stands for what is in SRC.

    Permissions and times are kept, setuid is not. Links in a directory are copied as links and never followed. A file
    never takes the place of a directory, nor a directory that of a file. Sockets, pipes and devices are named and left
    out.
    """
    (source_name, source_path), (target_name, target_path) = split_place(source), split_place(target)
    if (source_name is None) == (target_name is None):
        raise InvalidRequest(
            "one of SRC and DST is in a workspace, the other is not",
            hint="ws cp FILE NAME:PATH, or ws cp NAME:PATH FILE; a file with a colon in its name is ./a:b",
        )
    workspace = session.open_named(source_name or target_name or "")
    try:
        with ProgressBar("copying", "files that were copied by then stay; no file is half written") as bar:
            if source_name is not None:
                plan = _copy_out(workspace.fs, source_path, target_path, bar)
            else:
                plan = _copy_in(workspace.fs, source_path, target_path, bar)
    except WorkspaceError:
        raise
    except (OSError, ValueError) as error:
        raise _explained(error) from error
    finally:
        workspace.close()
    for path in plan.left_out:
        say(f"note: left out {escape(path)}: neither file, directory nor link")
    if as_json:
        facts = {"files": plan.files, "bytes": plan.size_bytes, "left_out": list(plan.left_out)}
        print_json({"source": source, "target": target, **facts})


def _copy_in(inside: WorkspaceFilesystem, source: str, target: str, bar: ProgressBar) -> CopyPlan:
    from ws.fs.copying import carry_out, plan_copy

    here = _host("/")
    plan = plan_copy(here, _absolute(source), inside, target)
    carry_out(plan, here, inside, progress=bar)
    return dataclasses.replace(plan, left_out=tuple(f"/{path}" for path in plan.left_out))


def _copy_out(inside: WorkspaceFilesystem, source: str, target: str, bar: ProgressBar) -> CopyPlan:
    """What the workspace says of its files is not believed: nothing is written outside of the directory named."""
    from ws.fs.copying import carry_out, plan_copy

    parent, name = os.path.split(target.rstrip("/"))
    if os.path.isdir(target):
        parent, name = target, "."
    here = _host(parent or ("/" if target.startswith("/") else "."))
    plan = plan_copy(inside, source, here, f"{name}/" if target.endswith("/") and name != "." else name)
    carry_out(plan, inside, here, progress=bar)
    return plan


def _host(root: str) -> HostFilesystem:
    from ws.fs.host import HostFilesystem
    from ws.fs.protocol import Limits

    return HostFilesystem(
        root, limits=Limits(max_segments=4096, max_segment_chars=255, follow_links=True), durable=False
    )


def _absolute(path: str) -> str:
    """From the root of this machine, with `/.` kept at the end, where it has a meaning."""
    return os.path.abspath(path) + ("/." if path == "." or path.endswith("/.") else "")


def _explained(error: OSError | ValueError) -> ToolError:
    if not isinstance(error, OSError) or error.strerror is None:
        return ToolError(str(error))
    where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
    hints = {
        "FileNotFoundError": "SRC, and the directory that DST is in, must be there already",
        "PermissionError": "the workspace's user, or you, may not do that",
    }
    return ToolError(f"{where}{error.strerror}", hint=hints.get(type(error).__name__))
