"""The system calls a workspace may make: an allow-list, written out in `seccomp.json` for the engines.

Everything that is not named here fails. What programs know how to do without (`clone3`, io_uring, calls newer
than this list) fails with ENOSYS, so that they fall back; what asks for a privilege fails with EPERM. The
filter is for the machine's own architecture alone: a second one (32-bit calls on a 64-bit kernel) is a second
attack surface with other argument layouts, and is killed.

Why not the engines' own profile: podman 4.3's allows AF_VSOCK, AF_NETLINK, keyctl, ptrace and a new user
namespace, and leaves AF_ALG open (measured). It is also larger, and libseccomp compiles it at every start:
ours saves some 30 ms of each.

`tests/unit/test_seccomp.py` holds the file and this module together; `write_profile` renews it.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from typing import Any

PROFILE = os.path.join(os.path.dirname(__file__), "seccomp.json")

_FILES = """
    access faccessat faccessat2 chdir fchdir chmod fchmod fchmodat fchmodat2 chown fchown fchownat lchown
    creat open openat openat2 close close_range read readv pread64 preadv preadv2 write writev pwrite64
    pwritev pwritev2 lseek truncate ftruncate fallocate fadvise64 readahead copy_file_range sendfile
    splice tee dup dup2 dup3 fcntl flock ioctl fsync fdatasync sync syncfs sync_file_range cachestat
    stat fstat lstat newfstatat statx statfs fstatfs getcwd getdents getdents64 readlink readlinkat
    link linkat symlink symlinkat unlink unlinkat rename renameat renameat2 mkdir mkdirat rmdir umask
    utime utimes utimensat futimesat
    getxattr lgetxattr fgetxattr setxattr lsetxattr fsetxattr listxattr llistxattr flistxattr
    removexattr lremovexattr fremovexattr getxattrat setxattrat listxattrat removexattrat
    inotify_init inotify_init1 inotify_add_watch inotify_rm_watch pipe pipe2 memfd_create
    poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_ctl_old epoll_wait epoll_wait_old
    epoll_pwait epoll_pwait2 eventfd eventfd2 signalfd signalfd4
"""
_MEMORY = """
    brk mmap mprotect mremap munmap madvise mincore msync mlock mlock2 munlock mlockall munlockall mseal
    membarrier pkey_alloc pkey_free pkey_mprotect map_shadow_stack
"""
_PROCESSES = """
    fork vfork execve execveat exit exit_group wait4 waitid pause pidfd_open pidfd_send_signal
    getpid getppid gettid getpgid setpgid getpgrp getsid setsid set_tid_address
    set_robust_list get_robust_list set_thread_area get_thread_area arch_prctl prctl rseq
    futex futex_waitv futex_wait futex_wake futex_requeue
    kill tkill tgkill rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn rt_sigsuspend
    rt_sigtimedwait rt_tgsigqueueinfo sigaltstack restart_syscall
    sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
    sched_getscheduler sched_rr_get_interval sched_setaffinity sched_setattr sched_setparam sched_setscheduler
    sched_yield getpriority setpriority ioprio_get ioprio_set getcpu
    getrlimit setrlimit prlimit64 getrusage times
    seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self
"""
_IDENTITY = """
    getuid geteuid getresuid getgid getegid getresgid getgroups setuid setgid setreuid setregid setresuid
    setresgid setgroups setfsuid setfsgid capget capset uname sysinfo getrandom
"""
_TIME = """
    time gettimeofday clock_gettime clock_getres clock_nanosleep nanosleep alarm getitimer setitimer
    timer_create timer_delete timer_getoverrun timer_gettime timer_settime
    timerfd_create timerfd_gettime timerfd_settime
"""
_TALKING = """
    accept accept4 bind connect getpeername getsockname getsockopt setsockopt listen recvfrom recvmmsg
    recvmsg sendmmsg sendmsg sendto shutdown
    mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
    msgget msgsnd msgrcv msgctl semget semop semctl semtimedop shmget shmat shmdt shmctl
