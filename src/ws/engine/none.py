"""No container: the shim as an ordinary process of the host. The same contract, no isolation at all.

For machines where no engine can be had, and only when asked for by name. A "container" is its run directory:
`container.json` says what it is, `process.json` which process runs it. Removing kills that process, its
session and its descendants; a process that took itself out of all three outlives it.
"""

# ruff: noqa: ARG002 - the contract's parameters stay, though much of it means nothing here

from __future__ import annotations

import dataclasses
import json
import os
import pwd
import selectors
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ws import durable
from ws.engine.base import (
    WORKSPACE,
    ContainerSpec,
    ContainerState,
    EngineFacts,
    ExecOutput,
    ImageFacts,
    OnOutput,
    Progress,
)
from ws.engine.confinement import DEFAULT_PATH
from ws.engine.execution import Collected
from ws.engine.processes import kill_all, read_status, spawn_detached, with_status
from ws.errors import ContainerDied, EngineError, InvalidRequest, StateError
from ws.layout import EngineName, Ids, boot_id, process_start
from ws.record_fields import PLAIN_RULES, construct
from ws.record_files import read_cached_json

_DRAIN_S = 0.2
_KILLED = 128 + 9
_LOOK_S = 0.1


@dataclasses.dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    started: int
    boot: str

    def runs(self) -> bool:
        return self.boot == boot_id() and process_start(self.pid) == self.started


class NoEngine:
    """Processes of the host, in run directories under one WS_HOME."""

    name: EngineName = "none"

    def __init__(self, home: str) -> None:
        self._home = home

    def check(self) -> EngineFacts:
        return EngineFacts(
            name=self.name,
            version="",
            runtime="",
            endpoint="",
            rootless=os.geteuid() != 0,
            notes=("no isolation: commands run on this machine, as this user, with its files and network",),
        )

    def close(self) -> None:
        return

    def host_ids(self, uid: int, gid: int) -> Ids:
        return Ids(os.geteuid(), os.getegid(), os.geteuid(), os.getegid())

    def image(self, reference: str) -> ImageFacts:
        return ImageFacts(id="none", user="", env={"PATH": os.environ.get("PATH", DEFAULT_PATH)}, size_bytes=0)

    def import_image(self, rootfs_tar: str, reference: str, *, progress: Progress | None = None) -> ImageFacts:
        raise _no_images(reference)

    def build_image(
        self,
        containerfile: str,
        reference: str,
        *,
        build_args: Mapping[str, str],
        progress: Progress | None = None,
    ) -> ImageFacts:
        raise _no_images(reference)

    def create(self, spec: ContainerSpec) -> str:
        """Commit point: the rename of `container.json`."""
        path = os.path.join(self._directory(spec.key), "container.json")
        if os.path.realpath(spec.run_dir) != os.path.realpath(self._directory(spec.key)):
            raise InvalidRequest(f"{spec.run_dir} is not run/{spec.key} of {self._home}")
        record = {
            "key": spec.key,
            "workspace_id": spec.workspace_id,
            "command": list(spec.command),
            "env": {
                "PATH": os.environ.get("PATH", DEFAULT_PATH),
                "HOME": os.environ.get("HOME", "/"),
                "LANG": "C.UTF-8",
                **spec.options.env,
            },
        }
        durable.write_file(path, json.dumps(record).encode())
        return spec.key

    def start(self, container_id: str) -> ContainerState:
        record = self._record(container_id)
        if record is None:
            raise ContainerDied(f"{container_id} is gone")
        state = self._state(record)
        if state.running:
            return state
        log = os.path.join(self._directory(container_id), "log")
        pid = spawn_detached(record["command"], log=log, env=record["env"])
        started = process_start(pid)
        if started is None:
            raise ContainerDied(f"{record['command'][0]} ended at once", hint=f"see {log}")
        process = _Process(pid, started, boot_id())
        durable.write_file(
            os.path.join(self._directory(container_id), "process.json"),
            json.dumps(dataclasses.asdict(process)).encode(),
        )
        return self._state(record)

    def settle(self, container_id: str) -> ContainerState:
        state = self.find(container_id)
        if state is None or not state.running:
            raise ContainerDied(f"{container_id} does not run")
        return state

    def find(self, container_id: str) -> ContainerState | None:
        record = self._record(container_id)
        return None if record is None else self._state(record)

    def list(self, home: str | None) -> list[ContainerState]:
        home = home or self._home  # of others nothing is known
        try:
            keys = os.listdir(os.path.join(home, "run"))
        except FileNotFoundError:
            return []
        engine = self if home == self._home else NoEngine(home)
        return [state for key in sorted(keys) if (state := engine.find(key)) is not None]

    def exec(
        self,
        container_id: str,
        argv: Sequence[str],
        *,
        user: str,
        workdir: str = WORKSPACE,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        on_output: OnOutput | None = None,
    ) -> ExecOutput:
        record = self._record(container_id)
        if record is None or not self._state(record).running:
            raise ContainerDied(f"{container_id} does not run")
        uid, gid = _ids_of(user)
        other = uid != os.geteuid()
        collected = Collected()
        reader, writer = os.pipe2(os.O_CLOEXEC)
        try:
            try:
                if other:
                    os.fchown(writer, uid, gid)  # the shell opens it again by its name in /proc
                child = subprocess.Popen(
                    with_status(argv, writer),
                    cwd=workdir,
                    env={**record["env"], **(env or {})},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    pass_fds=(writer,),
                    start_new_session=True,
                    user=uid if other else None,
                    group=gid if other else None,
                    extra_groups=[] if other else None,
                )
            finally:
                os.close(writer)
            with child:
                try:
                    timed_out = _follow(child, timeout_s, on_output or collected.take)
                except BaseException:
                    kill_all(child.pid)
                    raise
            status = read_status(reader)
        finally:
            os.close(reader)
        return collected.output(_KILLED if status is None else status, timed_out=timed_out)

    def remove(self, container_id: str) -> None:
        """Commit point: the unlink of `container.json`. The run directory itself is the caller's."""
        directory = self._directory(container_id)
        process = _read_process(directory)
        if process is not None and process.runs() and not kill_all(process.pid, started=process.started):
            raise EngineError(f"process {process.pid} cannot be killed")
        for name in ("container.json", "process.json", "log"):
            try:
                durable.unlink(os.path.join(directory, name))
            except NotADirectoryError:
                return

    def _directory(self, key: str) -> str:
        if not key or "/" in key or key.startswith("."):
            raise InvalidRequest(f"{key!r} is not a key")
        return os.path.join(self._home, "run", key)

    def _record(self, key: str) -> dict[str, Any] | None:
        found = read_cached_json(os.path.join(self._directory(key), "container.json"))
        named = found is not None and found.get("key") == key and isinstance(found.get("workspace_id"), str)
        return found if found and named and isinstance(found.get("command"), list) else None

    def _state(self, record: Mapping[str, Any]) -> ContainerState:
        process = _read_process(self._directory(record["key"]))
        running = process is not None and process.runs()
        return ContainerState(
            id=record["key"],
            key=record["key"],
            workspace_id=record["workspace_id"],
            running=running,
            paused=False,
            pid=process.pid if process is not None and running else 0,
            exit_code=None,
            home=self._home,
        )


