"""What an idle workspace costs: the proportional set size of what ws adds to the container, and its disk.

The container's monitor (conmon, containerd-shim) comes with the engine and is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from bench.changes import bytes_on_disk
from bench.measure import Entry, Point, under
from bench.stage import Stage
from ws.manager import Manager
from ws.workspace import Workspace


def proportional_set_size(pid: int) -> float:
    """MiB, from the kernel's own roll-up."""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def measure(stage: Stage) -> Iterator[Entry]:
    swerex = stage.swerex()
    beside = proportional_set_size(swerex.server_pid) if swerex else None
    for manager in stage.few:
        yield from _idle(stage, manager, stage.rounds(20, 8), beside)


def _idle(stage: Stage, manager: Manager, number: int, beside: float | None) -> Iterator[Entry]:
    engine = manager.engine().name
    tree = stage.tree(500)
    boxes: list[Workspace] = []
    manager.create(tree, remove_on_exit=True).__exit__(None, None, None)  # the base is there, and the home's own files
    before = bytes_on_disk(manager.home.root)
    try:
        for count in range(1, number + 1):
            box = manager.create(tree)
            boxes.append(box)
            box.exec(["true"])
            if count == 1:
                for limit in (15, 12):
                    yield under(
                        "memory",
                        f"idle workspace on {engine}, alone",
                        _shim(box),
                        limit,
                        "MiB",
                        peer="SWE-ReX's idle server" if beside is not None else "",
                        peer_value=beside,
                        note="proportional set size, one workspace alive",
                    )
        each = sum(map(_shim, boxes)) / number
        yield under(
            "memory",
            f"idle workspace on {engine}, one of {number}",
            each,
            12,
            "MiB",
            peer="SWE-ReX's idle server" if beside is not None else "",
            peer_value=beside,
        )
        yield Point("many-memory", f"ws on {engine}, each", number, each, "MiB", ours=True)
        grown = (bytes_on_disk(manager.home.root) - before) / number / 1024
        yield under(
            "memory",
            f"disk of an idle workspace on {engine}",
            grown,
            200,
            "KiB",
            peer="cp -a of its 500 files",
            peer_value=bytes_on_disk(tree) / 1024,
            note=f"what {number} of them added to WS_HOME, directories included, over {number}",
        )
    finally:
        for box in boxes:
            box.close()
            manager.remove(box.id)


def _shim(box: Workspace) -> float:
    container = box.record().container
    assert container is not None
    return proportional_set_size(container.pid)
