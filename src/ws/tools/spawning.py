"""Starting and ending processes: one child, its streams, and everything that came out of it.

A child has a session and a process group of its own, an environment that was built for it, and nothing else
of ours: no descriptors, signals back at their defaults. It is started by vfork (`_posixsubprocess`, what
subprocess uses underneath): under a millisecond, whatever the size of the parent, and a failure of chdir or
exec comes back as the kernel's word instead of an exit status.

Whoever spawns a child also waits for it, in the same thread. In a container we are PID 1 and inherit
orphans; the server reaps those with `__WNOTHREAD`, which never sees the children of other threads. So there
is no registry to keep in step, and no exit status can be stolen.

Ending a command ends its session: a group alone would spare `timeout`, job-control shells, and whatever
else called setpgid. Members are found in /proc while the leader is not yet waited for, so that its number
is ours.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal without enum: 8 ms and 1 MB
import _thread
import errno
import os
from _posixsubprocess import fork_exec

from ws.errors import CommandNotStarted, InvalidRequest, LimitExceeded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from typing import Final

SIGKILL: Final = 9
SIGTERM: Final = 15
_NO_PIDFD: Final = (errno.ENOSYS, errno.EPERM)  # a kernel before 5.3, or a seccomp profile from before it
DEFAULT_PATH: Final = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

starting: AbstractContextManager[None] | None = None  # the shim's: entered while a command is started

live: Final[set[int]] = set()  # sessions of children that are not yet waited for


class Child:
    """A started process: its pid, a descriptor that is readable once it ended, our ends of its streams."""

    __slots__ = ("ended", "outputs", "pid", "stdin", "tty")

    def __init__(self, pid: int, ended: int, outputs: dict[int, str], stdin: int, *, tty: bool) -> None:
        self.pid = pid
        self.ended = ended
        self.outputs = outputs  # descriptor → "stdout" or "stderr"
        self.stdin = stdin  # -1 when there is none, or it was closed
        self.tty = tty  # then stdin is the terminal's master, and the one output too

    def wait(self) -> int:
        """Wait for the end and return waitpid's status; only in the thread that spawned it."""
        try:
            _, status = os.waitpid(self.pid, 0)
        except ChildProcessError:
            status = 255 << 8  # somebody else in this process waits for any child: the status is lost to us
        live.discard(self.pid)
        os.close(self.ended)
        return status

    def close_stdin(self) -> None:
        """The process reads the end of its input. A terminal has none: it is hung up by `close`."""
        if self.stdin >= 0 and not self.tty:
            os.close(self.stdin)
            self.stdin = -1

    def close_output(self, descriptor: int) -> None:
        """Nothing more will come from it. A terminal stays open: closing it would hang up on a process
        that sent its streams elsewhere and works on."""
        del self.outputs[descriptor]
        if not self.tty:
            os.close(descriptor)

    def close(self) -> None:
        """Let go of all streams; a terminal is hung up."""
        for descriptor in {*self.outputs, self.stdin} - {-1}:
            os.close(descriptor)
        self.outputs.clear()
        self.stdin = -1


