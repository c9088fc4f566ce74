"""The law: a command has the uid of the shim, and can neither look into it nor change it nor have it killed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from lived_in import shell
from ws.engine.base import Engine
from ws.manager import Manager
from ws.workspace import Workspace

ATTACK = """
import json, os
found = {}
def attempt(name, work):
    try:
        work()
        found[name] = "allowed"
    except OSError as error:
        found[name] = os.strerror(error.errno)
def write(path, data):
    with open(path, "r+b", buffering=0) as file:
        file.write(data)
attempt("mem read", lambda: open("/proc/1/mem", "rb").close())
attempt("mem write", lambda: open("/proc/1/mem", "r+b").close())
for name in ("maps", "environ", "auxv", "stack", "syscall", "pagemap", "io"):
    attempt(name, lambda: open(f"/proc/1/{name}", "rb").read(1))
for name in ("exe", "cwd", "root"):
    attempt(name, lambda: os.readlink(f"/proc/1/{name}"))
attempt("fd", lambda: os.listdir("/proc/1/fd"))
attempt("map_files", lambda: os.listdir("/proc/1/map_files"))
attempt("task mem", lambda: open("/proc/1/task/1/mem", "r+b").close())
attempt("oom_score_adj", lambda: write("/proc/1/oom_score_adj", b"1000"))
attempt("oom_adj", lambda: write("/proc/1/oom_adj", b"15"))
attempt("clear_refs", lambda: write("/proc/1/clear_refs", b"1"))
attempt("coredump_filter", lambda: write("/proc/1/coredump_filter", b"0"))
attempt("comm", lambda: write("/proc/1/comm", b"x"))
attempt("timerslack_ns", lambda: write("/proc/1/timerslack_ns", b"1"))
attempt("own mem", lambda: open("/proc/self/mem", "r+b").close())
found["own score"] = open("/proc/self/oom_score_adj").read().strip()
found["shim score"] = open("/proc/1/oom_score_adj").read().strip()
print(json.dumps(found))
"""

HOG = """
import os, time
for _ in range(300):
    if os.fork() == 0:
        kept = bytearray(3 << 20)
        time.sleep(20)
time.sleep(20)
"""


# The shim raises its own score while it starts a command, and the command may be faster than the lowering.
LOWERED = 'for i in $(seq 50); do [ "$(cat /proc/1/oom_score_adj)" -lt 500 ] && break; sleep 0.1; done;'


@pytest.fixture(scope="module")
def box(engine: Engine, default_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    home = str(tmp_path_factory.mktemp("home"))
    with Manager(home=home, engine=engine.name) as manager, manager.create(memory="96m", remove_on_exit=True) as made:
        yield made


def test_a_command_gets_nothing_of_the_shim(box: Workspace) -> None:
    container = box.record().container
    assert container is not None
    before = Path(f"/proc/{container.pid}/oom_score_adj").read_text()
    found = json.loads(shell(box, f"{LOWERED} python3 -c '{ATTACK.replace(chr(39), chr(34))}'"))
    assert found.pop("own mem") == "allowed"  # what exec starts is dumpable again: debuggers and crash reports work
    assert int(found.pop("own score")) > int(found.pop("shim score"))
    assert "allowed" not in found.values(), found
    assert Path(f"/proc/{container.pid}/oom_score_adj").read_text() == before
    assert Path(f"/proc/{container.pid}/comm").read_text() != "x\n"


def test_a_session_and_a_tool_are_chosen_before_the_shim_too(box: Workspace) -> None:
    with box.terminal(["sh", "-c", "cat /proc/self/oom_score_adj; sleep 100"]):
        scores = shell(box, f"{LOWERED} cat /proc/[0-9]*/oom_score_adj 2>/dev/null; true").split()
    assert sorted(map(int, scores))[0] == int(Path("/proc/self/oom_score_adj").read_text())
    assert sum(int(score) > 0 for score in scores) == len(scores) - 1
    assert box.tools.call("shell", command="cat /proc/self/oom_score_adj").output.strip() == "500"


def test_many_small_processes_that_use_up_the_memory_do_not_take_the_shim_along(box: Workspace) -> None:
    """Each is smaller than the shim: by size alone the shim would be the one to go."""
    before = box.record().container
    box.exec(["python3", "-c", HOG], timeout=5)
    assert box.exec(["echo", "alive"], timeout=30).stdout == "alive\n"
    assert box.record().container == before


def test_the_shim_does_all_its_work_undumpable(box: Workspace) -> None:
    """What it reads of /proc/self belongs to root now; files, links, modes, search and terminals go through there."""
    shell(box, "rm -rf * && mkdir d && echo one > d/f && chmod 600 d/f")
    assert box.tools.call("str_replace", path="d/f", old_str="one", new_str="two").status == "ok"
    assert box.tools.call("grep", pattern="two").data["matches"]
    assert box.tools.call("glob", pattern="**/f").output
    assert box.tools.call("move", source="d", destination="e").status == "ok"
    assert box.tools.call("delete", path="e", recursive=True).status == "ok"
    assert box.tools.call("undo", path="e").status == "ok"
    assert shell(box, "cat e/f") == "two\n"
    assert shell(box, "stat -c %a e/f") == "600\n"
