"""The law: a command of another user goes through the engine, and is promised what any command is: output as it comes,
caps, typed errors, nobody in its way, an end with its caller (`test_workspaces` kills one).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from ws import durable, sealing
from ws.engine.base import Engine
from ws.errors import Busy, CommandNotStarted, InvalidRequest
from ws.manager import Manager
from ws.remote.results import ExecResult
from ws.workspace import Workspace


@pytest.fixture(scope="module")
def box(engine: Engine, default_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    with (
        Manager(home=str(tmp_path_factory.mktemp("home")), engine=engine.name) as manager,
        manager.create(name="shared", remove_on_exit=True) as made,
    ):
        yield made


def test_another_user_comes_through_the_engine(box: Workspace) -> None:
    result = box.exec(["sh", "-c", "id -un; pwd; echo err >&2; exit 3"], user="daemon")
    assert (result.exit_code, result.stdout, result.stderr) == (3, "daemon\n/workspace\n", "err\n")


def test_the_output_of_another_user_streams_and_has_the_same_caps(box: Workspace) -> None:
    came: list[tuple[str, bytes]] = []
    line = "echo one >&2; sleep 0.5; head -c 20000000 /dev/zero"
    result = box.exec(["sh", "-c", line], user="4321", on_output=lambda *piece: came.append(piece))
    assert (came[0], result.truncated, result.stdout) == (("stderr", b"one\n"), False, "")
    assert sum(len(data) for _, data in came[1:]) == 20_000_000
    capped = box.exec(["sh", "-c", line], user="4321")
    assert (len(capped.stdout_bytes), capped.truncated) == (16 << 20, True)
    short = box.exec(["echo", "a word"], user="4321", max_output_bytes=3)
    assert (short.stdout, short.truncated) == ("a w", True)


def test_what_keeps_another_users_command_from_starting_is_the_same_error(box: Workspace) -> None:
    with pytest.raises(CommandNotStarted, match="no-such-command"):
        box.exec(["no-such-command"], user="4321")
    with pytest.raises(InvalidRequest, match="no-such-directory"):
        box.exec(["true"], user="4321", workdir="no-such-directory")
    result = box.exec(["sh", "-c", "kill -9 $$"], user="4321")
    assert result.exit_code == 137
    names = {line.partition("=")[0] for line in box.exec(["env"], user="4321").stdout.splitlines()}
    assert names <= {"HOME", "PATH", "LANG", "HOSTNAME", "TERM", "container"}


def test_a_command_of_another_user_is_in_nobodys_way_once_it_runs(box: Workspace) -> None:
    results: list[ExecResult] = []
    running = threading.Event()
    line = "echo runs; exec sleep 1000"
    thread = threading.Thread(
        target=lambda: results.append(
            box.exec(["sh", "-c", line], user="4321", workdir="/tmp", on_output=lambda *_: running.set())
        )
    )
    thread.start()
    assert running.wait(20)
    begun = time.monotonic()
    snapshot = box.snapshot()
    box.restore(snapshot)
    thread.join(20)
    assert time.monotonic() - begun < 10
    assert [result.exit_code for result in results] == [137], "the restore ended it"


def test_whoever_holds_a_workspace_is_told_of_by_its_name(box: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealing, "LOCK_TIMEOUT_S", 0.1)
    held = durable.acquire_lock(box._home.lock(box.id), shared=True)
    try:
        with pytest.raises(Busy, match="workspace shared is in use"):
            box.snapshot()
    finally:
        os.close(held)
