"""The law: a signal in the middle of long work is answered at once, in words, and what was begun is undone in a second.

The signal goes to the whole process group, as a terminal sends Ctrl-C, when the work is seen to be under way: its pack
or its staging directory grows, or it has read much. A command that ends before that fails the test.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cli_stage import Stage, warm_home
from lived_in import distrust, is_thawed, kill_container, leftovers, remove_all, shell
from ws.engine.base import Engine
from ws.manager import Manager
from ws.workspace import Workspace

BACK_S = 1.0
STARTS = 10  # of `ws --version`: what a second is on a machine that does other things too
DIRECTORIES, FILES = 100, 400
SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
UNDER_WAY_BYTES = 8 << 20


@dataclass(frozen=True)
class Large:
    """A WS_HOME with two workspaces: `many` has 40,000 new files, `big` one of 300 MB."""

    stage: Stage
    manager: Manager
    many: Workspace
    big: Workspace


@pytest.fixture(scope="session")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("small")
    for directory in range(DIRECTORIES):
        (top / f"{directory}").mkdir()
        parent = os.open(top / f"{directory}", os.O_RDONLY)
        for number in range(FILES):
            fd = os.open(f"{number}", os.O_CREAT | os.O_WRONLY, 0o644, dir_fd=parent)
            os.write(fd, b"%d %d\n" % (directory, number) + os.urandom(600))  # what does not get smaller in the pack
            os.close(fd)
        os.close(parent)
    return top


@pytest.fixture(scope="module")
def large(
    engine: Engine,
    default_image: str,
    session_home: str,
    small_files: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Large]:
    home = warm_home(tmp_path_factory.mktemp("long") / "home", session_home)
    with (
        Manager(home=str(home), engine=engine.name) as manager,
        manager.create(name="many") as many,
        manager.create(name="big") as big,
    ):
        fill_upper(manager, many, small_files)
        shell(big, "head -c 300M /dev/urandom > big")
        yield Large(Stage(home, engine.name), manager, many, big)
        remove_all(manager)
        assert manager.engine().list(manager.home.root) == []


def fill_upper(manager: Manager, box: Workspace, small_files: Path) -> None:
    """Put many files into the upper while nothing has it mounted, by hard link: to write them takes half a minute."""
    kill_container(box)
    data = os.path.join(manager.home.layer(box.record().upper), "data")
    subprocess.run(["cp", "-al", *small_files.iterdir(), data], check=True)
    box.start()
    assert shell(box, "cat 7/8 | head -n 1") == "7 8\n"


def has_read(size_bytes: int) -> Callable[[int], bool]:
    """Whether a process has read so much: no command does before it is at work."""

    def look(pid: int) -> bool:
        try:
            return int(Path(f"/proc/{pid}/io").read_text().split()[1]) > size_bytes
        except OSError:
            return False

    return look


def packs(stage: Stage) -> list[Path]:
    return list((stage.home / "store" / "objects" / "pack").glob("tmp_*"))


def writes_a_pack(stage: Stage) -> Callable[[int], bool]:
    return lambda _: any(path.stat().st_size > 1 << 20 for path in packs(stage) if path.exists())


def stages(stage: Stage, what: Callable[[Path], bool]) -> Callable[[int], bool]:
    """Whether something under `staging/` is so far."""

    def look(_: int) -> bool:
        try:
            return any(what(path) for path in (stage.home / "staging").iterdir())
        except OSError:
            return False  # gone while it was looked at

    return look


def stages_bytes(stage: Stage) -> Callable[[int], bool]:
    return stages(stage, lambda path: any(f.stat().st_size > UNDER_WAY_BYTES for f in path.rglob("*") if f.is_file()))


@dataclass(frozen=True)
class Answer:
    status: int
    stdout: str
    stderr: str
    back_s: float


def interrupt(stage: Stage, number: signal.Signals, under_way: Callable[[int], bool], *words: str) -> Answer:
    """Send a signal to a command that is under way, and check how it ends."""
    process = stage.start(
        *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 60
    while process.poll() is None and not under_way(process.pid) and time.monotonic() < deadline:
        time.sleep(0.001)
    begun = time.monotonic()
    running = process.poll() is None
    if running:
        os.killpg(process.pid, number)
    out, err = process.communicate(timeout=60)
    answer = Answer(process.returncode, out.decode(), err.decode(), time.monotonic() - begun)
    assert running, f"{words} ended before it was interrupted: {answer}"
    assert answer.status == 128 + number, answer
    assert answer.stdout == "", answer
    assert answer.stderr.startswith("stopping…\n"), answer
    assert "Traceback" not in answer.stderr, answer
    assert "Exception ignored" not in answer.stderr, answer
    assert answer.back_s < max(BACK_S, STARTS * start_s()), answer
    return answer


def start_s() -> float:
    """How long a command that does nothing takes, at this moment."""
    begun = time.monotonic()
    subprocess.run([sys.executable, "-m", "ws", "--version"], check=True, capture_output=True)
    return time.monotonic() - begun


def wait_for_removal(stage: Stage) -> None:
    """A process in the background removes what was staged."""
    deadline = time.monotonic() + 60
    while os.listdir(stage.home / "staging") and time.monotonic() < deadline:
        time.sleep(0.01)


def check_whole(large: Large, box: Workspace) -> None:
    """Nothing is left behind; no command runs between the interrupted one and this, and nothing is recovered."""
    wait_for_removal(large.stage)
    assert leftovers(large.manager.home) == []
    assert packs(large.stage) == []
    assert len(large.manager.engine().list(large.manager.home.root)) == len(large.manager.list()) == 2
    assert is_thawed(box)
    assert shell(box, "echo runs") == "runs\n"


@pytest.mark.parametrize("number", SIGNALS, ids=lambda each: each.name)
@pytest.mark.parametrize("name", ["many", "big"])
def test_a_snapshot_keeps_nothing(large: Large, name: str, number: signal.Signals) -> None:
    box: Workspace = getattr(large, name)
    answer = interrupt(large.stage, number, writes_a_pack(large.stage), "snapshot", name)
    assert "nothing was kept\n" in answer.stderr
    assert box.snapshots() == []
    check_whole(large, box)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda each: each.name)
def test_a_create_keeps_nothing(large: Large, number: signal.Signals, tmp_path: Path) -> None:
    for directory in range(60):
        (tmp_path / f"{directory}").mkdir()
        for each in range(400):
            (tmp_path / f"{directory}" / f"{each}").write_text(f"{number} {directory} {each}")
    far = stages(large.stage, lambda path: len(list((path / "0" / "data").iterdir())) > 30)
    answer = interrupt(large.stage, number, far, "create", str(tmp_path), "--name", "made")
    assert "nothing was kept\n" in answer.stderr
    check_whole(large, large.many)


@pytest.fixture(scope="module")
def kept(large: Large, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot of the large file, and the bundle of it."""
    large.big.snapshot("kept", tag="kept")
    bundle = tmp_path_factory.mktemp("bundles") / "whole"
    large.big.export_bundle(str(bundle))
    return bundle


