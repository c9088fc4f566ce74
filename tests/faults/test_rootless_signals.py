"""The law: the `ws` of an ordinary user ends by signals as root's does: at once, with its status, and with its command.

The pid that the caller has is that of ws itself, from its start to its end (HARDENING H14, rootless).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator

import pytest
from injection import DURABLE, MOUNTING, SIGNALS, run_injected, spread, trace_points

from guest import IMAGE, Guest

# What a shell has as status: nsenter ends by the signal that ended its child.
STATUS = {"INT": 130, "TERM": 143, "HUP": 129, "KILL": -signal.SIGKILL}
MARK = "27.1828"
CLI = "import sys; from ws.cli.main import main; main(sys.argv[1:])"


@pytest.fixture(scope="module")
def box(guest: Guest) -> Iterator[str]:
    """A workspace with a file; the service of podman runs already: under strace it could not be started."""
    guest.says("create", "--name", "signalled", "--image", IMAGE)
    guest.says("exec", "signalled", "--", "sh", "-c", "echo good > file")
    guest.says("snapshot", "signalled", "--tag", "good")
    yield "signalled"
    guest.ws("rm", "signalled")


def commands(guest: Guest) -> int:
    """How many of the marked commands run."""
    found = guest.run("sh", "-c", f"grep -alzx '[{MARK[0]}]{MARK[1:]}' /proc/[0-9]*/cmdline 2>/dev/null | wc -l")
    return int(found.stdout)


def wait_until(true: Callable[[], bool], within_s: float = 20.0) -> None:
    deadline = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "KILL"])
def test_a_signal_ends_exec_and_its_command(guest: Guest, box: str, name: str) -> None:
    with guest.start("exec", box, "--", "sh", "-c", f"echo begun; busybox sleep {MARK}") as started:
        assert started.stdout is not None
        pid = guest.pid_of(started)
        assert started.stdout.readline() == b"begun\n"
        wait_until(lambda: commands(guest) == 1)
        assert guest.pid_of(started) == pid
        os.kill(pid, getattr(signal, f"SIG{name}"))
        assert started.wait(20) == STATUS[name]
    wait_until(lambda: commands(guest) == 0)
    assert guest.says("exec", box, "--", "sh", "-c", "busybox cat file") == "good\n"


def test_a_timeout_of_the_callers_ends_exec_and_its_command(guest: Guest, box: str) -> None:
    """As `subprocess.run(…, timeout=…)` does: SIGKILL to the pid that it started, by the user's own program."""
    caller = (
        "import subprocess, sys\n"
        "try:\n    subprocess.run(sys.argv[1:], timeout=3)\n"
        "except subprocess.TimeoutExpired:\n    print('out of time')\n"
    )
    words = guest.ws_command("exec", box, "--", "sh", "-c", f"busybox sleep {MARK}")
    assert guest.run(words[0], "-c", caller, *words).stdout == "out of time\n"
    wait_until(lambda: commands(guest) == 0)


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
def test_a_signal_at_any_moment_ends_ws_with_its_status(guest: Guest, box: str, name: str) -> None:
    """Also while it starts and enters the namespace."""
    for pause_s in (0.0, 0.02, 0.05, 0.1, 0.2):
        with guest.start("exec", box, "--", "sh", "-c", f"busybox sleep {MARK}") as started:
            pid = guest.pid_of(started)
            time.sleep(pause_s)
            os.kill(pid, getattr(signal, f"SIG{name}"))
            _, said = started.communicate(timeout=20)
        # Before its handlers are there, Python is ended by the signal itself; in `import site` SIGINT makes it exit 1.
        expected = (STATUS[name], -getattr(signal, f"SIG{name}"), *([1] if b"site" in said else []))
        assert started.returncode in expected, (pause_s, started.returncode, said)
    wait_until(lambda: commands(guest) == 0)


def test_a_snapshot_that_was_ended_is_taken_or_not_and_not_taken_later(guest: Guest, box: str) -> None:
    guest.says("exec", box, "--", "sh", "-c", "busybox dd if=/dev/urandom of=big bs=1M count=64 2>/dev/null")
    before = len(guest.data("log", box))
    with guest.start("snapshot", box) as started:
        os.kill(guest.pid_of(started), signal.SIGTERM)
        printed, _ = started.communicate(timeout=20)
    after = len(guest.data("log", box))
    assert (after - before, bool(printed.strip())) in ((0, False), (1, False), (1, True))
    if started.returncode == 0:
        assert after == before + 1
    time.sleep(2)
    assert len(guest.data("log", box)) == after
    assert "ws snapshot" not in " ".join(guest.processes())
    guest.says("restore", box, "good")


@pytest.mark.parametrize("verb", ["snapshot", "restore", "create", "fork"])
def test_a_signal_at_a_step_leaves_the_old_or_the_new(guest: Guest, box: str, verb: str) -> None:
    words = {
        "snapshot": ["snapshot", box],
        "restore": ["restore", box, "good"],
        "create": ["create", "--name", "made", "--image", IMAGE],
        "fork": ["fork", box, "--name", "made"],
    }[verb]
    started = trace_points(CLI, ["ls"], calls=f"{DURABLE},{MOUNTING}", user=guest)
    points = trace_points(CLI, words, calls=f"{DURABLE},{MOUNTING}", skip=started, user=guest)
    assert points
    for number, point in enumerate(spread(points, 8)):
        guest.ws("rm", "made")
        guest.says("exec", box, "--", "sh", "-c", f"echo {number} > file")
        name = ("KILL", "TERM", "KILL", "INT", "KILL", "HUP")[number % 6]
        outcome = run_injected(CLI, words, point=point, fault=f"signal={name}", user=guest)
        assert outcome.status in (0, 128 + SIGNALS.get(name, signal.SIGKILL), -signal.SIGKILL), outcome
        assert "Traceback" not in outcome.stderr, outcome
        content = guest.says("exec", box, "--", "sh", "-c", "busybox cat file").strip()
        assert content in ((str(number), "good") if verb == "restore" else (str(number),)), outcome
        if verb == "restore" and outcome.status == 0:
            assert content == "good", outcome
        names = {info["name"] for info in guest.data("ls")}
        assert names - {"made"} == {box}
        assert outcome.status != 0 or verb in ("snapshot", "restore") or "made" in names
    guest.ws("rm", "made")
    assert guest.data("verify")["sound"]
    left = [str(each) for part in ("pending", "staging") for each in (guest.state / part).iterdir()]
    assert left == []


def test_a_killed_caller_leaves_a_workspace_that_works(guest: Guest, box: str) -> None:
    for pause_s in (0.05, 0.1, 0.15, 0.25):
        guest.says("exec", box, "--", "sh", "-c", f"echo {pause_s} > file")
        with guest.start("snapshot", box, stderr=subprocess.DEVNULL) as started:
            pid = guest.pid_of(started)
            time.sleep(pause_s)
            with contextlib.suppress(ProcessLookupError):  # the snapshot was quicker
                os.kill(pid, signal.SIGKILL)
        assert guest.says("exec", box, "--", "sh", "-c", "busybox cat file") == f"{pause_s}\n"
    guest.says("snapshot", box)
    guest.says("restore", box, "good")
