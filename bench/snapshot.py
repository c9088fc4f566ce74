"""Snapshots against git with an external git dir, on the same real tree with the same changes."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Iterator

from bench.changes import MAKE, bytes_on_disk, changed, changed_files, held, same_files, store_bytes
from bench.measure import Entry, Point, Timing, compare, interleaved, run, side_by_side, under
from bench.peers import GitPeer, Least
from bench.stage import Stage
from ws.manager import Manager
from ws.workspace import Workspace

GIT = "git add -A -f && commit"
FREEZES = 3


def measure(stage: Stage) -> Iterator[Entry]:
    rounds = stage.rounds(15, 4)
    peer = stage.git(stage.files)
    note = f"{stage.files} real files, {bytes_on_disk(stage.tree(stage.files)) / 2**20:.0f} MiB"
    for manager in stage.few:
        engine = manager.engine().name
        with manager.create(stage.tree(stage.files), remove_on_exit=True) as box:
            peer.restore()
            yield from _changes(manager, box, peer, engine, rounds, note)
            yield from _frozen(box, peer, engine, rounds)
            yield from _flat(stage, manager, box, engine, rounds)
            yield from _installs(box, peer, engine, stage.rounds(10_000, 2_000), stage.rounds(4, 1))
        yield from _growth(stage, manager, engine, stage.rounds(1000, 30))


def _changes(manager: Manager, box: Workspace, peer: GitPeer, engine: str, rounds: int, note: str) -> Iterator[Entry]:
    actions = {"ours": box.snapshot, "peer": peer.commit}
    least = Least(manager.home, box)
    hundred = interleaved(
        {**actions, "least": least.keep}, lambda n: changed(box, peer, 100, f"a{n}"), rounds=rounds, sync=True
    )
    least.tidy()
    yield compare(
        "snapshot",
        f"100 changed files on {engine}",
        hundred["ours"],
        GIT,
        hundred["peer"],
        want="faster",
        factor=40,
        note=note,
    )
    yield compare(
        "snapshot",
        f"100 changed files, beside the least, on {engine}",
        hundred["ours"],
        "read, hash twice, write, sync the same bytes",
        hundred["least"],
    )
    nothing = side_by_side(actions, rounds=rounds, sync=True)
    yield compare(
        "snapshot",
        f"nothing changed on {engine}",
        nothing["ours"],
        GIT,
        nothing["peer"],
        want="faster",
        factor=100,
        note=note,
    )


def _flat(stage: Stage, manager: Manager, box: Workspace, engine: str, rounds: int) -> Iterator[Entry]:
    tree = stage.tree(stage.files // 10)
    files = same_files(tree, 100)
    with manager.create(tree, remove_on_exit=True) as little:
        little.snapshot()

        def prepare(number: int) -> None:
            changed_files(box, files, f"flat{number}")
            changed_files(little, files, f"flat{number}")
            os.sync()  # else the first would write out what is the other's

        taken = interleaved({"big": box.snapshot, "small": little.snapshot}, prepare, rounds=rounds, sync=True)
    yield compare(
        "snapshot",
        f"flat: tree ten times larger on {engine}",
        taken["big"],
        "a tenth of it",
        taken["small"],
        want="at_most",
        factor=1.5,
    )


GAP = """
import os, signal, time
worst, last = 0.0, time.perf_counter()
def again(*_):
    global worst, last
    worst, last = 0.0, time.perf_counter()
signal.signal(signal.SIGUSR1, again)
end = last + 60
while last < end:
    now = time.perf_counter()
    if now - last > worst:
        worst = now - last
        with open('/tmp/gap.new', 'w') as file: file.write(str(worst))
        os.replace('/tmp/gap.new', '/tmp/gap')
        now = time.perf_counter()
    last = now
