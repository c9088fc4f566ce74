"""The law: `ws` on a real engine does what its help says, ends with the agreed status, and leaves nothing behind."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import socket
import stat
import struct
import subprocess
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli_stage import DEADLINE_S, Stage
from ws.engine.base import Engine
from ws.engine.choose import open_engine


@pytest.fixture
def stage(engine: Engine, default_image: str, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path / "home", engine.name)
    yield stage
    stage.run("rm", "--all", "--yes")
    assert stage.left() == []


@pytest.fixture
def project(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    path.mkdir()
    (path / "notes.txt").write_text("from the host\n")
    return path


@pytest.fixture
def box(stage: Stage, project: Path) -> str:
    done = stage.run("create", str(project), "--name", "box")
    assert (done.returncode, done.stdout) == (0, b"box\n"), done.stderr
    return "box"


def until(condition: Any, what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


# -- a life --------------------------------------------------------------------------------------------------------


def test_a_workspace_is_made_used_shown_and_removed_and_the_project_is_untouched(
    stage: Stage, project: Path, box: str
) -> None:
    done = stage.run("exec", box, "--", "sh", "-c", "cat notes.txt; echo changed > notes.txt; echo new > new.txt")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"from the host\n", b"")
    assert stage.run("exec", box, "--", "cat", "notes.txt", "new.txt").stdout == b"changed\nnew\n"
    assert [path.name for path in project.iterdir()] == ["notes.txt"]
    assert (project / "notes.txt").read_text() == "from the host\n"

    header, row = stage.run("ls").stdout.decode().splitlines()
    assert header.split() == ["NAME", "STATUS", "ENGINE", "IMAGE", "SOURCE", "AGE"]
    assert row.split()[:3] == [box, "running", stage.engine]
    shown = stage.data("show", box)
    assert shown["name"] == box
    assert shown["source"] == os.path.realpath(project)
    assert ["engine", stage.engine] in [line.split() for line in stage.run("show", box).stdout.decode().splitlines()]

    assert stage.run("rm", box).stdout == b"box\n"
    assert stage.names() == []
    assert stage.left() == []


def test_what_of_a_source_is_left_out_is_said_every_time(stage: Stage, project: Path) -> None:
    (project / "mnt").mkdir()
    os.mknod(project / "null", 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    subprocess.run(["mount", "-t", "tmpfs", "none", project / "mnt"], check=True)
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(project / "socket"))
            first = stage.run("create", str(project), "--name", "first")
            again = stage.run("create", str(project), "--name", "again", "--json")
            gone = stage.run("run", str(project), "--", "ls")
    finally:
        subprocess.run(["umount", project / "mnt"], check=True)
    lines = ["mnt: a mount point", "null: a device", "socket: a socket"]
    assert (first.returncode, gone.returncode, gone.stdout) == (0, 0, b"notes.txt\n")
    for done in (first, again, gone):
        assert sorted(done.stderr.decode().splitlines()) == [f"note: left out {line}" for line in lines]
    assert sorted(json.loads(again.stdout)["skipped"]) == lines
    assert sorted(stage.data("show", "first")["skipped"]) == lines
    shown = stage.run("show", "first").stdout.decode().splitlines()
    assert sorted(line.removeprefix("left out").strip() for line in shown if line.startswith("left out")) == lines
    assert stage.run("snapshot", "first").returncode == 0
    assert sorted(stage.data("log", "first")[-1]["skipped"]) == lines


def test_what_destroys_tells_first_and_asks(stage: Stage) -> None:
    for name in ("one", "two"):
        assert stage.run("create", "--name", name).returncode == 0
    assert stage.data("rm", "--all", "--dry-run") == {
        "removed": ["one", "two"],
        "failed": [],
        "notes": [],
        "dry_run": True,
    }
    refused = stage.run("rm", "--all")
    assert refused.returncode == 2
    assert refused.stderr == b"error: removing everything needs a yes\nhint: add --yes\n"
    mistaken = stage.run("rm", "one", "tow")
    assert mistaken.returncode == 3
    assert b"did you mean 'two'" in mistaken.stderr
    person = Typist(stage, "rm", "--all")
    person.expect(b"Remove all 2 workspaces with their files? [y/N]: ")
    person.type("n\r")
    person.expect(b"nothing was removed")
    assert person.process.wait(DEADLINE_S) == 130
    person.close()
    assert stage.names() == ["one", "two"]
    assert stage.data("rm", "one", "two", "one")["removed"] == ["one", "two"]
    assert stage.names() == []


def test_what_has_expired_is_pruned(stage: Stage) -> None:
    assert stage.run("create", "--name", "brief", "--ttl", "100ms").returncode == 0
    assert stage.run("create", "--name", "lasting", "--ttl", "1h").returncode == 0
    time.sleep(0.1)
    assert stage.data("prune", "--dry-run")["removed"] == ["brief"]
    assert stage.run("prune").stdout == b"brief\n"
    assert stage.names() == ["lasting"]


def deaf(stage: Stage) -> Stage:
    """The same home, from where its engine cannot be reached."""

    class Deaf(Stage):
        @property
        def env(self) -> dict[str, str]:
            nowhere = f"unix://{self.home}/nowhere.sock"
            return {**super().env, "CONTAINER_HOST": nowhere, "DOCKER_HOST": nowhere}

    return Deaf(stage.home, stage.engine)


def test_what_an_engine_that_does_not_answer_still_has_is_said_and_pruned_later(stage: Stage) -> None:
    for name in ("one", "two"):
        assert stage.run("create", "--name", name, "--ttl", "1h" if name == "one" else "1ms").returncode == 0
    one, two = (stage.data("show", name)["container"]["id"][:12] for name in ("one", "two"))
    removed = deaf(stage).run("rm", "one")
    assert (removed.returncode, removed.stdout) == (0, b"one\n")
    assert removed.stderr.startswith(f"note: {stage.engine} may still have container {one} of one".encode())
    assert b"`ws prune`" in removed.stderr

    pruned = deaf(stage).run("prune")
    assert (pruned.returncode, pruned.stdout) == (6, b"two\n")
    assert f"container {two} of two".encode() in pruned.stderr
    left = {f"{stage.engine} {one}", f"{stage.engine} {two}"}
    assert len(stage.containers()) == 2
    doctor = stage.run("doctor").stdout.decode()
    assert f"{stage.engine} container {one}" in doctor
    assert "ContainerState" not in doctor
    (stage.home / "layers" / "left" / "data").mkdir(parents=True)
    (stage.home / "workspaces" / "unborn").mkdir()
    told = stage.data("prune", "--dry-run")
    assert set(told["containers"]) == left
    assert told["leftovers"] == ["layers/left", "workspaces/unborn"]
    assert len(stage.containers()) == 2
    spoken = stage.run("prune", "--dry-run").stderr.decode()
    assert all(line in spoken for line in (f"container {stage.engine} {one}", "leftover layers/left"))
    done = stage.data("prune")
    assert set(done["containers"]) == left
    assert (done["removed"], done["leftovers"], done["failed"]) == ([], told["leftovers"], [])
    assert stage.left() == []
    assert not (stage.home / "layers" / "left").exists()


def test_prune_asks_engines_that_nobody_names(stage: Stage) -> None:
    assert stage.run("create", "--name", "one").returncode == 0
    assert deaf(stage).run("rm", "one").returncode == 0
    assert len(stage.containers()) == 1
    other = Stage(stage.home, "none")
    assert len(other.data("prune")["containers"]) == 1
    assert stage.left() == []


# -- commands ------------------------------------------------------------------------------------------------------


def test_a_command_has_its_own_status_and_its_bytes_pass_unchanged(stage: Stage, box: str) -> None:
    every_byte = bytes(range(256)) * 40
    echoed = stage.run("exec", box, "--", "cat", data=every_byte)
    assert (echoed.returncode, echoed.stdout) == (0, every_byte)
    split = stage.run(
        "exec", box, "--env", "WORD=hi", "--workdir", "/tmp", "--", "sh", "-c", "pwd; echo $WORD >&2; exit 7"
    )
    assert (split.returncode, split.stdout, split.stderr) == (7, b"/tmp\n", b"hi\n")
    assert stage.run("exec", box, "--", "sh", "-c", "kill -9 $$").returncode == 137
    missing = stage.run("exec", box, "--", "no-such-command")
    assert missing.returncode == 10
    assert missing.stderr.startswith(b"error: ")


def test_a_command_can_run_as_another_user(stage: Stage, box: str) -> None:
    done = stage.run("exec", box, "--user", "4321", "--", "sh", "-c", "id -u; echo oops >&2; exit 6")
    assert (done.returncode, int(done.stdout) % 65_536, done.stderr) == (6, 4321, b"oops\n")  # docker maps no ids
    late = stage.run("exec", box, "--user", "4321", "--timeout", "0.5", "--", "sleep", "60")
    assert late.returncode == 124
    much = stage.run("exec", box, "--user", "4321", "--", "head", "-c", "20000000", "/dev/zero")
    assert (much.returncode, len(much.stdout)) == (0, 20_000_000)


def test_a_command_that_used_up_the_memory_says_so(stage: Stage) -> None:
    hog = ("--", "sh", "-c", "head -c 200000000 /dev/zero | tail")
    told = stage.run("run", "--memory", "64m", *hog)
    assert told.returncode == 137
    assert b"memory was used up" in told.stderr
    assert json.loads(stage.run("run", "--json", "--memory", "64m", *hog).stdout)["oom_killed"] is True


def test_with_json_a_command_is_one_object(stage: Stage, box: str) -> None:
    done = stage.run("exec", box, "--json", "--", "sh", "-c", r"echo out; printf '\377' >&2; exit 3")
    assert done.returncode == 3
    document = json.loads(done.stdout)
    assert document["exit_code"] == 3
    assert (document["stdout"], document["stdout_encoding"]) == ("out\n", "utf-8")
    assert (document["stderr"], document["stderr_encoding"]) == ("/w==", "base64")
    assert document["timed_out"] is False


def test_output_is_not_cut_however_much_it_is(stage: Stage, box: str) -> None:
    size = 40 << 20
    done = stage.run("exec", box, "--", "sh", "-c", f"head -c {size} /dev/zero")
    assert done.returncode == 0
    assert len(done.stdout) == size


def test_output_comes_while_the_command_runs(stage: Stage, box: str) -> None:
    with stage.start("exec", box, "--", "sh", "-c", "echo now; read line; echo $line", stdin=-1, stdout=-1) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        assert running.stdout.readline() == b"now\n"
        running.stdin.write(b"answer\n")
        running.stdin.flush()  # and left open: the command ends, not its input
        assert running.stdout.readline() == b"answer\n"
        assert running.wait(DEADLINE_S) == 0


def test_a_command_out_of_time_is_ended_with_all_it_started(stage: Stage, box: str) -> None:
    done = stage.run("exec", box, "--timeout", "0.5", "--", "sh", "-c", "echo before; sleep 1234 & sleep 1234")
    assert done.returncode == 124
    assert done.stdout == b"before\n"
    assert stage.run("exec", box, "--", "sh", "-c", "ps -ef | grep -c '[s]leep 1234'").stdout == b"0\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_command_whose_ws_is_interrupted_does_not_live_on(stage: Stage, box: str, number: signal.Signals) -> None:
    with stage.start("exec", box, "--", "sh", "-c", "echo up; sleep 4321", stdout=-1, stderr=-1) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"up\n"
        running.send_signal(number)
        assert running.wait(DEADLINE_S) == 128 + number
        assert running.stderr is not None
        assert b"Traceback" not in running.stderr.read()
    count = ("exec", box, "--", "sh", "-c", "ps -ef | grep -c '[s]leep 4321'")
    until(lambda: stage.run(*count).stdout == b"0\n", "the command lives on")


def test_a_reader_that_goes_away_ends_the_command(stage: Stage, box: str) -> None:
    with stage.start("exec", box, "--", "yes", stdout=-1, stderr=-1) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"y\n"
        running.stdout.close()
        assert running.wait(DEADLINE_S) == 141
        assert running.stderr is not None
        assert running.stderr.read() == b""


def test_run_makes_uses_and_removes_whatever_happens(stage: Stage, project: Path) -> None:
    done = stage.run("run", str(project), "--env", "A=1", "--", "sh", "-c", "cat notes.txt; echo $A; exit 5")
    assert (done.returncode, done.stdout) == (5, b"from the host\n1\n")
    with stage.start("run", "--name", "brief", "--", "sh", "-c", "echo up; sleep 60", stdout=-1, stderr=-1) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"up\n"
        assert stage.names() == ["brief"]
        running.send_signal(signal.SIGINT)
        assert running.wait(DEADLINE_S) == 130
    assert stage.names() == []
    assert stage.left() == []


# -- a terminal ----------------------------------------------------------------------------------------------------


class Typist:
    """A person at a terminal that runs `ws shell`."""

    def __init__(self, stage: Stage, *words: str) -> None:
        self.master, slave = pty.openpty()
        self.resize(40, 120)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        self.process = stage.start(*words, stdin=slave, stdout=slave, stderr=slave, start_new_session=True)
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def expect(self, text: bytes) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.master], [], [], 0.2)[0]:
                self.seen += os.read(self.master, 65536)
            assert text in self.seen or self.process.poll() is None, self.seen
        self.seen = self.seen.partition(text)[2]

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def typist(stage: Stage, box: str) -> Iterator[Typist]:
    typist = Typist(stage, "shell", box, "--", "sh")
    typist.expect(b"$ ")
    yield typist
    typist.close()


def test_a_shell_is_a_terminal_of_its_own_that_follows_the_size_of_ours(typist: Typist) -> None:
    typist.type("echo $((6*7)); stty size; pwd\r")
    typist.expect(
        b"\r\n42\r\n40 120\r\n/workspace\r\n$ "
    )  # with the prompt: what is typed before it is echoed before it
    typist.resize(30, 90)
    os.kill(typist.process.pid, signal.SIGWINCH)  # the kernel sends it to a terminal's foreground, which this is not
    typist.type("sleep 0.3; stty size\r")
    typist.expect(b"\r\n30 90\r\n")
    assert termios.tcgetattr(typist.slave) != typist.before
    typist.type("exit 3\r")
    assert typist.process.wait(DEADLINE_S) == 3
    assert termios.tcgetattr(typist.slave) == typist.before


def test_what_is_typed_ahead_is_not_lost(stage: Stage, box: str) -> None:
    typist = Typist(stage, "shell", box, "--", "sh")
    typist.type("echo $((6*7))\r")
    typist.expect(b"42\r\n")
    typist.close()


def test_ctrl_c_in_a_shell_goes_to_the_command_in_it(typist: Typist) -> None:
    typist.type("trap 'echo caught' INT; echo up\r")
    typist.expect(b"\nup\r\n")
    typist.type("sleep 60\r")
    time.sleep(0.3)
    typist.type("\x03")
    typist.expect(b"caught")
    typist.type("\x04")
    typist.process.wait(DEADLINE_S)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_terminal_is_restored_when_ws_is_killed(typist: Typist, number: signal.Signals) -> None:
    typist.type("echo up\r")
    typist.expect(b"\nup\r\n")
    typist.process.send_signal(number)
    assert typist.process.wait(DEADLINE_S) == 128 + number
    assert termios.tcgetattr(typist.slave) == typist.before


def test_the_terminal_is_restored_when_the_container_dies(stage: Stage, box: str, typist: Typist) -> None:
    typist.type("echo up\r")
    typist.expect(b"\nup\r\n")
    os.kill(stage.data("show", box)["container"]["pid"], signal.SIGKILL)
    typist.expect(b"error:")
    assert typist.process.wait(DEADLINE_S) == 6
    assert termios.tcgetattr(typist.slave) == typist.before


def test_a_shell_without_a_terminal_is_refused_politely(stage: Stage, box: str) -> None:
    done = stage.run("shell", box)
    assert done.returncode == 2
    assert done.stderr == b"error: ws shell needs a terminal\nhint: `ws exec box -- CMD` runs a command without one\n"


# -- mistakes and crashes ------------------------------------------------------------------------------------------


def test_three_mistakes_a_person_makes(stage: Stage, box: str) -> None:
    unknown = stage.run("exec", "bxo", "--", "true")
    assert unknown.returncode == 3
    assert unknown.stderr.decode().splitlines() == [
        "error: no workspace is called 'bxo'",
        "hint: did you mean 'box'? `ws ls` shows them all",
    ]
    image = stage.run("create", "--image", "localhost/no-such-image", "--json")
    assert image.returncode == 3
    assert json.loads(image.stderr)["error"]["code"] == "image_not_found"
    bad = stage.run("create", "--memory", "plenty")
    assert bad.returncode == 2
    assert bad.stderr == b"error: 'plenty' is not a size\nhint: write it like 512m or 2g\n"
    taken = stage.run("create", "--name", box)
    assert taken.returncode == 4
    assert stage.names() == [box]


def test_a_create_that_was_killed_is_cleaned_up_by_the_next_command(stage: Stage, project: Path) -> None:
    assert stage.run("run", str(project), "--", "true").returncode == 0  # the base and the runtime are made
    for delay_s in (0.0, 0.05, 0.15, 0.3):
        running = stage.start("create", str(project), "--name", "victim")
        while not os.listdir(stage.home / "pending") and running.poll() is None:
            time.sleep(0.005)
        time.sleep(delay_s)
        running.kill()
        running.wait()
        if "victim" in stage.names():  # it was quicker
            assert stage.run("exec", "victim", "--", "true").returncode == 0
            assert stage.run("rm", "victim").returncode == 0
        assert stage.left() == []


def test_a_workspace_whose_container_was_removed_by_hand_comes_back(stage: Stage, box: str) -> None:
    assert stage.run("exec", box, "--", "sh", "-c", "echo kept > kept.txt").returncode == 0
    engine = open_engine(stage.engine, home=str(stage.home))
    engine.check()
    engine.remove(stage.data("show", box)["container"]["id"])
    engine.close()
    assert stage.data("ls")[0]["status"] == "stopped"
    assert stage.run("exec", box, "--", "cat", "kept.txt").stdout == b"kept\n"
    assert stage.data("ls")[0]["status"] == "running"


def test_a_doctor_finds_this_machine_fit_and_sees_what_was_left(stage: Stage, project: Path) -> None:
    report = stage.data("doctor")
    assert report["usable"] is True
    verdicts = {(check["area"], check["name"]): check["verdict"] for check in report["checks"]}
    assert verdicts["engine", stage.engine] in ("ok", "note")
    assert verdicts["kernel", "overlay"] == "ok"
    assert verdicts["leftovers", "crashes"] == "ok"
    (stage.home / "staging" / "1.0.dead").mkdir()
    assert "1.0.dead" in stage.run("doctor").stdout.decode()
    assert stage.run("ls").returncode == 0
    assert os.listdir(stage.home / "staging") == []
