"""The law: threads that call tools take turns, and none of them waits for ever."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ws.fs.memory import MemoryFilesystem
from ws.fs.protocol import WORKSPACE_LIMITS
from ws.toolbox.approval import ALLOW, Approval, ApprovalRequest, Decision
from ws.toolbox.events import Event
from ws.toolbox.local import open_local
from ws.toolbox.router import Router
from ws.toolbox.turns import Turns


@pytest.fixture
def router(tmp_path: Path) -> Router:
    (tmp_path / "a.txt").write_text("a\n")
    backend = open_local(str(tmp_path), MemoryFilesystem(limits=WORKSPACE_LIMITS))
    return Router(backend)


def test_only_one_has_the_turn_and_may_take_it_again() -> None:
    turns, inside, most = Turns(), 0, 0

    def work(_: int) -> None:
        nonlocal inside, most
        for _ in range(200):
            with turns, turns:
                inside += 1
                most = max(most, inside)
                inside -= 1

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(work, range(8)))
    assert most == 1


def test_outside_another_has_the_turn_and_it_comes_back() -> None:
    turns, reached = Turns(), threading.Event()

    def other() -> None:
        with turns:
            reached.set()

    with turns, turns:
        thread = threading.Thread(target=other)
        thread.start()
        assert not reached.wait(0.05)
        with turns.outside():
            assert reached.wait(5)
        thread.join()
    with turns.outside():  # of one who does not have it
        pass


def test_outside_that_fails_comes_back_all_the_same() -> None:
    turns = Turns()
    with turns:
        with pytest.raises(ValueError, match="x"), turns.outside():
            raise ValueError("x")
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(turns.__enter__)
            assert not waiting.done()
            with turns.outside():
                waiting.result(5)
                threads.submit(turns.__exit__).result(5)


def test_a_subscriber_and_a_handler_may_wait_for_a_call_of_another_thread(router: Router) -> None:
    with ThreadPoolExecutor(1) as threads:

        def call() -> str:
            return threads.submit(lambda: router.call("read_file", path="a.txt").output).result(5)

        def watch(event: Event) -> None:
            if event.tool == "write_file":
                assert call() == "a"

        def approve(_: ApprovalRequest) -> Decision:
            assert call() == "a"
            return ALLOW

        router.events.subscribe(watch)
        router.approval = Approval("on-dangerous", approve)
        assert router.call("write_file", path="b.txt", content="b\n").status == "ok"
