"""A workspace in which things happen: changed by a seed, looked at from inside and outside, held, lost.

Two looks, so that neither is taken on trust: the host's, through the container's own mount, sees also what modes hide
from the workspace's user; the container's sees owners as the user does.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import tree_changes
from tree_picture import Picture, picture
from workspaces import ids_inside
from ws.errors import NotFound
from ws.freezer import freezer_of
from ws.idmaps import container_ids
from ws.layers import is_synced
from ws.layout import Home
from ws.manager import Manager
from ws.records import read_record, write_record
from ws.stacks import needed_layers, read_stack
from ws.store.gathering import Owners
from ws.store.reading import Rules
from ws.store.repository import Store
from ws.store.scan import scan_tree
from ws.workspace import Workspace


@dataclass(frozen=True)
class Look:
    """Everything of a workspace that must come back."""

    outside: Picture
    inside: dict[str, Any]


def change(box: Workspace, what: str, seed: int, steps: int) -> int:
    """Have a seed's changes made by a process in the container; how many it could make."""
    result = box.exec(["python3", "-c", tree_changes.INSIDE, what, str(seed), str(steps)], timeout=60)
    assert result.exit_code == 0, result.stderr
    return int(result.stdout)


def shell(box: Workspace, line: str, **options: Any) -> str:
    result = box.exec(["sh", "-c", line], timeout=60, **options)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def mounted_at(box: Workspace) -> str:
    """The container's /workspace, for the host; without a container, the directory itself."""
    box.start()
    if box.record().engine == "none":
        return box.root
    container = box.record().container
    assert container is not None
    return f"/proc/{container.pid}/root/workspace"


def outside(box: Workspace) -> Picture:
    """Through the container's mount as root of the host; sockets are not kept, so they are not looked at."""
    return {path: facts for path, facts in picture(mounted_at(box)).items() if facts[0] != stat.S_IFSOCK}


def whole_tree(home: Home, box: Workspace) -> str:
    """The id of the tree that the container sees, from reading all of it: what both ways must arrive at."""
    record = box.record()
    assert record.container is not None
    ids = container_ids(record.container.pid, record.ids)
    top = os.open(mounted_at(box), os.O_RDONLY | os.O_DIRECTORY)
    try:
        with Store(home.store) as store, store.writing() as writer:
            rules = Rules(os.fstat(top).st_dev, Owners.seen_by(ids))
            tree = scan_tree(store, writer, top, rules).tree.hex()
            writer.finish()
            return tree
    finally:
        os.close(top)


def look(box: Workspace) -> Look:
    result = box.exec(["python3", "-c", tree_changes.INSIDE, "look"], timeout=60)
    assert result.exit_code == 0, result.stderr
    there = picture(mounted_at(box))
    sockets = {path for path, facts in there.items() if facts[0] == stat.S_IFSOCK}
    # A socket in a directory that lets its user list and not look is only a name to him.
    hidden = {os.path.join(b".", path).hex() for path in sockets}
    # On docker a container sees its own host ids, which differ from one container to the next.
    shift = ids_inside(box)[0] - box.record().ids.uid if box.record().container else 0
    inside = {
        path: [*facts[:2], *(number - shift if number >= shift else number for number in facts[2:4]), *facts[4:]]
        for path, facts in json.loads(result.stdout).items()
        if path not in hidden
    }
    return Look({path: facts for path, facts in there.items() if path not in sockets}, inside)


def differences(before: Look, after: Look) -> list[str]:
    """What is not as it was, in words, for a failing test."""
    found = []
    for there, here in ((before.outside, after.outside), (before.inside, after.inside)):
        for path in sorted({*there, *here}, key=repr):
            if there.get(path) != here.get(path):
                found.append(f"{path!r}: was {there.get(path)}, is {here.get(path)}")
    return found


@contextlib.contextmanager
def held(box: Workspace) -> Iterator[None]:
    """A process that works in the workspace throughout, so that the overlay cannot be taken off."""
    with box.terminal(["sh", "-c", "exec sleep 1000"]):
        yield
    with contextlib.suppress(NotFound):  # a workspace that was removed meanwhile
        shell(box, "while pgrep -fx 'sleep 1000' > /dev/null; do sleep 0.01; done")


