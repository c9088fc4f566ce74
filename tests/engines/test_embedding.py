"""The law: ws as a library in another program. The program may reap or ignore its children, cancel a create at any
step, and keep handles for days; it gets every result, and afterwards neither workspace nor descriptor nor thread.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli_stage import warm_home
from lived_in import leftovers
from ws.engine.base import Engine
from ws.layout import EngineName
from ws.manager import Manager


@pytest.fixture
def home(tmp_path: Path, session_home: str) -> Path:
    return warm_home(tmp_path / "home", session_home)


@pytest.fixture(params=["podman", "docker", "none"])
def engine_anywhere(request: pytest.FixtureRequest, engines: Any) -> EngineName:
    engine: Engine = engines.get(request.param)
    return engine.name


REAPERS = {
    "ignored": "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "reaped": """
import os, threading, time
def reap():
    while True:
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            time.sleep(0.0005)
threading.Thread(target=reap, daemon=True).start()
""",
}

STORY = """
import os, sys, ws
home, engine, source = sys.argv[1:]
with ws.Manager(home=home, engine=engine, pool=0 if engine == "none" else 1) as manager:
    for number in range(3):
        with manager.create(source, name=f"made-{number}", remove_on_exit=True) as box:
            good = box.snapshot("good")
            failed = box.exec(["sh", "-c", "mkdir many; cd many; for i in $(seq 2000); do echo $i > $i; done; exit 7"])
            assert failed.exit_code == 7, failed
            found = box.exec(["sh", "-c", "kill -9 $$"])
            assert found.exit_code == 137, found
            late = box.snapshot("many")  # large enough for a second process
            box.restore(good)
            assert box.exec(["ls"]).stdout == "file\\n"
            box.restore(late)
            assert box.exec(["sh", "-c", "ls many | wc -l"]).stdout.strip() == "2000"
            assert box.tools.call("grep", pattern="^1999$").data["matches"]
            user = box.exec(["sh", "-c", "id -u; exit 5"], user="1234") if os.geteuid() == 0 else None
            # On docker the number is one of the container's own host ids, which begin at a multiple of 65,536.
            assert user is None or (int(user.stdout) % 65536, user.exit_code) == (1234, 5), user
    assert manager.list() == []
print("done")
"""


@pytest.mark.parametrize("way", list(REAPERS))
def test_a_program_that_takes_the_status_of_every_child(
    home: Path, tmp_path: Path, engine_anywhere: EngineName, way: str
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "file").write_text("1\n")
    words = [sys.executable, "-c", REAPERS[way] + STORY, str(home), engine_anywhere, str(tmp_path / "source")]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    finally:
        with Manager(home=str(home), engine=engine_anywhere) as manager:
            settle_pool(manager)
    assert leftovers(manager.home) == []


def settle_pool(manager: Manager) -> None:
    """Wait for the process that fills the pool, then empty it."""
    deadline = 600
    while any(info.filling for info in manager.list_pool()) and deadline:
        threading.Event().wait(0.1)
        deadline -= 1
    manager.drain_pool()


def test_a_copy_that_fails_is_noticed_although_its_status_is_lost(home: Path, tmp_path: Path) -> None:
    program = """
import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)
from ws.engine.processes import run_to_end
run_to_end(["true"])
for words in (["false"], ["cp", "-a", "/nowhere/at/all", "/tmp"], ["sh", "-c", "kill -9 $$"], ["no-such-program"]):
    try:
        run_to_end(words)
    except OSError as error:
        assert error.errno, error
        continue
    raise SystemExit(f"{words} passed for a success")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_the_pool_leaves_no_child_behind(home: Path, engine_name: EngineName) -> None:
    program = """
import os, sys, ws
with ws.Manager(home=sys.argv[1], engine=sys.argv[2], pool=1) as manager:
    manager.create(remove_on_exit=True).remove()
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        print("none")
"""
    words = [sys.executable, "-c", program, str(home), engine_name]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (0, "none\n"), done.stderr
    finally:
        with Manager(home=str(home), engine=engine_name) as manager:
            settle_pool(manager)


def test_a_pool_that_cannot_be_filled_fails_no_create(home: Path, engine_name: EngineName) -> None:
    """The workspace is there by then: what the disk says of the pool is no reason to raise."""
    (home / "pool").rmdir()
    (home / "pool").write_text("in the way")
    with Manager(home=str(home), engine=engine_name, pool=1) as manager:
        with manager.create(remove_on_exit=True) as box:
            assert box.exec(["true"]).exit_code == 0
        assert manager.list() == []


