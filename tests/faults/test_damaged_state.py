"""One damaged file of a WS_HOME: named, contained, repaired where the truth is elsewhere; never a traceback or a wait.

Every file that ws itself writes is damaged in every way of `damage.DAMAGES`, then every command that needs no running
container is tried. A command that fails names what is damaged: the file, the store, or the workspace. The files of
users are judged elsewhere. WS_EVERY_DAMAGE=1 tries all combinations; otherwise each file gets some, in turn.
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
from typing import NamedTuple

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
HARMLESS = ("mode", "missing")  # to doctor: root reads in any mode, and of most files that are missing nothing is known
pytestmark = pytest.mark.timeout(7200 if EVERY else 1200)


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
        manager.gc()  # which writes packed-refs
        for name in ("victim", "other"):
            with manager.open(name) as box:
                box.snapshot("three", tag="three")
                box.exec(["sh", "-c", "echo five > five"])
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


def _store_kinds(home: Path) -> dict[str, str]:
    """One file of the store of each kind: packs, their indexes, references, locks, and what git itself needs."""
    victim = os.readlink(home / "names" / "victim")
    kinds: dict[str, str] = {}
    for directory, _, files in os.walk(home / "store"):
        for name in sorted(files):
            path = os.path.relpath(os.path.join(directory, name), home)
            stem, ending = os.path.splitext(name)
            kind = os.path.join(os.path.dirname(path), "*" + ending if stem.startswith("pack-") else name)
            if "/refs/" not in path or victim in path:
                kinds.setdefault(kind.replace(victim, "ID"), path)
    return kinds


def test_any_damage_to_any_file_is_contained(template: Path, tmp_path: Path) -> None:
    kinds = _kinds(template)
    assert {"format", "workspaces/*/record.json", "bases/*/info.json", "pending/ID"} <= kinds.keys(), kinds
    assert len(kinds) >= 20, kinds
    _check_damage(template, tmp_path / "home", kinds)


def test_any_damage_to_the_store_is_contained(template: Path, tmp_path: Path) -> None:
    kinds = _store_kinds(template)
    wanted = {"packed-refs", "ws.lock", "refs/workspaces/ID/3", "objects/pack/*.pack", "objects/pack/*.idx"}
    assert {f"store/{name}" for name in wanted} <= kinds.keys(), kinds
    _check_damage(template, tmp_path / "home", kinds)


def _check_damage(template: Path, work: Path, kinds: dict[str, str]) -> None:
    victim = os.readlink(template / "names" / "victim")
    turns = itertools.cycle(damage.DAMAGES)
    failures: list[str] = []
    for kind, file in kinds.items():
        chosen = list(damage.DAMAGES) if EVERY else list(itertools.islice(turns, AT_ONCE))
        done = subprocess.run(
            [sys.executable, damage.__file__, str(template), str(work), file, *chosen],
            capture_output=True,
            text=True,
            check=False,
        )
        outcomes = [Outcome(*json.loads(line)) for line in done.stdout.splitlines()]
        if done.returncode != 0 or len(outcomes) != len(chosen) * len(damage.COMMANDS):
            failures.append(f"{kind}: ended with {done.returncode} after {outcomes[-1:]}: {done.stderr[-2000:]}")
        for outcome in outcomes:
            problem = _judge(outcome, file, victim)
            if problem:
                failures.append(f"{problem}: {kind} {outcome}"[:900])
    remove_tree(str(work))
    assert not failures, "\n".join(failures)


class Outcome(NamedTuple):
    """How a command ended on damaged state."""

    damage: str
    words: list[str]
    status: int
    errors: str
    results: str


def _judge(outcome: Outcome, file: str, victim: str) -> str | None:
    """What is wrong with how a command ended; None when nothing is."""
    verb, said = outcome.words[0], outcome.errors + outcome.results
    if "Traceback" in said:
        return "a traceback"
    named = file in said or victim in said or "victim" in said
    listed = file.endswith(("/record.json", "/info.json")) or (
        file.startswith("pool/") and not file.endswith("/filling")
    )
    if verb == "doctor" and listed and outcome.damage not in HARMLESS and not named:
        return "doctor does not name it"
    if outcome.status == 0:
        return None
    lines = [json.loads(line)["error"] for line in outcome.errors.splitlines() if line.startswith('{"error"')]
    if any(line["code"] in ("unexpected", "os_error") or not line["message"] for line in lines):
        return "an error without a type"
    if not lines and verb not in ("verify", "prune", "doctor", "rm"):
        return "no error was reported"
    if not named and not (file.startswith("store/") and ("/store" in said or "other" in said)):
        return "what is damaged is not named"
    if "other" in outcome.words and file.startswith((f"workspaces/{victim}", f"pending/{victim}", "layers/")):
        return "another workspace is affected"
    gone = outcome.damage == "missing" and file.endswith("/record.json")  # recovery has removed the rest
    return "it cannot be removed" if verb == "rm" and not gone else None
