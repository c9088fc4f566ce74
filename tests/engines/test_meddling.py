"""The law: whatever is done to a container behind the back of ws, its workspace has its files and goes on; what cannot
be done says so in time (HARDENING H7, H11, H12).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import lived_in
from lived_in import shell
from ws.engine.base import Engine
from ws.errors import Busy
from ws.freezer import freezer_of
from ws.layout import Intent
from ws.manager import Manager
from ws.records import write_record
from ws.workspace import Workspace


@pytest.fixture(scope="module")
def manager(engine: Engine, default_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    with Manager(home=str(tmp_path_factory.mktemp("home")), engine=engine.name) as opened:
        yield opened
        assert opened.engine().list(opened.home.root) == []


@pytest.fixture
def box(manager: Manager) -> Iterator[Workspace]:
    with manager.create() as made:
        shell(made, "echo kept > kept")
        yield made
        made.remove()


def meddle(box: Workspace, *words: str) -> str:
    """What somebody does by hand, with the engine's own command line; the container's id comes last."""
    engine, container = box.record().engine, box.record().container
    assert container is not None
    verb, *rest = words
    done = subprocess.run([engine, verb, container.id, *rest], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def goes_on(manager: Manager, box: Workspace) -> None:
    """It has what it had, and all that can be done with it can be done."""
    assert shell(box, "cat kept") == "kept\n"
    snapshot = box.snapshot()
    shell(box, "echo lost > kept")
    box.restore(snapshot)
    assert shell(box, "cat kept") == "kept\n"
    assert [info.status for info in manager.list()] == ["running"]


def test_one_that_was_renamed_is_known_by_its_id(manager: Manager, box: Workspace) -> None:
    meddle(box, "rename", f"renamed-{os.getpid()}")
    goes_on(manager, box)


def test_one_that_was_stopped_starts_with_its_next_use(manager: Manager, box: Workspace) -> None:
    meddle(box, "stop")
    assert [info.status for info in manager.list()] == ["stopped"]
    goes_on(manager, box)


def test_one_that_was_restarted_gets_its_workspace_back(manager: Manager, box: Workspace) -> None:
    meddle(box, "restart")
    goes_on(manager, box)
    shell(box, "touch $HOME/x /tmp/x /dev/shm/x")


def test_one_with_a_network_that_was_restarted_is_cut_off_from_link_local_addresses_again(manager: Manager) -> None:
    with manager.create(network="bridge", remove_on_exit=True) as box:
        blackhole = shell(box, "grep 0000FEA9 /proc/net/route")
        meddle(box, "restart")
        assert shell(box, "grep 0000FEA9 /proc/net/route") == blackhole


def test_one_that_was_paused_says_so_in_time_and_goes_on(manager: Manager, box: Workspace) -> None:
    meddle(box, "pause")
    try:
        begun = time.monotonic()
        for use in (lambda: box.exec(["true"]), box.ping, lambda: box.fs.read("kept")):
            with pytest.raises(Busy, match="paused") as refused:
                use()
            assert "unpause" in (refused.value.hint or "")
        assert time.monotonic() - begun < 1
    finally:
        meddle(box, "unpause")
    goes_on(manager, box)


def engine_says(box: Workspace) -> str:
    """The state of the container as its engine has it, and as the kernel does."""
    container = box.record().container
    assert container is not None
    words = [box.record().engine, "inspect", "--format", "{{.State.Status}}", container.id]
    status = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    return f"{status}, {'frozen' if freezer_of(container.pid).frozen() else 'running'}"


@contextlib.contextmanager
def paused_by_hand(box: Workspace) -> Iterator[None]:
    """Whatever is done inside, the container is paused before and after, and its engine can go on with it."""
    meddle(box, "pause")
    assert engine_says(box) == "paused, frozen"
    yield
    assert engine_says(box) == "paused, frozen"
    meddle(box, "unpause")
    assert engine_says(box) == "running, running"
    assert meddle(box, "exec", "cat", "/workspace/kept") == "kept"


USES: dict[str, Callable[[Workspace, Path], object]] = {
    "snapshot": lambda box, _: box.snapshot("paused"),
    "restore": lambda box, _: box.restore(),
    "restore the base": lambda box, _: box.restore("base"),
    "undo": lambda box, _: box.undo(),
    "diff": lambda box, _: box.diff(),
    "fork": lambda box, _: box.fork(),
    "export": lambda box, place: box.export_dir(place / "out"),
    "apply": lambda box, place: box.apply(to=place / "to"),
    "exec": lambda box, _: box.exec(["true"]),
    "tool": lambda box, _: box.tools.call("read_file", path="kept"),
    "write": lambda box, _: box.fs.write("new", "x"),
}


@pytest.mark.parametrize("held", [False, True], ids=["idle", "held"])
def test_one_that_was_paused_stays_paused_whatever_is_asked_of_it(
    manager: Manager, box: Workspace, tmp_path: Path, held: bool
) -> None:
    box.snapshot("before")
    box.restore()
    shell(box, "echo more > more")
    (tmp_path / "to").mkdir()
    with contextlib.ExitStack() as stack:
        if held:
            stack.enter_context(lived_in.held(box))
        before = box.record(), len(box.snapshots()), manager.list(), lived_in.leftovers(manager.home)
        with paused_by_hand(box):
            for name, use in USES.items():
                begun = time.monotonic()
                with pytest.raises(Busy, match="paused") as refused:
                    use(box, tmp_path)
                assert "unpause" in (refused.value.hint or ""), name
                assert time.monotonic() - begun < 5, name
                assert engine_says(box) == "paused, frozen", name
            assert os.listdir(tmp_path / "to") == []
            assert (box.record(), len(box.snapshots()), manager.list(), lived_in.leftovers(manager.home)) == before
    assert shell(box, "cat more") == "more\n"
    goes_on(manager, box)


def test_one_that_was_paused_and_not_changed_can_be_compared(box: Workspace) -> None:
    """Nothing has to be read of it, so nothing has to stand still."""
    shell(box, "echo more > more")
    box.snapshot("all")
    with paused_by_hand(box):
        assert box.snapshots()
        assert not box.diff().text()


def test_one_that_was_paused_is_not_thawed_by_recovery(manager: Manager, box: Workspace) -> None:
    """A snapshot that died before it froze anything leaves an intent, as one does that died while all was frozen."""
    shell(box, "echo more > more")
    intent = Intent(workspace_id=box.id, operation="snapshot", engine=box.record().engine)
    with paused_by_hand(box):
        Path(manager.home.pending(box.id)).write_bytes(intent.to_bytes())
        with Manager(home=manager.home.root, engine=manager.engine().name):
            pass
        assert not os.path.exists(manager.home.pending(box.id))
        assert engine_says(box) == "paused, frozen"


def test_one_that_a_dead_snapshot_left_frozen_runs_again(manager: Manager, box: Workspace) -> None:
    container = box.record().container
    assert container is not None
    freezer_of(container.pid).freeze()
    intent = Intent(workspace_id=box.id, operation="snapshot", engine=box.record().engine)
    Path(manager.home.pending(box.id)).write_bytes(intent.to_bytes())
    assert engine_says(box) == "running, frozen"
    assert shell(box, "cat kept") == "kept\n"
    assert engine_says(box) == "running, running"


def test_one_that_was_paused_can_be_stopped_by_its_engine_after_a_refused_snapshot(
    manager: Manager, box: Workspace
) -> None:
    shell(box, "echo more > more")
    meddle(box, "pause")
    with pytest.raises(Busy, match="paused"):
        box.snapshot()
    if box.record().engine == "podman":
        meddle(box, "unpause")  # podman does not stop what is paused
    meddle(box, "stop")
    assert [info.status for info in manager.list()] == ["stopped"]
    goes_on(manager, box)


def test_one_that_was_paused_can_be_removed(manager: Manager) -> None:
    with manager.create() as box:
        shell(box, "echo kept > kept")
        meddle(box, "pause")
        with pytest.raises(Busy, match="paused"):
            box.snapshot()
        box.remove()
    assert manager.engine().list(manager.home.root) == []


def test_one_whose_monitor_was_killed_goes_on_and_can_be_removed(manager: Manager, box: Workspace) -> None:
    """The engine takes it for running as long as nobody looks at its process; so we look."""
    container = box.record().container
    assert container is not None
    monitor = int(Path(f"/proc/{container.pid}/stat").read_text().rpartition(") ")[2].split()[1])
    name = Path(f"/proc/{monitor}/comm").read_text()
    assert name.startswith(("conmon", "containerd-shim")), name
    os.kill(monitor, signal.SIGKILL)
    while name.startswith("containerd-shim") and container.alive():
        time.sleep(0.01)  # containerd ends what it can no longer watch; the workspace starts again
    assert shell(box, "cat kept") == "kept\n"
    box.remove()
    assert manager.list() == []
    assert not container.alive()


def test_one_that_its_engine_has_forgotten_ends_with_its_workspace(manager: Manager) -> None:
    """podman forgets a container that is started while it is being removed, and leaves it running."""
    with manager.create() as box:
        record = box.record()
        known = record.container
        assert known is not None
        write_record(manager.home, replace(record, container=replace(known, id="0" * 64)))
        box.remove()
    deadline = time.monotonic() + 10
    while known.alive():
        assert time.monotonic() < deadline, "it runs on, known to nobody"
        time.sleep(0.01)
    manager.engine().remove(known.id)


def test_one_with_a_writable_root_that_was_stopped_keeps_what_was_put_there(manager: Manager) -> None:
    with manager.create(read_write_root=True, remove_on_exit=True) as box:
        shell(box, "echo mine > /var/tmp/mine")
        meddle(box, "stop")
        assert shell(box, "cat /var/tmp/mine") == "mine\n"
