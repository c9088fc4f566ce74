"""A command, a file read and a file written by SWE-ReX, in turns with ours. Nothing is asked for; it stands beside.

Its local runtime works in the caller's own process, on the host, with no isolation at all; its server is that runtime
as it is used with a container. Ours is always in the container.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from bench.measure import Entry, compare, side_by_side
from bench.stage import Stage
from ws.workspace import Workspace

TEXT = "some words\n" * 400
MODES = {"local": "SWE-ReX local runtime, on the host", "server": "SWE-ReX through its server"}


def commands(stage: Stage, box: Workspace, engine: str) -> Iterator[Entry]:
    yield from _beside(stage, "exec", engine, {"command": ("Workspace.exec(true)", lambda: box.exec(["true"]), ())})


def files(stage: Stage, box: Workspace, engine: str) -> Iterator[Entry]:
    box.fs.write("beside.txt", TEXT)
    with stage.scratch("swerex") as place:
        there = place / "beside.txt"
        there.write_text(TEXT)
        operations = {
            "read": ("fs.read, 4 KB,", lambda: box.fs.read("beside.txt"), (str(there),)),
            "write": ("fs.write, 4 KB,", lambda: box.fs.write("beside.txt", TEXT), (str(there),)),
        }
        yield from _beside(stage, "tools", engine, operations)


def _beside(
    stage: Stage, group: str, engine: str, operations: Mapping[str, tuple[str, Callable[[], object], tuple[str, ...]]]
) -> Iterator[Entry]:
    peer = stage.swerex()
    if peer is None:
        return
    for operation, (name, ours, arguments) in operations.items():
        taken = side_by_side(
            {
                "ours": ours,
                **{mode: lambda mode=mode: peer(mode, operation, *arguments) for mode in MODES},  # noqa: B023
            },
            rounds=stage.rounds(40, 10),
            warmup=3,
        )
        for mode, title in MODES.items():
            yield compare(group, f"{name} on {engine}, beside SWE-ReX {mode}", taken["ours"], title, taken[mode])
