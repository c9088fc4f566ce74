"""The peers that keep and bring back trees: git with an external git dir, cp, tar, `docker commit`; and the least
that anybody has to do."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from bench.measure import run
from ws.layout import Home
from ws.manager import DEFAULT_IMAGE
from ws.workspace import Workspace


def git_words(git_dir: Path, tree: Path, *arguments: str) -> list[str]:
    """The git command line over a tree with an external git dir."""
    return ["git", f"--git-dir={git_dir}", f"--work-tree={tree}", *arguments]


class GitPeer:
    """git over a copy of the tree, its history kept outside."""

    def __init__(self, tree: Path, git_dir: Path) -> None:
        self.tree, self.git_dir = tree, git_dir
        run("git", "init", "-q", "--bare", str(git_dir))
        self.commit()

    def git(self, *arguments: str) -> None:
        identity = ("-c", "user.name=bench", "-c", "user.email=bench@example.invalid", "-c", "gc.auto=0")
        run("git", *identity, *git_words(self.git_dir, self.tree, *arguments)[1:])

    def commit(self) -> None:
        self.git("add", "-A", "-f")
        self.git("commit", "-q", "--allow-empty", "-m", "snapshot")

    def restore(self) -> None:
        self.git("reset", "-q", "--hard")
        self.git("clean", "-q", "-fdx")

    def gc(self) -> None:
        self.git("gc", "-q", "--prune=now")


class Least:
    """What nobody can leave out who keeps bytes for good as git objects, for what a snapshot has just sealed.

    Every file is found, read and hashed for its id; all of it is hashed again for the pack, written and synced. No
    trees, no index, no reference, no overlay.
    """

    def __init__(self, home: Home, box: Workspace) -> None:
        self._home, self._box = home, box
        self._made: list[str] = []

    def keep(self) -> None:
        top = os.path.join(self._home.layer(self._box.record().layers[0]), "data")
        contents, ids, pack = [], [], hashlib.sha1(usedforsecurity=False)
        for directory, _, names in os.walk(top):
            for name in names:
                fd = os.open(os.path.join(directory, name), os.O_RDONLY | os.O_NOFOLLOW)
                contents.append(os.read(fd, os.fstat(fd).st_size))
                os.close(fd)
                ids.append(hashlib.sha1(contents[-1], usedforsecurity=False).digest())
                pack.update(contents[-1])
        self._made.append(os.path.join(self._home.root, f"least-{pack.hexdigest()}"))
        fd = os.open(self._made[-1], os.O_WRONLY | os.O_CREAT, 0o600)
        os.writev(fd, contents)
        os.fsync(fd)
        os.close(fd)

    def tidy(self) -> None:
        for path in self._made:
            os.unlink(path)


class CopyPeer:
    """`cp -a --reflink=auto`: the whole tree beside itself, and back."""

    def __init__(self, tree: Path, place: Path) -> None:
        self.tree, self.place = tree, place
        self._number = 0
        self.keep()

    def keep(self) -> None:
        self._number += 1
        run("cp", "-a", "--reflink=auto", f"{self.tree}/.", str(self.place / f"copy-{self._number}"))

    def restore(self) -> None:
        shutil.rmtree(self.tree)
        run("cp", "-a", "--reflink=auto", f"{self.place}/copy-{self._number}/.", str(self.tree))

    def tidy(self) -> None:
        """Remove all copies but the newest; not measured."""
        for path in self.place.glob("copy-*"):
            if path.name != f"copy-{self._number}":
                shutil.rmtree(path)


class TarPeer:
    """`tar -c` into a file, and `tar -x` into an emptied tree."""

    def __init__(self, tree: Path, place: Path) -> None:
        self.tree, self.archive = tree, place / "tree.tar"
        self.keep()

    def keep(self) -> None:
        run("tar", "-C", str(self.tree), "-cf", str(self.archive), ".")

    def restore(self) -> None:
        shutil.rmtree(self.tree)
        self.tree.mkdir()
        run("tar", "-C", str(self.tree), "-xf", str(self.archive))


class DockerCommitPeer:
    """A container whose image holds the tree: `docker commit` keeps what changed since, `docker run` brings it back."""

    def __init__(self, tree: Path, label: str) -> None:
        self.image = f"ws-bench-{label}"
        copying = run(
            "docker", "run", "-d", "--network=none", "-v", f"{tree}:/source:ro", DEFAULT_IMAGE, "sleep", "600"
        )
        self.container = copying.stdout.decode().strip()
        try:
            run("docker", "exec", "-u", "0", self.container, "cp", "-a", "/source/.", "/tree")
            run("docker", "commit", self.container, f"{self.image}:base")
        finally:
            run("docker", "rm", "-f", self.container)
        self.container = self._start("base")

    def _start(self, tag: str) -> str:
        return (
            run("docker", "run", "-d", "--network=none", "-u", "0", f"{self.image}:{tag}", "sleep", "600")
            .stdout.decode()
            .strip()
        )

    def change(self, script: str, *arguments: str) -> None:
        run("docker", "exec", self.container, "python3", "-c", script, "/tree", *arguments)

    def keep(self) -> None:
        run("docker", "commit", self.container, f"{self.image}:kept")

    def restore(self) -> None:
        run("docker", "rm", "-f", self.container)
        self.container = self._start("kept")

    def close(self) -> None:
        run("docker", "rm", "-f", self.container)
        for tag in ("kept", "base"):
            with contextlib.suppress(RuntimeError):  # it was never committed
                run("docker", "image", "rm", "-f", f"{self.image}:{tag}")


@contextlib.contextmanager
def docker_commit(tree: Path, label: str) -> Iterator[DockerCommitPeer]:
    peer = DockerCommitPeer(tree, label)
    try:
        yield peer
    finally:
        peer.close()
