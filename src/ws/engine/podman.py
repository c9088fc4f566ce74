"""podman, through podman-py's connection and libpod's own API.

podman-py's object layer asks the service again after each step (an inspect after create, after start); here a
container's life is create, start, inspect, remove, one request each.

Rootful, every container has a user namespace of its own: root in it is an id without rights on the host.
Rootless, podman's namespace is the user's, and ids inside it are meant wherever the host's are asked for.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from ws import overlay
from ws.engine import cgroups, keyrings, netns
from ws.engine.base import (
    LABEL_HOME,
    LABEL_KEY,
    LABEL_WORKSPACE,
    WORKSPACE,
    ContainerSpec,
    ContainerState,
    EngineFacts,
    ExecOutput,
    ImageFacts,
    OnOutput,
    Progress,
)
from ws.engine.confinement import first_id, plan_container, read_hard_limits
from ws.engine.execution import ExecState, run_exec
from ws.engine.imaging import follow_build, pack_context, read_changes, read_counted, stamp_of
from ws.engine.inside import settle_directories
from ws.engine.namespace_limits import restrict_namespace
from ws.engine.network import confine_network
from ws.engine.podman_connection import SLOW_S, PodmanConnection
from ws.engine.podman_service import check_same_view, is_rootless, real_uid
from ws.engine.podman_spec import IdRange, plan_create, read_id_range
from ws.engine.processes import find_by_argument
from ws.engine.ptys import limit_ptys
from ws.errors import (
    ContainerDied,
    EngineError,
    ImageBuildFailed,
    ImageNotFound,
    InvalidRequest,
    LimitExceeded,
)
from ws.layout import EngineName, Ids, process_start

_IMAGE_S = 900.0
_LIMITED = frozenset(("memory", "cpu", "pids"))


class PodmanEngine:
    """One podman service. Threads may share it."""

    name: EngineName = "podman"

    def __init__(self, home: str, *, runtime: str | None = None) -> None:
        self._rootless = is_rootless()
        self._range: IdRange | None = None if self._rootless else read_id_range()
        self._limits = _LIMITED
        if self._rootless:
            self._limits &= cgroups.read_delegated(real_uid(), cgroups.read_mounts())
        self._podman = PodmanConnection(home, runtime=runtime)
        self._images_file = ""
        self._images: dict[str, tuple[tuple[int, ...] | None, ImageFacts]] = {}

    def check(self) -> EngineFacts:
        self._podman.close()
        service = self._podman.open()
        notes = list(service.notes)
        unlimited = sorted(_LIMITED - self._limits)
        if unlimited:
            notes.append(f"no limits on {', '.join(unlimited)}: a rootless user needs cgroup v2 and their delegation")
        return EngineFacts(
            name=self.name,
            version=service.version,
            runtime=service.runtime,
            endpoint=f"unix://{service.socket}",
            rootless=self._rootless,
            notes=tuple(notes),
        )

    def close(self) -> None:
        self._podman.close()

    def image(self, reference: str) -> ImageFacts:
        """Asking takes 5 ms, half of a warm create; podman's list of images says at once whether anything changed."""
        stamp = stamp_of(self._images_file)
        known = self._images.get(reference)
        if stamp is not None and known is not None and known[0] == stamp:
            return known[1]
        facts, self._images_file = self._ask_image(reference)
        self._images[reference] = stamp, facts
        return facts

    def _ask_image(self, reference: str) -> tuple[ImageFacts, str]:
        """Facts of an image, and the file that changes whenever a name of one does; "" when it is not known."""
        response = self._podman.call("get", f"/images/{quote(reference, safe='')}/json")
        if response.status_code == 404:
            raise ImageNotFound(
                f"podman has no image {reference}", hint="build it with `ws image build`, or `podman pull` it"
            )
        found = _answer(response)
        config = found.get("Config") or {}
        env = dict(entry.partition("=")[::2] for entry in config.get("Env") or ())
        facts = ImageFacts(found["Id"], config.get("User") or "", env, int(found["Size"]))
        driver = found.get("GraphDriver") or {}
        root, between, _ = str((driver.get("Data") or {}).get("UpperDir", "")).partition(f"/{driver.get('Name')}/")
        return facts, f"{root}/{driver['Name']}-images/images.json" if between else ""

    def import_image(self, rootfs_tar: str, reference: str, *, progress: Progress | None = None) -> ImageFacts:
        before = self._image_id(reference)
        params = {"reference": reference, "changes": read_changes()}
        with read_counted(rootfs_tar, progress) as data:
            response = self._podman.call(
                "post", "/images/import", params=params, data=data, timeout_s=_IMAGE_S, repeatable=False
            )
        _answer(response)
        return self._replaced(before, reference)

    def build_image(
        self,
        containerfile: str,
        reference: str,
        *,
        build_args: Mapping[str, str],
        progress: Progress | None = None,
    ) -> ImageFacts:
        before = self._image_id(reference)
        limits = self._hard_limits()
        params = {
            "dockerfile": "Containerfile",
            "t": reference,
            "buildargs": json.dumps(dict(build_args)),
            "ulimits": json.dumps([f"{name}={value}:{value}" for name, value in limits.items()]),
            "forcerm": "true",
        }
        response = self._podman.call(
            "post",
            "/build",
            params=params,
            data=pack_context(containerfile),
            timeout_s=_IMAGE_S,
            repeatable=False,
            stream=True,
        )
        if response.status_code >= 400:
            raise ImageBuildFailed(f"podman refused the build: {_message(response)}")
        follow_build(response.iter_lines(), progress)
        return self._replaced(before, reference)

    def _image_id(self, reference: str) -> str | None:
        try:
            return self.image(reference).id
        except ImageNotFound:
            return None

    def _replaced(self, before: str | None, reference: str) -> ImageFacts:
        """The image that now has the name; the one that had it goes, unless a container still needs it."""
        facts = self.image(reference)
        if before not in (None, facts.id):
            self._podman.call("delete", f"/images/{before}", timeout_s=SLOW_S)
        return facts

    def host_ids(self, uid: int, gid: int) -> Ids:
        if not (0 <= uid < 65536 and 0 <= gid < 65536):
            raise InvalidRequest(f"user {uid}:{gid} is outside 0..65535", hint="choose a smaller id")
        if self._range is None:
            return Ids(uid, gid, uid, gid)
        return Ids(uid, gid, self._range.uid + uid, self._range.gid + gid)

    def create(self, spec: ContainerSpec) -> str:
        asked = spec.options.runtime
        runtime = self._podman.open().runtime
        if asked and asked != runtime:
            raise InvalidRequest(f"this engine runs {runtime}, not {asked}", hint="open it with that runtime")
        if spec.options.network != "none" and not self._rootless:
            # Where the service is: one that a system has may live in a mount namespace of its own.
            overlay.in_mount_namespace(self._podman.open().pid, netns.ensure_shared)
        check_same_view(self._podman.open().pid, (spec.runtime_dir, spec.run_dir))
        plan = plan_container(spec, hard_limits=self._hard_limits())
        body = plan_create(spec, plan, rootless=self._rootless, limits=self._limits)
        response = self._podman.call("post", "/containers/create", body=body, timeout_s=SLOW_S, repeatable=False)
        if response.status_code >= 400:
            self.image(spec.options.image)  # podman has no code of its own for an image that is not there
        return str(_answer(response)["Id"])

    def start(self, container_id: str) -> ContainerState:
        _answer(self._podman.call("post", f"/containers/{container_id}/start", timeout_s=SLOW_S))
        return self.settle(container_id)

    def settle(self, container_id: str) -> ContainerState:
        found = self._inspect(container_id)
        state = None if found is None else _state_of(found)
        if found is None or state is None or not state.running:
            how = "is gone" if state is None else f"does not run; it ended with status {state.exit_code}"
            raise ContainerDied(f"container {container_id[:12]} {how}", hint="its command may not run there")
        uid, _, gid = found["Config"]["User"].partition(":")
        settle_directories(state.pid, int(uid), int(gid))
        restrict_namespace(state.pid)
        limit_ptys(state.pid)
        if found["HostConfig"]["NetworkMode"] != "none":
            confine_network(state.pid)
        return state

    def find(self, container_id: str) -> ContainerState | None:
        found = self._inspect(container_id)
        return None if found is None else _state_of(found)

    def _inspect(self, container_id: str) -> dict[str, Any] | None:
        response = self._podman.call("get", f"/containers/{container_id}/json")
        if response.status_code == 404:
            return None
        found: dict[str, Any] = _answer(response)
        return found

    def list(self, home: str | None) -> list[ContainerState]:
        filters = json.dumps({"label": [LABEL_HOME if home is None else f"{LABEL_HOME}={home}"]})
        found = _answer(self._podman.call("get", "/containers/json", params={"all": "true", "filters": filters}))
        return [
            _state(each["Id"], each.get("Labels") or {}, each["State"], each["Pid"], each["ExitCode"])
            for each in found or ()
        ]

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
        state = self.find(container_id)
        if state is None or not state.running:
            raise ContainerDied(f"container {container_id[:12]} does not run")
        body = {
            "Cmd": [*argv],
            "User": user,
            "WorkingDir": workdir,
            "Env": [f"{name}={value}" for name, value in (env or {}).items()],
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
        }
        made = self._podman.call("post", f"/containers/{container_id}/exec", body=body, repeatable=False)
        exec_id = str(_answer(made)["Id"])

        def inspect() -> ExecState:
            found = _answer(self._podman.call("get", f"/exec/{exec_id}/json"))
            return ExecState(bool(found["Running"]), int(found["Pid"]), int(found["ExitCode"]))

        try:
            return run_exec(
                self._podman.open().socket,
                f"/v4.0.0/libpod/exec/{exec_id}/start",
                inspect=inspect,
                container_pid=state.pid,
                timeout_s=timeout_s,
                on_output=on_output,
            )
        finally:
            # Its two monitors would sleep for five minutes more, in case somebody asks again how it ended.
            for pid in find_by_argument(exec_id):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def remove(self, container_id: str) -> None:
        state = self.find(container_id)
        if state is None:
            return
        if state.pid:
            if state.paused:  # by hand: podman refuses to end what it takes for paused, and to resume what runs
                cgroups.ensure_frozen(state.pid)
                self._podman.call("post", f"/containers/{container_id}/unpause")
            cgroups.ensure_thawed(state.pid)
        # Now and then a mount is still busy for a moment after the last process is gone.
        for pause_s in (0.05, 0.2, 0.5, 1.0, None):
            response = self._podman.call(
                "delete",
                f"/containers/{container_id}",
                params={"force": "true", "timeout": 0, "v": "true"},
                timeout_s=SLOW_S,
            )
            if response.status_code in (200, 204, 404):
                return
            if pause_s is None:
                _answer(response)
            else:
                time.sleep(pause_s)

    def _hard_limits(self) -> dict[str, int]:
        return read_hard_limits(self._podman.open().pid)


