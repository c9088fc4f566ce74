"""The law: no two containers of a machine have a host id in common, and what a dead process had is free again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ws.errors import LimitExceeded, StateUnusable
from ws.id_slots import keep_slot, take_slot
from ws.subordinate_ids import FIRST, OWNER, SLOT_IDS, read_span

SEVERAL = """
import os, sys
from ws.id_slots import take_slot
found = []
for number in range(10):
    run = os.path.join(sys.argv[1], f"run-{number}")
    found.append(take_slot(run, directory=sys.argv[2], etc=sys.argv[3]))
    os.makedirs(run)
print(*found)
"""


@pytest.fixture
def slots(tmp_path: Path) -> Path:
    return tmp_path / "ids"


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    (tmp_path / "etc").mkdir()
    return tmp_path / "etc"


def small(etc: Path, count: int) -> None:
    for name in ("subuid", "subgid"):
        (etc / name).write_text(f"{OWNER}:{FIRST}:{count * SLOT_IDS}\n")


def take(slots: Path, etc: Path, run: Path, avoid: tuple[int, ...] = ()) -> int:
    return take_slot(str(run), avoid=avoid, directory=str(slots), etc=str(etc))


def test_twenty_homes_at_once_get_no_range_in_common(tmp_path: Path, slots: Path, etc: Path) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", SEVERAL, str(tmp_path / f"home-{number}"), str(slots), str(etc)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(20)
    ]
    found = [int(word) for process in running for word in process.communicate()[0].split()]
    assert len(found) == len(set(found)) == 200
    span = read_span(str(etc))
    assert span is not None
    assert all(span.first <= first < span.end and first % SLOT_IDS == 0 for first in found)


def test_what_a_dead_process_took_is_free_again(tmp_path: Path, slots: Path, etc: Path) -> None:
    """Without a run directory it came to no container; with one, the container may run on."""
    small(etc, 2)
    script = (
        "import os, sys; from ws.id_slots import take_slot; "
        "print(take_slot(sys.argv[1], directory=sys.argv[2], etc=sys.argv[3]))"
    )

    def taken_by_another(run: Path) -> int:
        words = [sys.executable, "-c", script, str(run), str(slots), str(etc)]
        return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)

    seen = {taken_by_another(tmp_path / "gone") for _ in range(20)}
    assert len(seen) == 2
    (tmp_path / "run").mkdir()
    taken = taken_by_another(tmp_path / "run")
    assert {take(slots, etc, tmp_path / "other")} == seen - {taken}
    with pytest.raises(LimitExceeded):
        take(slots, etc, tmp_path / "third")
    (tmp_path / "run").rmdir()
    assert take(slots, etc, tmp_path / "third") == taken


def test_a_container_that_lives_keeps_its_range_without_its_run_directory(
    tmp_path: Path, slots: Path, etc: Path
) -> None:
    small(etc, 1)
    container = subprocess.Popen(["sleep", "100"])
    try:
        first = take(slots, etc, tmp_path / "run")
        assert keep_slot(first, str(tmp_path / "run"), container.pid, directory=str(slots))
        with pytest.raises(LimitExceeded):
            take(slots, etc, tmp_path / "other")
    finally:
        container.kill()
        container.wait()
    assert take(slots, etc, tmp_path / "other") == first
    assert not keep_slot(first, str(tmp_path / "run"), os.getpid(), directory=str(slots))


def test_after_a_reboot_all_are_free_and_one_that_was_stopped_claims_its_own(
    tmp_path: Path, slots: Path, etc: Path
) -> None:
    small(etc, 1)
    (tmp_path / "run").mkdir()
    first = take(slots, etc, tmp_path / "run")
    path = slots / str(first)
    path.write_text(json.dumps({**json.loads(path.read_text()), "boot": "another"}))
    assert keep_slot(first, str(tmp_path / "run"), os.getpid(), directory=str(slots))
    with pytest.raises(LimitExceeded):
        take(slots, etc, tmp_path / "other")


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"[]", b'{"pid": {}}', b"\xff"])
def test_a_damaged_file_stands_in_nobodys_way(tmp_path: Path, slots: Path, etc: Path, content: bytes) -> None:
    small(etc, 1)
    first = take(slots, etc, tmp_path / "run")
    (slots / str(first)).write_bytes(content)
    assert take(slots, etc, tmp_path / "other") == first


def test_ranges_that_files_on_disk_have_are_left_out(tmp_path: Path, slots: Path, etc: Path) -> None:
    small(etc, 3)
    middle = FIRST + SLOT_IDS
    assert take(slots, etc, tmp_path / "one", avoid=(middle - 5,)) == FIRST + 2 * SLOT_IDS
    assert take(slots, etc, tmp_path / "two", avoid=(middle + 5, 0)) == FIRST


def test_a_directory_of_another_user_is_refused(tmp_path: Path, slots: Path, etc: Path) -> None:
    slots.mkdir()
    os.chown(slots, 12345, 12345)
    with pytest.raises(StateUnusable):
        take(slots, etc, tmp_path / "run")
