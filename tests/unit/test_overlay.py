"""An overlay is built out of sight, put where one process sees it, and taken off only when nobody is in it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ws import overlay
from ws.errors import ContainerDied, KernelRefused, LimitExceeded

pytestmark = pytest.mark.root

HARD_NAME = "a dir,with:all\\of it"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[tuple[int, str]]:
    """A process in a mount namespace of its own, with a tmpfs to be covered, as in a container."""
    target = tmp_path / "target"
    target.mkdir()
    script = f"mount -t tmpfs none {target} && echo ready && exec sleep 60"
    process = subprocess.Popen(
        ["unshare", "--mount", "--propagation", "private", "sh", "-c", script], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield process.pid, str(target)
    process.kill()
    process.wait()
    process.stdout.close()


def seen(pid: int, path: str) -> str:
    return f"/proc/{pid}/root{path}"


def make_plan(tmp_path: Path, layers: int = 1) -> overlay.MountPlan:
    place = tmp_path / HARD_NAME
    lowers = []
    for number in range(layers):
        lower = place / f"lower{number}"
        lower.mkdir(parents=True)
        (lower / f"file{number}").write_text(str(number))
        (lower / "shared").write_text(str(number))
        lowers.append(str(lower))
    upper = place / "upper"
    (upper / "data").mkdir(parents=True)
    (upper / "work").mkdir()
    return overlay.MountPlan(tuple(lowers), str(upper))


def attach(plan: overlay.MountPlan, pid: int, target: str) -> None:
    mount = plan.execute()
    overlay.attach(mount, pid, target)
    os.close(mount)


def test_only_the_other_process_sees_it_and_changes_land_in_the_upper(
    tmp_path: Path, elsewhere: tuple[int, str]
) -> None:
    pid, target = elsewhere
    plan = make_plan(tmp_path)
    assert not overlay.attached(pid, target)
    attach(plan, pid, target)
    assert overlay.attached(pid, target)
    assert os.listdir(target) == []
    Path(seen(pid, target), "new").write_text("new")
    assert (Path(plan.upper) / "data" / "new").read_text() == "new"
    assert sorted(os.listdir(plan.lowers[0])) == ["file0", "shared"]


def test_the_mount_is_nosuid_nodev_and_tells_nothing_of_the_host(tmp_path: Path, elsewhere: tuple[int, str]) -> None:
    pid, target = elsewhere
    attach(make_plan(tmp_path), pid, target)
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    (line,) = [line for line in lines if f" {target} " in line and "overlay" in line]
    assert "nosuid" in line
    assert "nodev" in line
    assert "upper" not in line.replace("upperdir=/proc", "")


def test_the_first_lower_wins_up_to_the_kernels_limit(tmp_path: Path, elsewhere: tuple[int, str]) -> None:
    pid, target = elsewhere
    attach(make_plan(tmp_path, overlay.MAX_LOWERS), pid, target)
    root = Path(seen(pid, target))
    assert (root / "shared").read_text() == "0"
    assert len(os.listdir(root)) == overlay.MAX_LOWERS + 1


def test_one_layer_too_many_is_refused_by_name(tmp_path: Path) -> None:
    plan = overlay.MountPlan(tuple(f"/l{n}" for n in range(overlay.MAX_LOWERS + 1)), str(tmp_path))
    with pytest.raises(LimitExceeded, match="501"):
        plan.execute()


def test_a_missing_directory_is_named(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    with pytest.raises(KernelRefused, match="no-such-lower"):
        overlay.MountPlan(("/no-such-lower",), plan.upper).execute()


def test_a_process_inside_keeps_it_attached(tmp_path: Path, elsewhere: tuple[int, str]) -> None:
    pid, target = elsewhere
    attach(make_plan(tmp_path), pid, target)
    held = os.open(seen(pid, target) + "/shared", os.O_RDONLY)
    assert overlay.detach(pid, target) is False
    assert overlay.attached(pid, target)
    os.close(held)
    assert overlay.detach(pid, target) is True
    assert not overlay.attached(pid, target)


def test_attaching_works_from_a_process_with_threads_and_leaves_none(
    tmp_path: Path, elsewhere: tuple[int, str]
) -> None:
    pid, target = elsewhere
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    before = threading.active_count(), os.getcwd(), len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        attach(make_plan(tmp_path / os.urandom(4).hex()), pid, target)
        assert overlay.detach(pid, target)
    assert (threading.active_count(), os.getcwd(), len(os.listdir("/proc/self/fd"))) == before
    stop.set()
    other.join()


def test_a_process_that_is_gone_is_a_dead_container() -> None:
    for action in (lambda: overlay.detach(2**22 + 1, "/"), lambda: overlay.attached(2**22 + 1, "/")):
        with pytest.raises(ContainerDied):
            action()


def test_a_plan_describes_itself_before_it_is_carried_out(tmp_path: Path) -> None:
    plan = make_plan(tmp_path, 2)
    lines = plan.describe()
    assert lines[0] == f"lowerdir+={plan.lowers[0]}"
    assert f"upperdir={plan.upper}/data" in lines
    assert "metacopy=off" in lines
    assert "userxattr" in overlay.MountPlan(plan.lowers, plan.upper, userxattr=True).describe()


MAPPED = """
import os, sys
from ws import overlay, userns
top = sys.argv[1]
extents = ((0, 0, 1), (201_000, 1_900_001_000, 1000))
namespace = userns.create(userns.IdMapping(extents, extents))
for part in ("near", "far", "upper/data", "upper/work"):
    os.makedirs(f"{top}/{part}", exist_ok=True)
for name in ("near", "far"):
    open(f"{top}/{name}/{name}", "w").close()
for path in ("near", "near/near", "far", "far/far", "upper/data"):
    os.chown(f"{top}/{path}", 201_000, 201_001)
plan = overlay.MountPlan((f"{top}/near", f"{top}/far"), f"{top}/upper", idmap=namespace, top=top)
for _ in range(2):
    mount = plan.execute()
    print(*((found.st_uid, found.st_gid) for name in ("near", "far") if (found := os.stat(name, dir_fd=mount))))
    os.close(mount)
mount = plan.execute()
os.setresgid(-1, 1_900_001_001, -1)
os.setresuid(-1, 1_900_001_000, -1)
os.unlink("far", dir_fd=mount)
os.close(os.open("new", os.O_CREAT | os.O_WRONLY, dir_fd=mount))
os.setresuid(-1, 0, -1)
found = os.stat(f"{top}/upper/data/new")
print(found.st_uid, found.st_gid, os.lstat(f"{top}/upper/data/far").st_rdev, end=" ")
print(*sorted(os.listdir(f"/proc/self/fd/{mount}")))
"""


@pytest.mark.parametrize("between", ["", 'mount -t tmpfs none "$1/far"; '])
def test_files_are_shown_under_other_ids_also_where_a_mount_lies_between(tmp_path: Path, between: str) -> None:
    (tmp_path / "far").mkdir()
    script = f'{between}exec "$2" -c "$3" "$1"'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(tmp_path), sys.executable, MAPPED],
        capture_output=True,
        text=True,
    )
    shown, again, made = done.stdout.splitlines()
    assert shown == again == "(1900001000, 1900001001) (1900001000, 1900001001)", done.stderr
    assert made == "201000 201001 0 near new"
