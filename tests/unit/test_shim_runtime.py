"""The law of the runtime: complete, the same for everybody, verified before use, rebuilt when damaged, and
never half there."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from shim_process import memory_kb
from ws.errors import StateError, StateUnusable
from ws.layout import Home, open_home
from ws.remote import gathering
from ws.remote.channel import Channel
from ws.remote.runtime import check_runtime, ensure_runtime, rg_command, shim_command

SOURCE = Path(gathering.package_directory()).parent


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return open_home(str(tmp_path_factory.mktemp("home")))


def test_it_is_built_once_and_then_found(home: Home) -> None:
    first = ensure_runtime(home)
    before = time.monotonic()
    again = ensure_runtime(home)
    assert time.monotonic() - before < 0.1
    assert (again.key, again.path) == (first.key, first.path)
    assert os.listdir(home.at("staging")) == []
    check_runtime(first)


def test_any_user_can_read_it_and_nobody_can_write_it(home: Home) -> None:
    for directory, names, files in os.walk(ensure_runtime(home).path):
        for name in (*names, *files, ""):
            mode = stat.S_IMODE(os.lstat(os.path.join(directory, name)).st_mode)
            assert mode in (0o444, 0o555), os.path.join(directory, name)


@pytest.mark.parametrize("damage", ["changed", "truncated", "removed", "manifest"])
def test_damage_is_found_and_repaired(home: Home, damage: str) -> None:
    runtime = ensure_runtime(home)
    victim = Path(runtime.path, "manifest.json" if damage == "manifest" else "shim")
    os.chmod(runtime.path, 0o755)
    os.chmod(victim, 0o644)
    if damage == "removed":
        victim.unlink()
    elif damage == "truncated":
        os.truncate(victim, 10)
    elif damage == "manifest":
        victim.write_text("{")
    else:
        data = bytearray(victim.read_bytes())
        data[20] ^= 1
        victim.write_bytes(data)
    with pytest.raises(StateError):
        check_runtime(runtime)
    check_runtime(ensure_runtime(home))
    assert os.listdir(home.at("staging")) == []


def test_touching_it_without_change_costs_a_check_and_not_a_build(home: Home) -> None:
    runtime = ensure_runtime(home)
    before = os.stat(runtime.path).st_ino
    os.utime(os.path.join(runtime.path, "shim"))
    assert ensure_runtime(home).path == runtime.path
    assert os.stat(runtime.path).st_ino == before


def test_two_at_once_both_have_it(tmp_path: Path) -> None:
    home = open_home(str(tmp_path / "home"))
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(ensure_runtime(home).path)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found) == 3
    assert os.listdir(home.at("staging")) == []
    check_runtime(ensure_runtime(home))


def test_it_starts_from_anywhere_quickly_and_light(home: Home, tmp_path: Path) -> None:
    runtime = ensure_runtime(home)
    moved = tmp_path / "somewhere else"
    shutil.copytree(runtime.path, moved)
    command = shim_command(str(moved), socket=str(tmp_path / "shim.sock"), root="/")
    started_s = []
    for _ in range(5):
        before = time.monotonic()
        process = subprocess.Popen(command, env={}, stdin=subprocess.DEVNULL)
        try:
            channel = Channel(str(tmp_path), peer_pid=process.pid)
            facts = channel.wait_ready(time.monotonic() + 10)
            started_s.append(time.monotonic() - before)
            assert facts.rg == (shutil.which("rg") is not None)
            assert memory_kb(process.pid, "Rss") < 12_000
            assert channel.exec(["env"]).stdout.strip() == (
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
            )
            maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
            code = {line.split(None, 5)[5] for line in maps if " r-xp " in line and "/" in line}
            assert code
            assert not {path for path in code if not path.startswith(str(moved))}
        finally:
            channel.close()
            process.terminate()
            process.wait()
    assert min(started_s) < 0.2  # 14 ms on a quiet machine; this one may not be


def test_every_module_that_the_shim_may_import_is_there(home: Home) -> None:
    runtime = ensure_runtime(home)
    names = [*sorted(gathering._imported()), "json", "encodings.utf_16"]
    code = "import sys\nfor name in sys.argv[1:]: __import__(name)\nprint(len(sys.modules))"
    python = shim_command(runtime.path, socket="", root="")
    command = [*python[: python.index("-X")], "-c", code, *names]
    done = subprocess.run(command, env={}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_ripgrep_runs_from_it(home: Home) -> None:
    command = rg_command(ensure_runtime(home).path)
    if shutil.which("rg") is None:
        assert command is None
        return
    assert command is not None
    done = subprocess.run([*command, "--version"], env={}, capture_output=True, text=True)
    assert done.stdout.startswith("ripgrep")


@pytest.mark.skipif(not os.path.exists("/usr/bin/python3"), reason="there is no system Python")
def test_the_systems_own_python_can_be_taken_along_too(tmp_path: Path) -> None:
    version = subprocess.run(
        ["/usr/bin/python3", "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True
    )
    if tuple(map(int, version.stdout.split())) < (3, 11):
        pytest.skip("it is too old for ws")
    code = (
        "import sys; from ws.layout import open_home; from ws.remote.runtime import ensure_runtime;"
        "print(ensure_runtime(open_home(sys.argv[1])).path)"
    )
    done = subprocess.run(
        ["/usr/bin/python3", "-c", code, str(tmp_path / "home")],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    command = shim_command(done.stdout.strip(), socket=str(run_dir / "shim.sock"), root="/")
    process = subprocess.Popen(command, env={}, stdin=subprocess.DEVNULL)
    try:
        channel = Channel(str(run_dir), peer_pid=process.pid)
        channel.wait_ready(time.monotonic() + 10)
        assert channel.exec(["echo", "hi"]).stdout == "hi\n"
    finally:
        channel.close()
        process.terminate()
        process.wait()


def test_a_program_without_a_loader_is_told_apart(tmp_path: Path) -> None:
    assert gathering.loader_of(sys.executable) is not None
    text = tmp_path / "text"
    text.write_text("#!/bin/sh\n")
    with pytest.raises(StateUnusable):
        gathering.loader_of(str(text))


def test_the_host_imports_little_to_speak_with_a_shim() -> None:
    code = "import sys; before = set(sys.modules); import ws.remote.channel;print(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=True,
    )
    heavy = {"json", "re", "enum", "typing", "dataclasses", "subprocess", "socket", "signal", "asyncio"}
    assert not heavy & set(done.stdout.split())
