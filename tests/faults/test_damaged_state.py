"""One damaged file of a WS_HOME: named, contained, repaired where the truth is elsewhere; never a traceback or a wait.

Every file that ws itself writes is damaged in every way of `damage.DAMAGES`, then every command that needs no running
container is tried. The store and the files of users are judged elsewhere. WS_EVERY_DAMAGE=1 tries all combinations;
otherwise each file gets some, in turn.
"""

from __future__ import annotations

import itertools
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import damage
from cli_stage import warm_home
from conftest import Engines
from ws.engine.images import DEFAULT_IMAGE, build_image
from ws.layout import Home, default_home
from ws.manager import Manager
from ws.removing import remove_tree

EVERY = bool(os.environ.get("WS_EVERY_DAMAGE"))
AT_ONCE = 3  # damages of a file, unless all are asked for
USER_DATA = ("data", "work", "store", "engines", "kept")


@pytest.fixture(scope="module")
def template(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home in which two workspaces were used; their containers are gone, as after a reboot."""
    engine = engines.get("podman")
    build_image(engine, home=default_home(), reference=DEFAULT_IMAGE)
    directory = tmp_path_factory.mktemp("damage")
    home = warm_home(directory / "template", engines.home)
    source = directory / "source"
    (source / "src").mkdir(parents=True)
    (source / "src" / "main.py").write_text("print(1)\n")
    with Manager(home=str(home), engine="podman") as manager:
        for name in ("victim", "other"):
            box = manager.create(source, name=name)
            box.exec(["sh", "-c", "echo one > one"])
            box.snapshot("one", tag="one")
            box.tools.call("write_file", path="two", content="two")
            box.diff()
            box.snapshot("two")
            box.exec(["sh", "-c", "echo three > three"])
            box.diff()
            box.exec(["sh", "-c", "echo four > four"])
            box.close()
        manager.fill_pool(1)
        for state in engine.list(str(home)):
            engine.remove(state.id)
    _forge(Home(str(home)))
    yield home
    remove_tree(str(directory))


def _forge(home: Home) -> None:
    """Files that are there only now and then: the memory of a dialect, an intent of a dead process, a stat cache."""
    victim = os.readlink(home.name("victim"))
    record = json.loads(Path(home.record(victim)).read_bytes())
    Path(home.memory(victim)).write_text('{"shell": 1}')
    intent = {"workspace_id": victim, "operation": "snapshot", "engine": "podman", "key": "", "name": ""}
    Path(home.pending(victim)).write_text(json.dumps(intent))
    Path(home.workspace(victim), f"scan-{record['upper']}").write_bytes(b"ws stat cache 1\n")
    Path(home.at("users", "0" * 32)).write_text("1000 1000\n")


def _state_files(home: Path) -> list[str]:
    found = []
    for directory, names, files in os.walk(home):
        names[:] = [name for name in names if name not in USER_DATA]
        if "/runtimes/" in directory + "/":
            names[:] = [name for name in names if directory.endswith("runtimes")]
            files = [name for name in files if name in ("manifest.json",) or name.endswith(".stamp")]
        paths = (os.path.join(directory, name) for name in files)
        found += [os.path.relpath(path, home) for path in paths if stat.S_ISREG(os.lstat(path).st_mode)]
    return sorted(found)


def _kinds(home: Path) -> dict[str, str]:
    """One file of each kind, by what it is called without ids; those of the victim before those of others."""
    victim = os.readlink(home / "names" / "victim")
    kinds: dict[str, str] = {}
    for file in sorted(_state_files(home), key=lambda file: victim not in file):
        parts = file.split("/")
        if len(parts) > 1 and parts[0] != "pending":
            parts[1] = "*"
        if parts[0] == "pool" and parts[-1] not in ("configuration.json", "filling"):
            parts[-1] = "KEY"
        name = "/".join(parts).replace(victim, "ID").partition("boot-")[0].partition("scan-")[0]
        kinds.setdefault(name, file)
    return kinds


def test_any_damage_to_any_file_is_contained(template: Path, tmp_path: Path) -> None:
    kinds = _kinds(template)
    assert {"format", "workspaces/*/record.json", "bases/*/info.json", "pending/ID"} <= kinds.keys(), kinds
    assert len(kinds) >= 20, kinds
    victim = os.readlink(template / "names" / "victim")
    turns = itertools.cycle(damage.DAMAGES)
    failures: list[str] = []
    for kind, file in kinds.items():
        chosen = list(damage.DAMAGES) if EVERY else list(itertools.islice(turns, AT_ONCE))
        done = subprocess.run(
            [sys.executable, damage.__file__, str(template), str(tmp_path / "home"), file, *chosen],
            capture_output=True,
            text=True,
            check=False,
        )
        outcomes = [json.loads(line) for line in done.stdout.splitlines()]
        if done.returncode != 0 or len(outcomes) != len(chosen) * len(damage.COMMANDS):
            failures.append(f"{kind}: ended with {done.returncode} after {outcomes[-1:]}: {done.stderr[-2000:]}")
        failures += [f"{kind} {line}" for outcome in outcomes if (line := _judge(outcome, file, victim))]
    remove_tree(str(tmp_path / "home"))
    assert not failures, "\n".join(failures)


def _judge(outcome: tuple[str, list[str], int, str], file: str, victim: str) -> str | None:
    """What is wrong with how a command ended; None when nothing is."""
    name, words, status, said = outcome
    told = f"{name}: ws {' '.join(words)} ended with {status}: {said[:400]}"
    if "Traceback" in said:
        return told
    if status != 0:
        lines = [json.loads(line)["error"] for line in said.splitlines() if line.startswith('{"error"')]
        reported = words[0] in ("verify", "prune", "doctor") or any(
            line["code"] not in ("unexpected", "os_error") and line["message"] for line in lines
        )
        if not reported or any(line["code"] in ("unexpected", "os_error") for line in lines):
            return told
        own = file.startswith((f"workspaces/{victim}", f"pending/{victim}", "layers/"))
        if own and "other" in words:
            return told
        if words[0] == "rm":
            return told
    return None
