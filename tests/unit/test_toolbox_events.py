"""The law: what tools did stands in the log, one JSON line an event, whole whoever writes at the same time,
readable while it is written, and safe to rename away."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from ws.errors import StateError
from ws.toolbox.events import Event, EventLog, Events, shorten


def event(n: int = 0, **fields: object) -> Event:
    return Event("end", call=f"c{n}", tool="read_file", at=float(n), **fields)  # type: ignore[arg-type]


def test_an_event_comes_back_from_its_line_as_it_was() -> None:
    original = event(
        1,
        arguments={"path": "a"},
        duration_ms=1.5,
        bytes=10,
        lines=2,
        truncated=True,
        files_touched=("a", "b"),
        bytes_written=7,
        snapshot="s1",
        message="read",
    )
    assert Event.from_json(original.to_json()) == original


def test_a_line_leaves_out_what_there_is_nothing_to_say_of() -> None:
    fields = json.loads(event(1).to_json())
    assert fields == {"event": "end", "call": "c1", "tool": "read_file", "at": 1.0, "dialect": "standard",
                      "truncated": False, "bytes_written": 0}  # fmt: skip


def test_no_escape_sequence_gets_into_the_log() -> None:
    line = event(1, message="\x1b[2Jüber\n\udc80").to_json()
    assert line.isascii()
    assert "\x1b" not in line
    assert "\n" not in line


@pytest.mark.parametrize("line", ["", "{", "[]", "3", '{"event": "end"}', "[" * 100_000])
def test_a_line_that_is_no_event_is_told_so(line: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Event.from_json(line)


def test_long_arguments_are_cut_and_say_how_long_they_were() -> None:
    short = shorten({"content": "x" * 5000, "n": 3, "exclude": ["y" * 300] * 30, "nested": {"a": "z" * 300}})
    assert short["content"].endswith("… (5000 characters)")
    assert len(short["content"]) < 250
    assert short["n"] == 3
    assert len(short["exclude"]) == 21
    assert len(short["nested"]["a"]) < 250


def test_the_log_is_read_in_the_order_it_was_written_and_passes_over_rubbish(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path / "events.jsonl"))
    log.append(event(1))
    with open(log.path, "a") as file:
        file.write("rubbish\n")
    log.append(event(2))
    assert [e.call for e in log.read()] == ["c1", "c2"]


def test_a_log_that_does_not_exist_has_no_events(tmp_path: Path) -> None:
    assert list(EventLog(str(tmp_path / "none")).read()) == []


def test_the_log_may_be_renamed_away_between_two_lines(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path / "events.jsonl"))
    log.append(event(1))
    (tmp_path / "events.jsonl").rename(tmp_path / "old")
    log.append(event(2))
    assert [e.call for e in log.read()] == ["c2"]


def test_a_full_log_is_put_aside_and_still_read(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path / "events.jsonl"), max_bytes=400)
    for n in range(5):
        log.append(event(n))
    assert (tmp_path / "events.jsonl.1").exists()
    assert [e.call for e in log.read()] == [f"c{n}" for n in range(5)]


def test_a_link_planted_in_place_of_the_log_is_not_written_through(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("")
    (tmp_path / "events.jsonl").symlink_to(target)
    log = EventLog(str(tmp_path / "events.jsonl"))
    log.append(event(1))
    assert target.read_text() == ""
    assert [each.call for each in log.read()] == [event(1).call]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_damage_put_in_place_of_the_log_is_named_by_a_reader_and_replaced_by_a_writer(
    tmp_path: Path, make: Callable[[str], None]
) -> None:
    path = str(tmp_path / "events.jsonl")
    make(path)
    log = EventLog(path)
    with pytest.raises(StateError, match="is damaged"):
        list(log.read())
    with pytest.raises(StateError, match="is damaged"):
        list(log.follow(until=lambda: True))
    log.append(event(1))
    assert [each.call for each in log.read()] == [event(1).call]


def test_a_line_of_wrong_types_or_of_brackets_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    wrong = [{"at": "now"}, {"at": 1e300}, {"tool": None}, {"arguments": []}, {"event": "middle"}, {"files_touched": 1}]
    lines = [json.dumps({**json.loads(event(1).to_json()), **fields}) for fields in wrong]
    path.write_text("\n".join([*lines, "[" * 200_000, "9" * 5000, event(2).to_json(), ""]))
    assert [each.call for each in EventLog(str(path)).read()] == [event(2).call]


def _write_many(path: str, name: int) -> None:
    log = EventLog(path, max_bytes=20_000)
    for n in range(100):
        log.append(event(n, message=f"{name}-" + "x" * 50))


def test_lines_of_several_processes_never_mix(tmp_path: Path) -> None:
    path = str(tmp_path / "events.jsonl")
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_write_many, args=(path, n)) for n in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    for name in ("events.jsonl", "events.jsonl.1"):
        for line in (tmp_path / name).read_text().splitlines():
            Event.from_json(line)


def test_following_yields_what_comes_and_survives_a_rename(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(str(path))
    log.append(event(1))
    seen: list[str] = []
    written = threading.Event()
    done = threading.Event()

    def follow() -> None:
        for one in log.follow(until=done.is_set, poll_s=0.01):
            seen.append(one.call)
            if one.call == "c2":
                written.set()

    thread = threading.Thread(target=follow)
    thread.start()
    log.append(event(2))
    assert written.wait(10)
    path.rename(tmp_path / "old")
    log.append(event(3))
    done.set()
    thread.join(10)
    assert seen == ["c1", "c2", "c3"]


def test_following_from_the_end_leaves_out_what_was_there(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path / "events.jsonl"))
    log.append(event(1))
    looks = iter([False, True])

    def until() -> bool:
        stop = next(looks)
        if stop:
            log.append(event(2))
        return stop

    assert [e.call for e in log.follow(until=until, poll_s=0, from_start=False)] == ["c2"]


def test_half_a_line_waits_for_the_other_half(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    line = event(7).to_json() + "\n"
    path.write_text(line[:20])
    looks = iter([False, True])

    def until() -> bool:
        stop = next(looks)
        if stop:
            path.write_text(line)
        return stop

    assert [e.call for e in EventLog(str(path)).follow(until=until, poll_s=0)] == ["c7"]


def test_subscribers_get_every_event_until_they_leave(tmp_path: Path) -> None:
    events = Events(EventLog(str(tmp_path / "events.jsonl")))
    seen: list[Event] = []
    leave = events.subscribe(seen.append)
    events.emit(event(1))
    leave()
    events.emit(event(2))
    assert [e.call for e in seen] == ["c1"]
    assert events.log is not None
    assert [e.call for e in events.log.read()] == ["c1", "c2"]


def test_a_log_that_cannot_be_written_does_not_fail_the_call(tmp_path: Path) -> None:
    Events(EventLog(str(tmp_path / "missing" / "events.jsonl"))).emit(event(1))
