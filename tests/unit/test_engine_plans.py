"""The law of plans: what a container gets is decided before any engine is asked, and by the machine as it is."""

from __future__ import annotations

import dataclasses
import os
import resource
from pathlib import Path

import pytest

from ws.engine import cgroups, debian, docker_spec, podman_spec
from ws.engine.base import ContainerSpec
from ws.engine.confinement import plan_container, read_hard_limits
from ws.engine.endpoints import parse_endpoint, shorten_socket
from ws.engine.imaging import read_changes, read_packages
from ws.errors import EngineUnavailable, InvalidRequest
from ws.layout import Ids, Options
from ws.subordinate_ids import FIRST

LIMITS = {"nofile": 20_000, "nproc": 4_096, "sigpending": 8_000, "msgqueue": 819_200}

UNIFIED = "31 23 0:28 / {root} rw - cgroup2 cgroup2 rw\n"
LEGACY = (
    "31 23 0:28 / {root} rw - tmpfs tmpfs rw\n"
    "32 31 0:29 / {root}/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
    "33 31 0:30 / {root}/systemd rw - cgroup cgroup rw,name=systemd\n"
)
HYBRID = LEGACY + "34 31 0:31 / {root}/unified rw - cgroup2 cgroup2 rw\n"


@pytest.mark.parametrize(("text", "layout"), [(UNIFIED, "unified"), (LEGACY, "legacy"), (HYBRID, "hybrid")])
def test_the_cgroup_layout_is_read_from_the_mounts(text: str, layout: str, tmp_path: Path) -> None:
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("hugetlb\n")
    mountinfo = tmp_path / "mountinfo"
    mountinfo.write_text(text.format(root=tmp_path))
    mounts = cgroups.read_mounts(str(mountinfo))
    assert mounts.layout == layout
    if layout == "hybrid":
        assert mounts.unified_controllers == ("hugetlb",)
        assert mounts.points["cpuacct"] == f"{tmp_path}/cpu,cpuacct"


@pytest.fixture
def spec(tmp_path: Path) -> ContainerSpec:
    return ContainerSpec(
        key="k1",
        home="/home/of/ws",
        workspace_id="w1",
        ids=Ids(1000, 1000, 201_000, 201_000),
        options=Options(image="localhost/x", memory_bytes=64 << 20, cpus=1.5, pids=99, env={"A": "b"}),
        command=("/shim", "--socket", "s"),
        runtime_dir=str(tmp_path),
        run_dir=str(tmp_path),
    )


def test_ulimits_stay_below_those_of_the_engine(spec: ContainerSpec) -> None:
    plan = plan_container(spec, hard_limits=LIMITS)
    assert {limit.name: limit.value for limit in plan.ulimits} == {
        "nofile": 20_000,
        "nproc": 4_096,
        "sigpending": 1_000,
        "msgqueue": 102_400,
        "core": 0,
    }


def test_with_host_ids_of_its_own_a_container_has_a_limit_on_processes_too(spec: ContainerSpec) -> None:
    own = dataclasses.replace(spec, ids=Ids(1000, 1000, FIRST + 1000, FIRST + 1000))
    assert {limit.name: limit.value for limit in plan_container(own, hard_limits=LIMITS).ulimits}["nproc"] == 99


def test_hard_limits_are_those_of_the_engines_own_process() -> None:
    ours = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    found = read_hard_limits(os.getpid())
    assert found["nofile"] == ours
    assert read_hard_limits(2**22 - 1)["nofile"] == ours, "a process that cannot be read sets no limit"


def test_an_environment_variable_needs_a_name(spec: ContainerSpec) -> None:
    for name in ("", "A=B", "A\0"):
        bad = Options(image="x", env={name: "1"})
        with pytest.raises(InvalidRequest):
            plan_container(_with(spec, bad), hard_limits=LIMITS)


def test_a_directory_to_mount_must_be_there(spec: ContainerSpec) -> None:
    gone = ContainerSpec(**{**{name: getattr(spec, name) for name in spec.__slots__}, "run_dir": "/no/such"})
    with pytest.raises(InvalidRequest):
        plan_container(gone, hard_limits=LIMITS)