def _state_of(found: Mapping[str, Any]) -> ContainerState:
    """From an inspect."""
    state = found["State"]
    made = _state(found["Id"], found["Config"].get("Labels") or {}, state["Status"], state["Pid"], state["ExitCode"])
    return dataclasses.replace(made, oom_killed=bool(state.get("OOMKilled")))


def _state(container_id: str, labels: Mapping[str, str], status: str, pid: int, exit_code: int) -> ContainerState:
    # With its conmon killed, podman goes on to report a dead container as running: the process decides.
    running = status in ("running", "paused") and process_start(pid) is not None
    return ContainerState(
        id=container_id,
        key=labels.get(LABEL_KEY, ""),
        workspace_id=labels.get(LABEL_WORKSPACE, ""),
        running=running,
        paused=status == "paused",
        pid=pid if running else 0,
        exit_code=exit_code if status in ("exited", "stopped", "removing") else None,
        home=labels.get(LABEL_HOME, ""),
        first_id=first_id(labels),
    )


def _answer(response: Any) -> Any:
    """What a request returned. Raises EngineError with podman's own words, LimitExceeded for keyrings."""
    if response.status_code >= 400:
        message = _message(response)
        if "session key" in message and "quota" in message:
            allowed = keyrings.max_keyrings()
            raise LimitExceeded(f"the kernel has keyrings for {allowed} containers on podman", hint=keyrings.RAISE)
        raise EngineError(f"podman: {message}")
    return response.json() if response.content else None


def _message(response: Any) -> str:
    try:
        return str(response.json()["message"])
    except (ValueError, KeyError, TypeError):
        return str(response.text)[:500].strip()
