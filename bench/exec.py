"""Commands: the shim against the engines' own exec, in the same container; and `ws exec` from the shell."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from bench.beside_swerex import commands
from bench.measure import ENGINE_PAUSE_S, Entry, Figure, compare, run, side_by_side, under
from bench.stage import Stage, engine_cli


def measure(stage: Stage) -> Iterator[Entry]:
    rounds = stage.rounds(60, 8)
    for manager in stage.managers:
        engine = manager.engine()
        with manager.create(remove_on_exit=True) as box:
            container = box.record().container
            assert container is not None
            peer = [*engine_cli(engine), "exec", container.id, "true"]
            taken = side_by_side(
                {"ours": lambda box=box: box.exec(["true"]), "peer": lambda peer=peer: run(*peer)},
                rounds=rounds,
                warmup=3,
                pause_s=ENGINE_PAUSE_S,
            )
            yield compare(
                "exec",
                f"Workspace.exec(true) on {engine.name}",
                taken["ours"],
                f"{engine.name} exec",
                taken["peer"],
                want="faster",
                factor=12,
            )
            with box.enter() as inside:
                ping = side_by_side({"ping": inside.calls.ping}, rounds=rounds * 20, warmup=20)["ping"]
            yield under(
                "exec",
                f"shim ping on {engine.name}",
                ping.p50,
                0.3,
                "ms",
                p99=ping.p99,
                peer=f"{engine.name} exec true",
                peer_value=taken["peer"].p50,
                rounds=ping.rounds,
            )
            yield from commands(stage, box, engine.name)
            yield _from_the_shell(manager.home.root, box.name, engine.name, rounds)


def _from_the_shell(home: str, name: str, engine: str, rounds: int) -> Figure:
    # Bytecode as an installed program has it: without .pyc files Python compiles itself on each start.
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["WS_HOME"] = home
    ws = str(Path(sys.executable).with_name("ws"))
    taken = side_by_side(
        {
            "ours": lambda: run(ws, "exec", name, "--", "true", env=environment),
            "peer": lambda: run(sys.executable, "-c", "pass", env=environment),
        },
        rounds=rounds,
        warmup=3,
    )
    return compare(
        "exec",
        f"ws exec NAME -- true on {engine}",
        taken["ours"],
        "python3 -c pass",
        taken["peer"],
        want="at_most",
        factor=6,
    )
