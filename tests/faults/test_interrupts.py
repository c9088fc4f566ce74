"""Ctrl-C, SIGTERM or a closed terminal in the middle of a command: it ends with its status and in one line, and what it
was at has happened or has not (HARDENING H14).

Unlike SIGKILL a signal is answered by the process itself, which undoes what it began; what falls between a step and its
note of it is for the next command, as after a crash.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from injection import DURABLE, MOUNTING, SIGNALS, Outcome, Point, run_injected, spread, trace_points

from lived_in import change, check_store, is_thawed, leftovers, outside, remove_all, shell
from ws.engine.base import Engine
from ws.manager import Manager
from ws.merging import plan_merge
from ws.workspace import Workspace

pytestmark = pytest.mark.rootless

CLI = """
import os, sys
os.environ["WS_HOME"], os.environ["WS_ENGINE"] = sys.argv[1:3]
from ws.cli.main import main
main(sys.argv[3:])
"""


@pytest.fixture(scope="module")
def manager(engine: Engine, default_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    with Manager(home=str(tmp_path_factory.mktemp("home")), engine=engine.name) as opened:
        yield opened
        remove_all(opened)
        assert leftovers(opened.home) == []


@pytest.fixture(scope="module")
def box(manager: Manager) -> Iterator[Workspace]:
    with manager.create(name="victim") as made:
        change(made, "grow", 1, 15)
        made.snapshot("good", tag="good")
        yield made


def interrupted(manager: Manager, *words: str, again: Callable[[], object], about: int = 6) -> Iterator[Outcome]:
    """The command, with a signal at some of the steps that it makes: each kind of signal in turn.

    `again` makes it possible once more, after it was carried out or not.
    """
    arguments = [manager.home.root, manager.engine().name, *words]
    start = trace_points(CLI, [*arguments[:2], "ls"], calls=f"{DURABLE},{MOUNTING}")
    points = trace_points(CLI, arguments, calls=f"{DURABLE},{MOUNTING}", skip=start)
    assert points
    if manager.engine().name != "podman":
        about = 2
    for number, point in enumerate(spread(points, about)):
        again()
        yield _interrupt(arguments, point, list(SIGNALS)[number % 3])
    again()


def _interrupt(arguments: list[str], point: Point, name: str) -> Outcome:
    outcome = run_injected(CLI, arguments, point=point, fault=f"signal={name}")
    where = f"{name} at {point}"
    assert "Traceback" not in outcome.stderr, where
    assert outcome.status in (0, 128 + SIGNALS[name]), f"{where}: {outcome.status}: {outcome.stderr}"
    if outcome.status == 128 + signal.SIGINT:
        assert outcome.stderr.endswith("error: interrupted\n"), where
    return outcome


def check_whole(manager: Manager, box: Workspace, where: str) -> None:
    """The next command finds everything right, or puts it right."""
    with Manager(home=manager.home.root, engine=manager.engine().name):
        pass
    assert leftovers(manager.home) == [], where
    assert is_thawed(box), where
    assert shell(box, "echo runs") == "runs\n", where


def remove_made(manager: Manager) -> None:
    for info in manager.list():
        if info.name == "made":
            manager.remove(info.id)


def test_a_create_is_whole_or_gone(manager: Manager, box: Workspace, tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{number}").write_text(f"{number}\n")
    words = ("create", str(tmp_path), "--name", "made")
    for outcome in interrupted(manager, *words, again=lambda: remove_made(manager), about=5):
        check_whole(manager, box, str(outcome))
        names = {info.name for info in manager.list()}
        assert {"victim"} <= names <= {"victim", "made"}, outcome
        assert len(manager.engine().list(manager.home.root)) == len(names), outcome
        if "made" in names:
            with manager.open("made") as made:
                assert made.exec(["cat", "7"]).stdout == "7\n"
        else:
            assert outcome.status != 0, outcome


@pytest.mark.parametrize("merging", [False, True], ids=["plain", "merging"])
def test_a_snapshot_is_taken_or_not_and_the_workspace_is_as_it_was(
    manager: Manager, box: Workspace, merging: bool
) -> None:
    def change_something() -> None:
        nonlocal before, count
        shell(box, "echo more >> new")
        while bool(plan_merge(box.record().layers)) != merging:
            box.snapshot()
            shell(box, "echo more >> new")
        before, count = outside(box), len(box.snapshots())

    before, count = outside(box), 0
    change_something()
    for outcome in interrupted(manager, "snapshot", "victim", again=change_something):
        check_whole(manager, box, str(outcome))
        assert outside(box) == before, outcome
        assert len(box.snapshots()) - count in ((1,) if outcome.status == 0 else (0, 1)), outcome
    check_store(manager.home)


def test_a_restore_happened_or_did_not(manager: Manager, box: Workspace) -> None:
    box.restore("good")
    good = outside(box)
    damage = "echo broken > new; mkdir -p d; echo x > d/x"
    shell(box, damage)
    for outcome in interrupted(manager, "restore", "victim", "good", again=lambda: shell(box, damage)):
        check_whole(manager, box, str(outcome))
        if outside(box) != good:
            assert outcome.status != 0, outcome
            assert shell(box, "cat new d/x") == "broken\nx\n", outcome
    check_store(manager.home)


def test_a_fork_is_whole_or_gone(manager: Manager, box: Workspace) -> None:
    box.restore("good")
    check_newcomers(manager, box, "fork", "victim", "--at", "good", "--name", "made")


def test_a_bundle_arrives_whole_or_not_at_all(manager: Manager, box: Workspace, tmp_path: Path) -> None:
    box.restore("good")
    bundle = str(tmp_path / "bundle")
    words = [manager.home.root, manager.engine().name, "export", "victim", "--bundle", bundle]
    subprocess.run([sys.executable, "-c", CLI, *words], check=True)
    check_newcomers(manager, box, "import", bundle, "--name", "made")
    check_store(manager.home)


def check_newcomers(manager: Manager, box: Workspace, *words: str) -> None:
    """Whatever becomes of a command that makes a second workspace of the first: it is the same, or is not there."""
    good = outside(box)
    for outcome in interrupted(manager, *words, again=lambda: remove_made(manager), about=5):
        check_whole(manager, box, str(outcome))
        names = {info.name for info in manager.list()}
        assert {"victim"} <= names <= {"victim", "made"}, outcome
        assert len(manager.engine().list(manager.home.root)) == len(names), outcome
        if "made" in names:
            with manager.open("made") as made:
                assert outside(made) == good, outcome
        else:
            assert outcome.status != 0, outcome
