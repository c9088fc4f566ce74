"""Between an engine's exec and its command: ends the command when the one who asked for it is gone.

Both engines leave a command running when their client dies (HARDENING H8), but they end its input then. So the engine
runs a keeper, as the command's user, and the keeper runs the command, with no input. Its own is the life line: nothing
comes through it, and at its end the command's session is ended.

It says first how the start went, before anything that the command writes: BEGUN, or FAILED and the fields of an error.
Its exit status is the command's.
"""

from __future__ import annotations

import os
import sys

from ws.errors import WorkspaceError
from ws.tools.commands import Caller, run_command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

BEGUN: Final = b"\x06"  # ASCII's ACK and NAK: no complaint of an engine or a loader begins with one of them
FAILED: Final = b"\x15"
_LIFE_LINE: Final = 0
_OUTPUTS: Final = {"stdout": 1, "stderr": 2}


class _CallerGone(Exception):
    pass


class _Caller(Caller):
    descriptor = _LIFE_LINE

    def started(self) -> None:
        _write("stdout", BEGUN)

    def look(self) -> None:
        if not os.read(_LIFE_LINE, 4096):
            raise _CallerGone


def _write(stream: str, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(_OUTPUTS[stream], view) :]


def main() -> None:
    """The words are the working directory and the command's own."""
    workdir, *argv = sys.argv[1:]
    try:
        outcome = run_command(
            argv, workdir=workdir, env=os.environ, on_output=_write, max_output_bytes=None, caller=_Caller()
        )
    except WorkspaceError as error:
        from ws.shim.faults import describe_error
        from ws.shim.wire import encode_header

        _write("stdout", FAILED + encode_header(describe_error(error)))
        raise SystemExit(1) from None
    except (_CallerGone, BrokenPipeError):  # nobody listens any more
        raise SystemExit(1) from None
    raise SystemExit(outcome.exit_code)
