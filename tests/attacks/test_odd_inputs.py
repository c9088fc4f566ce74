"""Every verb, started in an odd way, works or ends with a typed error; nothing is left behind, and rm works later."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from guest import Guest
from ws.removing import remove_tree

FAKETIME = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1"
CLOCK = """
import os, time
ahead = int(os.environ.get("SECONDS_AHEAD", "0"))
seconds, nanoseconds = time.time, time.time_ns
time.time = lambda: seconds() + ahead
time.time_ns = lambda: nanoseconds() + ahead * 10**9
"""
ERROR = re.compile(rb"(?m)^error: .+\n(?:  .*\n)*hint: .+")
WS = f"{sys.executable} -P -m ws"
NOT_UTF8 = os.fsdecode(b"\xff")


@dataclass
class Bench:
    """A WS_HOME with one workspace, and directories to write to."""

    top: Path
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.env = {**os.environ, "WS_HOME": str(self.top / "home"), "WS_ENGINE": "none", "COLUMNS": "100", **self.env}

    def run(self, *words: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
        options = {"stdin": subprocess.DEVNULL, "env": self.env, "cwd": "/", **options}
        return subprocess.run(
            [sys.executable, "-m", "ws", *words],
            capture_output=True,
            timeout=120,
            check=False,
            **options,
        )

    def prepare(self) -> None:
        (self.top / "project").mkdir()
        (self.top / "project" / "a").write_text("hi\n")
        self.well("create", str(self.top / "project"), "--name", "box")
        self.well("snapshot", "box", "--tag", "one")
        self.well("exec", "box", "--", "sh", "-c", "echo more > more")
        self.well("export", "box", "--bundle", str(self.top / "in.bundle"))

    def well(self, *words: str, **options: Any) -> bytes:
        done = self.run(*words, **options)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def verbs(self) -> list[list[str]]:
        top = str(self.top)
        return [
            ["ls"], ["show", "box"], ["exec", "box", "--", "cat", "a"], ["tool", "box", "read_file", '{"path":"a"}'],
            ["tools"], ["events", "box"], ["trash", "box"], ["snapshot", "box", "-m", "m"], ["log", "box"],
            ["diff", "box"], ["restore", "box", "one"], ["undo", "box"], ["fork", "box", "--name", "forked"],
            ["cp", "box:a", f"{top}/copied"], ["cp", f"{top}/project/a", "box:b"], ["export", "box", "--patch"],
            ["export", "box", "--dir", f"{top}/directory"], ["export", "box", "--bundle", f"{top}/out.bundle"],
            ["import", f"{top}/in.bundle", "--name", "imported"],
            ["apply", "box", "--to", f"{top}/project", "--dry-run"],
            ["verify"], ["gc"], ["prune"], ["pool", "ls"], ["completion", "bash"],
            ["create", f"{top}/project", "--name", "new"], ["run", f"{top}/project", "--", "cat", "a"], ["rm", "box"],
        ]  # fmt: skip


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    bench.prepare()
    yield bench
    bench.run("rm", "--all", "--yes")  # its processes
    remove_tree(str(tmp_path / "home"))


def deleted_directory(top: Path) -> Callable[[], None]:
    def enter() -> None:
        os.mkdir(top / "gone")
        os.chdir(top / "gone")
        os.rmdir(top / "gone")

    return enter


def limited(which: int, value: int) -> Callable[[Path], Callable[[], None]]:
    return lambda _: lambda: resource.setrlimit(which, (value, value))


def closed(*descriptors: int) -> Callable[[Path], Callable[[], None]]:
    return lambda _: lambda: [os.close(fd) for fd in descriptors] and None


def masked(mask: int) -> Callable[[Path], Callable[[], None]]:
    return lambda _: lambda: os.umask(mask) and None


STARTS: dict[str, tuple[Callable[[Path], Callable[[], None]], bool]] = {  # how it is begun, and whether all must work
    "a deleted working directory": (deleted_directory, True),
    "umask 0777": (masked(0o777), True),
    "umask 0": (masked(0), True),
    "files of one byte": (limited(resource.RLIMIT_FSIZE, 1), False),
    "files of a kilobyte": (limited(resource.RLIMIT_FSIZE, 1024), False),
    "20 descriptors": (limited(resource.RLIMIT_NOFILE, 20), False),
    "9 descriptors": (limited(resource.RLIMIT_NOFILE, 9), False),
    **{f"{n} MiB of addresses": (limited(resource.RLIMIT_AS, n << 20), False) for n in (44, 48, 56, 60, 64, 96)},
    "closed descriptors": (closed(0, 1, 2), True),
}
ENVIRONMENTS: dict[str, dict[str, str]] = {
    "C": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "nothing": {},
    "the year 2280": {"LD_PRELOAD": FAKETIME, "FAKETIME": "2280-06-01 00:00:00"},  # past what Python can read
    "the year 2250": {"SECONDS_AHEAD": "7000000000"},
    "the year 1971": {"SECONDS_AHEAD": "-1750000000"},
}


def check(bench: Bench, done: subprocess.CompletedProcess[bytes], *, must_work: bool) -> None:
    said = done.stderr
    assert b"Traceback" not in said, (done.args, said)
    assert b"defect of ws" not in said, (done.args, said)
    if done.returncode != 0:
        assert not must_work, (done.args, done.returncode, said)
        assert 0 < done.returncode < 12, (done.args, said)
        assert ERROR.search(said), (done.args, said)


@pytest.mark.parametrize("start", STARTS)
def test_every_verb_started_oddly(bench: Bench, start: str) -> None:
    begin, must_work = STARTS[start]
    for words in bench.verbs():
        check(bench, bench.run(*words, preexec_fn=begin(bench.top)), must_work=must_work)
    bench.well("rm", "--all", "--yes")
    assert os.listdir(bench.top / "home" / "pending") == os.listdir(bench.top / "home" / "staging") == []
    bench.well("verify")


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_verb_in_an_odd_environment(bench: Bench, name: str) -> None:
    kept = ("WS_HOME", "WS_ENGINE", "PATH") if name != "nothing" else ("WS_HOME", "WS_ENGINE")
    env = {key: bench.env[key] for key in kept} | ENVIRONMENTS[name]
    if "LD_PRELOAD" in env:
        assert os.path.exists(FAKETIME), "apt-get install faketime"
    if "SECONDS_AHEAD" in env:  # not libfaketime: with it every sleep of Python ends in EINVAL
        (bench.top / "sitecustomize.py").write_text(CLOCK)
        env["PYTHONPATH"] = str(bench.top)
    for words in bench.verbs():
        done = bench.run(*words, env=env)
        check(bench, done, must_work="2280" not in name)
        if "2280" in name and done.returncode != 0:
            assert (done.returncode, b"past the year 2262" in done.stderr) == (7, True)
    bench.well("rm", "--all", "--yes")


def test_a_relative_path_in_a_deleted_directory_says_so(bench: Bench) -> None:
    for words in (
        ["create", "."],
        ["cp", "box:a", "b"],
        ["cp", "b", "box:a"],
        ["export", "box", "--dir", "d"],
        ["import", "b"],
    ):
        done = bench.run(*words, preexec_fn=deleted_directory(bench.top))
        assert done.returncode in (2, 10), (words, done.stderr)
        check(bench, done, must_work=False)


def test_text_that_is_no_text_is_refused_everywhere(bench: Bench) -> None:
    project = str(bench.top / "project")
    options = [
        "--name",
        "--image",
        "--network",
        "--memory",
        "--cpus",
        "--pids",
        "--disk",
        "--env",
        "--user",
        "--ttl",
        "--runtime",
    ]
    for odd in (NOT_UTF8, "\x1b[31m\n", "", "x" * 5000, "..", "."):
        forms = [["create", project, "--name", "n", option, odd] for option in options]
        forms += [
            ["create", project, "--name", "n", "--env", f"K={odd}"],
            ["create", project, "--name", "n", "--env", f"{odd}=v"],
        ]
        forms += [["import", str(bench.top / "in.bundle"), "--name", "n", option, odd] for option in
                  ("--name", "--image", "--max-objects", "--max-paths", "--max-bytes", "--max-time")]  # fmt: skip
        forms += [
            ["snapshot", "box", "-m", odd],
            ["snapshot", "box", "--tag", odd],
            ["restore", "box", odd],
            ["fork", "box", "--name", odd],
        ]
        forms += [
            ["exec", "box", "--user", odd, "--", "true"],
            ["exec", "box", "--env", f"K={odd}", "--", "true"],
            ["exec", odd, "--", "true"],
        ]
        forms += [
            ["tool", "box", odd, "{}"],
            ["tool", "box", "read_file", odd],
            ["tools", "--dialect", odd],
            ["verify", odd],
            [odd],
        ]
        forms += [
            ["image", "build", "--tag", odd],
            ["pool", "drain", "--image", odd],
            ["run", project, "--image", odd, "--", "true"],
        ]
        for words in forms:
            done = bench.run(*words)
            assert b"\x1b" not in done.stderr + done.stdout, words
            if done.returncode == 0:
                bench.run("rm", *done.stdout.decode().split(), "--yes")
                if bench.run("show", "box").returncode:
                    pytest.fail(f"{words} removed the workspace")
            else:
                check(bench, done, must_work=False)
    assert os.listdir(bench.top / "home" / "pending") == []


def test_paths_may_hold_any_bytes(bench: Bench) -> None:
    odd = bench.top / f"odd{NOT_UTF8}"
    odd.mkdir()
    (odd / f"f{NOT_UTF8}").write_text("x")
    bench.well("create", str(odd), "--name", "odd", "--exclude", f"{NOT_UTF8}*")
    bench.well("cp", f"odd:f{NOT_UTF8}", str(bench.top / f"c{NOT_UTF8}"))
    bench.well("export", "odd", "--bundle", str(bench.top / f"b{NOT_UTF8}"))
    bench.well("export", "odd", "--dir", str(bench.top / f"d{NOT_UTF8}"))
    bench.well("import", str(bench.top / f"b{NOT_UTF8}"), "--name", "again", "--trust-spec")
    assert bench.well("exec", "again", "--", "ls") == b"f\xff\n"


def test_directories_above_ws_home_are_private_whatever_the_umask(tmp_path: Path) -> None:
    home = tmp_path / "new" / "state" / "ws"
    bench = Bench(tmp_path, {"WS_HOME": str(home)})
    bench.well("ls", preexec_fn=lambda: os.umask(0) and None)
    assert [oct((tmp_path / part).stat().st_mode & 0o777) for part in ("new", "new/state")] == ["0o700", "0o700"]


def test_an_ordinary_user_with_a_umask_of_0777(guest: Guest) -> None:
    """To root no mode is closed; what a user makes with this umask the user cannot open again."""
    project, bundle = guest.home / "odd", guest.home / "odd.bundle"
    for words in (
        f"mkdir {project}; echo hi > {project}/a",
        f"umask 0777; exec {WS} create {project} --name odd",
        f"umask 0777; exec {WS} snapshot odd",
        f"umask 0777; exec {WS} export odd --bundle {bundle}; ",
        f"test $(stat -c %a {bundle}) = 600",
        f"umask 0777; exec {WS} rm odd; rm -r {project} {bundle}",
    ):
        done = guest.run("sh", "-c", words, env={"WS_ENGINE": "none"})
        assert done.returncode == 0, (words, done.stderr)
