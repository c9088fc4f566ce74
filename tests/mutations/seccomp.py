"""The list of system calls.."""

from __future__ import annotations

from mutations import Mutation

_FILE = "engine/seccomp.py"
_WAY_OUT = "unit/test_seccomp.py::test_no_way_out_is_allowed"
_ARGUMENTS = "unit/test_seccomp.py::test_what_arguments_allow_is_exactly_this"
_PROMISE = "no system call leads out of the container"

MUTATIONS = [
    Mutation(
        "ptrace is allowed", _FILE, "    fork vfork execve", "    ptrace fork vfork execve", _PROMISE, (_WAY_OUT,)
    ),
    Mutation(
        "mounts are allowed", _FILE, "    access faccessat", "    mount fsopen access faccessat", _PROMISE, (_WAY_OUT,)
    ),
    Mutation("keyrings are allowed", _FILE, "    getuid geteuid", "    keyctl getuid geteuid", _PROMISE, (_WAY_OUT,)),
    Mutation(
        "io_uring is allowed",
        _FILE,
        "    inotify_init inotify_init1",
        "    io_uring_setup inotify_init inotify_init1",
        _PROMISE,
        (_WAY_OUT,),
    ),
    Mutation(
        "netlink sockets are allowed",
        _FILE,
        "(socket.AF_UNIX, socket.AF_INET, socket.AF_INET6)",
        "(socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)",
        _PROMISE,
        (_ARGUMENTS,),
    ),
    Mutation(
        "new user namespaces are allowed",
        _FILE,
        "_NAMESPACES = 0x7E020000",
        "_NAMESPACES = 0x6E020000",
        _PROMISE,
        (_ARGUMENTS,),
    ),
    Mutation(
        "new time namespaces are allowed",
        _FILE,
        "_without(0, _NAMESPACES | _NEWTIME)",
        "_without(0, _NAMESPACES)",
        _PROMISE,
        (_ARGUMENTS,),
    ),
    Mutation(
        "device nodes are allowed",
        _FILE,
        "_NODE_TYPES = (0, stat.S_IFREG,",
        "_NODE_TYPES = (0, stat.S_IFCHR, stat.S_IFREG,",
        "a container cannot forge a whiteout",
        (_ARGUMENTS,),
    ),
    Mutation(
        "what is not named is allowed",
        _FILE,
        '        "defaultAction": "SCMP_ACT_ERRNO",\n',
        '        "defaultAction": "SCMP_ACT_ALLOW",\n',
        _PROMISE,
        ("unit/test_seccomp.py::test_the_file_is_what_the_module_describes",),
    ),
]
