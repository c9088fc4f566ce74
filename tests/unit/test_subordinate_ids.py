"""The law: ws reserves host ids once, in the words of shadow-utils, and leaves the lines of others alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ws.errors import Busy, LimitExceeded
from ws.subordinate_ids import END, FIRST, OWNER, SLOT_IDS, read_span, reserve_span

LINE = f"{OWNER}:{FIRST}:{END - FIRST}\n"


def write(etc: Path, text: str) -> None:
    for name in ("subuid", "subgid"):
        (etc / name).write_text(text)


def test_the_range_is_recorded_once_and_other_lines_stay(tmp_path: Path) -> None:
    others = "alice:100000:65536\n# a note\nbob:165536:65536\n"
    write(tmp_path, others)
    os.chmod(tmp_path / "subuid", 0o640)
    span, recorded = reserve_span(str(tmp_path))
    assert recorded
    assert (span.first, span.end) == (FIRST, END)
    assert reserve_span(str(tmp_path)) == (span, True)
    assert read_span(str(tmp_path)) == span
    assert [(tmp_path / name).read_text() for name in ("subuid", "subgid")] == [others + LINE] * 2
    assert (tmp_path / "subuid").stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["subgid", "subuid"]


def test_a_last_line_without_its_end_is_not_joined(tmp_path: Path) -> None:
    write(tmp_path, "alice:100000:65536")
    reserve_span(str(tmp_path))
    assert (tmp_path / "subuid").read_text() == "alice:100000:65536\n" + LINE


def test_files_that_are_missing_are_made(tmp_path: Path) -> None:
    assert reserve_span(str(tmp_path))[1]
    assert (tmp_path / "subgid").read_text() == LINE


@pytest.mark.parametrize("taken", [(FIRST, 65536), (FIRST + 10, 1), (END - 70000, 65536), (FIRST + 12345678, 99999999)])
def test_a_range_that_another_entry_touches_is_not_taken(tmp_path: Path, taken: tuple[int, int]) -> None:
    write(tmp_path, "")
    (tmp_path / "subgid").write_text(f"alice:{taken[0]}:{taken[1]}\n")
    span, recorded = reserve_span(str(tmp_path))
    assert recorded
    assert span.slots > 100
    assert span.end <= taken[0] or span.first >= taken[0] + taken[1]
    assert FIRST <= span.first < span.end <= END
    assert span.first % SLOT_IDS == 0
    assert read_span(str(tmp_path)) == span


def test_without_any_room_it_is_refused(tmp_path: Path) -> None:
    write(tmp_path, f"alice:100000:{END}\n")
    with pytest.raises(LimitExceeded):
        reserve_span(str(tmp_path))
    assert (tmp_path / "subuid").read_text() == f"alice:100000:{END}\n"


def test_what_was_recorded_in_one_file_alone_is_completed(tmp_path: Path) -> None:
    write(tmp_path, "")
    half = f"{OWNER}:{FIRST + 100 * SLOT_IDS}:{50 * SLOT_IDS}\n"
    (tmp_path / "subuid").write_text(half)
    assert reserve_span(str(tmp_path))[1]
    assert [(tmp_path / name).read_text() for name in ("subuid", "subgid")] == [half] * 2


def test_the_lock_of_shadow_utils_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ws.subordinate_ids._LOCK_S", 0.1)
    write(tmp_path, "")
    (tmp_path / "subgid.lock").write_text(str(os.getpid()))
    with pytest.raises(Busy):
        reserve_span(str(tmp_path))
    assert sorted(os.listdir(tmp_path)) == ["subgid", "subgid.lock", "subuid"]
    assert (tmp_path / "subuid").read_text() == ""


def test_the_lock_of_a_dead_process_is_broken(tmp_path: Path) -> None:
    write(tmp_path, "")
    ended = subprocess.Popen(["true"])
    ended.wait()
    (tmp_path / "subuid.lock").write_text(f"{ended.pid}\0")
    assert reserve_span(str(tmp_path))[1]
    assert sorted(os.listdir(tmp_path)) == ["subgid", "subuid"]


def test_many_at_once_leave_one_line(tmp_path: Path) -> None:
    write(tmp_path, "alice:100000:65536\n")
    script = f"from ws.subordinate_ids import reserve_span; print(reserve_span({str(tmp_path)!r}))"
    running = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(8)]
    assert len({process.communicate()[0] for process in running}) == 1
    assert all(process.returncode == 0 for process in running)
    assert (tmp_path / "subuid").read_text() == "alice:100000:65536\n" + LINE


def test_where_the_files_cannot_be_written_the_range_is_used_all_the_same() -> None:
    span, recorded = reserve_span("/proc")
    assert (span.first, span.end, recorded) == (FIRST, END, False)
