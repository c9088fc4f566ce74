"""What keeps the commands of a container away from its first process, which has the same uid.

Not dumpable: the kernel gives /proc/1 to root, so that a command can neither write /proc/1/mem, nor attach, nor raise
the score by which the kernel chooses what to kill when memory runs out. A program that is started by exec is dumpable
again, as usual.

Commands get a higher score (`OomScore`): when the container's memory runs out they go first. They inherit it: a command
that forks at once would be faster than a write to its file. A command may lower its score to what the container began
with, never below; no privilege of ours could prevent that.
"""

from __future__ import annotations

import _thread
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

_PR_SET_DUMPABLE: Final = 4
COMMAND_OOM_SCORE: Final = b"500"


def become_undumpable() -> None:
    """Raises OSError when the kernel refuses. Anything of /proc/self that needs its owner is read before."""
    try:
        import _ctypes  # a tenth of the memory and time of ctypes

        prctl = _ctypes.dlsym(_ctypes.dlopen(None, 0), "prctl")  # type: ignore[arg-type]  # None: what is loaded already
        done = _ctypes.call_function(prctl, (_PR_SET_DUMPABLE, 0, 0, 0, 0))
    except (ImportError, AttributeError):  # private to CPython: another version may not have them
        import ctypes

        done = ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    if done != 0:
        raise OSError("prctl(PR_SET_DUMPABLE) failed")


class OomScore:
    """Our own score, which is raised while commands are started, so that they are born with the higher one.

    Raised by the first of several that are started at the same time, lowered after the last: a write to the score of a
    process also changes that of a child that shares its memory, as after vfork and before exec.
    """

    def __init__(self) -> None:
        """Before `become_undumpable`: afterwards the file belongs to root. Raises OSError."""
        self._fd = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        self._own = os.read(self._fd, 16).strip()
        self._lock = _thread.allocate_lock()
        self._starting = 0

    def __enter__(self) -> None:
        with self._lock:
            self._starting += 1
            if self._starting == 1:
                self._write(COMMAND_OOM_SCORE)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._starting -= 1
            if self._starting == 0:
                self._write(self._own)

    def _write(self, score: bytes) -> None:
        try:
            os.pwrite(self._fd, score, 0)
        except OSError:
            pass  # without it all goes by size, as for any process
