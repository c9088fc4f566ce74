"""One shell that stays between calls, on top of `exec_command` and `write_stdin`.

The shell is a loop in a terminal session that reads lines and evaluates them. It needs nothing in the image
but `/bin/sh`: not bash, not stty. So the terminal echoes what is typed, and lines longer than its buffer
would be cut. Both are met by the way a command is sent: as short lines of plain ASCII that put it together
in a variable, then one line that prints a mark, evaluates it, and prints a mark with its status. The echo of
that line is over before the shell reads it, and shows the marks in pieces; what stands between the whole
marks is the command's output.
"""

from __future__ import annotations

import secrets
import time

from ws.errors import CommandTimeoutError, SessionNotFound
from ws.toolbox.dialects import Session
from ws.tools.context import TRUNCATED, ToolResult

TIMEOUT_S = 120.0
_MEMORY = "shell"  # under this name the session's id is remembered
_LINE_CHARS = 1000  # far below the 4,095 that a terminal takes in one line, and its replies' echo fits a buffer
_MAX_OUTPUT_CHARS = 32_768
_LOOP = (
    "unset HISTFILE; "
    "export PAGER=cat GIT_PAGER=cat MANPAGER=cat TERM=dumb; "  # a pager would wait for keys that nobody presses
    'while IFS= read -r _ws_line; do eval "$_ws_line"; done'
)
_FIRST_LOOK_MS, _LONGEST_LOOK_MS = 5, 200


class PersistentShell:
    """The shell of a session; started with its first command."""

    def __init__(self, session: Session, *, timeout_s: float = TIMEOUT_S) -> None:
        self._session = session
        self._timeout_s = timeout_s

    def run(self, command: str) -> ToolResult:
        """Run a command that is already allowed; its exit status is in the result.

        Raises CommandTimeoutError when it does not end; it runs on, and only a restart gets the shell back.
        """
        mark = secrets.token_hex(8)
        try:
            return self._send(self._started(), command, mark)
        except SessionNotFound:  # it ended while nobody looked: idle for too long, or the workspace was restored
            self._session.memory.pop(_MEMORY, None)
            return self._send(self._started(), command, mark)

    def stop(self) -> None:
        """End the shell and what runs in its foreground; the next command starts another."""
        session_id = self._session.memory.pop(_MEMORY, None)
        try:
            for keys in ("\x03", "\x1c", "\x04"):  # interrupt, quit, end of input
                if session_id is None:
                    return
                result = self._session.execute("write_stdin", session_id=session_id, chars=keys, yield_time_ms=100)
                session_id = result.data["session_id"]
        except SessionNotFound:
            return

    def _started(self) -> int:
        session_id = self._session.memory.get(_MEMORY)
        if session_id is None:
            result = self._session.execute("exec_command", cmd=_LOOP, yield_time_ms=0)
            session_id = self._session.memory[_MEMORY] = result.data["session_id"]
        return int(session_id)

    def _send(self, session_id: int, command: str, mark: str) -> ToolResult:
        evaluate = (
            f"printf 'ws-%s-{mark}\\n' begin; eval \"$_ws\" </dev/null; printf '\\nws-%s-{mark} %d\\n' end \"$?\""
        )
        typed = "".join(f"{line}\n" for line in (*_lines(command), evaluate))
        found = self._session.execute("write_stdin", session_id=session_id, chars=typed, yield_time_ms=_FIRST_LOOK_MS)
        return self._collect(session_id, found, _Output(mark))

    def _collect(self, session_id: int, found: ToolResult, output: _Output) -> ToolResult:
        """Look again and again until the second mark comes, the shell ends, or the time is up."""
        deadline = time.monotonic() + self._timeout_s
        look_ms = _FIRST_LOOK_MS
        while True:
            output.take(found.output)
            if output.exit_code is not None:
                return output.result(output.exit_code)
            if not found.data["running"]:
                self._session.memory.pop(_MEMORY, None)
                if not output.begun:
                    raise SessionNotFound("the shell ended before it took the command", hint="try again")
                return output.result(found.data["exit_code"], ended=True)
            if time.monotonic() > deadline:
                raise CommandTimeoutError(
                    f"bash: no end after {self._timeout_s:g} s",
                    hint="call bash with restart set to true",
                    output=output.result(None).output,
                )
            look_ms = min(look_ms * 2, _LONGEST_LOOK_MS)
            found = self._session.execute("write_stdin", session_id=session_id, yield_time_ms=look_ms)


class _Output:
    """What a terminal shows, cut down to what stands between the marks; memory is bounded."""

    def __init__(self, mark: str) -> None:
        self._begin, self._end = f"ws-begin-{mark}\n", f"\nws-end-{mark} "
        self.begun = self._cut = False
        self._kept = ""
        self._tail = ""  # not yet known to be output: a mark may begin in it
        self.exit_code: int | None = None

    def take(self, text: str) -> None:
        self._tail += text
        if not self.begun:
            _, found, rest = self._tail.partition(self._begin)
            self.begun = bool(found)
            self._tail = rest if found else self._tail[-len(self._begin) :]
        if self.begun:
            body, found, status = self._tail.partition(self._end)
            if found and "\n" in status:
                self.exit_code = int(status.split("\n")[0])
                self._keep(body)
                self._tail = ""
            elif not found:
                safe = max(0, len(body) - len(self._end))
                self._keep(body[:safe])
                self._tail = body[safe:]

    def _keep(self, text: str) -> None:
        room = _MAX_OUTPUT_CHARS - len(self._kept)
        self._cut = self._cut or len(text) > room
        self._kept += text[:room]

    def result(self, exit_code: int | None, *, ended: bool = False) -> ToolResult:
        if self.begun:
            self._keep(self._tail)
        said = f"exit status {exit_code}"
        return ToolResult(
            message=f"the shell ended with {said}; the next command starts another" if ended else said,
            truncated=self._cut,
            output=f"{self._kept}\n{TRUNCATED}" if self._cut else self._kept,
            data={"exit_code": exit_code, "shell_ended": ended},
        )


def _lines(command: str) -> list[str]:
    """Lines that put a command together in `_ws`, byte for byte, whatever it holds."""
    escaped = [
        chr(byte) if 32 <= byte < 127 and byte not in b"%\\'!" else f"\\{byte:03o}"
        for byte in command.encode("utf-8", "surrogateescape")
    ]
    lines = ["_ws="]
    for at in range(0, len(escaped), _LINE_CHARS // 4):
        # The x keeps a newline at the end from being taken away by the substitution.
        piece = "".join(escaped[at : at + _LINE_CHARS // 4])
        lines.append(f"_ws=$_ws$(printf '{piece}x'); _ws=${{_ws%x}}")
    return lines
