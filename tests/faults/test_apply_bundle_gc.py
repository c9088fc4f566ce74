"""Whatever kills an apply, an import of a bundle or a collection: no file is torn, nothing is lost, and again works.

An apply that was killed leaves each path old or new, and the next one finishes; one that fails takes everything back.
An import leaves a whole workspace or none. A collection leaves every snapshot restorable. Steps are sampled;
WS_EVERY_FAULT=1 goes through all of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from injection import DURABLE, Point, kill_at_each, run_injected, spread, trace_points

from apply_bench import ID, Bench, essence
from cli_stage import warm_home
from ws import apply_records
from ws.engine.base import Engine
from ws.manager import Manager
from ws.workspace import Workspace

EVERY = "WS_EVERY_FAULT" in os.environ
TESTS = Path(__file__).parents[1]

APPLY = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
import os
from pathlib import Path
from apply_bench import Bench
from ws.errors import WorkspaceError
import ws.landing
bench = Bench(Path(sys.argv[1]), base=sys.argv[2])
try:
    bench.apply()
except WorkspaceError as error:
    os.writev(2, [error.code.encode()])
    os._exit(3)
"""

UNDO = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
import os
from pathlib import Path
from apply_bench import Bench
from ws.errors import WorkspaceError
import ws.landing
bench = Bench(Path(sys.argv[1]), base=sys.argv[2])
try:
    bench.undo()
except WorkspaceError as error:
    os.writev(2, [error.code.encode()])
    os._exit(3)
"""

IMPORT = """
import sys
from ws.manager import Manager
with Manager(home=sys.argv[1], engine=sys.argv[3]) as manager:
    manager.import_bundle(sys.argv[2], name="arrived").close()
"""

COLLECT = """
import sys
from ws.manager import Manager
with Manager(home=sys.argv[1], engine="none") as manager:
    manager.gc()
