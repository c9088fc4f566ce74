"""The tools that run what a model says: `shell`, `exec_command`, `write_stdin`.

A command that fails is a result like any other: its exit status stands in it beside what it wrote. So is one
that ran out of time; its result has the code of `CommandTimeoutError`, which the router raises, because an
exception would lose the output on its way out of the container.

Output is capped twice: nothing past the cap is kept while a command runs, and what was kept is cut to the
cap's lines.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ws.errors import CommandTimeoutError, InvalidRequest
from ws.fs.protocol import Filesystem
from ws.tools.commands import Caller, run_command
from ws.tools.context import TRUNCATED, Caps, ToolResult, cap_text
from ws.tools.sessions import SessionOutput, Sessions

_BYTES_PER_TOKEN = 4
_NO_PAGER = {"PAGER": "cat", "GIT_PAGER": "cat"}  # in a terminal it would wait for keys; who sets another wants it
_SHELLS = ("/bin/bash", "/usr/bin/bash", "/bin/sh")

_MAX_WORD_BYTES = 128 << 10  # MAX_ARG_STRLEN of the kernel
_JOINED = 'IFS=; _ws_line="$*"; unset IFS; set --; eval "$_ws_line"'


class Commands:
    """Commands in the world of one filesystem: below its root, in an environment that was built for them."""

    def __init__(
        self,
        filesystem: Filesystem,
        *,
        env: Mapping[str, str],
        sessions: Sessions | None = None,
        caps: Caps | None = None,
        shell: str | None = None,
        caller: Caller | None = None,
    ) -> None:
        self._filesystem = filesystem
        self._env = dict(env)
        self.sessions = sessions or Sessions()
        self._caps = caps or Caps()
        self._shell = shell or self._find_shell()
        self._caller = caller or Caller()

    def shell(self, *, command: str, workdir: str | None = None, timeout_ms: int = 60_000) -> ToolResult:
        """Run a command line to its end, or to the end of its time.

        Raises FsViolationError for a workdir that leads out, CommandNotStarted when there is no shell.
        """
        outcome = run_command(
            shell_words(self._shell, command),
            workdir=self._workdir(workdir),
            env=self._env,
            timeout_s=timeout_ms / 1000,
            max_output_bytes=self._caps.max_output_bytes + 1,
            caller=self._caller,
        )
        stdout, stdout_cut = cap_text(_text(outcome.stdout), self._caps)
        stderr, stderr_cut = cap_text(_text(outcome.stderr), self._caps)
        truncated = outcome.truncated or stdout_cut or stderr_cut
        message, code = _ending(outcome.exit_code, outcome.signal), None
        if outcome.timed_out:
            message, code = f"ended after {timeout_ms} ms", CommandTimeoutError.code
        return ToolResult(
            status="error" if outcome.timed_out else "ok",
            message=message,
            truncated=truncated,
            output="\n".join(part.rstrip("\n") for part in (stdout, stderr) if part),
            data={
                "exit_code": outcome.exit_code,
                "signal": outcome.signal,
                "stdout": stdout,
                "stderr": stderr,
                "timed_out": outcome.timed_out,
                "duration_ms": round(outcome.duration_s * 1000, 3),
                **({"code": code} if code else {}),
            },
        )

    def exec_command(
        self,
        *,
        cmd: str,
        workdir: str | None = None,
        yield_time_ms: int = 250,
        max_output_tokens: int = 8000,
    ) -> ToolResult:
        """Start a command in a terminal and return what it wrote within the yield time.

        Raises FsViolationError for a workdir that leads out, LimitExceeded at too many sessions.
        """
        session_id = self.sessions.start(
            [os.fsencode(word) for word in shell_words(self._shell, cmd)],
            env={os.fsencode(name): os.fsencode(value) for name, value in {**_NO_PAGER, **self._env}.items()},
            workdir=os.fsencode(self._workdir(workdir)),
        )
        self._caller.started()
        return self._look(session_id, yield_time_ms, max_output_tokens)

    def write_stdin(
        self, *, session_id: int, chars: str = "", yield_time_ms: int = 250, max_output_tokens: int = 8000
    ) -> ToolResult:
        """Type into a session and return what it wrote since; "" only looks. Raises SessionNotFound."""
        if chars:
            self.sessions.find(session_id).write(chars.encode("utf-8", "surrogateescape"))
        return self._look(session_id, yield_time_ms, max_output_tokens)

    def close(self) -> None:
        """End every session."""
        for session in self.sessions.list():
            session.close()

    def _look(self, session_id: int, yield_time_ms: int, max_output_tokens: int) -> ToolResult:
        found = self.sessions.read(
            session_id, wait_s=yield_time_ms / 1000, max_bytes=max_output_tokens * _BYTES_PER_TOKEN, as_text=True
        )
        return _session_result(found, session_id)

    def _workdir(self, workdir: str | None) -> str:
        return find_workdir(self._filesystem, workdir)

    def _find_shell(self) -> str:
        """The user's shell if there is one, else bash, else what every image has."""
        chosen = self._env.get("SHELL", "")
        return next((path for path in (chosen, *_SHELLS) if path and os.access(path, os.X_OK)), "/bin/sh")


def find_workdir(filesystem: Filesystem, workdir: str | None) -> str:
    """The directory to run in: a place below the root, whatever was asked for (CVE-2025-59532).

    Raises FsViolationError, FileNotFoundError, InvalidRequest for what is not a directory.
    """
    stat = filesystem.stat(workdir or ".")
    if not stat.is_directory:
        raise InvalidRequest(f"{workdir} is not a directory", hint="name a directory of the workspace")
    return os.path.join(filesystem.root, stat.path)


def shell_words(shell: str, line: str) -> list[str]:
    """The words that have a shell run a line, which may be longer than the 128 KiB that one word can have.

    A longer one goes in several words that the shell joins: standard input stays free.
    """
    if len(line) * 4 < _MAX_WORD_BYTES or len(os.fsencode(line)) < _MAX_WORD_BYTES:
        return [shell, "-c", line]
    size = _MAX_WORD_BYTES // 4  # characters: UTF-8 has at most four bytes each
    pieces = [line[at : at + size - 1] for at in range(0, len(line), size - 1)]
    return [shell, "-c", _JOINED, "sh", *pieces]


def _session_result(found: SessionOutput, session_id: int) -> ToolResult:
    text = _text(found.data).replace("\r\n", "\n")  # a terminal ends its lines so
    if found.dropped_bytes:
        text = f"{TRUNCATED}\n{text}"
    if found.more:
        text = f"{text}\n{TRUNCATED}"
    message = f"session {session_id} is running" if found.running else _ending(found.exit_code, found.signal)
    data: dict[str, Any] = {
        "session_id": session_id if found.running else None,
        "running": found.running,
        "exit_code": found.exit_code,
        "signal": found.signal,
    }
    return ToolResult(message=message, truncated=found.more or bool(found.dropped_bytes), output=text, data=data)


def _ending(exit_code: int | None, signal: int | None) -> str:
    return f"ended by signal {signal}" if signal is not None else f"exit status {exit_code}"


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
