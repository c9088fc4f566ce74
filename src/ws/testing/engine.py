"""The contract of `ws.engine.base.Engine`, as checks on a real engine.

`check_engine` runs all of `ENGINE_CHECKS`; a test suite may run them one by one. Each makes its containers on
an `EngineBench`, which removes them whatever happens, and fails with an AssertionError.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import secrets
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ws.engine import cgroups
from ws.engine.base import HOME, ContainerSpec, ContainerState, Engine, ExecOutput
from ws.engine.inside import open_inside
from ws.errors import ContainerDied, EngineError, ImageNotFound, InvalidRequest
from ws.freezer import freezer_of
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


def an_engine_that_answers_says_what_it_is(bench: EngineBench) -> None:
    began = time.monotonic()
    facts = bench.engine.check()
    assert time.monotonic() - began < 10
    assert facts.name == bench.engine.name
    if bench.contained:
        assert facts.version
        assert facts.runtime
        assert facts.endpoint.startswith("unix:///")
    else:
        assert any("no isolation" in note for note in facts.notes)


def root_in_a_container_is_never_root_on_the_host(bench: EngineBench) -> None:
    ids = bench.engine.host_ids(bench.uid, bench.gid)
    if not bench.contained:
        assert (ids.host_uid, ids.host_gid) == (os.geteuid(), os.getegid())
        return
    assert (ids.uid, ids.gid) == (bench.uid, bench.gid)
    if bench.engine.check().rootless:
        return  # the engine itself is an ordinary user, and ids are those of its namespace
    assert ids.host_uid != 0
    assert ids.host_gid != 0
    with contextlib.suppress(InvalidRequest):  # or refused altogether
        assert bench.engine.host_ids(0, 0).host_uid != 0


def an_unknown_image_is_not_found_and_never_pulled(bench: EngineBench) -> None:
    if not bench.contained:
        return
    unknown = f"localhost/ws-no-such-{secrets.token_hex(4)}:latest"
    _raises(ImageNotFound, lambda: bench.engine.image(unknown))
    with bench.spec(image=unknown) as spec:
        _raises(ImageNotFound, lambda: bench.engine.create(spec))
        assert not _mine(bench, spec.key)
    assert bench.engine.image(bench.image).id


def a_created_container_is_found_and_does_not_run(bench: EngineBench) -> None:
    with bench.spec(workspace_id="w1") as spec:
        container_id = bench.engine.create(spec)
        state = bench.engine.find(container_id)
        assert state == ContainerState(
            id=container_id,
            key=spec.key,
            workspace_id="w1",
            running=False,
            paused=False,
            pid=0,
            exit_code=None,
            home=spec.home,
        )


def a_started_container_runs_its_command_as_first_process(bench: EngineBench) -> None:
    with bench.spec() as spec:
        container_id = bench.engine.create(spec)
        state = bench.engine.start(container_id)
        assert state.running
        _until(lambda: _command_line(state.pid) == list(spec.command))  # it may be on its way to exec yet
        assert bench.engine.find(container_id) == state
        assert bench.engine.start(container_id).pid == state.pid, "starting again must change nothing"


def settling_puts_right_what_a_restart_undid(bench: EngineBench) -> None:
    if not bench.contained or bench.engine.check().rootless:  # where nobody may give a directory away
        return
    with bench.container() as state:
        with open_inside(state.pid, HOME, os.O_DIRECTORY) as home, open_inside(state.pid, "/tmp", os.O_DIRECTORY) as tmp:
            planned = [(found.st_uid, found.st_mode) for found in (os.fstat(home), os.fstat(tmp))]
            os.fchown(home, 0, 0)
            os.fchmod(tmp, 0o755)
            for _ in range(2):
                assert bench.engine.settle(state.id) == state
                assert [(found.st_uid, found.st_mode) for found in (os.fstat(home), os.fstat(tmp))] == planned
    _raises(ContainerDied, lambda: bench.engine.settle(state.id))


def a_command_that_cannot_run_is_an_error_and_leaves_nothing_running(bench: EngineBench) -> None:
    with bench.spec("/no/such/command") as spec:
        container_id = bench.engine.create(spec)
        with contextlib.suppress(EngineError):
            bench.engine.start(container_id)
            assert not bench.contained, "an engine must say that it cannot start this"
        _until(lambda: not _running(bench, container_id))


def a_container_that_ended_is_not_running(bench: EngineBench) -> None:
    with bench.spec("/bin/busybox", "sh", "-c", "exit 7") as spec:
        container_id = bench.engine.create(spec)
        with contextlib.suppress(ContainerDied):  # unless it was quicker than the engine
            bench.engine.start(container_id)
        _until(lambda: not _running(bench, container_id))
        state = bench.engine.find(container_id)
        assert state is not None
        assert state.pid == 0
        if bench.contained:
            _until(lambda: _exit_code(bench, container_id) == 7)


def a_container_killed_from_outside_is_noticed(bench: EngineBench) -> None:
    with bench.container() as state:
        os.kill(state.pid, signal.SIGKILL)
        _until(lambda: not _running(bench, state.id))


def a_list_holds_the_containers_of_its_home_alone(bench: EngineBench) -> None:
    with bench.spec(workspace_id="w2") as created, bench.container(workspace_id="w3") as running:
        created_id = bench.engine.create(created)
        states = {state.id: state for state in bench.engine.list(bench.home)}
        assert (states[created_id].running, states[running.id].running) == (False, True)
        assert (states[created_id].workspace_id, states[running.id].workspace_id) == ("w2", "w3")
        assert states[created_id].key == created.key
        assert states[running.id].pid in (running.pid, 0)
        assert bench.engine.list(bench.home + "-another") == []
        everybody = {state.id: state.home for state in bench.engine.list(None)}
        assert everybody[created_id] == everybody[running.id] == bench.home


def a_key_is_taken_once(bench: EngineBench) -> None:
    if not bench.contained:
        return
    with bench.spec() as spec:
        first = bench.engine.create(spec)
        _raises(EngineError, lambda: bench.engine.create(spec))
        assert [state.id for state in _mine(bench, spec.key)] == [first]


def removing_ends_every_process_at_once(bench: EngineBench) -> None:
    script = "trap '' TERM; /bin/busybox sleep 601 & /bin/busybox setsid /bin/busybox sleep 602 & wait"
    with bench.container("/bin/busybox", "sh", "-c", script) as state:
        _until(lambda: len(_kin(state.pid)) >= 3)
        family = _kin(state.pid)
        began = time.monotonic()
        bench.engine.remove(state.id)
        assert time.monotonic() - began < 8, "removing must not wait for SIGTERM to be heeded"
        assert bench.engine.find(state.id) is None
        _until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in family))


def removing_leaves_nothing_behind(bench: EngineBench) -> None:
    if not bench.contained:
        return
    descriptors = []
    for _ in range(3):
        with bench.container() as state:
            _exec(bench, state, "exit 0")
            container_id = state.id
        _until(lambda: not _traces(container_id))  # noqa: B023 - called in this very round
        descriptors.append(len(os.listdir("/proc/self/fd")))
    assert descriptors[2] <= descriptors[1], "connections are kept, and used again"


def removing_is_idempotent(bench: EngineBench) -> None:
    with bench.spec() as spec:
        container_id = bench.engine.create(spec)
        bench.engine.remove(container_id)
        bench.engine.remove(container_id)
        assert bench.engine.find(container_id) is None
    bench.engine.remove("f" * 64 if bench.contained else "no-such-key")


def a_frozen_container_can_be_removed(bench: EngineBench) -> None:
    if not bench.freezes:
        return
    with bench.container() as state:
        freezer_of(state.pid).freeze()
        bench.engine.remove(state.id)
        assert bench.engine.find(state.id) is None


def a_frozen_container_goes_on_when_thawed(bench: EngineBench) -> None:
    if not bench.freezes:
        return
    with bench.container() as state:
        for _ in range(3):
            freezer_of(state.pid).freeze()
            assert freezer_of(state.pid).frozen()
            cgroups.ensure_thawed(state.pid)
            assert not freezer_of(state.pid).freezing()
        assert _exec(bench, state, "echo on").stdout == b"on\n"


def a_command_of_another_user_has_its_output_status_and_environment(bench: EngineBench) -> None:
    with bench.container() as state:
        done = bench.engine.exec(
            state.id,
            [
                "/bin/busybox",
                "sh",
                "-c",
                'echo "$COLOUR"; /bin/busybox pwd; /bin/busybox id -u; echo no >&2; exit 3',
            ],
            user=bench.other_user,
            workdir="/tmp",
            env={"COLOUR": "blue"},
            timeout_s=30,
        )
        assert done.exit_code == 3
        assert done.stdout == f"blue\n/tmp\n{bench.other_user.partition(':')[0]}\n".encode()
        assert done.stderr == b"no\n"
        assert not done.timed_out
        assert not done.truncated


def a_command_that_runs_out_of_time_is_killed_and_its_output_kept(bench: EngineBench) -> None:
    with bench.container() as state:
        before = _kin(state.pid)
        began = time.monotonic()
        done = _exec(bench, state, "echo begun; /bin/busybox sleep 603 & /bin/busybox sleep 604", timeout_s=1)
        assert time.monotonic() - began < 8
        assert done.timed_out
        assert done.stdout == b"begun\n"
        _until(lambda: not _sleepers("603", "604"))
        assert bench.engine.find(state.id) is not None
        assert set(before) <= set(_kin(state.pid)), "the container itself goes on"


def a_command_leaves_no_process_behind(bench: EngineBench) -> None:
    with bench.container() as state:
        before = _processes()
        _exec(bench, state, "exit 0")
        _until(lambda: not [line for pid, line in _processes().items() if pid not in before and state.id in line])


def a_command_is_done_when_its_process_is_done(bench: EngineBench) -> None:
    with bench.container() as state:
        began = time.monotonic()
        done = _exec(bench, state, "/bin/busybox sleep 605 & echo done", timeout_s=30)
        assert time.monotonic() - began < 10, "a background process must not hold the command"
        assert (done.stdout, done.timed_out) == (b"done\n", False)
        for pid in _sleepers("605"):
            os.kill(pid, signal.SIGKILL)


def output_without_end_is_capped(bench: EngineBench) -> None:
    with bench.container() as state:
        done = _exec(bench, state, "/bin/busybox yes | /bin/busybox head -c 20000000", timeout_s=60)
        assert done.truncated
        assert len(done.stdout) == 8 << 20


def a_command_in_a_container_that_does_not_run_is_refused(bench: EngineBench) -> None:
    with bench.spec() as spec:
        container_id = bench.engine.create(spec)
        _raises(
            ContainerDied,
            lambda: bench.engine.exec(container_id, ["/bin/busybox", "true"], user=bench.other_user),
        )


def threads_may_share_an_engine(bench: EngineBench) -> None:
    failures: list[BaseException] = []

    def live() -> None:
        try:
            with bench.container() as state:
                assert _running(bench, state.id)
        except BaseException as error:  # noqa: BLE001 - a thread has no other way to tell
            failures.append(error)

    threads = [threading.Thread(target=live) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


ENGINE_CHECKS: tuple[Callable[[EngineBench], None], ...] = (
    an_engine_that_answers_says_what_it_is,
    root_in_a_container_is_never_root_on_the_host,
    an_unknown_image_is_not_found_and_never_pulled,
    a_created_container_is_found_and_does_not_run,
    a_started_container_runs_its_command_as_first_process,
    settling_puts_right_what_a_restart_undid,
    a_command_that_cannot_run_is_an_error_and_leaves_nothing_running,
    a_container_that_ended_is_not_running,
    a_container_killed_from_outside_is_noticed,
    a_list_holds_the_containers_of_its_home_alone,
    a_key_is_taken_once,
    removing_ends_every_process_at_once,
    removing_leaves_nothing_behind,
    removing_is_idempotent,
    a_frozen_container_can_be_removed,
    a_frozen_container_goes_on_when_thawed,
    a_command_of_another_user_has_its_output_status_and_environment,
    a_command_that_runs_out_of_time_is_killed_and_its_output_kept,
    a_command_leaves_no_process_behind,
    a_command_is_done_when_its_process_is_done,
    output_without_end_is_capped,
    a_command_in_a_container_that_does_not_run_is_refused,
    threads_may_share_an_engine,
)


def check_engine(bench: EngineBench) -> None:
    """Hold an engine against the whole contract. Raises AssertionError at the first breach."""
    for check in ENGINE_CHECKS:
        check(bench)


def _exec(bench: EngineBench, state: ContainerState, script: str, *, timeout_s: float = 30) -> ExecOutput:
    argv = ["/bin/busybox", "sh", "-c", script]
    return bench.engine.exec(state.id, argv, user=bench.other_user, workdir="/", timeout_s=timeout_s)


def _raises(kind: type[BaseException], call: Callable[[], object]) -> None:
    try:
        call()
    except kind:
        return
    raise AssertionError(f"{kind.__name__} was not raised")


def _until(condition: Callable[[], bool], *, within_s: float = 10) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)


def _mine(bench: EngineBench, key: str) -> list[ContainerState]:
    return [state for state in bench.engine.list(bench.home) if state.key == key]


def _running(bench: EngineBench, container_id: str) -> bool:
    state = bench.engine.find(container_id)
    return state is not None and state.running


def _exit_code(bench: EngineBench, container_id: str) -> int | None:
    state = bench.engine.find(container_id)
    return None if state is None else state.exit_code


def _command_line(pid: int) -> list[str]:
    with open(f"/proc/{pid}/cmdline", encoding="utf-8") as file:
        return file.read().rstrip("\0").split("\0")


def _kin(pid: int) -> list[int]:
    """The process and its descendants."""
    found = [pid]
    for each in found:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in os.listdir(f"/proc/{each}/task"):
                with open(f"/proc/{each}/task/{task}/children", encoding="ascii") as file:
                    found += [int(word) for word in file.read().split()]
    return found


def _traces(container_id: str) -> list[str]:
    """Processes, mounts and cgroups that still name a container."""
    found = [line for line in _processes().values() if container_id in line]
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        found += [line for line in file if container_id in line]
    for directory, names, _ in os.walk("/sys/fs/cgroup"):
        found += [os.path.join(directory, name) for name in names if container_id in name]
    return found


def _processes() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            if name.isdigit():
                found[int(name)] = " ".join(_command_line(int(name)))
    return found


def _sleepers(*arguments: str) -> list[int]:
    return [pid for pid, line in _processes().items() if line.split(" ")[-1] in arguments]
