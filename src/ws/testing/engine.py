"""The contract of `ws.engine.base.Engine`, as checks on a real engine.

`check_engine` runs all of `ENGINE_CHECKS`; a test suite may run them one by one. Each makes its containers on
an `EngineBench`, which removes them whatever happens, and fails with an AssertionError.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable

from ws.engine import cgroups
from ws.engine.base import HOME, ContainerState
from ws.engine.inside import open_inside
from ws.errors import ContainerDied, EngineError, ImageNotFound, InvalidRequest
from ws.freezer import freezer_of
from ws.testing import exec_checks
from ws.testing.engine_bench import (
    EngineBench,
    command_line,
    exec_in,
    exit_code,
    kin,
    marks_of,
    mine,
    raises,
    running,
    traces,
    until,
)


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
    raises(ImageNotFound, lambda: bench.engine.image(unknown))
    with bench.spec(image=unknown) as spec:
        raises(ImageNotFound, lambda: bench.engine.create(spec))
        assert not mine(bench, spec.key)
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
            first_id=spec.ids.host_uid - spec.ids.uid,
        )


def a_started_container_runs_its_command_as_first_process(bench: EngineBench) -> None:
    with bench.spec() as spec:
        container_id = bench.engine.create(spec)
        state = bench.engine.start(container_id)
        assert state.running
        until(lambda: command_line(state.pid) == list(spec.command))  # it may be on its way to exec yet
        assert bench.engine.find(container_id) == state
        assert bench.engine.start(container_id).pid == state.pid, "starting again must change nothing"


def settling_puts_right_what_a_restart_undid(bench: EngineBench) -> None:
    if not bench.contained or bench.engine.check().rootless:  # where nobody may give a directory away
        return
    with (
        bench.container() as state,
        open_inside(state.pid, HOME, os.O_DIRECTORY) as home,
        open_inside(state.pid, "/tmp", os.O_DIRECTORY) as tmp,
    ):
        planned = [(found.st_uid, found.st_mode) for found in (os.fstat(home), os.fstat(tmp))]
        os.fchown(home, 0, 0)
        os.fchmod(tmp, 0o755)
        for _ in range(2):
            assert bench.engine.settle(state.id) == state
            assert [(found.st_uid, found.st_mode) for found in (os.fstat(home), os.fstat(tmp))] == planned
    raises(ContainerDied, lambda: bench.engine.settle(state.id))


def a_command_that_cannot_run_is_an_error_and_leaves_nothing_running(bench: EngineBench) -> None:
    with bench.spec("/no/such/command") as spec:
        container_id = bench.engine.create(spec)
        with contextlib.suppress(EngineError):
            bench.engine.start(container_id)
            assert not bench.contained, "an engine must say that it cannot start this"
        until(lambda: not running(bench, container_id))


def a_container_that_ended_is_not_running(bench: EngineBench) -> None:
    with bench.spec("/bin/busybox", "sh", "-c", "exit 7") as spec:
        container_id = bench.engine.create(spec)
        with contextlib.suppress(ContainerDied):  # unless it was quicker than the engine
            bench.engine.start(container_id)
        until(lambda: not running(bench, container_id))
        state = bench.engine.find(container_id)
        assert state is not None
        assert state.pid == 0
        if bench.contained:
            until(lambda: exit_code(bench, container_id) == 7)


def a_container_killed_from_outside_is_noticed(bench: EngineBench) -> None:
    with bench.container() as state:
        os.kill(state.pid, signal.SIGKILL)
        until(lambda: not running(bench, state.id))


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
        raises(EngineError, lambda: bench.engine.create(spec))
        assert [state.id for state in mine(bench, spec.key)] == [first]


def removing_ends_every_process_at_once(bench: EngineBench) -> None:
    script = "trap '' TERM; /bin/busybox sleep 601 & /bin/busybox setsid /bin/busybox sleep 602 & wait"
    with bench.container("/bin/busybox", "sh", "-c", script) as state:
        until(lambda: len(kin(state.pid)) >= 3)
        family = kin(state.pid)
        began = time.monotonic()
        bench.engine.remove(state.id)
        assert time.monotonic() - began < 8, "removing must not wait for SIGTERM to be heeded"
        assert bench.engine.find(state.id) is None
        until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in family))


def removing_leaves_nothing_behind(bench: EngineBench) -> None:
    if not bench.contained:
        return
    descriptors = []
    for network in ("bridge", "none", "none"):
        with bench.container(network=network) as state:
            exec_in(bench, state, "exit 0")
            marks = marks_of(state)
        until(lambda: not traces(marks))  # noqa: B023 - called in this very round
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
        assert exec_in(bench, state, "echo on").stdout == b"on\n"


def threads_may_share_an_engine(bench: EngineBench) -> None:
    failures: list[BaseException] = []

    def live() -> None:
        try:
            with bench.container() as state:
                for _ in range(20):  # each asks something else than the others do
                    assert running(bench, state.id)
                    assert state.id in [each.id for each in bench.engine.list(bench.home)]
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
    exec_checks.a_command_of_another_user_has_its_output_status_and_environment,
    exec_checks.a_command_that_runs_out_of_time_is_killed_and_its_output_kept,
    exec_checks.a_command_leaves_no_process_behind,
    exec_checks.a_command_is_done_when_its_process_is_done,
    exec_checks.output_without_end_is_capped,
    exec_checks.output_is_handed_on_as_it_comes_and_without_a_cap,
    exec_checks.a_command_has_an_input_that_is_open_and_empty,
    exec_checks.a_command_in_a_container_that_does_not_run_is_refused,
    threads_may_share_an_engine,
)


def check_engine(bench: EngineBench) -> None:
    """Hold an engine against the whole contract. Raises AssertionError at the first breach."""
    for check in ENGINE_CHECKS:
        check(bench)
