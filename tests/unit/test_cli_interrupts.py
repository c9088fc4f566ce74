"""The law: the first signal is answered at once, the work is undone, and a second one does not disturb that."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ws import staged
from ws.layout import Home, open_home
from ws.recovery import recover
from ws.staged import remove_in_background, staged_directory

WORK = """
import hashlib, sys, time
from ws.cli import interrupts
from ws.cli.render import ProgressBar
interrupts.install()
try:
    with ProgressBar("work", lambda: "the fate"):
        try:
            print("begun", flush=True)
            if sys.argv[1] == "call":
                hashlib.pbkdf2_hmac("sha256", b"", b"", 10_000_000)  # some seconds
            time.sleep(30)
        finally:
            print("undoing", flush=True)
            time.sleep(0.5)
            print("undone", flush=True)
except KeyboardInterrupt:
    sys.exit(130)
"""


def start(*words: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-c", WORK, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"begun\n"
    return process


def processor_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])


def test_the_word_does_not_wait_for_a_long_call() -> None:
    with start("call") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        begun = processor_ticks(process.pid)
        while processor_ticks(process.pid) < begun + 20:  # it computes
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        assert select.select([process.stderr], [], [], 30)[0]
        assert process.stderr.readline() == "stopping…\n".encode()
        assert not select.select([process.stdout], [], [], 0)[0], "the call was over: nothing was tried"
        process.kill()


def test_a_second_signal_does_not_disturb_the_undoing() -> None:
    with start("sleep") as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"undoing\n"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err.decode()) == (130, b"undone\n", "stopping…\nthe fate\n")


def fill(directory: str, files: int) -> None:
    for number in range(files):
        with open(os.path.join(directory, f"{number}"), "wb"):
            pass


def stage_and_raise(home: Home, error: BaseException) -> None:
    with staged_directory(home) as path:
        fill(path, 100)
        raise error


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_process_does_not_wait_for_the_removal_of_what_it_staged(
    tmp_path: Path, interrupt: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a wait of its own, the process in the background has to do it all."""
    monkeypatch.setattr(staged.Aside, "finished", lambda self, timeout_s=None: False)
    monkeypatch.setattr(staged, "remove_tree", lambda path: None)
    home = open_home(str(tmp_path / "home"))
    with pytest.raises(interrupt):
        stage_and_raise(home, interrupt())
    deadline = time.monotonic() + 30
    while os.listdir(home.at("staging")) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert os.listdir(home.at("staging")) == []


def test_an_error_removes_it_at_once(tmp_path: Path) -> None:
    home = open_home(str(tmp_path / "home"))
    with pytest.raises(ValueError, match="x"):
        stage_and_raise(home, ValueError("x"))
    assert os.listdir(home.at("staging")) == []


def test_recovery_lets_a_removal_be_that_another_process_is_at(tmp_path: Path) -> None:
    home = open_home(str(tmp_path / "home"))
    living, dead = home.staging(), home.at("staging", "999999999.1.abc")
    for path in (living, dead):
        os.mkdir(path)
        fill(path, 10)
    recover(home, lambda *_: pytest.fail("no engine is needed"))
    assert os.listdir(home.at("staging")) == [os.path.basename(living)]
    remove_in_background(living)
    assert os.listdir(home.at("staging")) == []
