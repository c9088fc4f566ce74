"""Files and tools: the shim against the engine's own exec in the same container, and against ripgrep run there by hand.

Calls through Python take less than a millisecond, those through an engine fifty and more, and leave work behind when
they return: conmon and `podman container cleanup` go on for another 40 to 170 ms. So that ours are not measured beside
what is still the peer's, nor with the caches that it left, a round is one call of the peer, a pause, and ten of ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.beside_swerex import files
from bench.measure import Entry, Figure, Timing, compare, run, side_by_side, under
from bench.stage import Stage, engine_cli
from ws.manager import Manager
from ws.shim.place import RG, RG_STATIC, rg_command
from ws.workspace import Workspace

BURST = 10
PAUSE_S = 0.25
GIB = 1 << 30
RARE = "raise ZeroDivisionError"  # every file is read, and the output is no part of the figure
TEXT = "".join(f"line {number:04}: some words to fill it up\n" for number in range(105))  # 4 KB


def measure(stage: Stage) -> Iterator[Entry]:
    quick = stage.quick
    for manager in stage.few:
        with manager.create(remove_on_exit=True) as box:
            yield from _calls(manager, box, rounds=6 if quick else 30)
            yield from files(stage, box, manager.engine().name)
            yield from _streams(manager, box, size=GIB // 8 if quick else GIB, rounds=2 if quick else 3)
            yield _from_the_shell(manager, box, rounds=6 if quick else 30)
            yield _threads(manager, box, seconds=1.0 if quick else 3.0)
        yield from _searches(stage, manager, rounds=5 if quick else 9)


def in_bursts(ours: Callable[[], object], peer: Callable[[], object], *, rounds: int) -> tuple[Timing, Timing]:
    """One of the peer, a pause, then ten of ours, in turns."""
    taken: dict[str, list[float]] = {"ours": [], "peer": []}
    for _ in range(rounds + 1):
        for name, action, times in (("peer", peer, 1), ("ours", ours, BURST)):
            for _ in range(times):
                begin = time.perf_counter()
                action()
                taken[name].append(time.perf_counter() - begin)
            if name == "peer":
                time.sleep(PAUSE_S)
    return Timing.of(taken["ours"][BURST:]), Timing.of(taken["peer"][1:])  # the first round is the warm-up


def _exec(manager: Manager, box: Workspace, *command: str) -> list[str]:
    container = box.record().container
    assert container is not None
    return [*engine_cli(manager.engine()), "exec", container.id, *command]


def _calls(manager: Manager, box: Workspace, *, rounds: int) -> list[Figure]:
    engine = manager.engine().name
    for name in ("ours.txt", "peer.txt"):
        box.fs.write(name, TEXT)
    cat = _exec(manager, box, "cat", "/workspace/peer.txt")
    reading, peer = in_bursts(lambda: box.tools.call("read_file", path="ours.txt"), lambda: run(*cat), rounds=rounds)
    figures = [
        compare(
            "tools", f"read_file, 4 KB, on {engine}", reading, f"{engine} exec cat", peer, want="faster", factor=100
        ),
        under("tools", f"read_file, 4 KB, on {engine}", reading.p50, 1, "ms", p99=reading.p99),
    ]
    words = ["some words", "same words"]

    def replace_text() -> None:
        words.reverse()
        box.tools.call(
            "str_replace", path="ours.txt", old_str=f"line 0050: {words[1]}", new_str=f"line 0050: {words[0]}"
        )

    sed = _exec(manager, box, "sed", "-i", "s/line 0050/line 0050/", "/workspace/peer.txt")
    editing, peer = in_bursts(replace_text, lambda: run(*sed), rounds=rounds)
    figures.append(
        compare(
            "tools",
            f"str_replace, 4 KB, on {engine}",
            editing,
            f"{engine} exec sed -i",
            peer,
            want="faster",
            factor=100,
            note="ours with backup, diff and log",
        )
    )
    return figures


def _streams(manager: Manager, box: Workspace, *, size: int, rounds: int) -> list[Figure]:
    engine = manager.engine().name
    made = box.exec(["sh", "-c", f"head -c {size} /dev/urandom > ours; cp ours peer; sync ours peer"])
    assert made.exit_code == 0, made.stderr
    cat = _exec(manager, box, "cat", "/workspace/peer")
    put = [*engine_cli(manager.engine()), "exec", "-i", cat[-3], "sh", "-c", "cat > /workspace/peer-in"]

    def read_ours() -> None:
        with box.fs.open_read("ours") as reader:
            assert sum(map(len, reader)) == size

    def read_peer() -> None:
        with subprocess.Popen(cat, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert sum(map(len, iter(lambda: process.stdout.read(65_536), b""))) == size

    block = os.urandom(1 << 20)

    def write_ours() -> None:
        with box.fs.open_write("ours-in") as writer:
            for _ in range(size >> 20):
                writer.write(block)

    def write_peer() -> None:
        with subprocess.Popen(put, stdin=subprocess.PIPE) as process:
            assert process.stdin is not None
            for _ in range(size >> 20):
                process.stdin.write(block)

    figures = []
    for what, ours, peer in (("read", read_ours, read_peer), ("write", write_ours, write_peer)):
        taken = side_by_side({"ours": ours, "peer": peer}, rounds=rounds, warmup=1)
        note = f"{size / taken['ours'].p50 / 1e3:.0f} MB/s against {size / taken['peer'].p50 / 1e3:.0f} MB/s"
        figures.append(
            compare(
                "tools",
                f"stream {what}, {size >> 20} MiB, on {engine}",
                taken["ours"],
                f"{engine} exec cat",
                taken["peer"],
                want="at_most",
                factor=2,
                note=note,
            )
        )
    box.exec(["sh", "-c", "rm -f ours peer ours-in peer-in"])
    return figures


def _searches(stage: Stage, manager: Manager, *, rounds: int) -> list[Figure]:
    engine = manager.engine().name
    with manager.create(stage.tree(stage.files), remove_on_exit=True) as box:
        rg = _ripgrep_inside(manager)
        grep = ["-n", "--no-heading", "--hidden", "--no-ignore", RARE, "."]
        globbed = ["--files", "--hidden", "--no-ignore", "-g", "**/*.py", "."]
        figures = []
        for name, call, peer, factor in (
            ("grep", lambda: box.tools.call("grep", pattern=RARE), grep, 1.3),
            ("glob **/*.py", lambda: box.tools.call("glob", pattern="**/*.py"), globbed, 1.5),
        ):
            taken = side_by_side(
                {"ours": call, "peer": lambda peer=peer: box.exec([*rg, *peer], max_output_bytes=GIB)},
                rounds=rounds,
                warmup=2,
            )
            figures.append(
                compare(
                    "tools",
                    f"{name}, {stage.files} files, on {engine}",
                    taken["ours"],
                    "rg by hand, in the container",
                    taken["peer"],
                    want="at_most",
                    factor=factor,
                    note="the peer through Workspace.exec",
                )
            )
        return figures


def _ripgrep_inside(manager: Manager) -> tuple[str, ...]:
    """The command that starts the ripgrep of the runtime, as seen in the container."""
    from ws.engine import RUNTIME
    from ws.remote.runtime import ensure_runtime

    here = ensure_runtime(manager.home).path
    if not any(os.path.exists(f"{here}/{name}") for name in (RG, RG_STATIC)):
        raise RuntimeError("install ripgrep")
    command = rg_command(here)
    assert command is not None
    return tuple(word.replace(here, RUNTIME) for word in command)


def _from_the_shell(manager: Manager, box: Workspace, *, rounds: int) -> Figure:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    environment["WS_HOME"] = manager.home.root
    ws = str(Path(sys.executable).with_name("ws"))
    box.fs.write("ours.txt", TEXT)
    arguments = json.dumps({"path": "ours.txt"})
    taken = side_by_side(
        {
            "ours": lambda: run(ws, "tool", box.name, "read_file", arguments, env=environment),
            "peer": lambda: run(sys.executable, "-c", "pass", env=environment),
        },
        rounds=rounds,
        warmup=3,
    )
    return compare(
        "tools",
        f"ws tool NAME read_file on {manager.engine().name}",
        taken["ours"],
        "python3 -c pass",
        taken["peer"],
        want="at_most",
        factor=6,
    )


def _threads(manager: Manager, box: Workspace, *, seconds: float) -> Figure:
    """Calls a second of one thread and of sixteen."""
    for number in range(16):
        box.fs.write(f"t{number}", TEXT)

    def throughput(threads: int) -> float:
        counts = [0] * threads
        failures: list[BaseException] = []
        end = time.perf_counter() + seconds

        def work(number: int) -> None:
            try:
                while time.perf_counter() < end:
                    box.tools.call("read_file", path=f"t{number}")
                    counts[number] += 1
            except BaseException as error:  # noqa: BLE001 - a failure of the bench, raised below
                failures.append(error)

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        if failures:
            raise failures[0]
        return sum(counts) / seconds

    throughput(16)
    one, many = throughput(1), throughput(16)
    return Figure(
        group="tools",
        name=f"16 threads calling read_file on {manager.engine().name}",
        ours=many,
        unit="calls/s",
        target="≥ 1 thread",
        met=many >= one,
        peer="1 thread",
        peer_value=one,
        ratio=many / one,
    )
