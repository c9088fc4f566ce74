"""The law: a restore keeps what was there once, and puts off the rest; nobody pays for all that was put off."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lived_in import check_store, remove_all, shell
from ws.containers import MAX_COVERED
from ws.layout import EngineName
from ws.manager import Manager
from ws.restores import MAX_UNSETTLED, SETTLED_AT_ONCE

pytestmark = pytest.mark.rootless


@pytest.fixture
def manager(engine_name: EngineName, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    with Manager(home=str(tmp_path_factory.mktemp("home")), engine=engine_name) as manager:
        yield manager
        remove_all(manager)


def test_what_was_there_is_kept_once_however_often_it_is_undone(manager: Manager) -> None:
    with manager.create() as box:
        good = box.snapshot("good")
        shell(box, "echo bad > file")
        assert box.restore().safety == 2
        # It stands on a safety snapshot that git does not have yet, and nothing was written since.
        assert box.undo().safety is None
        assert box.undo().safety is None
        assert box.undo().safety is None
        assert shell(box, "cat file") == "bad\n"
        # The same once git has it.
        kept = box.snapshots()[-1]
        assert (kept.number, kept.kind) == (2, "safety")
        assert box.restore(good).safety is None
        assert box.undo().safety is None
        assert shell(box, "cat file") == "bad\n"
        shell(box, "echo worse > file")
        assert box.restore(kept).safety == 3
        assert shell(box, "cat file") == "bad\n"
    check_store(manager.home)


def test_no_restore_pays_for_all_that_others_put_off(manager: Manager) -> None:
    count = MAX_UNSETTLED + 5
    with manager.create() as box:
        box.snapshot("good")
        waiting = 0
        for number in range(count):
            shell(box, f"echo {number} > file")
            assert box.restore().safety == number + 2
            before, waiting = waiting, len(box.record().history.unsettled)
            assert before - SETTLED_AT_ONCE < waiting <= MAX_UNSETTLED
        kept = [snapshot for snapshot in box.snapshots() if snapshot.kind == "safety"]
        assert [snapshot.number for snapshot in kept] == list(range(2, count + 2))
        for number in (0, 1, count - 1):
            box.restore(kept[number])
            assert shell(box, "cat file") == f"{number}\n"
    check_store(manager.home)


def test_covered_overlays_do_not_pile_up(manager: Manager) -> None:
    """Each seal and each restore covers the overlay before it; the record knows how many lie there."""
    with manager.create() as box:
        seen = []
        for number in range(MAX_COVERED + 4):
            shell(box, f"echo {number} > file")
            box.restore() if number % 5 == 4 else box.snapshot()
            container = box.record().container
            assert container is not None
            lying = overlays_at(container.pid)
            assert container.covered == lying - 1
            seen.append(lying)
        assert max(seen) == MAX_COVERED + 1, "all but the one in sight were taken off"
        assert seen[-1] < 5


def overlays_at(pid: int) -> int:
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8") as lines:
        return sum(" /workspace " in line and " - overlay " in line for line in lines)
