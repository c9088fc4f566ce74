"""The law of commands: a result whatever the command does; done at its exit; nothing kept beyond the cap,
nothing running beyond the deadline; and a command that cannot start is an error, not a status."""

from __future__ import annotations

import errno
import io
import os
import signal
import threading
import time

import pytest

from shim_process import is_alive, memory_kb, wait_until
from ws.errors import CommandNotStarted, InvalidRequest
from ws.tools import spawning
from ws.tools.commands import Outcome, run_command

ENV = {"PATH": os.environ["PATH"]}


def run(*argv: str, **options: object) -> Outcome:
    return run_command(argv, workdir="/", env=ENV, **options)  # type: ignore[arg-type]


def sh(script: str, **options: object) -> Outcome:
    return run("sh", "-c", script, **options)


def test_both_streams_and_the_status_come_back() -> None:
    outcome = sh("echo out; echo err >&2; exit 3")
    assert (outcome.stdout, outcome.stderr, outcome.exit_code) == (b"out\n", b"err\n", 3)
    assert not outcome.timed_out
    assert not outcome.truncated
    assert outcome.signal is None


def test_a_signal_is_128_and_its_number() -> None:
    outcome = sh("kill -SEGV $$")
    assert outcome.exit_code == 128 + signal.SIGSEGV
    assert outcome.signal == signal.SIGSEGV


def test_input_is_empty_unless_given() -> None:
    assert run("cat").stdout == b""
    assert sh("readlink /proc/self/fd/0").stdout == b"/dev/null\n"


def test_input_of_any_size_is_fed_while_output_is_read() -> None:
    data = os.urandom(3 << 20)
    assert run("cat", stdin=data).stdout == data
    assert run("cat", stdin=io.BytesIO(data)).stdout == data


def test_a_command_that_does_not_read_its_input_still_ends() -> None:
    assert run("head", "-c", "5", stdin=b"x" * (4 << 20)).stdout == b"xxxxx"
    assert run("true", stdin=b"x" * (4 << 20)).exit_code == 0


def test_the_environment_is_what_was_given_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "x")
    lines = set(run("env").stdout.decode().splitlines())
    assert lines == {f"PATH={ENV['PATH']}"}


def test_a_command_has_its_own_session_no_descriptors_of_ours_and_default_signals() -> None:
    read, write = os.pipe()
    os.set_inheritable(read, True)
    outcome = sh("ps -o sid=,pgid=,pid= -p $$; ls /proc/self/fd; grep -E 'Sig(Blk|Ign)' /proc/self/status")
    os.close(read)
    os.close(write)
    lines = outcome.stdout.decode().split("\n")
    session, group, pid = lines[0].split()
    assert session == group == pid
    assert lines[1:5] == ["0", "1", "2", "3"]  # 3 is the directory that ls reads
    assert [line.split()[1] for line in lines if line.startswith("Sig")] == ["0" * 16, "0" * 16]


@pytest.mark.parametrize(
    ("argv", "number"),
    [
        (["no-such-command"], errno.ENOENT),
        (["/no/such/command"], errno.ENOENT),
        (["/etc/passwd"], errno.EACCES),
        (["/etc"], errno.EACCES),
    ],
)
def test_a_command_that_cannot_start_is_an_error_and_not_127(argv: list[str], number: int) -> None:
    with pytest.raises(CommandNotStarted) as caught:
        run(*argv)
    assert caught.value.errno == number
    assert argv[0] in str(caught.value)
    assert sh("exit 127").exit_code == 127


def test_a_file_that_is_no_program_is_an_error(tmp_path: object) -> None:
    path = os.path.join(str(tmp_path), "data")
    with open(path, "wb") as file:
        file.write(b"\x00\x01\x02\x03 no program")
    os.chmod(path, 0o755)
    with pytest.raises(CommandNotStarted) as caught:
        run(path)
    assert caught.value.errno == errno.ENOEXEC


@pytest.mark.parametrize("workdir", ["/no/such/place", "/etc/passwd"])
def test_a_working_directory_that_is_none_is_a_bad_request(workdir: str) -> None:
    with pytest.raises(InvalidRequest, match="working directory"):
        run_command(["true"], workdir=workdir, env=ENV)


@pytest.mark.parametrize("argv", [[], [""], ["echo", "a\0b"]])
def test_words_that_no_command_can_have_are_refused(argv: list[str]) -> None:
    with pytest.raises(InvalidRequest):
        run_command(argv, workdir="/", env=ENV)


def test_a_path_relative_to_the_working_directory_is_found_there(tmp_path: object) -> None:
    script = os.path.join(str(tmp_path), "run")
    with open(script, "w", encoding="ascii") as file:
        file.write("#!/bin/sh\npwd\n")
    os.chmod(script, 0o755)
    outcome = run_command(["./run"], workdir=str(tmp_path), env=ENV)
    assert outcome.stdout.decode().strip() == os.path.realpath(str(tmp_path))


