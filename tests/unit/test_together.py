"""The law: what threads want at the same time is done once, and never before the last of those it serves had asked."""

from __future__ import annotations

import threading
import time

import pytest

from ws.together import Together


def test_those_who_ask_while_one_works_share_the_next_turn() -> None:
    together = Together[int]()
    begun = threading.Event()
    go_on = threading.Event()
    turns: list[float] = []
    asked: list[float] = []
    results: list[int] = []

    def work() -> int:
        turns.append(time.monotonic())
        begun.set()
        assert go_on.wait(10)
        return len(turns)

    def ask() -> None:
        asked.append(time.monotonic())
        results.append(together.do("key", work))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    threads[0].start()
    assert begun.wait(10)
    for thread in threads[1:]:
        thread.start()
    while len(asked) < 8 or not together._waiting:
        time.sleep(0.001)
    time.sleep(0.05)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert sorted(results) == [1] + [2] * 7
    assert turns[1] >= max(asked)
    assert together.do("key", work) == 3, "nothing is kept"
    assert together.do("another", work) == 4


def test_a_failure_is_nobody_elses() -> None:
    together = Together[str]()
    begun, go_on = threading.Event(), threading.Event()
    outcomes: list[str] = []

    def fail() -> str:
        begun.set()
        go_on.wait(10)
        raise OSError("of its own")

    def ask(work: str) -> None:
        try:
            outcomes.append(together.do("key", fail if work == "fail" else lambda: work))
        except OSError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=ask, args=(work,)) for work in ("fail", "fail", "good")]
    for thread in threads:
        thread.start()
        begun.wait(10)
        time.sleep(0.02)
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert sorted(outcomes) == ["good", "of its own", "of its own"]


def test_an_error_goes_through() -> None:
    with pytest.raises(ZeroDivisionError):
        Together[float]().do("key", lambda: 1 / 0)
