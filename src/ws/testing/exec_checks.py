"""The contract of `Engine.exec`, as checks on a real engine."""

from __future__ import annotations

import os
import signal
import time

from ws.errors import ContainerDied
from ws.testing.engine_bench import EngineBench, exec_in, kin, processes, raises, sleepers, until


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
        before = kin(state.pid)
        began = time.monotonic()
        done = exec_in(bench, state, "echo begun; /bin/busybox sleep 603 & /bin/busybox sleep 604", timeout_s=1)
        assert time.monotonic() - began < 8
        assert done.timed_out
        assert done.stdout == b"begun\n"
        until(lambda: not sleepers("603", "604"))
        assert bench.engine.find(state.id) is not None
        assert set(before) <= set(kin(state.pid)), "the container itself goes on"


def a_command_leaves_no_process_behind(bench: EngineBench) -> None:
    with bench.container() as state:
        before = processes()
        exec_in(bench, state, "exit 0")
        until(lambda: not [line for pid, line in processes().items() if pid not in before and state.id in line])


def a_command_is_done_when_its_process_is_done(bench: EngineBench) -> None:
    with bench.container() as state:
        began = time.monotonic()
        done = exec_in(bench, state, "/bin/busybox sleep 605 & echo done", timeout_s=30)
        assert time.monotonic() - began < 10, "a background process must not hold the command"
        assert (done.stdout, done.timed_out) == (b"done\n", False)
        for pid in sleepers("605"):
            os.kill(pid, signal.SIGKILL)


def output_without_end_is_capped(bench: EngineBench) -> None:
    with bench.container() as state:
        done = exec_in(bench, state, "/bin/busybox yes | /bin/busybox head -c 20000000", timeout_s=60)
        assert done.truncated
        assert len(done.stdout) == 8 << 20


def output_is_handed_on_as_it_comes_and_without_a_cap(bench: EngineBench) -> None:
    with bench.container() as state:
        sizes = {"stdout": 0, "stderr": 0}
        came: list[float] = []

        def take(stream: str, data: bytes) -> None:
            sizes[stream] += len(data)
            came.append(time.monotonic())

        script = "echo first >&2; /bin/busybox sleep 0.5; /bin/busybox yes | /bin/busybox head -c 20000000"
        argv = ["/bin/busybox", "sh", "-c", script]
        done = bench.engine.exec(state.id, argv, user=bench.other_user, workdir="/", timeout_s=60, on_output=take)
        assert (done.exit_code, done.stdout, done.truncated) == (0, b"", False)
        assert sizes == {"stdout": 20_000_000, "stderr": 6}
        assert came[-1] - came[0] > 0.4


def a_command_has_an_input_that_is_open_and_empty(bench: EngineBench) -> None:
    with bench.container() as state:
        done = exec_in(bench, state, "/bin/busybox timeout -s KILL 1 /bin/busybox cat; echo $?")
        assert done.stdout == b"137\n", "its end is to say that the caller is gone"


def a_command_in_a_container_that_does_not_run_is_refused(bench: EngineBench) -> None:
    with bench.spec() as spec:
        container_id = bench.engine.create(spec)
        raises(
            ContainerDied,
            lambda: bench.engine.exec(container_id, ["/bin/busybox", "true"], user=bench.other_user),
        )
