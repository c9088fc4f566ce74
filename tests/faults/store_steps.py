"""What adds to and removes from the pack directory, done in processes that stop at a chosen step.

    python store_steps.py steps STORE FIRST OTHER             FIRST stops at each of its steps, OTHER runs wholly
    python store_steps.py loop STORE OPERATION WORKSPACE S    the same operation again and again, for some seconds

A step is a call that opens, lists, locks, renames or removes a path: Python announces each of them (`sys.addaudithook`)
before it is made, so nothing of the product is changed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from typing import Any

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src"))

from ws import durable
from ws.errors import Busy, WorkspaceError
from ws.store import commits, gc, references, trees
from ws.store.packs import BLOB
from ws.store.repository import Store
from ws.store.sweeping import sweep
from ws.store.verify import Verifier

OPERATIONS = ("collect", "consolidate", "sweep", "write", "pack references")
CALLS = {"open", "os.listdir", "os.rename", "os.remove", "os.rmdir", "fcntl.flock"}


def take_snapshot(path: str, workspace: str) -> str:
    """A snapshot of a content that the store has, and of one that is new; its id."""
    with Store(path) as store, store.writing(quick=True) as writer:
        known = writer.add(BLOB, b"known to all" * 50)
        new = writer.add(BLOB, os.urandom(300))
        record = writer.add(BLOB, b". d755 0:0 0 -\na f644 . 0 600\nb f644 . 0 300\n", plain=True)
        node = trees.add_directory(writer, record, [(trees.FILE, b"a", known), (trees.FILE, b"b", new)], [])
        snapshot = commits.add_snapshot(
            writer,
            workspace=workspace,
            number=commits.next_number(store, workspace),
            tree=trees.add_root(writer, node).hex(),
            created_ns=time.time_ns(),
        )
        writer.finish(commits.references(store, snapshot))
    return snapshot.id


def do(operation: str, path: str, workspace: str) -> str | None:
    """Carry out an operation; the id of the snapshot that it took."""
    if operation == "write":
        return take_snapshot(path, workspace)
    with Store(path) as store:
        if operation == "collect":
            gc.collect(store)
        elif operation == "consolidate":
            store.refresh()
            gc.consolidate(store)
        elif operation == "sweep":
            sweep(store)
        else:
            references.pack_references(store)
    return None


def wait_at_most(seconds: float) -> None:
    """Have no operation of this process wait longer than that for a lock: the other one may hold it for ever."""
    wait = durable.acquire_lock

    def acquire_lock(path: str, *, shared: bool = False, timeout_s: float = 10.0, what: str = "it") -> int:
        return wait(path, shared=shared, timeout_s=min(timeout_s, seconds), what=what)

    durable.acquire_lock = acquire_lock


def check(path: str, reported: list[str]) -> None:
    """All snapshots are there and whole, and nothing is left over once a collection has run."""
    with Store(path) as store:
        for workspace in references.workspaces(store):
            snapshots = commits.list_snapshots(store, workspace)
            assert [one.number for one in snapshots] == list(range(len(snapshots)))
            verifier = Verifier(store)
            assert [verifier.check(one.tree) for one in snapshots] == [[]] * len(snapshots)
        ids = commits.snapshot_ids(store, "w")
        assert len(ids) >= 12
        assert set(reported) <= set(ids)
        sweep(store)
        assert not gc.collect(store).lost
        names = os.listdir(store.pack_directory)
        assert len(names) % 2 == 0
        assert all(name.startswith("pack-") for name in names), names
    done = subprocess.run(["git", "--git-dir", path, "fsck", "--strict"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


def meet(path: str, first: str, other: str, step: int) -> bool:
    """Run `first`, and at one of its steps `other`; whether there was such a step. Both in processes of their own."""
    told, tell = os.pipe()
    answered, answer = os.pipe()
    child = os.fork()
    if child:
        os.close(tell)
        os.close(answer)
        text = b""
        while part := os.read(answered, 4096):
            text += part
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.close(told)
        os.close(answered)
        assert status == 0, f"{first} failed at step {step} of {other}: {text.decode()}"
        lines = text.decode().splitlines()
        check(path, [line.split()[1] for line in lines if line.startswith("snapshot ")])
        return "met" in lines
    try:
        _meet(path, first, other, step, (told, tell, answer))
        os._exit(0)
    except BaseException:  # noqa: BLE001 - the process ends here, whatever it was
        os.write(answer, traceback.format_exc().encode())
        os._exit(1)


def _meet(path: str, first: str, other: str, step: int, pipes: tuple[int, int, int]) -> None:
    told, tell, answer = pipes
    waiting = os.fork()  # now: what this process holds in the middle of a step would be held in a later child, too
    if not waiting:
        os.close(tell)
        status = 0
        if os.read(told, 1):
            try:
                do(other, path, "other")
            except WorkspaceError:
                status = 3
            except BaseException:  # noqa: BLE001
                os.write(answer, traceback.format_exc().encode())
                status = 1
        os._exit(status)
    count, active = 0, True

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count, active
        if not active or event not in CALLS:
            return
        if event == "open" and not (isinstance(arguments[0], str) and arguments[0].startswith(path)):
            return
        count += 1
        if count == step:
            active = False
            os.write(tell, b"x")
            status = os.waitstatus_to_exitcode(os.waitpid(waiting, 0)[1])
            assert status in (0, 3), f"{other} failed, untyped, at step {step} of {first}: {event} {arguments}"
            os.write(answer, b"met\n")

    sys.addaudithook(hook)
    try:
        made = do(first, path, "w")
        if made:
            os.write(answer, f"snapshot {made}\n".encode())
    except Busy:
        os.write(answer, b"busy\n")
    active = False
    os.close(tell)


def main() -> None:
    if sys.argv[1] == "steps":
        prepared, first, other = sys.argv[2:5]
        wait_at_most(0.05)
        step, met = 0, True
        # In memory where there is such a place: a sync costs nothing there, and a thousand stores are made here.
        with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as working:
            while met:
                step += 1
                shutil.copytree(prepared, f"{working}/{step}", symlinks=True)
                met = meet(f"{working}/{step}", first, other, step)
                shutil.rmtree(f"{working}/{step}")
        print(step)
        return
    path, operation, workspace, seconds = sys.argv[2:6]
    wait_at_most(5)
    done, until = 0, time.monotonic() + float(seconds)
    while time.monotonic() < until:
        try:
            do(operation, path, workspace)
            done += 1
        except Busy:
            pass
    print(done)


if __name__ == "__main__":
    main()