ROUNDS = """
import gc, os, sys, threading, warnings
import ws
engine, rounds, makes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
loud = []
sys.unraisablehook = lambda event: loud.append(str(event.exc_value))
warnings.simplefilter("error", ResourceWarning)

def held():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), threading.active_count()

def make():
    with ws.create(engine=engine) as box:
        box.fs.write("a", "b")
        assert box.exec(["cat", "a"]).stdout == "b"
        with box.fork() as other:
            assert other.exec(["cat", "a"]).stdout == "b"
            other.remove()
    box = ws.create(engine=engine)
    box.exec(["true"])
    box.remove()
    box.close()

make()
keep = ws.create(engine=engine, name="kept")
def use():
    with ws.open("kept") as box:
        box.exec(["true"])
        box.snapshot()
    box = ws.open("kept")
    assert box.exec(["true"]).exit_code == 0
    box.close()
    box.close()
    for wrong in ("nothing", "kept/../x"):
        try:
            ws.open(wrong)
        except ws.WorkspaceError:
            pass
        else:
            raise SystemExit("opened")
    try:
        ws.create("/nowhere/at/all", engine=engine)
    except ws.WorkspaceError:
        pass
use()
before = held()
for _ in range(rounds):
    use()
for _ in range(makes):
    make()
after = held()
keep.remove()
print(before == after, before, after, loud)
"""


def test_rounds_of_handles_leave_no_descriptor_no_thread_and_no_warning(
    home: Path, engine_anywhere: EngineName
) -> None:
    rounds, makes = (100, 100) if engine_anywhere == "none" else (50, 20)
    env = {**os.environ, "WS_HOME": str(home), "WS_ENGINE": engine_anywhere}
    words = [sys.executable, "-X", "dev", "-c", ROUNDS, engine_anywhere, str(rounds), str(makes)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=500, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("True "), done.stdout
    assert done.stdout.endswith(" []\n"), done.stdout
    assert "ResourceWarning" not in done.stderr, done.stderr


class Cancelled(BaseException):
    """What a caller throws into a thread, as an async framework or a debugger does."""


def test_a_create_that_is_cancelled_at_any_step_leaves_nothing(
    home: Path, tmp_path: Path, engine_anywhere: EngineName
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(20):
        (source / f"{number}").write_text("x")
    with Manager(home=str(home), engine=engine_anywhere) as manager:
        manager.create(source, remove_on_exit=True).remove()  # the base and the caches are there
        check_cancelled(manager, lambda: manager.create(source, name="made"))
    assert leftovers(manager.home) == []


def test_a_fork_that_is_cancelled_at_any_step_leaves_nothing(home: Path, engine_anywhere: EngineName) -> None:
    with Manager(home=str(home), engine=engine_anywhere) as manager, manager.create(remove_on_exit=True) as box:
        good = box.snapshot("good")
        check_cancelled(manager, lambda: box.fork(good, name="made"))
        assert box.exec(["true"]).exit_code == 0


def check_cancelled(manager: Manager, make: Callable[[], Any]) -> None:
    """At moments all over the work, as the interpreter delivers a signal, and past its end."""
    alive = {info.name for info in manager.list()}
    containers = len(manager.engine().list(manager.home.root))
    begun = time.monotonic()
    manager.remove(make().id)
    took_s = time.monotonic() - begun
    about = 60 if manager.engine().name == "none" else 15
    cancelled = 0
    for number in range(1, about):
        alarm = Alarm(took_s * number / about)
        try:
            with alarm:
                make()
            manager.remove("made")  # it was done before the alarm
        except Cancelled as cut:
            cancelled += 1
            alarm.where = "".join(traceback.format_exception(cut))
        assert {info.name for info in manager.list()} == alive, alarm.where
        wait_for_intents(manager)
        with Manager(home=manager.home.root, engine=manager.engine().name) as later:
            assert {info.name for info in later.list()} == alive, alarm.where
            assert len(later.engine().list(manager.home.root)) == containers, alarm.where
        assert os.listdir(manager.home.at("pending")) == [], alarm.where
    assert cancelled > about // 4


class Alarm:
    """Raises after some seconds in the main thread, as Ctrl-C does."""

    def __init__(self, after_s: float) -> None:
        self.after_s, self.where = after_s, f"after {after_s:.3f} s"

    def __enter__(self) -> Alarm:
        signal.signal(signal.SIGALRM, self._raise)
        signal.setitimer(signal.ITIMER_REAL, self.after_s)
        return self

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    def _raise(self, *_: object) -> None:
        raise Cancelled(self.where)


def wait_for_intents(manager: Manager) -> None:
    """What takes an engine longer than a caller waits is undone by the thread that began it."""
    for _ in range(200):
        if not os.listdir(manager.home.at("pending")):
            return
        time.sleep(0.05)