"""
ALLOWED = " ".join((_FILES, _MEMORY, _PROCESSES, _IDENTITY, _TIME, _TALKING)).split()

# Known, privileged or a known way out; EPERM is the answer programs expect of them.
_PRIVILEGED = """
    mount umount2 pivot_root chroot setns open_tree open_tree_attr move_mount fsopen fsconfig fsmount fspick
    mount_setattr name_to_handle_at open_by_handle_at quotactl quotactl_fd swapon swapoff acct fanotify_init
    bpf perf_event_open userfaultfd keyctl add_key request_key syslog lookup_dcookie
    ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd
    kexec_load kexec_file_load init_module finit_module delete_module create_module query_module reboot
    iopl ioperm modify_ldt vmsplice settimeofday clock_settime clock_adjtime adjtimex stime
    sethostname setdomainname vhangup nfsservctl
    migrate_pages move_pages mbind set_mempolicy get_mempolicy
"""
DENIED = _PRIVILEGED.split()
# Refused so that programs take the older call, whose flags a filter can see, or do without.
ABSENT = ["clone3", "io_uring_setup", "io_uring_enter", "io_uring_register"]
# The contexts of asynchronous I/O are counted for the whole machine (fs.aio-max-nr): one process could take all.
ABSENT += ["io_setup", "io_destroy", "io_submit", "io_cancel", "io_getevents", "io_pgetevents"]

_NAMESPACES = 0x7E020000  # CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_NEWTIME = 0x80  # in clone() these bits are the exit signal
_FAMILIES = (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)
_NODE_TYPES = (0, stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK)  # a device 0:0 is overlayfs's whiteout
# Linux, 32-bit uname, no address randomisation (sanitizers re-execute themselves so), and "tell me".
_PERSONALITIES = (0x0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF)


def plan_profile() -> dict[str, Any]:
    """The profile in the engines' common format."""
    rules: list[dict[str, Any]] = [_allow(ALLOWED)]
    rules += [_allow(["socket"], _equals(0, int(family))) for family in _FAMILIES]
    rules.append(_allow(["socketpair"], _equals(0, int(socket.AF_UNIX))))
    rules.append(_allow(["clone"], _without(0, _NAMESPACES)))
    rules.append(_allow(["unshare"], _without(0, _NAMESPACES | _NEWTIME)))
    for node in _NODE_TYPES:
        rules.append(_allow(["mknod"], _masked(1, 0o170000, node)))
        rules.append(_allow(["mknodat"], _masked(2, 0o170000, node)))
    rules += [_allow(["personality"], _equals(0, value)) for value in _PERSONALITIES]
    rules.append(_refuse(DENIED, errno.EPERM))
    rules.append(_refuse(ABSENT, errno.ENOSYS))
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.ENOSYS,
        "syscalls": rules,
    }


def render_profile() -> str:
    return json.dumps(plan_profile(), indent=1) + "\n"


def write_profile(path: str = PROFILE) -> None:
    """Renew the file after a change here."""
    with open(path, "w", encoding="ascii") as file:
        file.write(render_profile())


def _allow(names: list[str], *args: dict[str, Any]) -> dict[str, Any]:
    return {"names": sorted(names), "action": "SCMP_ACT_ALLOW", "args": list(args)}


def _refuse(names: list[str], code: int) -> dict[str, Any]:
    return {"names": sorted(names), "action": "SCMP_ACT_ERRNO", "errnoRet": code, "args": []}


def _equals(index: int, value: int) -> dict[str, Any]:
    return {"index": index, "value": value, "op": "SCMP_CMP_EQ"}


def _masked(index: int, mask: int, value: int) -> dict[str, Any]:
    return {"index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}


def _without(index: int, bits: int) -> dict[str, Any]:
    return _masked(index, bits, 0)