def _no_images(reference: str) -> InvalidRequest:
    return InvalidRequest(f"without an engine there is no image {reference}", hint="choose --engine podman or docker")


def _follow(child: subprocess.Popen[bytes], timeout_s: float | None, on_output: OnOutput) -> bool:
    """Hand on both streams until the process has ended, plus a short drain; whether it ran out of time."""
    timed_out = False
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    drained = None
    with selectors.DefaultSelector() as selector:
        for name in ("stdout", "stderr"):
            selector.register(getattr(child, name), selectors.EVENT_READ, name)
        while selector.get_map():
            now = time.monotonic()
            if drained is None and child.poll() is not None:
                drained = now + _DRAIN_S
            if drained is None and deadline is not None and now >= deadline:
                timed_out = True
                kill_all(child.pid)
                drained = time.monotonic() + _DRAIN_S
            if drained is not None and now >= drained:
                break
            until = drained or deadline
            for key, _ in selector.select(_LOOK_S if until is None else max(0.0, min(_LOOK_S, until - now))):
                data = os.read(key.fd, 1 << 16)
                if data:
                    on_output(key.data, data)
                else:
                    selector.unregister(key.fileobj)
    try:
        child.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        timed_out = True
        kill_all(child.pid)
    return timed_out


def _ids_of(user: str) -> tuple[int, int]:
    name, _, group = user.partition(":")
    try:
        entry = pwd.getpwuid(int(name)) if name.isdigit() else pwd.getpwnam(name)
        uid, gid = entry.pw_uid, entry.pw_gid
    except KeyError:
        if not name.isdigit():
            raise InvalidRequest(f"this machine knows no user {name!r}") from None
        uid = gid = int(name)
    if uid != os.geteuid() and os.geteuid() != 0:
        raise InvalidRequest(f"only root can run a command as {user}")
    return uid, int(group) if group.isdigit() else gid


def _read_process(directory: str) -> _Process | None:
    found = read_cached_json(os.path.join(directory, "process.json"))
    try:
        return None if found is None else construct(_Process, found, PLAIN_RULES)
    except StateError:
        return None