"""


# -- apply ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    bench = Bench(tmp_path)
    for name in ("changed", "mode", "deleted", "to-link"):
        (bench.source / name).write_text("base")
    (bench.source / "gone" / "inner").mkdir(parents=True)
    (bench.source / "gone" / "inner" / "x").write_text("x")
    bench.begin()
    (bench.ours / "changed").write_text("ours")
    (bench.ours / "mode").chmod(0o700)
    (bench.ours / "deleted").unlink()
    (bench.ours / "to-link").unlink()
    (bench.ours / "to-link").symlink_to("/etc/passwd")
    shutil.rmtree(bench.ours / "gone")
    (bench.ours / "new" / "inner").mkdir(parents=True)
    (bench.ours / "new" / "inner" / "y").write_text("y")
    subprocess.run(["cp", "-a", bench.source, tmp_path / "pristine"], check=True)
    return bench


def reset(bench: Bench) -> None:
    shutil.rmtree(bench.home.applies(ID), ignore_errors=True)
    bench.applied = ""
    shutil.rmtree(bench.source)
    subprocess.run(["cp", "-a", bench.source.parent / "pristine", bench.source], check=True)


def points_of_apply(bench: Bench) -> list[Point]:
    """What the apply itself does, after everything was scanned. The first one also makes what later ones find there."""
    arguments = [str(bench.source.parent), bench.base]
    bench.apply()
    reset(bench)
    points = trace_points(APPLY, arguments, calls=DURABLE)
    reset(bench)
    return points


def test_a_killed_apply_leaves_each_path_old_or_new_and_the_next_finishes(bench: Bench) -> None:
    arguments = [str(bench.source.parent), bench.base]
    old, new = essence(bench.source), essence(bench.ours)
    killed = 0
    for outcome in kill_at_each(APPLY, arguments, points_of_apply(bench), about=0 if EVERY else 14):
        killed += outcome.killed
        found = {path: facts for path, facts in essence(bench.source).items() if not path.startswith(b".ws-apply-")}
        for path in {*old, *new, *found} - {b""}:
            told = f"{outcome.point}: {path!r} is {found.get(path)}"
            content = {side.get(path, (0,))[-1] for side in (old, new)}
            assert path not in found or found[path][-1] in content, told  # type: ignore[index]
        for path in old.keys() & new.keys():
            assert path in found, f"{outcome.point}: {path!r} is lost"
        bench.apply()
        assert essence(bench.source) == new, outcome.point
        reset(bench)
    assert killed > 5


@pytest.mark.parametrize("fault", ["error=ENOSPC", "error=EIO"])
def test_a_disk_that_refuses_takes_everything_back(bench: Bench, fault: str) -> None:
    arguments = [str(bench.source.parent), bench.base]
    old, new = essence(bench.source), essence(bench.ours)
    for point in spread(points_of_apply(bench), 0 if EVERY else 12):
        outcome = run_injected(APPLY, arguments, point=point, fault=fault)
        found = {path: facts for path, facts in essence(bench.source).items() if not path.startswith(b".ws-apply-")}
        assert found in (old, new), f"{point}: {outcome.stderr}"
        assert outcome.status in (0, 1, 3)
        assert found == (new if outcome.status == 0 else found)
        bench.apply()
        assert essence(bench.source) == new
        reset(bench)


# -- undoing an apply ------------------------------------------------------------------------------------------------


def test_an_apply_killed_anywhere_can_be_undone(bench: Bench) -> None:
    """What is replaced is recorded before the first path is touched, whatever kills the apply."""
    arguments = [str(bench.source.parent), bench.base]
    old = essence(bench.source)
    undone = 0
    for outcome in kill_at_each(APPLY, arguments, points_of_apply(bench), about=0 if EVERY else 14):
        touched = without_staging(essence(bench.source)) != old
        assert not touched or numbers(bench), f"{outcome.point}: something was replaced and not kept"
        while numbers(bench):
            bench.undo()
            undone += 1
        assert without_staging(essence(bench.source)) == old, outcome.point
        reset(bench)
    assert undone > 3


def points_of_undo(bench: Bench) -> list[Point]:
    bench.apply()
    points = trace_points(UNDO, [str(bench.source.parent), bench.base], calls=DURABLE)
    assert not numbers(bench)
    return points


def test_a_killed_undo_leaves_each_path_old_or_new_and_the_next_finishes(bench: Bench) -> None:
    arguments = [str(bench.source.parent), bench.base]
    bench.apply()
    bench.undo()
    old, new = essence(bench.source), essence(bench.ours)
    points, killed = points_of_undo(bench), 0
    reset(bench)
    bench.apply()
    for outcome in kill_at_each(UNDO, arguments, points, about=0 if EVERY else 14):
        killed += outcome.killed
        found = without_staging(essence(bench.source))
        for path in {*old, *new, *found} - {b""}:
            content = {side.get(path, (0,))[-1] for side in (old, new)}  # type: ignore[index]
            assert path not in found or found[path][-1] in content, outcome.point  # type: ignore[index]
        for path in old.keys() & new.keys():
            assert path in found, f"{outcome.point}: {path!r} is lost"
        if numbers(bench):
            bench.undo()
        assert without_staging(essence(bench.source)) == old, outcome.point
        reset(bench)
        bench.apply()
    assert killed > 5


@pytest.mark.parametrize("fault", ["error=ENOSPC", "error=EIO"])
def test_an_undo_on_a_disk_that_refuses_takes_everything_back(bench: Bench, fault: str) -> None:
    arguments = [str(bench.source.parent), bench.base]
    old, new = essence(bench.source), essence(bench.ours)
    points = points_of_undo(bench)
    for point in spread(points, 0 if EVERY else 12):
        reset(bench)
        bench.apply()
        outcome = run_injected(UNDO, arguments, point=point, fault=fault)
        found = without_staging(essence(bench.source))
        assert found in (old, new), f"{point}: {outcome.stderr}"
        assert outcome.status in (0, 1, 3)
        while numbers(bench):
            bench.undo()
        assert without_staging(essence(bench.source)) == old


def numbers(bench: Bench) -> list[int]:
    return apply_records.list_numbers(bench.home, ID)


def without_staging(found: dict[bytes, object]) -> dict[bytes, object]:
    return {path: facts for path, facts in found.items() if not path.startswith(b".ws-apply-")}


# -- bundles -------------------------------------------------------------------------------------------------------


def test_a_killed_import_leaves_a_whole_workspace_or_none(
    engine: Engine, default_image: str, session_home: str, tmp_path: Path
) -> None:
    home = warm_home(tmp_path / "home", session_home)
    with Manager(home=str(home), engine=engine.name) as manager:
        with manager.create(name="box", remove_on_exit=True) as box:
            box.exec(["sh", "-c", "echo one > file"])
            box.snapshot("one", tag="one")
            box.exec(["sh", "-c", "echo two > file"])
            box.export_bundle(tmp_path / "f")
        manager.gc()
    arguments = [str(home), str(tmp_path / "f"), engine.name]
    points = trace_points(IMPORT, arguments, calls=DURABLE)
    outcomes = {True: 0, False: 0}
    with Manager(home=str(home), engine=engine.name) as manager:
        manager.remove("arrived")
    for outcome in kill_at_each(IMPORT, arguments, points, about=0 if EVERY else 12):
        with Manager(home=str(home), engine=engine.name) as manager:
            there = [info.name for info in manager.list()]
            outcomes[bool(there)] += 1
            if there:
                with manager.open("arrived") as arrived:
                    assert arrived.exec(["cat", "file"]).stdout == "two\n"
                    arrived.restore("one")
                    assert arrived.exec(["cat", "file"]).stdout == "one\n"
                    arrived.remove()
            manager.gc()
            left = {part: os.listdir(home / part) for part in ("workspaces", "names", "staging", "pending", "layers")}
            assert not any(left.values()), f"{outcome.point}: {left}"
            assert manager.engine().list(str(home)) == [], outcome.point
            refs = home / "store" / "packed-refs"
            assert "refs/workspaces" not in (refs.read_text() if refs.exists() else "")
            assert os.listdir(home / "store" / "refs" / "workspaces") == []
    assert outcomes[False] > 3


# -- the collector -------------------------------------------------------------------------------------------------


@pytest.fixture
def box(engine: Engine, default_image: str, session_home: str, tmp_path: Path) -> Iterator[Workspace]:
    home = warm_home(tmp_path / "home", session_home)
    with Manager(home=str(home), engine=engine.name) as manager:
        box = manager.create(name="box")
        for number in range(36):
            box.exec(["sh", "-c", f"echo {number} > number; head -c 3000 /dev/urandom > random"])
            box.snapshot(str(number), tag=f"n{number}")
        box.exec(["sh", "-c", "echo looked > at"])
        box.diff()
        box.exec(["sh", "-c", "rm at; echo live > live"])
        box.diff()
        yield box
        box.remove()
        box.close()


def test_a_killed_collection_loses_nothing(box: Workspace, tmp_path: Path) -> None:
    home = tmp_path / "home"
    shutil.copytree(home / "store", tmp_path / "store")
    stacks = home / "workspaces" / box.id / "stacks"
    shutil.copytree(stacks, tmp_path / "stacks")
    points = trace_points(COLLECT, [str(home)], calls=DURABLE)
    for outcome in kill_at_each(COLLECT, [str(home)], points, about=0 if EVERY else 8):
        with Manager(home=str(home), engine=box.info().engine) as manager:
            assert manager.verify().sound, outcome.point
            assert box.exec(["cat", "live", "number"]).stdout == "live\n35\n"
            manager.gc()
        # As before the collection; the layers that are gone stay gone, as they would.
        shutil.rmtree(home / "store")
        shutil.copytree(tmp_path / "store", home / "store")
        shutil.rmtree(stacks)
        shutil.copytree(tmp_path / "stacks", stacks)
    for tag, number in (("n1", "1"), ("n34", "34")):
        box.restore(tag)
        assert box.exec(["cat", "number"]).stdout == f"{number}\n"
    subprocess.run(["git", "--git-dir", home / "store", "fsck", "--strict"], check=True, capture_output=True)
