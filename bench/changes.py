"""The same changes to a workspace and to a peer's tree, made by the same script; never measured."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

from bench.measure import run
from bench.peers import GitPeer
from ws.manager import Manager
from ws.workspace import Workspace

CHANGE = """
import os, sys
top, count, salt = sys.argv[1], int(sys.argv[2]), sys.argv[3]
paths = []
for directory, names, files in os.walk(top):
    names[:] = sorted(n for n in names if n != '.git')
    paths += [os.path.join(directory, f) for f in sorted(files)]
    if len(paths) > count * 40: break
for path in paths[:: max(1, len(paths) // count)][:count]:
    with open(path, 'a') as file: file.write('# ' + salt + chr(10))
"""
APPEND = """
import sys
salt, *paths = sys.argv[1:]
for path in paths:
    with open(path, 'a') as file: file.write('# ' + salt + chr(10))
"""
MAKE = """
import os, sys
top, count, salt = sys.argv[1], int(sys.argv[2]), sys.argv[3]
for number in range(count):
    directory = os.path.join(top, 'node_modules', f'package{number // 50}')
    os.makedirs(directory, exist_ok=True)
    with open(os.path.join(directory, f'module{number}.js'), 'w') as file:
        file.write(f'module.exports = "{salt}-{number}";' * 20)
"""


def changed(box: Workspace, peer: GitPeer | None, count: int, salt: str, script: str = CHANGE) -> None:
    """The same change in the peer's tree and in the workspace; only the latter is still on its way to the disk then."""
    if peer:
        run("python3", "-c", script, str(peer.tree), str(count), salt)
        os.sync()
    result = box.exec(["python3", "-c", script, "/workspace", str(count), salt])
    assert result.exit_code == 0, result.stderr


def same_files(tree: Path, count: int) -> list[str]:
    """Files of a tree, spread over it, by paths that are also those of a larger tree (`bench.trees`)."""
    found = sorted(str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file())
    return found[:: len(found) // count][:count]


def changed_files(box: Workspace, files: list[str], salt: str) -> None:
    """The same change to the same files, whatever else there is."""
    result = box.exec(["python3", "-c", APPEND, salt, *files])
    assert result.exit_code == 0, result.stderr


def damaged(box: Workspace, peer: GitPeer, number: int) -> None:
    """A hundred files changed and a directory deleted, in both."""
    victim = next(path for path in sorted(peer.tree.iterdir()) if path.is_dir())
    inner = next(path for path in sorted(victim.iterdir()) if path.is_dir())
    shutil.rmtree(inner)
    changed(box, peer, 100, f"damage{number}")
    box.exec(["rm", "-rf", str(inner.relative_to(peer.tree))])


@contextlib.contextmanager
def held(box: Workspace) -> Iterator[None]:
    """A process works in the workspace meanwhile, as a dev server would."""
    command = ["sh", "-c", "cd /workspace; echo begun; exec sleep 600"]
    begun = threading.Event()
    thread = threading.Thread(target=lambda: box.exec(command, on_output=lambda *_: begun.set()))
    thread.start()
    begun.wait(30)
    try:
        yield
    finally:
        box.exec(["pkill", "sleep"])
        thread.join()


def bytes_on_disk(top: str | os.PathLike[str]) -> int:
    """Files and directories, by the blocks they take."""
    return sum(
        os.lstat(os.path.join(directory, name)).st_blocks * 512
        for directory, directories, names in os.walk(top)
        for name in (*directories, *names)
    )


def store_bytes(manager: Manager) -> int:
    return bytes_on_disk(manager.home.store)
