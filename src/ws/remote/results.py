"""What calls to the shim return.

Plain classes with slots: importing dataclasses takes 20 ms, and `ws exec` has 60 in all.
"""

from __future__ import annotations


class PeerFacts:
    """What a shim says of itself. It may lie; nothing that matters hangs on it."""

    __slots__ = ("pid", "python", "rg", "uptime_s", "version")

    def __init__(self, *, version: int, pid: int, uptime_s: float, python: str, rg: bool) -> None:
        self.version = version
        self.pid = pid
        self.uptime_s = uptime_s
        self.python = python
        self.rg = rg  # ripgrep came along


class ExecResult:
    """How a command ended. A command that fails is a result: `exit_code` is 128+n after signal n."""

    __slots__ = (
        "duration_s",
        "exit_code",
        "oom_killed",
        "signal",
        "stderr_bytes",
        "stdout_bytes",
        "timed_out",
        "truncated",
    )

    def __init__(
        self,
        *,
        exit_code: int,
        stdout_bytes: bytes = b"",
        stderr_bytes: bytes = b"",
        truncated: bool = False,
        timed_out: bool = False,
        signal: int | None = None,
        duration_s: float = 0.0,
    ) -> None:
        self.exit_code = exit_code
        self.stdout_bytes = stdout_bytes
        self.stderr_bytes = stderr_bytes
        self.truncated = truncated  # output beyond the cap was thrown away
        self.timed_out = timed_out  # it was ended at its deadline; the output is what came until then
        self.oom_killed = False  # it ended by SIGKILL, and the kernel had killed in the container for want of memory
        self.signal = signal
        self.duration_s = duration_s

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")

    def __repr__(self) -> str:
        return (
            f"ExecResult(exit_code={self.exit_code}, "
            f"stdout={self.stdout[:80]!r}, stderr={self.stderr[:80]!r}, "
            f"truncated={self.truncated}, timed_out={self.timed_out}, oom_killed={self.oom_killed}, "
            f"duration_s={self.duration_s:.3f})"
        )


class SessionOutput:
    """What a terminal session wrote since the last look; `running` is False with its last words."""

    __slots__ = ("data", "dropped_bytes", "exit_code", "running", "signal")

    def __init__(
        self, data: bytes, *, dropped_bytes: int, running: bool, exit_code: int | None, signal: int | None
    ) -> None:
        self.data = data
        self.dropped_bytes = dropped_bytes  # lost before `data`, because nobody read in time
        self.running = running
        self.exit_code = exit_code
        self.signal = signal


class SessionFacts:
    """A session in the list."""

    __slots__ = ("age_s", "command", "id", "idle_s", "running")

    def __init__(self, *, id: int, command: str, running: bool, age_s: float, idle_s: float) -> None:  # noqa: A002
        self.id = id
        self.command = command
        self.running = running
        self.age_s = age_s
        self.idle_s = idle_s
