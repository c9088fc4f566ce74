"""What every group needs: a WS_HOME for each engine, real trees, the peers' copies of them, the peers' commands.

One stage serves a whole run, so that a tree is copied and imported once however many groups measure on it. A group
removes the workspaces it makes; what it left when it failed is removed with the stage.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.peers import GitPeer
from bench.swerex import SweRex, SweRexMissing
from bench.trees import make_real_tree
from ws.engine.base import Engine
from ws.errors import EngineUnavailable
from ws.layout import EngineName, WorkspaceRecord
from ws.manager import DEFAULT_IMAGE, Manager

ENGINES: tuple[EngineName, ...] = ("podman", "docker")


@contextlib.contextmanager
def home() -> Iterator[Path]:
    """A scratch directory that is gone afterwards."""
    path = Path(tempfile.mkdtemp(prefix="ws-bench-"))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Stage:
    """`with Stage(quick=…) as stage`: what the groups share, made when it is first asked for."""

    def __init__(self, *, quick: bool, engines: Sequence[EngineName] = ENGINES) -> None:
        self.quick = quick
        self.managers: list[Manager] = []
        self.missing: dict[str, str] = {}  # peers and engines that are not measured, and why
        self._engines = engines
        self._stack = contextlib.ExitStack()
        self._trees: dict[int, Path] = {}
        self._peers: dict[int, GitPeer] = {}
        self._swerex: SweRex | None = None

    def __enter__(self) -> Stage:
        with self._stack:
            self.place = self._stack.enter_context(home())
            for name in self._engines:
                try:
                    manager = self.manager(name)
                    manager.engine().check()
                except EngineUnavailable as error:
                    self.missing[name] = str(error)
                    continue
                self.managers.append(manager)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def manager(self, engine: EngineName, *, home: str = "home") -> Manager:
        """A manager of a home of its own; its workspaces are removed with the stage."""
        manager = Manager(home=str(self.place / f"{home}-{engine}"), engine=engine)
        self._stack.callback(manager.close)
        self._stack.callback(_remove_all, manager)
        return manager

    def rounds(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    @property
    def few(self) -> list[Manager]:
        """The engines for what takes long: all of them, and the first alone when it has to be quick."""
        return self.managers[:1] if self.quick else self.managers

    @property
    def files(self) -> int:
        """The size of the tree that the figures are asked for on."""
        return self.rounds(50_000, 2_000)

    def tree(self, files: int) -> Path:
        """A tree of so many real files. Nobody changes it."""
        if files not in self._trees:
            make_real_tree(self.place / f"tree-{files}", files)
            self._trees[files] = self.place / f"tree-{files}"
        return self._trees[files]

    def git(self, files: int) -> GitPeer:
        """git with an external git dir, over a copy of that tree which it may change."""
        if files not in self._peers:
            copy = self.place / f"git-tree-{files}"
            shutil.copytree(self.tree(files), copy)
            self._peers[files] = GitPeer(copy, self.place / f"git-{files}")
        return self._peers[files]

    def swerex(self) -> SweRex | None:
        """SWE-ReX, started on first use; None where it does not install or start, which the report says."""
        if self._swerex is None and "SWE-ReX" not in self.missing:
            try:
                self._swerex = SweRex()
                self._stack.callback(self._swerex.close)
            except SweRexMissing as error:
                self.missing["SWE-ReX"] = str(error)
        return self._swerex

    @contextlib.contextmanager
    def scratch(self, name: str) -> Iterator[Path]:
        path = self.place / name
        path.mkdir()
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)


def _remove_all(manager: Manager) -> None:
    for info in manager.list():
        manager.remove(info.id)


def engine_cli(engine: Engine) -> list[str]:
    """The peer's own command, told to use the runtime that works here."""
    if engine.name == "podman":
        return ["podman", "--runtime", engine.check().runtime]
    return ["docker"]


def like_ours(engine: Engine, record: WorkspaceRecord) -> list[str]:
    """The options of `podman run` and `docker run` that ask for what ws asks for."""
    options = record.options
    words = ["--cap-drop=all", "--security-opt=no-new-privileges", "--read-only", "--network=none"]
    words += ["--tmpfs=/tmp", "--tmpfs=/home/agent", "--tmpfs=/workspace", "--ulimit=nofile=1024:1024"]
    words += [f"--pids-limit={options.pids}", f"--memory={options.memory_bytes}", f"--cpus={options.cpus:g}"]
    words += [f"--user={record.ids.uid}:{record.ids.gid}"]
    if engine.name == "podman":
        offset = record.ids.host_uid - record.ids.uid
        words += [f"--uidmap=0:{offset}:65536", f"--gidmap=0:{offset}:65536", "--ulimit=nproc=4096:4096"]
    return [*words, DEFAULT_IMAGE]
