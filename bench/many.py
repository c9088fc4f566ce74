"""A thousand workspaces of one base alive at once: made, used, snapshotted, restored, listed, removed.

On the way up, at 10, 30, 100, … of them, it is measured what one more costs and what the machine gives for those that
are there; `docs/scale.md` has the curves. By itself: `python -m bench.many 1000 --json FILE`; `scripts/bench --from`
shows that file together with others.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.measure import Entry, Figure, under
from bench.plots import points_of_sample
from bench.stage import Stage, home
from ws.engine.keyrings import max_keyrings
from ws.manager import Manager
from ws.workspace import Workspace

STEPS = (10, 30, 100, 300, 1000, 3000)
FILES = 200  # of the project that all share
_AT_ONCE = 4


@dataclass(frozen=True)
class Sample:
    """The machine with so many workspaces alive."""

    workspaces: int
    create_ms: float  # each, made several at once
    exec_ms: float  # the median of one command in each of some
    snapshot_ms: float
    restore_ms: float
    list_ms: float  # `ws ls` as a process
    shim_mib: float  # proportional set size of a shim, the mean of some
    monitor_mib: float  # of its conmon
    machine_mib: float  # what the machine has less available than with none, for each
    disk_kib: float  # in WS_HOME, for each, beyond the base
    service_descriptors: int  # of podman's service


def climb(manager: Manager, source: Path, count: int, say: Callable[[str], None]) -> list[Sample]:
    """Make workspaces up to a count, and measure at each step."""
    samples: list[Sample] = []
    boxes: list[Workspace] = []
    manager.create(source).remove()  # the base, the runtime and the service are there
    free, used = _available_mib(), _disk_kib(manager)
    for step in [step for step in STEPS if step < count] + [count]:
        begin = time.perf_counter()
        missing = step - len(boxes)
        boxes += manager.create_many(source, count=missing)
        create_ms = (time.perf_counter() - begin) * 1000 / missing
        some = boxes[-min(10, step) :]
        taken = [_work(box) for box in some]
        middle = [sorted(each)[len(each) // 2] * 1000 for each in zip(*taken, strict=True)]
        containers = [box.record().container for box in some]
        shims = [_proportional_mib(each.pid) for each in containers if each]
        monitors = [_proportional_mib(_parent(each.pid)) for each in containers if each]
        samples.append(
            Sample(
                workspaces=step,
                create_ms=create_ms,
                exec_ms=middle[0],
                snapshot_ms=middle[1],
                restore_ms=middle[2],
                list_ms=_list_ms(manager),
                shim_mib=sum(shims) / len(shims),
                monitor_mib=sum(monitors) / len(monitors),
                machine_mib=(free - _available_mib()) / step,
                disk_kib=(_disk_kib(manager) - used) / step,
                service_descriptors=_service_descriptors(),
            )
        )
        say(f"{step}: {samples[-1]}")
    _everyone(boxes, say)
    return samples


def _work(box: Workspace) -> tuple[float, float, float]:
    """A command, a snapshot of what it wrote, damage, and the rescue."""
    box.exec(["true"])
    begin = time.perf_counter()
    box.exec(["sh", "-c", "echo work > work"])
    ran = time.perf_counter()
    kept = box.snapshot("work")
    snapped = time.perf_counter()
    box.exec(["sh", "-c", "rm -rf d0 work"])
    damaged = time.perf_counter()
    box.restore(kept)
    restored = time.perf_counter()
    return ran - begin, snapped - ran, restored - damaged


def _everyone(boxes: list[Workspace], say: Callable[[str], None]) -> None:
    """One command, one snapshot and one restore in each: none may fail."""

    def each(box: Workspace) -> bool:
        _work(box)
        right = box.exec(["sh", "-c", "cat work; ls d0 | wc -l"]).stdout.split() == ["work", str(FILES // 10)]
        box.close()
        return right

    begin = time.perf_counter()
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        wrong = sum(not right for right in threads.map(each, boxes))
    if wrong:
        raise RuntimeError(f"{wrong} workspaces were not restored as they were")
    say(f"a command, a snapshot, damage and a restore in each of {len(boxes)}: {time.perf_counter() - begin:.1f} s")


def remove_all(manager: Manager) -> float:
    """Seconds for each."""
    found = manager.list()
    begin = time.perf_counter()
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        list(threads.map(manager.remove, [info.id for info in found]))
    if left := manager.engine().list(manager.home.root):
        raise RuntimeError(f"{len(left)} containers are left")
    return (time.perf_counter() - begin) / max(1, len(found))


def _list_ms(manager: Manager) -> float:
    taken = []
    for _ in range(5):
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-P", "-m", "ws", "ls"],
            env={**os.environ, "WS_HOME": manager.home.root},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        taken.append((time.perf_counter() - begin) * 1000)
    return sorted(taken)[2]


def _available_mib() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable")) / 1024


def _disk_kib(manager: Manager) -> float:
    done = subprocess.run(
        ["du", "-sk", *(manager.home.at(part) for part in ("workspaces", "layers", "run", "names"))],
        capture_output=True,
        text=True,
        check=False,  # a file may go while it is counted
    )
    return sum(float(line.split()[0]) for line in done.stdout.splitlines())


def _proportional_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _service_descriptors() -> int:
    """Of every podman service that runs here."""
    total = 0
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and b"system\0service" in Path(f"/proc/{name}/cmdline").read_bytes():
                total += len(os.listdir(f"/proc/{name}/fd"))
        except OSError:
            continue
    return total


def make_source(path: Path) -> Path:
    for number in range(FILES):
        place = path / f"d{number % 10}"
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{number}.py").write_text(f"print({number})\n" * 20)
    return path


@contextlib.contextmanager
def enough_keyrings(count: int) -> Iterator[None]:
    """Without it the 200 keys of one user end the climb (`ws.engine.keyrings`); afterwards all is as it was."""
    if max_keyrings() > count:
        yield
        return
    files = {Path("/proc/sys/kernel/keys", name): value for name, value in (("maxkeys", 20000), ("maxbytes", 2000000))}
    before = {file: file.read_text() for file in files}
    for file, value in files.items():
        file.write_text(str(value))
    try:
        yield
    finally:
        for file, text in before.items():
            file.write_text(text)


def run(count: int, say: Callable[[str], None]) -> tuple[list[Sample], float]:
    with enough_keyrings(count), home() as place, Manager(home=str(place / "home"), engine="podman") as manager:
        try:
            samples = climb(manager, make_source(place / "source"), count, say)
        finally:
            each_s = remove_all(manager)
        say(f"removed, {each_s * 1000:.0f} ms each")
    return samples, each_s


def figures_of(samples: Sequence[Sample]) -> list[Figure]:
    last = samples[-1]
    alive = f"with {last.workspaces} alive on podman"
    return [
        under("many", f"`ws ls` {alive}", last.list_ms, 500, "ms"),
        under("many", f"shim {alive}", last.shim_mib, 12, "MiB", note="proportional set size"),
        under("many", f"disk for each {alive}", last.disk_kib, 200, "KiB", note="with one snapshot of one file"),
    ]


def measure(stage: Stage) -> Iterator[Entry]:
    if any(manager.engine().name == "podman" for manager in stage.managers):
        samples, _ = run(stage.rounds(1000, 10), lambda line: print(line, file=sys.stderr))
        yield from figures_of(samples)
        for sample in samples:
            yield from points_of_sample(asdict(sample))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.many", description=__doc__)
    parser.add_argument("count", type=int, nargs="?", default=1000)
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    samples, removing_s = run(arguments.count, lambda line: print(line, flush=True))
    if arguments.json:
        report = {
            "samples": [asdict(sample) for sample in samples],
            "figures": [figure.as_json() for figure in figures_of(samples)],
            "remove_ms": removing_s * 1000,
        }
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