"""


def _frozen(box: Workspace, peer: GitPeer, engine: str, rounds: int) -> Iterator[Entry]:
    box.snapshot()
    peer.commit()
    with held(box):
        taken = interleaved(
            {"ours": box.snapshot, "peer": peer.commit},
            lambda n: changed(box, peer, 100, f"held{n}"),
            rounds=rounds,
            sync=True,
        )
        gaps = []
        for number in range(FREEZES):
            changed(box, None, 1000, f"gap{number}")
            watcher = threading.Thread(target=lambda: box.exec(["python3", "-c", GAP]))
            watcher.start()
            time.sleep(1.0)
            box.exec(["pkill", "-USR1", "python3"])  # only what comes from here on counts
            box.snapshot()
            time.sleep(0.2)
            gaps.append(float(box.exec(["cat", "/tmp/gap"]).stdout) * 1000)
            box.exec(["pkill", "python3"])
            watcher.join()
    gap = sorted(gaps)[FREEZES // 2]
    yield compare(
        "snapshot",
        f"frozen scan, 100 changed on {engine}",
        taken["ours"],
        GIT,
        taken["peer"],
        want="faster",
        factor=10,
    )
    yield under(
        "snapshot",
        f"freeze for 1,000 changed files on {engine}",
        gap,
        50,
        "ms",
        note="the longest pause that a process saw",
    )


def _installs(box: Workspace, peer: GitPeer, engine: str, files: int, rounds: int) -> Iterator[Entry]:
    box.snapshot("before", tag=f"before-install-{engine}")
    peer.commit()

    def prepare(number: int) -> None:
        box.restore(f"before-install-{engine}")
        shutil.rmtree(peer.tree / "node_modules", ignore_errors=True)
        peer.commit()
        changed(box, peer, files, f"{engine}-{number}", MAKE)  # contents that neither has stored before

    taken = interleaved({"ours": box.snapshot, "peer": peer.commit}, prepare, rounds=rounds, sync=True)
    shutil.rmtree(peer.tree / "node_modules")
    peer.commit()
    name = f"{files:,} new files on {engine}"
    yield compare("snapshot", name, taken["ours"], GIT, taken["peer"], want="faster", factor=4)


def _growth(stage: Stage, manager: Manager, engine: str, number: int) -> Iterator[Entry]:
    """Many snapshots with one changed file of 1 KB each: what they add, and whether the last ones are as quick."""
    files = stage.files // 10
    peer = stage.git(files)
    peer.restore()
    peer.gc()
    ours: list[float] = []
    theirs: list[float] = []
    with manager.create(stage.tree(files), remove_on_exit=True) as box:
        box.snapshot()
        manager.gc()
        before, peer_before = store_bytes(manager), bytes_on_disk(peer.git_dir)
        for turn in range(number):
            name = f"notes-{turn % 20}.txt"
            run("sh", "-c", f"head -c 768 /dev/urandom | base64 -w0 > {name}", cwd=peer.tree)
            os.sync()  # what is the peer's is not on our account
            box.exec(["sh", "-c", f"head -c 768 /dev/urandom | base64 -w0 > {name}"])
            for taken, action in ((ours, box.snapshot), (theirs, peer.commit)):
                begin = time.perf_counter()
                action()
                taken.append(time.perf_counter() - begin)
        manager.gc()
        peer.gc()
        grown = (store_bytes(manager) - before) / 2**20
        peer_grown = (bytes_on_disk(peer.git_dir) - peer_before) / 2**20
    for count in (value for value in (1, 10, 30, 100, 300, 1000) if value <= number):
        window = slice(max(0, count - max(10, count // 4)), max(3, count))
        yield Point.of("snapshots", f"ws snapshot, {engine}", count, Timing.of(ours[window]), ours=True)
        yield Point.of("snapshots", "git add + commit", count, Timing.of(theirs[window]))
    early, late = Timing.of(ours[5:15]), Timing.of(ours[-10:])
    drift = Timing.of(theirs[-10:]).p50 / Timing.of(theirs[5:15]).p50
    yield compare(
        "snapshot",
        f"the {number}th against the 10th on {engine}",
        late,
        "the 10th",
        early,
        want="at_most",
        factor=1.5,
        note=f"git add + commit, in the same turns: {drift:.2f}×",
    )
    yield under(
        "snapshot",
        f"growth by {number} snapshots of 1 KB on {engine}",
        grown,
        4,
        "MiB",
        peer="git, after git gc",
        peer_value=peer_grown,
        note="the store after ws gc",
    )
