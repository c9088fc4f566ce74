"""The curves: what keeping, bringing back and branching cost as the tree grows, with the same 100 files changed.

All lines of one size are measured in turns. Ours is on the first engine that is here; `docker commit` on docker."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.changes import CHANGE, changed
from bench.measure import Entry, Point, compare, interleaved, run
from bench.peers import CopyPeer, DockerCommitPeer, GitPeer, TarPeer, docker_commit
from bench.stage import Stage
from ws.manager import Manager
from ws.workspace import Workspace

SNAPSHOT, RESTORE, BRANCH = "snapshot-by-tree", "restore-by-tree", "fork-by-tree"


def measure(stage: Stage) -> Iterator[Entry]:
    if not stage.managers:
        return
    for files in (200, 1_000) if stage.quick else (500, 5_000, 50_000):
        yield from _one_size(stage, stage.managers[0], files)


def _one_size(stage: Stage, manager: Manager, files: int) -> Iterator[Entry]:
    tree = stage.tree(files)
    rounds = stage.rounds(3 if files > 10_000 else 5, 2)
    with contextlib.ExitStack() as stack:
        place = stack.enter_context(stage.scratch(f"scaling-{files}"))
        box = stack.enter_context(manager.create(tree, remove_on_exit=True))
        docker = None
        if any(each.engine().name == "docker" for each in stage.managers):
            docker = stack.enter_context(docker_commit(tree, str(files)))
        git = stage.git(files)
        copy = CopyPeer(_copied(tree, place / "cp"), place)
        tar = TarPeer(_copied(tree, place / "tar"), place)
        box.snapshot()
        trees = [copy.tree, tar.tree]

        def change(number: int) -> None:
            _change_all(box, git, trees, docker, f"{number}")
            copy.tidy()

        keeping: dict[str, Callable[[], object]] = {"ws snapshot": box.snapshot, "git add + commit": git.commit}
        keeping |= {"cp -a --reflink=auto": copy.keep, "tar -c": tar.keep}
        back: dict[str, Callable[[], object]] = {"ws restore": box.restore, "git reset + clean": git.restore}
        back |= {"rm + cp -a": copy.restore, "rm + tar -x": tar.restore}
        if docker:
            keeping["docker commit"] = docker.keep
            back["docker rm + run"] = docker.restore
        yield from _points(SNAPSHOT, files, keeping, change, rounds)
        yield from _points(RESTORE, files, back, change, rounds)
        yield from _branches(manager, box, tree, place, files, rounds)


def _copied(tree: Path, to: Path) -> Path:
    shutil.copytree(tree, to)
    return to


def _change_all(box: Workspace, git: GitPeer, trees: list[Path], docker: DockerCommitPeer | None, salt: str) -> None:
    for tree in trees:
        run("python3", "-c", CHANGE, str(tree), "100", salt)
    if docker:
        docker.change(CHANGE, "100", salt)
    changed(box, git, 100, salt)


def _branches(manager: Manager, box: Workspace, tree: Path, place: Path, files: int, rounds: int) -> Iterator[Entry]:
    kept = box.snapshot()
    made: list[str] = []

    def fork() -> None:
        with box.fork(kept) as other:
            made.append(other.id)

    def create() -> None:
        with manager.create(tree) as other:
            made.append(other.id)

    def tidy(_: int) -> None:
        while made:
            manager.remove(made.pop())
        shutil.rmtree(place / "branch", ignore_errors=True)

    def warm() -> None:
        with box.fork(kept) as other:
            assert other.info().warm
            made.append(other.id)

    def prepare(_: int) -> None:
        tidy(0)
        manager.fill_pool(1)

    actions: dict[str, Callable[[], object]] = {
        "ws fork, from the pool": warm,  # first: it takes the one that waits
        "ws fork, cold": fork,
        "ws create, cold": create,
        "cp -a --reflink=auto": lambda: run("cp", "-a", "--reflink=auto", str(tree), str(place / "branch")),
    }
    yield from _points(BRANCH, files, actions, prepare, rounds)
    tidy(0)


def _points(
    plot: str, files: int, actions: dict[str, Callable[[], object]], prepare: Callable[[int], None], rounds: int
) -> Iterator[Entry]:
    taken = interleaved(actions, prepare, rounds=rounds, sync=True)
    for line, timing in taken.items():
        yield Point.of(plot, line, files, timing, ours=line.startswith("ws "))
    ours = next(iter(taken))
    for line, timing in taken.items():
        if not line.startswith("ws ") and not line.startswith("git "):  # git has figures of its own
            yield compare("scaling", f"{ours}, {files} files", taken[ours], line, timing)
