"""After a snapshot that failed or died, everything else works at once, and shows what is there.

A snapshot that fails after its seal leaves layers that git does not have. A diff, an apply and an export read them; and
a handle of a process that lives on settles what another one left, in whichever operation it is used for.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from injection import Point, run_injected

from lived_in import held, leftovers, remove_all
from ws.engine.base import Engine
from ws.errors import LimitExceeded
from ws.manager import Manager
from ws.workspace import Workspace

# os.writev is how a pack is written: after the seal, before there is anything to publish.
CHILD = """
import sys
from ws.manager import Manager
with Manager(home=sys.argv[1], engine=sys.argv[2]) as manager, manager.open(sys.argv[3]) as box:
    box.snapshot("from a child")
"""
MIB = 1 << 20


@pytest.fixture(scope="module")
def manager(engine: Engine, default_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    with Manager(home=str(tmp_path_factory.mktemp("home")), engine=engine.name) as manager:
        yield manager
        remove_all(manager)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source" / "deep").mkdir(parents=True)
    (tmp_path / "source" / "old").write_text("old\n")
    (tmp_path / "source" / "deep" / "file").write_text("as it was\n")
    os.chmod(tmp_path / "source", 0o777)
    return tmp_path / "source"


@pytest.fixture
def box(manager: Manager, source: Path) -> Iterator[Workspace]:
    with manager.create(source, name="failing", remove_on_exit=True) as box:
        yield box


def shell(box: Workspace, line: str) -> str:
    done = box.exec(["sh", "-ec", line])
    assert done.exit_code == 0, done.stderr
    return done.stdout


def _too_large(manager: Manager, box: Workspace) -> None:
    shell(box, "head -c 3000000 /dev/urandom > big")
    with pytest.raises(LimitExceeded):
        box.snapshot(max_file=MIB)


def _full_disk(manager: Manager, box: Workspace) -> None:
    _in_a_child(manager, box, "error=ENOSPC", lasting=True)


def _killed(manager: Manager, box: Workspace) -> None:
    _in_a_child(manager, box, "signal=KILL")


def _in_a_child(manager: Manager, box: Workspace, fault: str, *, lasting: bool = False) -> None:
    words = [manager.home.root, box.record().engine, box.id]
    outcome = run_injected(CHILD, words, point=Point("writev", 1), fault=fault, lasting=lasting)
    assert outcome.status != 0, outcome
    assert "Traceback" not in outcome.stderr or "WorkspaceError" in outcome.stderr or "StateUnusable" in outcome.stderr


FAILURES: dict[str, Callable[[Manager, Workspace], None]] = {
    "too large": _too_large,
    "full disk": _full_disk,
    "killed": _killed,
}


def contents(box: Workspace) -> dict[str, str]:
    """The checksums of all files, as the container has them."""
    lines = shell(box, "find . -type f -exec sha256sum {} +").splitlines()
    return {path: checksum for checksum, _, path in (line.partition("  ") for line in lines)}


def contents_of(directory: Path) -> dict[str, str]:
    done = subprocess.run(
        ["find", ".", "-type", "f", "-exec", "sha256sum", "{}", "+"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
    )
    return {path: checksum for checksum, _, path in (line.partition("  ") for line in done.stdout.splitlines())}


@pytest.mark.parametrize("way", ["free", "held"])
@pytest.mark.parametrize("failure", FAILURES)
def test_a_diff_an_apply_and_an_export_see_what_a_failed_snapshot_sealed(
    manager: Manager, box: Workspace, source: Path, tmp_path: Path, failure: str, way: str
) -> None:
    shell(box, "echo new > new; rm old; echo more >> deep/file")
    FAILURES[failure](manager, box)
    shell(box, "mkdir later; echo later > later/file; echo again > new")
    changed = {"A\tnew", "D\told", "M\tdeep/file", "A\tlater/", "A\tlater/file"}
    changed |= {"A\tbig"} if failure == "too large" else set()
    if way == "held":
        with held(box):
            assert set(box.diff("base").name_status().splitlines()) == changed
    assert set(box.diff("base").name_status().splitlines()) == changed
    assert b"+again" in box.export_patch().data()
    box.export_dir(tmp_path / "exported")
    assert contents_of(tmp_path / "exported") == contents(box)
    box.apply()
    assert contents_of(source) == contents(box)
    kept = box.snapshot("now it works")
    shell(box, "rm -rf *")
    box.restore(kept)
    assert contents_of(source) == contents(box)
    assert manager.verify().sound
    assert leftovers(manager.home) == []


STEPS = ("write", "append", "delete", "diff", "snapshot", "too large", "killed", "held diff")


@settings(max_examples=int(os.environ.get("WS_PROPERTY_ROUNDS", "4")), suppress_health_check=list(HealthCheck))
@given(steps=st.lists(st.sampled_from(STEPS), min_size=3, max_size=10))
def test_after_any_failures_a_diff_is_the_truth(manager: Manager, steps: list[str]) -> None:
    with manager.create(name="walked", remove_on_exit=True) as box:
        for number, step in enumerate(steps):
            shell(
                box,
                f"echo {number} > file-{number % 4}; mkdir -p dir-{number % 2}; echo {number} >> dir-{number % 2}/x",
            )
            if step == "delete":
                shell(box, "rm -rf dir-0 file-1 big")
            elif step in FAILURES:
                FAILURES[step](manager, box)
            elif step == "snapshot":
                box.snapshot(str(number))
            elif step == "held diff":
                with held(box):
                    _check_diff(box)
            elif step == "diff":
                _check_diff(box)
        _check_diff(box)
        assert manager.verify().sound
    assert leftovers(manager.home) == []


def _check_diff(box: Workspace) -> None:
    """The workspace began empty: what the diff to its base adds is all that is there."""
    added = {line[2:] for line in box.diff("base").name_status().splitlines() if not line.endswith("/")}
    assert added == {path.removeprefix("./") for path in contents(box)}


USES: dict[str, Callable[[Workspace, Path], object]] = {
    "diff": lambda box, _: box.diff("base"),
    "apply": lambda box, _: box.apply(),
    "export_patch": lambda box, _: box.export_patch(),
    "export_dir": lambda box, place: box.export_dir(place / "exported"),
    "export_bundle": lambda box, place: box.export_bundle(place / "bundle"),
    "snapshot": lambda box, _: box.snapshot("after it"),
    "restore": lambda box, _: box.restore("base"),
    "fork": lambda box, _: box.fork(name="forked").remove(),
    "exec": lambda box, _: box.exec(["true"]),
    "remove": lambda box, _: box.remove(),
}


@pytest.mark.parametrize("use", USES)
def test_a_handle_that_lives_on_settles_what_died_beside_it_whatever_it_is_used_for(
    manager: Manager, box: Workspace, tmp_path: Path, use: str
) -> None:
    shell(box, "echo new > new")
    _killed(manager, box)
    assert os.path.exists(manager.home.pending(box.id)), "it died with its intent announced"
    USES[use](box, tmp_path)
    assert not os.path.exists(manager.home.pending(box.id))