def test_the_deadline_ends_the_command_and_keeps_its_output() -> None:
    before = time.monotonic()
    outcome = sh("echo so far; sleep 60", timeout_s=0.3)
    assert time.monotonic() - before < 3
    assert outcome.timed_out
    assert outcome.stdout == b"so far\n"
    assert outcome.exit_code == 137


@pytest.mark.parametrize(
    "script",
    [
        "sleep 61 & echo $!; wait",
        "timeout 61 sleep 61 & echo $!; wait",  # timeout puts itself into a group of its own
        "set -m; sleep 61 & echo $!; wait",  # so does a shell with job control
        "(trap '' TERM HUP INT; sleep 61) & echo $!; wait",
    ],
)
def test_the_deadline_ends_everything_of_the_session(script: str) -> None:
    outcome = sh(script, timeout_s=0.3)
    assert outcome.timed_out
    pid = int(outcome.stdout)
    assert wait_until(lambda: not is_alive(pid))


def test_with_a_grace_the_command_may_clean_up_first() -> None:
    outcome = sh("trap 'echo bye; exit 9' TERM; while :; do sleep 0.01; done", timeout_s=0.3, grace_s=5)
    assert (outcome.stdout, outcome.exit_code, outcome.timed_out) == (b"bye\n", 9, True)
    before = time.monotonic()
    outcome = sh("trap '' TERM; while :; do sleep 0.01; done", timeout_s=0.2, grace_s=0.2)
    assert time.monotonic() - before < 3
    assert outcome.signal == signal.SIGKILL


def test_a_daemon_that_holds_the_pipe_is_not_waited_for() -> None:
    before = time.monotonic()
    outcome = sh("sleep 5 & echo $!; echo done")
    took_s = time.monotonic() - before
    pid, _, rest = outcome.stdout.decode().partition("\n")
    os.kill(int(pid), signal.SIGKILL)
    assert took_s < 1
    assert rest == "done\n"


def test_a_daemon_that_writes_for_ever_is_not_listened_to_for_ever() -> None:
    before = time.monotonic()
    outcome = sh("while :; do echo spam; done & sleep 0.1")  # SIGPIPE ends it later
    assert time.monotonic() - before < 5
    assert b"spam" in outcome.stdout
    assert len(outcome.stdout) < 3 << 20


@pytest.mark.parametrize(
    "flood",
    ["yes", "exec head -c 1G /dev/zero", "exec cat /dev/urandom"],
    ids=["lines", "one line of a GiB", "binary"],
)
def test_a_flood_is_cut_at_the_cap_in_constant_memory(flood: str) -> None:
    before_kb = memory_kb("self", "Rss")
    outcome = sh(flood, timeout_s=1.5, max_output_bytes=100_000)
    assert outcome.truncated
    assert len(outcome.stdout) == 100_000
    assert memory_kb("self", "Rss") - before_kb < 8_000


def test_exactly_the_cap_is_not_truncated() -> None:
    outcome = run("head", "-c", "1000", "/dev/zero", max_output_bytes=1000)
    assert (len(outcome.stdout), outcome.truncated) == (1000, False)
    outcome = run("head", "-c", "1001", "/dev/zero", max_output_bytes=1000)
    assert (len(outcome.stdout), outcome.truncated) == (1000, True)


def test_each_stream_has_its_own_cap() -> None:
    outcome = sh("yes | head -c 100000 >&2; echo end", max_output_bytes=1000)
    assert outcome.truncated
    assert len(outcome.stderr) == 1000
    assert outcome.stdout == b"end\n"


def test_an_exception_from_the_listener_ends_the_command() -> None:
    seen: list[int] = []

    def listen(_stream: str, data: bytes) -> None:
        seen.append(int(data))
        raise KeyError("listener")

    with pytest.raises(KeyError):
        sh("echo $$; sleep 60", on_output=listen)
    assert not is_alive(seen[0])


def test_nothing_is_left_after_a_hundred_commands() -> None:
    sh("true")
    before = set(os.listdir("/proc/self/fd"))
    for number in range(100):
        sh(f"exit {number % 3}", stdin=b"x" if number % 2 else None)
    with pytest.raises(CommandNotStarted):
        run("no-such-command")
    assert set(os.listdir("/proc/self/fd")) == before
    assert not spawning.live
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_without_pidfds_the_end_is_noticed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_pid: int) -> int:
        raise PermissionError(errno.EPERM, "refused, as by an old seccomp profile")

    monkeypatch.setattr(os, "pidfd_open", refused)
    assert sh("echo here; exit 5").exit_code == 5
    outcome = sh("timeout 61 sleep 61 & echo $!; wait", timeout_s=0.3)
    assert outcome.timed_out
    assert wait_until(lambda: not is_alive(int(outcome.stdout)))


def test_commands_in_many_threads_get_their_own_status() -> None:
    results: dict[int, int] = {}

    def work(number: int) -> None:
        results[number] = sh(f"sleep 0.0{number % 5}; exit {number}").exit_code

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: number for number in range(20)}
