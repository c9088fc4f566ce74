"""What the contract tests of the tools work on: a project, and routers over it in every dialect.

The same tests run on a directory of this machine and in real containers. There the files are reached from outside,
through /proc/PID/root, under the paths that the container knows them by.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from workspaces import SharedWorkspaces, paths_inside
from ws.fs.host import HostFilesystem
from ws.fs.memory import MemoryFilesystem
from ws.fs.protocol import WORKSPACE_LIMITS
from ws.idmaps import container_ids
from ws.layout import Ids
from ws.remote.tooling import RemoteBackend
from ws.toolbox.approval import ApprovalPolicy
from ws.toolbox.local import LocalBackend, open_local
from ws.toolbox.router import Backend, Router
from ws.tools.context import ToolResult
from ws.tools.trash import Backups
from ws.workspace import Workspace

RG = shutil.which("rg")
BACKENDS = ("host", "podman", "docker")


class ToolBench:
    """A project with its surroundings: `root` is what the tools may touch, `outside` what they may not."""

    root: Path
    outside: Path
    kept: Path
    backend: Backend
    backups: Backups

    def __init__(self, tmp_path: Path, dialect: str, *, approval: ApprovalPolicy | None = None, **options: Any) -> None:
        self.root, self.outside, self.kept = tmp_path / "project", tmp_path / "outside", tmp_path / "kept"
        for directory in (self.root, self.outside, self.kept):
            directory.mkdir()
        options.setdefault("rg", (RG,) if RG else None)
        options.setdefault("env", {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(self.outside)})
        local: LocalBackend = open_local(
            str(self.root), HostFilesystem(str(self.kept), limits=WORKSPACE_LIMITS, durable=False), **options
        )
        self.close: Callable[[], None] = local.close
        self.backups = local.context.backups
        self._begin(local, dialect, approval)

    def _begin(self, backend: Backend, dialect: str, approval: ApprovalPolicy | None) -> None:
        (self.outside / "secret.txt").write_text("secret\n")
        self.backend = backend
        self.dialect = dialect
        self.router = Router(backend, dialect=dialect, approval=approval)

    def with_router(self, **options: Any) -> Router:
        """Another router over the same files."""
        return Router(self.backend, **{"dialect": self.dialect, **options})

    def put(self, files: dict[str, str | bytes]) -> None:
        for name, content in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    def read(self, name: str) -> str:
        return (self.root / name).read_bytes().decode()

    def call(self, name: str, /, **arguments: Any) -> ToolResult:
        return self.router.call(name, **arguments)

    def untouched(self) -> bool:
        """Whether everything outside is as it was."""
        return [path.name for path in self.outside.iterdir()] == ["secret.txt"] and (
            self.outside / "secret.txt"
        ).read_text() == "secret\n"


class BoxBench(ToolBench):
    """The same in a container."""

    def __init__(
        self, box: Workspace, home: str, dialect: str, *, approval: ApprovalPolicy | None = None, **options: Any
    ) -> None:
        record = box.record()
        assert record.container is not None
        box.exec(["sh", "-c", "cd /.ws/run; rm -rf outside; mkdir outside; find kept -mindepth 1 -delete"])
        path_inside = paths_inside(record.container.pid)
        self.root, self.outside = path_inside("/workspace"), path_inside("/.ws/run/outside")
        self.kept = Path(home) / "workspaces" / box.id / "kept"
        self.close = lambda: None
        self.backups = Backups(MemoryFilesystem(), HostFilesystem(str(self.kept), limits=WORKSPACE_LIMITS))
        ids = container_ids(record.container.pid, record.ids)
        self._begin(OwningBackend(RemoteBackend(box, **options), self.root, ids), dialect, approval)


class OwningBackend:
    """A backend that first gives what the test put there, as root, to the workspace's user."""

    def __init__(self, backend: Backend, root: Path, ids: Ids) -> None:
        self._backend = backend
        self._root = root
        self._ids = ids

    @property
    def root(self) -> str:
        return self._backend.root

    def run(self, tool: str, params: Mapping[str, Any]) -> ToolResult:
        for directory, directories, files in os.walk(self._root):
            for name in (*directories, *files):
                path = os.path.join(directory, name)
                if os.lstat(path).st_uid == 0:
                    os.lchown(path, self._ids.host_uid, self._ids.host_gid)
        return self._backend.run(tool, params)


@contextmanager
def open_bench(
    backend: str, tmp_path: Path, shared: Callable[[str], SharedWorkspaces], dialect: str, **options: Any
) -> Iterator[ToolBench]:
    """A bench on this machine, or in a container of the engine that `backend` names.

    `approval` is the policy of its router, by default that of the dialect; other options go to the backend.
    """
    if backend == "host":
        bench = ToolBench(tmp_path, dialect, **options)
    else:
        boxes = shared(backend)
        bench = BoxBench(boxes.take(), boxes.home, dialect, **options)
    try:
        yield bench
    finally:
        bench.close()
