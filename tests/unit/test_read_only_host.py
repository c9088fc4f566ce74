"""The law: a command with a read-only host writes to its one directory and nowhere else, and ends with its caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ws.engine.read_only_host import start_with_read_only_host

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="namespaces take root")

ENV = {"PATH": os.environ.get("PATH", "/usr/bin:/bin")}


def run(script: str, writable: Path) -> tuple[int, str]:
    words = ["/bin/sh", "-c", script]
    with start_with_read_only_host(
        words, writable=str(writable), env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as child:
        said, _ = child.communicate(timeout=30)
    return child.returncode, said


def test_only_the_one_directory_can_be_written_to(tmp_path: Path) -> None:
    places = [place for place in ("/", "/etc", "/root", "/run", "/usr", "/var/lib/apt/lists", "/var/tmp", "/dev/shm",
                                  str(tmp_path)) if Path(place).is_dir()]  # fmt: skip
    (tmp_path / "given").mkdir()
    tries = [f"if touch {place}/ws-was-here; then echo wrote to {place}; fi" for place in places]
    code, said = run("\n".join([*tries, "echo kept > made; echo > /dev/null; pwd"]), tmp_path / "given")
    assert code == 0, said
    assert "wrote to" not in said
    assert said.splitlines()[-1] == "/tmp"
    assert said.count("Read-only file system") + said.count("No such file") >= len(places) - 1  # one lies under /tmp
    assert (tmp_path / "given" / "made").read_text() == "kept\n"
    assert not [place for place in places if Path(place, "ws-was-here").exists()]


def test_mounts_of_the_command_are_not_the_hosts(tmp_path: Path) -> None:
    before = Path("/proc/self/mountinfo").read_text()
    code, said = run("mkdir m && mount -t tmpfs none m && grep -c ' /tmp/m ' /proc/self/mountinfo", tmp_path)
    assert (code, said) == (0, "1\n")
    assert Path("/proc/self/mountinfo").read_text() == before


@pytest.mark.parametrize(("script", "expected"), [("exit 7", 7), ("kill -9 $$", 137), ("sleep 0 & exit 0", 0)])
def test_the_status_is_the_commands(script: str, expected: int, tmp_path: Path) -> None:
    assert run(script, tmp_path)[0] == expected


def test_a_command_that_is_not_there_is_named(tmp_path: Path) -> None:
    with start_with_read_only_host(
        ["no-such-program"], writable=str(tmp_path), env=ENV, stderr=subprocess.PIPE, text=True
    ) as child:
        _, said = child.communicate(timeout=30)
    assert child.returncode == 1
    assert said.startswith("no-such-program was not started:")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["KILL", "TERM"])
def test_all_processes_of_the_command_end_with_the_caller(number: int, tmp_path: Path) -> None:
    """Also those that left the session of the command."""
    source = (
        "import subprocess, sys, time\n"
        "from ws.engine.read_only_host import start_with_read_only_host\n"
        "words = ['/bin/sh', '-c', 'setsid sleep 31.4159 & sleep 31.4159 & echo begun; wait']\n"
        "start_with_read_only_host(words, writable=sys.argv[1], env={'PATH': '/usr/bin:/bin'})\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", source, str(tmp_path)], stdout=subprocess.PIPE) as caller:
        assert caller.stdout is not None
        assert caller.stdout.readline() == b"begun\n"
        wait_for_sleepers(2)
        caller.send_signal(number)
        caller.wait(10)
    wait_for_sleepers(0)


def wait_for_sleepers(count: int) -> None:
    deadline = time.monotonic() + 10
    while len(sleepers()) != count:
        assert time.monotonic() < deadline, sleepers()
        time.sleep(0.01)


def sleepers() -> list[str]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if b"31.4159" in Path("/proc", name, "cmdline").read_bytes().split(b"\0")[1:2]:
                    found.append(name)
            except OSError:
                continue
    return found
