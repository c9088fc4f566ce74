"""Runs inside a container, as its first process, with the image's own python3; tells what it sees and can do.

The report goes to the run directory, which the host reads. Numbers of system calls are those of the machine.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import socket
import stat
import subprocess
import time

libc = ctypes.CDLL(None, use_errno=True)

# x86-64, arm64
NUMBERS = {
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "pidfd_getfd": (438, 438),
    "vmsplice": (278, 75),
    "clone3": (435, 435),
}
CLONE_NEWUSER = 0x10000000
FAMILIES = {"vsock": 40, "netlink": 16, "alg": 38, "packet": 17, "bluetooth": 31, "key": 15, "can": 29}


def call(number: int, *args: int) -> int:
    """The errno of a system call, 0 when it succeeded."""
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *(ctypes.c_long(arg) for arg in args))
    return ctypes.get_errno() if result < 0 else 0


def denied_calls() -> dict[str, int]:
    column = 0 if platform.machine() == "x86_64" else 1
    found = {name: call(numbers[column], 0, 0, 0, 0, 0) for name, numbers in NUMBERS.items()}
    unshare = 272 if column == 0 else 97
    found["unshare NEWUSER"] = call(unshare, CLONE_NEWUSER)
    found["unshare NEWNS"] = call(unshare, 0x00020000)
    found["clone NEWUSER"] = call(56 if column == 0 else 220, CLONE_NEWUSER | 17, 0, 0, 0, 0)
    for name, family in FAMILIES.items():
        found[f"socket {name}"] = socket_errno(family)
    found["mknod device"] = errno_of(lambda: os.mknod("/tmp/device", stat.S_IFCHR | 0o600, os.makedev(0, 0)))
    return found


def socket_errno(family: int) -> int:
    return errno_of(lambda: socket.socket(family, socket.SOCK_DGRAM).close())


def errno_of(action: object) -> int:
    try:
        action()  # type: ignore[operator]
    except OSError as error:
        return error.errno or -1
    return 0


def write_errno(path: str) -> int:
    """What becomes of an attempt to make a file there."""

    def attempt() -> None:
        with open(path, "w") as file:
            file.write("x")

    return errno_of(attempt)


def read_text(path: str) -> str | int:
    try:
        with open(path, "rb") as file:
            return file.read(1 << 16).decode(errors="replace")
    except OSError as error:
        return error.errno or -1


def devices() -> dict[str, list[int]]:
    found = {}
    for directory, _, names in os.walk("/dev"):
        for name in names:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
                found[path] = [os.major(status.st_rdev), os.minor(status.st_rdev)]
    return found


def run(*argv: str, cwd: str = "/tmp") -> list[object]:
    done = subprocess.run(argv, cwd=cwd, capture_output=True, text=True, timeout=60)
    return [done.returncode, (done.stdout + done.stderr)[-500:]]


def trades() -> dict[str, list[object]]:
    """What a project needs done, under the same filter."""
    os.makedirs("/tmp/project", exist_ok=True)
    with open("/tmp/project/hello.c", "w") as file:
        file.write("#include <stdio.h>\n#include <pthread.h>\nstatic void *f(void *x){return x;}\n")
        file.write('int main(void){pthread_t t;pthread_create(&t,0,f,0);pthread_join(t,0);puts("made");return 0;}\n')
    with open("/tmp/project/Makefile", "w") as file:
        file.write("hello: hello.c\n\tgcc -O1 -o hello hello.c -pthread\n\t./hello\n")
    identity = ("-c", "user.name=a", "-c", "user.email=a@b")
    return {
        "make": run("make", "-j2", cwd="/tmp/project"),
        "git init": run("git", "init", "-q", ".", cwd="/tmp/project"),
        "git add": run("git", "add", "-A", cwd="/tmp/project"),
        "git commit": run("git", *identity, "commit", "-qm", "x", cwd="/tmp/project"),
        "rg": run("rg", "-c", "pthread", "/tmp/project/hello.c"),
        "curl": run("curl", "--version"),
        "ps": run("ps", "-ef"),
        "threads": run("python3", "-c", "import threading as t; x=t.Thread(target=print); x.start(); x.join()"),
        "processes": run(
            "python3", "-c", "import multiprocessing as m; p=m.Pool(2); print(p.map(abs,[-1,2])); p.close()"
        ),
        "asyncio": run("python3", "-c", "import asyncio; asyncio.run(asyncio.create_subprocess_exec('true'))"),
        "fifo": run("mkfifo", "/tmp/fifo"),
    }


def probe() -> dict[str, object]:
    home = os.stat("/home/agent")
    return {
        "status": dict(line.split(":", 1) for line in str(read_text("/proc/self/status")).splitlines() if ":" in line),
        "uid_map": str(read_text("/proc/self/uid_map")).split(),
        "ids": [os.getuid(), os.getgid(), sorted(os.getgroups())],
        "pid": os.getpid(),
        "hostname": socket.gethostname(),
        "cwd": os.getcwd(),
        "env": dict(os.environ),
        "fds": [int(name) for name in os.listdir("/proc/self/fd")][:-1],
        "devices": devices(),
        "interfaces": sorted(line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]),
        "mounts": str(read_text("/proc/self/mountinfo")).splitlines(),
        "home": [home.st_uid, home.st_gid, stat.S_IMODE(home.st_mode)],
        "writes": {
            path: write_errno(path)
            for path in (
                "/probe",
                "/etc/probe",
                "/usr/probe",
                "/workspace/probe",
                "/.ws/runtime/probe",
                "/proc/sys/kernel/core_pattern",
                "/proc/sys/kernel/hostname",
                "/proc/sysrq-trigger",
                "/sys/kernel/probe",
                "/sys/fs/cgroup/probe",
                "/tmp/probe",
                "/home/agent/probe",
                "/dev/shm/probe",
                "/.ws/run/probe",
            )
        },
        "reads": {path: read_text(path) for path in ("/proc/kcore", "/proc/keys", "/proc/timer_list")},
        "denied": denied_calls(),
        "limits": str(read_text("/proc/self/limits")),
        "trades": trades(),
    }


if __name__ == "__main__":
    report = json.dumps(probe())
    with open("/.ws/run/report.new", "w") as out:
        out.write(report)
    os.rename("/.ws/run/report.new", "/.ws/run/report")
    time.sleep(600)
