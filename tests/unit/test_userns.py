"""The law: a user namespace can be had without being in it, and an error of the kernel arrives as what it is."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ws import userns

MAPPING = userns.IdMapping(((0, 0, 1), (1, 1_900_000_001, 65_535)), ((0, 0, 1), (1, 1_900_000_001, 65_535)))


def children() -> list[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def test_a_namespace_lives_as_long_as_its_descriptor_and_no_process_is_left() -> None:
    before = children(), len(os.listdir("/proc/self/fd"))
    namespace = userns.create(MAPPING)
    try:
        assert os.fstat(namespace).st_ino != os.stat("/proc/self/ns/user").st_ino
        assert fcntl.ioctl(namespace, 0xB703) == 0x10000000
    finally:
        os.close(namespace)
    assert (children(), len(os.listdir("/proc/self/fd"))) == before


def test_a_map_that_the_kernel_refuses_is_an_error_and_leaves_nothing() -> None:
    before = children(), len(os.listdir("/proc/self/fd"))
    twice = ((0, 0, 1), (0, 5, 1))
    with pytest.raises(OSError, match="Invalid argument"):
        userns.create(userns.IdMapping(twice, twice))
    assert (children(), len(os.listdir("/proc/self/fd"))) == before


def test_limits_are_those_of_the_namespace_alone() -> None:
    process = subprocess.Popen(["unshare", "--user", "sleep", "100"])
    try:
        while os.stat(f"/proc/{process.pid}/ns/user").st_ino == os.stat("/proc/self/ns/user").st_ino:
            pass
        before = Path("/proc/sys/user/max_inotify_instances").read_text()
        userns.restrict(process.pid, {"max_inotify_instances": 7, "max_no_such_thing": 1})
        enter = [
            "nsenter",
            "-t",
            str(process.pid),
            "-U",
            "--preserve-credentials",
            "cat",
            "/proc/sys/user/max_inotify_instances",
        ]
        assert subprocess.run(enter, capture_output=True, text=True, check=True).stdout.strip() == "7"
        assert Path("/proc/sys/user/max_inotify_instances").read_text() == before
    finally:
        process.kill()
        process.wait()
    with pytest.raises(OSError, match="No such file"):
        userns.restrict(process.pid, {})


UNMAPPABLE = """
set -e
mkdir -p "$1/lower" "$1/upper" "$1/work" "$1/merged"
mount -t tmpfs none "$1/upper"
mkdir "$1/upper/data" "$1/upper/work"
mount -t overlay none -o lowerdir="$1/lower",upperdir="$1/upper/data",workdir="$1/upper/work" "$1/merged"
shift; exec "$@"
"""
STORY = """
import errno, os, resource, sys
from ws import idmaps
from ws.errors import KernelRefused
from ws.layout import Ids, open_home
home = open_home(sys.argv[1])
ids, there = Ids(1000, 1000, 1000, 1000), Ids(1000, 1000, 1_900_001_000, 1_900_001_000)
print(idmaps.create(home, ids, there) is not None)
used = len(os.listdir("/proc/self/fd"))
for few in range(used, used + 4):
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, 4096))
    try:
        idmaps.create(home, ids, there)
        print("shared")
    except KernelRefused as error:
        print(error.errno == errno.EMFILE)
"""


def test_containers_share_ids_only_where_the_kernel_cannot_separate_them(tmp_path: Path) -> None:
    """A filesystem that cannot be id-mapped is one thing, a want of descriptors another."""
    able = [sys.executable, "-c", STORY, str(tmp_path / "home")]
    done = subprocess.run(able, capture_output=True, text=True)
    assert done.stdout.split() == ["True"] * 5, done.stderr
    unable = [
        "unshare",
        "-m",
        "sh",
        "-c",
        UNMAPPABLE,
        "sh",
        str(tmp_path),
        sys.executable,
        "-c",
        STORY.partition("used = ")[0],
    ]
    done = subprocess.run([*unable, str(tmp_path / "merged" / "home")], capture_output=True, text=True)
    assert done.stdout.split() == ["False"], done.stderr