def build_environment(base: Mapping[bytes, bytes], given: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The environment of a command: the base, what was given, and a PATH in any case."""
    merged = {b"PATH": DEFAULT_PATH, **base, **given}
    for name, value in merged.items():
        if not name or b"=" in name or b"\0" in name or b"\0" in value:
            raise InvalidRequest(f"{os.fsdecode(name)!r} cannot be an environment variable")
    return merged


def spawn(
    argv: Sequence[bytes],
    *,
    env: Mapping[bytes, bytes],
    workdir: bytes,
    with_stdin: bool = False,
    tty_size: tuple[int, int] | None = None,
) -> Child:
    """Start a command: with pipes, or with rows and columns in a terminal of its own.

    Raises InvalidRequest for a workdir that cannot be entered and for words that no command can have,
    CommandNotStarted for a command that is not there or not executable, LimitExceeded when the container may
    have no more processes or descriptors.
    """
    if not argv or not argv[0]:
        raise InvalidRequest("a command has at least one word")
    if any(b"\0" in word for word in (*argv, workdir)):
        raise InvalidRequest("a command cannot contain a zero byte")
    try:
        if tty_size is not None:
            return _spawn_in_terminal(argv, env, workdir, tty_size)
        return _spawn_with_pipes(argv, env, workdir, with_stdin=with_stdin)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
            raise LimitExceeded(
                f"{os.fsdecode(argv[0])!r} was not started: {error.strerror}",
                hint="the workspace is at its limit of processes or memory; end some of what runs there",
            ) from None
        raise


def _spawn_with_pipes(argv: Sequence[bytes], env: Mapping[bytes, bytes], workdir: bytes, *, with_stdin: bool) -> Child:
    opened: list[int] = []
    try:
        if with_stdin:
            stdin, our_stdin = _pipe(opened)
            os.set_blocking(our_stdin, False)
        else:
            stdin, our_stdin = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC), -1
            opened.append(stdin)
        our_stdout, stdout = _pipe(opened)
        our_stderr, stderr = _pipe(opened)
        pid = _fork_exec(argv, env, workdir, (stdin, stdout, stderr))
        for descriptor in (stdin, stdout, stderr):
            opened.remove(descriptor)
            os.close(descriptor)
    except BaseException:
        _close_all(opened)
        raise
    return _adopt(pid, {our_stdout: "stdout", our_stderr: "stderr"}, our_stdin, tty=False)


def _spawn_in_terminal(
    argv: Sequence[bytes], env: Mapping[bytes, bytes], workdir: bytes, size: tuple[int, int]
) -> Child:
    import fcntl
    import termios

    def take_terminal() -> None:
        # Runs in the child, after setsid: a session leader without a terminal may take this one.
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    master, slave = os.openpty()
    try:
        set_terminal_size(master, size)
        os.set_blocking(master, False)
        pid = _fork_exec(
            argv, {b"TERM": b"xterm-256color", **env}, workdir, (slave, slave, slave), in_child=take_terminal
        )
    except BaseException:
        os.close(master)
        raise
    finally:
        os.close(slave)
    return _adopt(pid, {master: "stdout"}, master, tty=True)


def _adopt(pid: int, outputs: dict[int, str], stdin: int, *, tty: bool) -> Child:
    try:
        ended = _descriptor_of_end(pid)
    except BaseException:
        end_session(pid)
        os.waitpid(pid, 0)
        _close_all([*outputs, *([] if tty or stdin < 0 else [stdin])])
        raise
    live.add(pid)
    return Child(pid, ended, outputs, stdin, tty=tty)


def set_terminal_size(descriptor: int, size: tuple[int, int]) -> None:
    """Rows and columns of a terminal; the kernel tells its foreground processes with SIGWINCH."""
    import termios

    termios.tcsetwinsize(descriptor, size)


def _fork_exec(
    argv: Sequence[bytes],
    env: Mapping[bytes, bytes],
    workdir: bytes,
    streams: tuple[int, int, int],
    *,
    in_child: Callable[[], None] | None = None,
) -> int:
    if starting is None:
        return _fork_exec_now(argv, env, workdir, streams, in_child)
    with starting:
        return _fork_exec_now(argv, env, workdir, streams, in_child)


def _fork_exec_now(
    argv: Sequence[bytes],
    env: Mapping[bytes, bytes],
    workdir: bytes,
    streams: tuple[int, int, int],
    in_child: Callable[[], None] | None,
) -> int:
    candidates = tuple(_candidates(argv[0], env))
    variables = [name + b"=" + value for name, value in env.items()]
    report, write_report = os.pipe()
    try:
        try:
            pid = fork_exec(
                list(argv),
                candidates,
                True,  # close_fds
                (write_report,),
                workdir,  # type: ignore[arg-type]  # bytes are as good
                variables,
                *(streams[0], -1, -1, streams[1], -1, streams[2]),
                *(report, write_report),
                True,  # restore_signals
                True,  # start_new_session
                -1,
                None,  # gid, groups, uid, umask: as ours
                None,
                None,
                -1,
                in_child,  # type: ignore[arg-type]
                True,  # by vfork, unless something runs in the child
            )
        finally:
            os.close(write_report)
        problem = b""
        while piece := os.read(report, 4096):  # until exec, or the child's end, closes it
            problem += piece
    finally:
        os.close(report)
    if problem:
        os.waitpid(pid, 0)
        raise _translate(problem, argv[0], candidates, workdir)
    return pid


def _candidates(word: bytes, env: Mapping[bytes, bytes]) -> Iterable[bytes]:
    if b"/" in word:
        return [word]
    return [os.path.join(directory or b".", word) for directory in env[b"PATH"].split(b":")]


def _translate(problem: bytes, word: bytes, candidates: Iterable[bytes], workdir: bytes) -> Exception:
    # What the child could still write: class, errno in hexadecimal, and "noexec…" if it did not get to exec.
    parts = problem.split(b":", 2)
    try:
        number, detail = int(parts[1], 16), parts[2]
    except (IndexError, ValueError):
        return CommandNotStarted(f"{os.fsdecode(word)!r} was not started")
    reason = os.strerror(number)
    if detail.startswith(b"noexec"):
        return InvalidRequest(
            f"the working directory {os.fsdecode(workdir)!r} cannot be entered: {reason}",
            hint="name a directory that exists in the workspace",
        )
    from ws.tools.start_problems import not_started

    return not_started(number, word, candidates, workdir)


def _pipe(opened: list[int]) -> tuple[int, int]:
    ends = os.pipe()
    opened.extend(ends)
    return ends


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _descriptor_of_end(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError as error:
        if error.errno not in _NO_PIDFD:
            raise
    ours, theirs = os.pipe()

    def watch() -> None:
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            pass  # waited for already
        finally:
            os.close(theirs)  # makes ours readable

    _thread.start_new_thread(watch, ())
    return ours


def end_session(leader: int, signal: int = SIGKILL) -> None:
    """Signal every process of a session whose leader is our child and is not yet waited for."""
    try:
        os.killpg(leader, signal)
    except ProcessLookupError:
        pass
    for _ in range(10 if signal == SIGKILL else 1):  # again for what was forked meanwhile
        found = [pid for pid in list_processes() if pid != leader and session_of(pid) == leader]
        if not found:
            return
        for pid in found:
            _signal_member(pid, leader, signal)


def list_processes() -> list[int]:
    """All that /proc shows: in a container, those of the container."""
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def session_of(pid: int) -> int | None:
    """The session of a live process; None for one that is gone, or dead and only not yet waited for."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(descriptor, 1024)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    state, _parent, _group, session = text[text.rindex(b")") + 2 :].split()[:4]  # the name may hold anything
    return None if state in b"ZX" else int(session)


def _signal_member(pid: int, leader: int, signal: int) -> None:
    # The number may go to another process between the look and the signal; a pidfd may not.
    try:
        descriptor = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in _NO_PIDFD:
            _kill(pid, signal)
        return
    try:
        if session_of(pid) == leader:
            _signal.pidfd_send_signal(descriptor, signal)
    except OSError as error:
        if error.errno in _NO_PIDFD:
            _kill(pid, signal)
    finally:
        os.close(descriptor)


def _kill(pid: int, signal: int) -> None:
    try:
        os.kill(pid, signal)
    except OSError:
        pass  # it ended by itself, or is another user's now


def split_status(status: int) -> tuple[int, int | None]:
    """Exit code and signal from what waitpid said: a signal n is reported as 128+n, as shells do."""
    code = os.waitstatus_to_exitcode(status)
    return (code, None) if code >= 0 else (128 - code, -code)
