"""The law of the filter: the file that engines read is the one the module describes, and says what it must."""

from __future__ import annotations

import errno
import json
from pathlib import Path

from ws.engine import seccomp

# What the hardening notes name as ways out, or as gaps of the engines' own profiles.
MUST_NOT = """
    mount umount2 pivot_root setns open_tree move_mount fsopen fsconfig fsmount mount_setattr open_by_handle_at
    bpf perf_event_open userfaultfd io_uring_setup io_uring_enter io_uring_register keyctl add_key request_key
    ptrace process_vm_readv process_vm_writev kexec_load kexec_file_load init_module finit_module delete_module
    clone3 socketcall
"""


def test_the_file_is_what_the_module_describes() -> None:
    assert Path(seccomp.PROFILE).read_text() == seccomp.render_profile(), "run ws.engine.seccomp.write_profile()"


def test_what_is_not_named_fails() -> None:
    profile = json.loads(Path(seccomp.PROFILE).read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"
    assert profile["defaultErrnoRet"] == errno.ENOSYS


def test_no_way_out_is_allowed() -> None:
    allowed = {name for rule in _rules("SCMP_ACT_ALLOW") for name in rule["names"]}
    assert not allowed & set(MUST_NOT.split())


def test_calls_that_depend_on_arguments_are_allowed_only_with_them() -> None:
    for name in ("socket", "socketpair", "clone", "unshare", "mknod", "mknodat", "personality"):
        rules = [rule for rule in _rules("SCMP_ACT_ALLOW") if name in rule["names"]]
        assert rules, name
        assert all(rule["args"] for rule in rules), name


def test_what_arguments_allow_is_exactly_this() -> None:
    """Compared with numbers that are written here once more: a wider list has to be argued for twice."""
    namespaces = 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
    equal = {
        "socket": {1, 2, 10},  # unix, IPv4, IPv6
        "socketpair": {1},
        "personality": {0x0, 0x8, 0x20000, 0x20008, 0x40000, 0xFFFFFFFF},
    }
    masked = {
        "clone": {(namespaces, 0)},
        "unshare": {(namespaces | 0x80, 0)},
        "mknod": {(0o170000, kind) for kind in (0, 0o100000, 0o010000, 0o140000)},
        "mknodat": {(0o170000, kind) for kind in (0, 0o100000, 0o010000, 0o140000)},
    }
    found: dict[str, set[object]] = {}
    for rule in seccomp.plan_profile()["syscalls"]:
        for argument in rule["args"]:
            value = argument["value"]
            one = (value, argument["valueTwo"]) if argument["op"] == "SCMP_CMP_MASKED_EQ" else value
            for name in rule["names"]:
                found.setdefault(name, set()).add(one)
    assert found == {**equal, **masked}


def test_no_call_is_named_twice_without_arguments() -> None:
    """libseccomp refuses a profile whose rules contradict each other, at the start of every container."""
    names = [name for rule in seccomp.plan_profile()["syscalls"] if not rule["args"] for name in rule["names"]]
    assert len(names) == len(set(names))


def _rules(action: str) -> list[dict[str, list[str]]]:
    return [rule for rule in seccomp.plan_profile()["syscalls"] if rule["action"] == action]