def test_both_engines_are_told_the_same(spec: ContainerSpec) -> None:
    plan = plan_container(spec, hard_limits=LIMITS)
    podman = podman_spec.plan_create(spec, plan, rootless=False, limits={"memory", "cpu", "pids"})
    docker = docker_spec.plan_create(spec, plan, volumes=["/data"], runtime=None)
    host = docker["HostConfig"]
    assert podman["entrypoint"] + podman["command"] == docker["Entrypoint"] + docker["Cmd"] == list(spec.command)
    assert (podman["user"], docker["User"]) == ("1000:1000", "201000:201000"), "docker maps no ids"
    assert podman["work_dir"] == docker["WorkingDir"] == "/"
    assert podman["labels"] == docker["Labels"]
    assert podman["resource_limits"]["memory"]["limit"] == host["Memory"] == host["MemorySwap"] == 64 << 20
    assert podman["resource_limits"]["cpu"]["quota"] == host["CpuQuota"] == 150_000
    assert podman["resource_limits"]["pids"]["limit"] == host["PidsLimit"] == 99
    assert podman["netns"]["nsmode"] == host["NetworkMode"] == "none"
    assert podman["read_only_filesystem"] is host["ReadonlyRootfs"] is True
    tmpfs = {mount["destination"] for mount in podman["mounts"] if mount["type"] == "tmpfs"}
    assert tmpfs | {"/data"} == set(host["Tmpfs"])


def test_a_workspace_keeps_the_ids_it_was_made_with(spec: ContainerSpec) -> None:
    plan = plan_container(spec, hard_limits=LIMITS)
    body = podman_spec.plan_create(spec, plan, rootless=False, limits={"memory", "cpu", "pids"})
    assert body["idmappings"]["UIDMap"] == [{"container_id": 0, "host_id": 200_000, "size": 65_536}]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("", 200_000),
        ("alice:100000:65536\n", 200_000),
        ("alice:100000:65536\nbob:165536:65536\n", 1_900_000_000),
        ("bob:165536:65536\ncontainers:500000:65536\n", 500_000),
        ("containers:500000:10\n", 200_000),
    ],
)
def test_ids_of_containers_are_nobody_elses(text: str, first: int, tmp_path: Path) -> None:
    (tmp_path / "subuid").write_text(text)
    assert podman_spec._choose_first(str(tmp_path / "subuid")) == first


def test_a_rootless_container_has_the_limits_that_its_user_may_set(spec: ContainerSpec) -> None:
    plan = plan_container(spec, hard_limits=LIMITS)
    body = podman_spec.plan_create(spec, plan, rootless=True, limits={"pids"})
    assert body["resource_limits"] == {"pids": {"limit": 99}}
    assert body["userns"] == {"nsmode": "private"}, "for limits of its own"


def test_a_rootless_user_has_the_controllers_that_are_delegated(tmp_path: Path) -> None:
    service = tmp_path / "user.slice" / "user-1000.slice" / "user@1000.service"
    service.mkdir(parents=True)
    (service / "cgroup.controllers").write_text("memory pids\n")
    unified = cgroups.CgroupMounts("unified", {"": str(tmp_path)}, ("memory",))
    assert cgroups.read_delegated(1000, unified) == {"memory", "pids"}
    assert cgroups.read_delegated(1001, unified) == set()
    assert cgroups.read_delegated(1000, cgroups.CgroupMounts("hybrid", {"": str(tmp_path)}, ())) == set()


def test_a_socket_path_is_shortened_only_when_it_must_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert shorten_socket("/run/x.sock") == "/run/x.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    for long in ("/" + "a" * 120, "/with space/x.sock", "/ümlaut.sock", "/per%cent.sock"):
        short = shorten_socket(long)
        assert short.startswith(f"{tmp_path}/ws-")
        assert short == shorten_socket(long)
    (tmp_path / f"ws-{os.geteuid()}").chmod(0o777)
    with pytest.raises(EngineUnavailable):
        shorten_socket("/" + "a" * 120)


def test_an_endpoint_is_a_local_socket() -> None:
    assert parse_endpoint("unix:///run/x.sock", variable="X") == "/run/x.sock"
    for url in ("tcp://host:1", "ssh://host/x", "unix://relative", ""):
        with pytest.raises(EngineUnavailable):
            parse_endpoint(url, variable="X")


def test_the_containerfile_is_read_for_what_an_import_needs() -> None:
    assert {"git", "ripgrep", "python3", "make", "gcc", "ca-certificates", "procps", "curl"} <= set(read_packages())
    assert "USER 1000:1000" in read_changes()
    assert not any(line.startswith(("RUN", "FROM", "ARG", "#")) for line in read_changes())


def test_the_mirror_is_the_machines_own(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list").write_text(
        "deb http://one.example/debian/ bookworm main\n# deb http://no.example/debian x y\n"
    )
    (tmp_path / "sources.list.d" / "a.sources").write_text("Types: deb\nURIs: https://two.example/debian-security\n")
    found = list(debian._configured(str(tmp_path)))
    assert found == ["http://one.example/debian", "https://two.example/debian-security"]


def _with(spec: ContainerSpec, options: Options) -> ContainerSpec:
    return ContainerSpec(**{**{name: getattr(spec, name) for name in spec.__slots__}, "options": options})
