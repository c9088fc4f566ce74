"""Run a command that can write to one directory only: every mount of the host is read-only for it.

The command runs in a mount namespace of its own. There all mounts of the host are private and read-only, and the
directory that it may write to covers /tmp. It also runs in a pid namespace of its own, whose first process is this
module: when the caller ends, even by SIGKILL, the kernel ends every process of the command.

The mount namespace does not depend on what the command is told: a wrong path, a missing configuration or a hostile
script of a package fails with EROFS. The network is the host's.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from ws import overlay
from ws.errors import KernelRefused

WRITABLE = "/tmp"
_START = "import sys; sys.path.insert(0, {path!r}); from ws.engine.read_only_host import main; main()"
_CLONE_NEWNS = 0x20000
_CLONE_NEWPID = 0x20000000
_MS_PRIVATE = 1 << 18
_FSCONFIG_CMD_CREATE = 6
_PR_SET_PDEATHSIG = 1


def start_with_read_only_host(
    argv: Sequence[str], *, writable: str, env: Mapping[str, str], **options: Any
) -> subprocess.Popen[str]:
    """Start a command that sees the directory `writable` as /tmp, its working directory, and can write nowhere else.

    Needs root, at least in a user namespace. The exit status is the command's; 1 when it was not started, with the
    reason on stderr. `options` are those of `subprocess.Popen`.
    """
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    words = [sys.executable, "-I", "-c", _START.format(path=package), str(os.getpid()), writable, *argv]
    # A session of its own: an interrupt from the terminal is the caller's to handle.
    return subprocess.Popen(words, env=dict(env), stdin=subprocess.DEVNULL, start_new_session=True, **options)


def main() -> NoReturn:
    """The words are the caller's pid, the writable directory and the command's own."""
    caller, writable, *argv = sys.argv[1:]
    try:
        _die_with_parent()
        if os.getppid() != int(caller):  # it ended before the kernel was told
            raise SystemExit(1)
        overlay.unshare(_CLONE_NEWNS | _CLONE_NEWPID)
        alive, held = os.pipe()  # this process holds the only writing end while it lives
        first = os.fork()
        if first:
            # The end of the first process is the end of all, and waited for: then nothing writes any more.
            signal.signal(signal.SIGTERM, lambda *_: os.kill(first, signal.SIGKILL))
            raise SystemExit(_code(os.waitpid(first, 0)[1]))
        _die_with_parent()
        os.close(held)
        os.set_blocking(alive, False)
        with contextlib.suppress(BlockingIOError):
            os.read(alive, 1)
            raise SystemExit(1)
        _cover(writable)
        os.chdir(WRITABLE)
        child = os.posix_spawnp(argv[0], argv, os.environ)
    except (KernelRefused, OSError) as error:
        raise SystemExit(f"{argv[0]} was not started: {error}") from None
    while True:  # the first process of a pid namespace also inherits orphans
        pid, status = os.wait()
        if pid == child:
            raise SystemExit(_code(status))


def _cover(writable: str) -> None:
    tree = overlay.open_tree(writable)
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    overlay.mount_setattr(root, overlay.MOUNT_ATTR_RDONLY, recursive=True, propagation=_MS_PRIVATE)
    overlay.move_mount(tree, WRITABLE)
    context = overlay.fsopen("proc")
    overlay.fsconfig(context, _FSCONFIG_CMD_CREATE)
    overlay.move_mount(overlay.fsmount(context), "/proc")


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
