"""The law of containers: what runs in one has no privilege, no network, no view of the host, and hard limits.

A probe runs inside, as the first process, and reports; the host looks at the same container from outside.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_images import BUSYBOX
from ws.engine import cgroups
from ws.engine.base import ContainerState, Engine
from ws.errors import EngineError, InvalidRequest
from ws.testing import EngineBench
from ws.vitals import Vitals

MEMORY = 256 << 20
PIDS = 200


class Probed:
    def __init__(self, engine: Engine, state: ContainerState, report: dict[str, Any]) -> None:
        self.engine = engine
        self.state = state
        self.report = report

    def __getattr__(self, name: str) -> Any:
        return self.report[name]


@pytest.fixture(scope="module")
def probed(
    engine: Engine, default_image: str, session_home: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Probed]:
    runtime_dir = tmp_path_factory.mktemp("runtime")
    for directory in (runtime_dir, *runtime_dir.parents):
        if directory.owner() == "root" and directory.stat().st_mode & 0o055 != 0o055:
            directory.chmod(0o755)
    shutil.copy(Path(__file__).with_name("probe.py"), runtime_dir)
    bench = EngineBench(engine, session_home, default_image, runtime_dir=str(runtime_dir))
    os.environ["WS_PROBE_SECRET"] = "of the host"
    try:
        with bench.container(
            "/usr/bin/python3",
            "/.ws/runtime/probe.py",
            workspace_id="probe-id",
            memory_bytes=MEMORY,
            cpus=0.5,
            pids=PIDS,
            env={"COLOUR": "blue"},
        ) as state:
            path = Path(session_home, "run", state.key, "report")
            deadline = time.monotonic() + 120
            while not path.exists():
                assert time.monotonic() < deadline, "the probe did not report"
                now = engine.find(state.id)
                assert now is not None
                assert now.running, f"the probe ended with {now.exit_code}"
                time.sleep(0.1)
            yield Probed(engine, state, json.loads(path.read_text()))
    finally:
        del os.environ["WS_PROBE_SECRET"]


def test_it_has_no_capability_and_cannot_gain_any(probed: Probed) -> None:
    status = {name: value.strip() for name, value in probed.status.items()}
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0, name
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"


def test_it_is_an_ordinary_user_and_its_root_is_not_the_hosts(probed: Probed) -> None:
    assert probed.ids == [1000, 1000, [1000]] or probed.ids == [1000, 1000, []]
    if probed.engine.name == "podman":
        assert probed.uid_map[1:] != ["0", "4294967295"]
        assert int(probed.uid_map[1]) >= 65536
    host_uid = os.stat(f"/proc/{probed.state.pid}").st_uid
    assert host_uid == probed.engine.host_ids(1000, 1000).host_uid != 0


def test_it_is_alone(probed: Probed) -> None:
    assert probed.pid == 1
    assert probed.hostname == "probe-id"
    assert probed.cwd == "/"
    assert probed.fds == [0, 1, 2]
    ours = {name: os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "mnt", "net", "ipc", "uts", "cgroup")}
    theirs = {name: os.readlink(f"/proc/{probed.state.pid}/ns/{name}") for name in ours}
    assert not set(ours.values()) & set(theirs.values())


def test_it_has_the_harmless_devices_only(probed: Probed) -> None:
    harmless = {
        "/dev/null": [1, 3],
        "/dev/zero": [1, 5],
        "/dev/full": [1, 7],
        "/dev/random": [1, 8],
        "/dev/urandom": [1, 9],
        "/dev/tty": [5, 0],
        "/dev/pts/ptmx": [5, 2],
        "/dev/console": [136, 0],
    }
    assert probed.devices.items() <= harmless.items()


def test_it_has_no_network(probed: Probed) -> None:
    assert probed.interfaces == ["lo"]


def test_nothing_of_the_hosts_environment_is_in_it(probed: Probed) -> None:
    # `container` and TERM are podman's own, HOSTNAME is docker's.
    assert set(probed.env) <= {"PATH", "HOME", "LANG", "COLOUR", "HOSTNAME", "container", "TERM", "LC_CTYPE"}
    assert probed.env["HOME"] == "/home/agent"
    assert probed.env["COLOUR"] == "blue"
    assert probed.env["PATH"] == "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def test_it_can_write_where_it_should_and_nowhere_else(probed: Probed) -> None:
    writable = {path for path, code in probed.writes.items() if code == 0}
    assert writable == {"/tmp/probe", "/home/agent/probe", "/dev/shm/probe", "/.ws/run/probe"}
    assert probed.writes["/etc/probe"] == errno.EROFS
    assert probed.home == [1000, 1000, 0o700]


def test_its_mounts_give_no_setuid_and_no_devices(probed: Probed) -> None:
    options = {line.split()[4]: line.split()[5].split(",") for line in probed.mounts}
    for path in ("/tmp", "/home/agent", "/dev/shm", "/workspace"):
        assert {"nosuid", "nodev"} <= set(options[path]), path
    assert "ro" in options["/"]
    assert "ro" in options["/.ws/runtime"]
    if probed.engine.name == "podman":  # docker's bind mounts take no flags
        assert {"nosuid", "nodev"} <= set(options["/.ws/runtime"])
        assert {"nosuid", "nodev", "noexec"} <= set(options["/.ws/run"])


def test_it_sees_no_engine_and_no_secret_of_the_kernel(probed: Probed) -> None:
    assert not [line for line in probed.mounts if ".sock" in line]
    for path, content in probed.reads.items():
        assert content in ("", errno.ENOENT, errno.EACCES, errno.EPERM), path


def test_dangerous_system_calls_are_denied(probed: Probed) -> None:
    refused = {
        errno.EPERM,
        errno.ENOSYS,
        errno.EAFNOSUPPORT,
    }
    open_ones = {name: code for name, code in probed.denied.items() if code not in refused}
    assert not open_ones
    # These succeed, or fail otherwise, under the engines' own profiles: here the filter is ours.
    for name in ("keyctl", "ptrace", "unshare NEWUSER", "clone NEWUSER", "process_vm_readv"):
        assert probed.denied[name] == errno.EPERM or probed.denied[name] == errno.ENOSYS, name
    assert probed.denied["clone3"] == errno.ENOSYS
    assert probed.denied["io_uring_setup"] == errno.ENOSYS


def test_the_trades_of_a_project_work_under_the_filter(probed: Probed) -> None:
    failed = {name: result for name, result in probed.trades.items() if result[0] != 0}
    assert not failed
    assert "made" in probed.trades["make"][1]


def test_limits_hold_as_the_host_sees_them(probed: Probed) -> None:
    def value(controller: str, *names: str) -> str | None:
        directory = cgroups.find_directory(probed.state.pid, controller)
        assert directory is not None, controller
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                return Path(directory, name).read_text().strip()
        return None

    assert value("pids", "pids.max") == str(PIDS)
    assert value("memory", "memory.max", "memory.limit_in_bytes") == str(MEMORY)
    assert value("memory", "memory.swap.max", "memory.memsw.limit_in_bytes") in (None, "0", str(MEMORY))
    quota = value("cpu", "cpu.max") or f"{value('cpu', 'cpu.cfs_quota_us')} {value('cpu', 'cpu.cfs_period_us')}"
    assert quota == "50000 100000"
    assert "Max core file size        0                    0" in probed.limits


def test_a_fork_bomb_stays_inside(engine: Engine, busybox_image: str, session_home: str) -> None:
    bench = EngineBench(engine, session_home, busybox_image)
    bomb = "(while :; do /bin/busybox sleep 60 & done 2>/dev/null) & exec /bin/busybox sleep 600"
    with bench.container("/bin/busybox", "sh", "-c", bomb, pids=32) as state:
        time.sleep(0.5)
        directory = cgroups.find_directory(state.pid, "pids")
        assert directory is not None
        assert int(Path(directory, "pids.current").read_text()) <= 32
        began = time.monotonic()
        engine.remove(state.id)
        assert time.monotonic() - began < 8


def test_a_memory_hog_dies_alone(engine: Engine, default_image: str, session_home: str) -> None:
    bench = EngineBench(engine, session_home, default_image)
    hog = "x = bytearray(200 << 20); x[:] = b'1' * len(x)"
    with bench.container("/bin/sleep", "600", memory_bytes=64 << 20) as state:
        assert Vitals(state.pid).oom_kills() == 0
        done = engine.exec(state.id, ["python3", "-c", hog], user="1000:1000", workdir="/", timeout_s=60)
        assert done.exit_code == 137
        assert Vitals(state.pid).oom_kills() == 1
        now = engine.find(state.id)
        assert now is not None
        assert now.running


def test_a_user_given_to_exec_has_no_more_rights(engine: Engine, default_image: str, session_home: str) -> None:
    bench = EngineBench(engine, session_home, default_image)
    with bench.container("/bin/sleep", "600") as state:
        if engine.name == "docker":  # no namespace: its root would be the host's
            for user in ("0", "root", "0:1000", "1000:0"):
                with pytest.raises(InvalidRequest):
                    engine.exec(state.id, ["true"], user=user, workdir="/")
        for user in ("0", "root") if engine.name == "podman" else ("65534",):
            done = engine.exec(state.id, ["cat", "/proc/self/status"], user=user, workdir="/", timeout_s=30)
            status = dict(line.split(":\t", 1) for line in done.stdout.decode().splitlines())
            assert status["Uid"].split()[0] == ("0" if user == "root" else user)
            assert {int(status[name], 16) for name in ("CapEff", "CapBnd", "CapPrm", "CapAmb")} == {0}
            assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
        named = engine.exec(state.id, ["id", "-un"], user="agent", workdir="/", timeout_s=30)
        assert named.stdout == b"agent\n"


def test_a_network_does_not_reach_the_metadata_services_of_clouds(
    engine: Engine, default_image: str, session_home: str
) -> None:
    bench = EngineBench(engine, session_home, default_image)
    services = ("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16")
    dial = (
        "import socket\n"
        f"for address in {(*services, '192.0.2.1')}:\n"
        "    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
        "    print(address, s.connect_ex((address, 80)))\n"
    )
    with bench.container("/bin/sleep", "600", network="bridge") as state:
        done = engine.exec(state.id, ["python3", "-c", dial], user="1000:1000", workdir="/", timeout_s=30)
        codes = dict(line.split() for line in done.stdout.decode().splitlines())
        assert codes["192.0.2.1"] == "0", "there is a network"
        # A blackhole answers EINVAL to whoever routes into it.
        assert {codes[service] for service in services} <= {str(errno.EINVAL), str(errno.ENETUNREACH)}


MALICIOUS = f"""\
FROM {BUSYBOX}
USER 0
RUN ["/bin/busybox", "ln", "-s", "/tmp/ws-test-canary", "/home"]
ENV LD_PRELOAD=/evil.so PYTHONPATH=/evil HOME=/evil
VOLUME ["/data", "/workspace", "/.ws/run", "/tmp"]
WORKDIR /proc/self/cwd/../../..
STOPSIGNAL SIGWINCH
HEALTHCHECK --interval=1s CMD ["/bin/busybox", "touch", "/tmp/health"]
ENTRYPOINT ["/bin/busybox", "echo", "evil"]
CMD ["evil"]
"""


def test_an_image_has_no_say(engine: Engine, busybox_image: str, session_home: str) -> None:
    canary = Path("/tmp/ws-test-canary")  # always the same, so that the build is cached
    canary.mkdir(exist_ok=True)
    reference = "localhost/ws-test-malicious:latest"
    engine.build_image(MALICIOUS, reference, build_args={})
    bench = EngineBench(engine, session_home, reference)
    command = ("/bin/busybox", "sleep", "600")
    before = sorted(os.listdir(session_home + "/run"))
    with contextlib.suppress(EngineError), bench.container(*command, workspace_id="w") as state:
        # An engine may refuse such an image. One that takes it runs our command, in our directory.
        proc = Path("/proc", str(state.pid))
        time.sleep(1.5)  # for exec to happen, and health checks
        assert proc.joinpath("cmdline").read_text().rstrip("\0").split("\0") == list(command)
        assert os.readlink(proc / "cwd") == "/"
        env = dict(each.split("=", 1) for each in proc.joinpath("environ").read_text().split("\0") if each)
        assert env["HOME"] == "/home/agent"
        assert not {"LD_PRELOAD", "PYTHONPATH"} & set(env)
        mounts = proc.joinpath("mountinfo").read_text()
        assert "/volumes/" not in mounts, "a volume on the host has no limit and is left behind"
        assert not proc.joinpath("root/tmp/health").exists(), "no health check runs"
        assert proc.stat().st_uid == engine.host_ids(1000, 1000).host_uid
    assert list(canary.iterdir()) == [], "a link in the image led to the host"
    canary.rmdir()
    assert sorted(os.listdir(session_home + "/run")) == before
