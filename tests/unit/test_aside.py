"""The law: work aside is waited for, whatever happens, and what it raises is raised where it was begun."""

from __future__ import annotations

import _thread
import signal
import time

import pytest

from ws.aside import Aside


def test_what_it_returns_and_what_it_raises_come_back() -> None:
    assert Aside(lambda: 7).wait() == 7
    failing = Aside(lambda: [][0])
    for _ in range(2):
        with pytest.raises(IndexError):
            failing.wait()


def test_it_runs_beside_its_caller() -> None:
    begun, may_end = _thread.allocate_lock(), _thread.allocate_lock()
    begun.acquire()
    may_end.acquire()

    def work() -> str:
        begun.release()
        may_end.acquire()
        return "done"

    aside = Aside(work)
    assert begun.acquire(timeout=10)
    may_end.release()
    assert aside.wait() == "done"


def test_an_interrupt_comes_out_when_the_work_is_over() -> None:
    ended: list[float] = []

    def work() -> None:
        time.sleep(0.3)
        ended.append(time.monotonic())

    signal.setitimer(signal.ITIMER_REAL, 0.1)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            Aside(work).wait()
        assert ended
    finally:
        signal.signal(signal.SIGALRM, before)