def kill_container(box: Workspace) -> None:
    """As a reboot does: the first process is gone, and with it all others and the mount."""
    container = box.record().container
    if container is not None and container.alive():
        os.kill(container.pid, 9)
        while container.alive():
            os.sched_yield()


def lose_power(home: Home, box: Workspace, *, upper: bool = False) -> None:
    """What a power cut may do at its worst: nothing that was not synced is there any more, and the machine restarted.

    Layers and bases that are not noted as synced are emptied, and their marks name another boot. The upper may survive.
    What a restore kept to be undone was synced, and does.
    """
    kill_container(box)
    record = box.record()
    assert record.container is not None
    write_record(home, replace(record, container=replace(record.container, boot="an earlier one")))
    spared = set() if upper else {record.upper, *record.layers[: record.history.unhashed]}
    for waiting in record.history.unsettled:
        spared.update(waiting.layers[: waiting.unhashed])
    for layer in os.listdir(home.at("layers")):
        forget_boot(home, layer)
        if layer not in spared and not is_synced(home.layer(layer)):
            empty(os.path.join(home.layer(layer), "data"))
    for base in os.listdir(home.at("bases")):
        info = os.path.join(home.base(base), "info.json")
        with open(info, encoding="utf-8") as file:
            facts = json.load(file)
        with open(info, "w", encoding="utf-8") as file:
            json.dump({**facts, "boot": "an earlier one"}, file)
        if not is_synced(home.base(base)):
            empty(os.path.join(home.base(base), "data"))


def forget_boot(home: Home, layer: str) -> None:
    """Let a layer be of an earlier boot of the machine."""
    for name in os.listdir(home.layer(layer)):
        if name.startswith("boot-"):
            os.rename(os.path.join(home.layer(layer), name), os.path.join(home.layer(layer), "boot-an-earlier-one"))


def distrust(home: Home, box: Workspace, number: int) -> None:
    """Let the layers of a snapshot be of another boot, so that it has to be rebuilt from git."""
    stack = read_stack(home, box.id, number)
    assert stack is not None
    for layer in stack.layers:
        forget_boot(home, layer)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(home.layer(layer), "synced"))


def empty(directory: str) -> None:
    subprocess.run(["find", directory, "-mindepth", "1", "-delete"], check=True)


def check_store(home: Home) -> None:
    """Stock git finds nothing wrong with the store."""
    done = subprocess.run(
        ["git", "--git-dir", home.store, "fsck", "--strict", "--full", "--no-dangling"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def leftovers(home: Home) -> list[str]:
    """What no operation, workspace or snapshot accounts for."""
    found = [f"{part}/{name}" for part in ("pending", "staging") for name in os.listdir(home.at(part))]
    needed: set[str] = set()
    for workspace_id in os.listdir(home.at("workspaces")):
        record = read_record(home, workspace_id)
        if record is None:
            found.append(f"workspaces/{workspace_id} without a record")
            continue
        needed |= needed_layers(home, record)
        found += [
            f"workspaces/{workspace_id}/{name}"
            for name in os.listdir(home.workspace(workspace_id))
            if name.startswith(".") or (name.startswith("scan-") and name != f"scan-{record.upper}")
        ]
        found += [
            f"layers/{layer} does not know {workspace_id}"
            for layer in needed_layers(home, record)
            if not os.path.exists(os.path.join(home.layer(layer), "users", workspace_id))
        ]
    found += [f"layers/{layer}" for layer in set(os.listdir(home.at("layers"))) - needed]
    for layer in os.listdir(home.at("layers")):
        users = os.path.join(home.layer(layer), "users")
        if os.path.isdir(users):
            found += [f"{users}/{user}" for user in set(os.listdir(users)) - set(os.listdir(home.at("workspaces")))]
    return found


def is_thawed(box: Workspace) -> bool:
    container = box.record().container
    return container is None or not container.alive() or not freezer_of(container.pid).freezing()


def remove_all(manager: Manager) -> None:
    """`ws rm` works for whatever is left of a test, and leaves nothing."""
    for info in manager.list():
        manager.remove(info.id)
    home = manager.home
    parts = ("workspaces", "names", "layers", "run", "pending", "staging")
    assert [f"{part}/{name}" for part in parts for name in os.listdir(home.at(part))] == []
    assert os.listdir(os.path.join(home.store, "refs", "workspaces")) == []
