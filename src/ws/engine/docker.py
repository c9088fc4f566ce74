"""docker, through the low-level client of its SDK: one request a call.

docker maps no ids: a user in the container is that user on the host. So root is refused, also where a name in
the image's passwd would turn out to be root; names are looked up here and only numbers are passed on.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import time
from collections.abc import Mapping, Sequence
from typing import Any

from docker.errors import NotFound

from ws.engine import cgroups
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
from ws.engine.docker_connection import IMAGE_S, PING_S, QUICK_S, SLOW_S, DockerConnection, socket_path, translated
from ws.engine.docker_spec import plan_create
from ws.engine.endpoints import find_listener
from ws.engine.execution import ExecState, run_exec
from ws.engine.imaging import follow_build, pack_context, read_changes, read_counted, stamp_of
from ws.engine.inside import settle_directories
from ws.engine.network import confine_network
from ws.engine.passwd import name_users
from ws.engine.ptys import limit_ptys
from ws.engine.users import resolve_user
from ws.errors import (
    ContainerDied,
    EngineError,
    EngineUnavailable,
    ImageBuildFailed,
    ImageNotFound,
    InvalidRequest,
)
from ws.layout import EngineName, Ids, process_start
from ws.subordinate_ids import SLOT_IDS


class DockerEngine:
    """One docker daemon. Threads may share it."""

    name: EngineName = "docker"

    def __init__(self, *, runtime: str | None = None) -> None:
        self._runtime = runtime
        self._docker = DockerConnection()
        self._images_file = ""
        self._images: dict[str, tuple[tuple[int, ...] | None, ImageFacts]] = {}

    def check(self) -> EngineFacts:
        self._docker.open()
        info = self._docker.ask(PING_S, "info")
        options = " ".join(info.get("SecurityOptions") or ())
        if "rootless" in options or "userns" in options:
            raise EngineUnavailable(
                "this docker maps user ids (rootless or userns-remap), which ws does not follow",
                hint="use podman, which ws supports rootless, or a docker without userns-remap",
            )
        self._images_file = _list_of_names(info)
        runtimes = info.get("Runtimes") or {}
        if self._runtime and self._runtime not in runtimes:
            raise EngineUnavailable(
                f"docker does not know the runtime {self._runtime}",
                hint=f"it knows {', '.join(sorted(runtimes))}; add others in /etc/docker/daemon.json",
            )
        return EngineFacts(
            name=self.name,
            version=self._docker.version,
            runtime=self._runtime or info.get("DefaultRuntime", ""),
            endpoint=f"unix://{socket_path()}",
            rootless=False,
            notes=("root in a container would be root on the host: ws refuses it as a user",),
        )

    def close(self) -> None:
        self._docker.close()

    def image(self, reference: str) -> ImageFacts:
        """Asking takes 2 ms, a fifth of a warm create; docker's list of names says at once whether anything changed."""
        stamp = stamp_of(self._images_file)
        known = self._images.get(reference)
        if stamp is not None and known is not None and known[0] == stamp:
            return known[1]
        found = self._inspect_image(reference)
        config = found.get("Config") or {}
        env = dict(entry.partition("=")[::2] for entry in config.get("Env") or ())
        facts = ImageFacts(found["Id"].removeprefix("sha256:"), config.get("User") or "", env, int(found["Size"]))
        # One without a name can go without a change of the list.
        self._images[reference] = stamp if found.get("RepoTags") else None, facts
        return facts

    def _inspect_image(self, reference: str) -> dict[str, Any]:
        try:
            found: dict[str, Any] = self._docker.ask(QUICK_S, "inspect_image", reference)
            return found
        except NotFound:
            raise ImageNotFound(
                f"docker has no image {reference}", hint="build it with `ws image build`, or `docker pull` it"
            ) from None

    def import_image(self, rootfs_tar: str, reference: str, *, progress: Progress | None = None) -> ImageFacts:
        before = self._image_id(reference)
        repository, tag = _split(reference)
        with read_counted(rootfs_tar, progress) as data:
            self._docker.ask(IMAGE_S, "import_image", data, repository, tag, changes=read_changes())
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
        lines = self._docker.ask(
            IMAGE_S,
            "build",
            fileobj=io.BytesIO(pack_context(containerfile)),
            custom_context=True,
            dockerfile="Containerfile",
            tag=reference,
            buildargs=dict(build_args),
            forcerm=True,
            use_config_proxy=False,
        )
        try:
            with translated("build"):
                follow_build((part for chunk in lines for part in chunk.splitlines()), progress)
        except EngineUnavailable as error:
            raise ImageBuildFailed(str(error)) from error
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
            with contextlib.suppress(NotFound, EngineError):
                self._docker.ask(SLOW_S, "remove_image", before)
        return facts

    def host_ids(self, uid: int, gid: int) -> Ids:
        if uid == 0 or gid == 0:
            raise InvalidRequest(
                "root in a docker container is root on the host",
                hint="choose another user with --user, or use podman, which maps root away",
            )
        if not (0 < uid < SLOT_IDS and 0 < gid < SLOT_IDS):
            raise InvalidRequest(f"user {uid}:{gid} is outside 1..{SLOT_IDS - 1}", hint="choose a smaller id")
        return Ids(uid, gid, uid, gid)

    def _shifted(self, number: int, first: int) -> int:
        """The host id for an id of the image, in a container whose ids begin at `first`. Raises InvalidRequest."""
        inner = number - first if number >= first else number  # the container's own passwd names host ids
        self.host_ids(inner, inner)
        return first + inner

    def create(self, spec: ContainerSpec) -> str:
        if 0 in (spec.ids.uid, spec.ids.gid, spec.ids.host_uid, spec.ids.host_gid):
            self.host_ids(0, 0)
        image = self._inspect_image(spec.options.image)
        declared = (image.get("Config") or {}).get("Volumes") or {}
        volumes = {"/" + posixpath.normpath("/" + path).lstrip("/") for path in declared}
        peer = find_listener(socket_path())
        plan = plan_container(spec, hard_limits=read_hard_limits(peer.pid if peer else None))
        body = plan_create(spec, plan, volumes=volumes, runtime=spec.options.runtime or self._runtime)
        try:
            made = self._docker.ask(SLOW_S, "create_container_from_config", body, plan.name)
        except NotFound:
            raise ImageNotFound(f"docker has no image {spec.options.image}") from None
        return str(made["Id"])

    def start(self, container_id: str) -> ContainerState:
        try:
            self._docker.ask(SLOW_S, "start", container_id)
        except NotFound:
            raise ContainerDied(f"container {container_id[:12]} is gone") from None
        return self.settle(container_id)

    def settle(self, container_id: str) -> ContainerState:
        found = self._inspect(container_id)
        state = None if found is None else _state_of(found)
        if found is None or state is None or not state.running:
            how = "is gone" if state is None else f"does not run; it ended with status {state.exit_code}"
            raise ContainerDied(f"container {container_id[:12]} {how}", hint="its command may not run there")
        uid, _, gid = found["Config"]["User"].partition(":")
        settle_directories(state.pid, int(uid), int(gid))
        limit_ptys(state.pid)
        if state.first_id:
            name_users(state.pid, state.first_id, int(uid), int(gid))
        if found["HostConfig"]["NetworkMode"] != "none":
            confine_network(state.pid)
        return state

    def find(self, container_id: str) -> ContainerState | None:
        found = self._inspect(container_id)
        return None if found is None else _state_of(found)

    def _inspect(self, container_id: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._docker.ask(QUICK_S, "inspect_container", container_id)
            return found
        except NotFound:
            return None

    def list(self, home: str | None) -> list[ContainerState]:
        label = LABEL_HOME if home is None else f"{LABEL_HOME}={home}"
        found = self._docker.ask(QUICK_S, "containers", all=True, filters={"label": label})
        return [
            ContainerState(
                id=each["Id"],
                key=each["Labels"].get(LABEL_KEY, ""),
                workspace_id=each["Labels"].get(LABEL_WORKSPACE, ""),
                running=each["State"] in ("running", "paused"),
                paused=each["State"] == "paused",
                pid=0,
                exit_code=None,
                home=each["Labels"].get(LABEL_HOME, ""),
            )
            for each in found
            # dockerd lists from a copy of its state, and an event that comes late puts what was removed back into the
            # copy, for good: seen on 20.10 after a pause. What ended is asked for by id.
            if each["State"] in ("running", "paused") or self._inspect(each["Id"]) is not None
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
        uid, gid = (self._shifted(each, state.first_id) for each in resolve_user(state.pid, user))
        made = self._docker.ask(
            QUICK_S,
            "exec_create",
            container_id,
            [*argv],
            user=f"{uid}:{gid}",
            workdir=workdir,
            environment=dict(env or {}),
            stdin=True,
        )

        def inspect() -> ExecState:
            found = self._docker.ask(QUICK_S, "exec_inspect", made["Id"])
            return ExecState(bool(found["Running"]), int(found["Pid"]), int(found["ExitCode"] or 0))

        return run_exec(
            socket_path(),
            f"/v{self._docker.api}/exec/{made['Id']}/start",
            inspect=inspect,
            container_pid=state.pid,
            timeout_s=timeout_s,
            on_output=on_output,
        )

    def remove(self, container_id: str) -> None:
        state = self.find(container_id)
        if state is None:
            return
        if state.pid:
            if state.paused:  # by hand: docker refuses to end what it takes for paused, and to resume what runs
                cgroups.ensure_frozen(state.pid)
                with contextlib.suppress(EngineError):
                    self._docker.ask(SLOW_S, "unpause", container_id)
            cgroups.ensure_thawed(state.pid)
        deadline = time.monotonic() + SLOW_S
        while True:
            try:
                self._docker.ask(SLOW_S, "remove_container", container_id, v=True, force=True)
                return
            except NotFound:
                return
            except EngineError as error:
                # Another removal is under way, or a mount is busy for a moment more.
                if isinstance(error, EngineUnavailable) or time.monotonic() >= deadline:
                    raise
                time.sleep(0.1)


def _state_of(found: Mapping[str, Any]) -> ContainerState:
    """From an inspect."""
    state = found["State"]
    labels = found["Config"].get("Labels") or {}
    running = bool(state["Running"]) and process_start(state["Pid"]) is not None
    return ContainerState(
        id=found["Id"],
        key=labels.get(LABEL_KEY, ""),
        workspace_id=labels.get(LABEL_WORKSPACE, ""),
        running=running,
        paused=bool(state["Paused"]),
        pid=state["Pid"] if running else 0,
        exit_code=state["ExitCode"] if state["Status"] in ("exited", "dead", "removing") else None,
        home=labels.get(LABEL_HOME, ""),
        first_id=first_id(labels),
        oom_killed=bool(state["OOMKilled"]),
    )


def _split(reference: str) -> tuple[str, str]:
    repository, _, tag = reference.rpartition(":")
    return (repository, tag) if repository and "/" not in tag else (reference, "latest")


def _list_of_names(info: Mapping[str, Any]) -> str:
    """The file that docker replaces whenever a name of an image changes; "" when it is not ours to see."""
    listener = find_listener(socket_path())
    try:
        same = listener is not None and os.path.samefile(f"/proc/{listener.pid}/root", "/")
    except OSError:
        same = False
    return os.path.join(info["DockerRootDir"], "image", info["Driver"], "repositories.json") if same else ""