def test_an_export_writes_nothing(large: Large, kept: Path, tmp_path: Path) -> None:
    for number, (option, target) in zip(SIGNALS, [("--bundle", "b"), ("--dir", "d"), ("--bundle", "c")], strict=True):
        target = str(tmp_path / target)
        answer = interrupt(large.stage, number, has_read(120 << 20), "export", "big", option, target)
        assert "nothing was written\n" in answer.stderr
        deadline = time.monotonic() + 30
        while os.listdir(tmp_path) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert os.listdir(tmp_path) == []
        check_whole(large, large.big)


def test_an_import_keeps_nothing(large: Large, kept: Path) -> None:
    for number in SIGNALS:
        words = ("import", str(kept), "--name", "made")
        answer = interrupt(large.stage, number, stages_bytes(large.stage), *words)
        assert "nothing was kept\n" in answer.stderr
        check_whole(large, large.big)


def test_a_restore_leaves_the_workspace_as_it_was(large: Large, kept: Path) -> None:
    shell(large.big, "rm -f big; echo new > file")
    for number in SIGNALS:
        lose_layers(large)
        answer = interrupt(large.stage, number, stages_bytes(large.stage), "restore", "big", "kept")
        assert "nothing was restored; the workspace is as it was\n" in answer.stderr
        assert shell(large.big, "ls") == "file\n"
        check_whole(large, large.big)


def test_a_fork_keeps_nothing(large: Large, kept: Path) -> None:
    for number in SIGNALS:
        lose_layers(large)
        words = ("fork", "big", "--at", "kept", "--name", "made")
        answer = interrupt(large.stage, number, stages_bytes(large.stage), *words)
        assert "nothing was kept\n" in answer.stderr
        check_whole(large, large.big)


def lose_layers(large: Large) -> None:
    """The snapshot has to be rebuilt from git."""
    number = next(each.number for each in large.big.snapshots() if each.tag == "kept")
    distrust(large.manager.home, large.big, number)


def test_a_check_and_a_collection_say_that_they_are_not_done(large: Large, kept: Path) -> None:
    for number in SIGNALS:
        answer = interrupt(large.stage, number, has_read(60 << 20), "verify")
        assert "nothing was changed; not everything was checked\n" in answer.stderr
        answer = interrupt(large.stage, number, has_read(60 << 20), "gc")
        assert "every snapshot is whole\n" in answer.stderr
        check_whole(large, large.big)
    assert large.manager.verify().sound


def test_a_removal_is_finished_by_the_next_command(large: Large) -> None:
    assert len(large.manager.list()) == 2
    answer = interrupt(large.stage, signal.SIGINT, stages(large.stage, lambda _: True), "rm", "many")
    assert "half removed: many; the next ws command removes the rest\n" in answer.stderr
    begun = time.monotonic()
    assert large.stage.names() == ["big"]
    assert time.monotonic() - begun < max(3 * BACK_S, 2 * STARTS * start_s())  # it does not wait for all of them
    wait_for_removal(large.stage)
    assert leftovers(large.manager.home) == []
    assert len(large.stage.containers()) == 1
