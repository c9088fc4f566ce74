"""Where an engine is held against its contract: containers that are removed whatever happens, and what they leave."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ws.engine import cgroups
from ws.engine.base import ContainerSpec, ContainerState, Engine, ExecOutput
from ws.layout import Options


@dataclass(frozen=True, slots=True)
class EngineBench:
    """An engine and what it needs to make containers.

    `image` must hold a static /bin/busybox; for the engine `none` the host must.
    """

    engine: Engine
    home: str
    image: str
    uid: int = 1000
    gid: int = 1000
    runtime_dir: str | None = None  # mounted read-only; an empty directory by default

    @property
    def contained(self) -> bool:
        return self.engine.name != "none"

    @property
    def freezes(self) -> bool:
        """Whether its containers have a cgroup of their own; rootless they need cgroup v2 for it."""
        return self.contained and not (self.engine.check().rootless and cgroups.read_mounts().layout != "unified")

    @property
    def other_user(self) -> str:
        """A user that is not the container's own."""
        return "65534:65534" if self.contained else f"{os.geteuid()}:{os.getegid()}"

    @contextlib.contextmanager
    def spec(self, *command: str, workspace_id: str = "", **options: object) -> Iterator[ContainerSpec]:
        """A spec with its directories; whatever container was made of it is removed at the end."""
        key = f"check-{secrets.token_hex(6)}"
        ids = self.engine.host_ids(self.uid, self.gid)
        run_dir = os.path.join(self.home, "run", key)
        os.makedirs(run_dir, mode=0o700)
        if os.geteuid() == 0:
            os.chown(run_dir, ids.host_uid, ids.host_gid)
        with tempfile.TemporaryDirectory(dir=self.home) as empty:
            os.chmod(empty, 0o755)
            spec = ContainerSpec(
                key=key,
                home=self.home,
                workspace_id=workspace_id,
                ids=ids,
                options=dataclasses.replace(Options(image=self.image), **options),  # type: ignore[arg-type]
                command=command or ("/bin/busybox", "sleep", "600"),
                runtime_dir=self.runtime_dir or empty,
                run_dir=run_dir,
            )
            try:
                yield spec
            finally:
                for state in self.engine.list(self.home):
                    if state.key == key:
                        self.engine.remove(state.id)
                for name in os.listdir(run_dir):
                    os.unlink(os.path.join(run_dir, name))
                os.rmdir(run_dir)

    @contextlib.contextmanager
    def container(self, *command: str, workspace_id: str = "", **options: object) -> Iterator[ContainerState]:
        """A running container."""
        with self.spec(*command, workspace_id=workspace_id, **options) as spec:
            yield self.engine.start(self.engine.create(spec))


def exec_in(bench: EngineBench, state: ContainerState, script: str, *, timeout_s: float = 30) -> ExecOutput:
    argv = ["/bin/busybox", "sh", "-c", script]
    return bench.engine.exec(state.id, argv, user=bench.other_user, workdir="/", timeout_s=timeout_s)


def raises(kind: type[BaseException], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def until(condition: Callable[[], bool], *, within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)


def mine(bench: EngineBench, key: str) -> list[ContainerState]:
    return [state for state in bench.engine.list(bench.home) if state.key == key]


def running(bench: EngineBench, container_id: str) -> bool:
    state = bench.engine.find(container_id)
    return state is not None and state.running


def exit_code(bench: EngineBench, container_id: str) -> int | None:
    state = bench.engine.find(container_id)
    return None if state is None else state.exit_code


def command_line(pid: int) -> list[str]:
    with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
        return file.read().rstrip("\0").split("\0")


def kin(pid: int) -> list[int]:
    """The process and its descendants."""
    found = [pid]
    for each in found:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in os.listdir(f"/proc/{each}/task"):
                with open(f"/proc/{each}/task/{task}/children", encoding="ascii") as file:
                    found += [int(word) for word in file.read().split()]
    return found


def marks_of(state: ContainerState) -> list[str]:
    """What the traces of a container are known by: its id, and where its network namespace is mounted."""
    namespace = f" {os.readlink(f'/proc/{state.pid}/ns/net')} "
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        return [state.id, *(line.split(" ")[4] for line in file if namespace in line)]


def traces(marks: list[str]) -> list[str]:
    """Processes, mounts, cgroups and addresses that still have a mark of a container."""
    found = [line for line in processes().values() if _is_marked(line, marks)]
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        found += [line for line in file if _is_marked(line, marks)]
    for directory, names, _ in os.walk("/sys/fs/cgroup"):
        found += [os.path.join(directory, name) for name in names if _is_marked(name, marks)]
    for directory, _, names in os.walk("/var/lib/cni"):
        for path in (os.path.join(directory, name) for name in names):
            with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
                found += [path] if _is_marked(path + file.read(), marks) else []
    return found


def _is_marked(text: str, marks: list[str]) -> bool:
    return any(mark in text for mark in marks)


def processes() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if name.isdigit():
                found[int(name)] = " ".join(command_line(int(name)))
    return found


def sleepers(*arguments: str) -> list[int]:
    return [pid for pid, line in processes().items() if line.split(" ")[-1] in arguments]
