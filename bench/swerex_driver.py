"""SWE-ReX at work, one operation for each line on stdin; run by the interpreter that has SWE-ReX, not by ours.

`local` is its runtime in this process, on the host; `server` the same runtime behind its HTTP server, as it is reached
in a container. The answer to a line is the seconds it took, measured here, so that the pipe is not counted.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, TextIO

from swerex import __version__
from swerex.runtime.abstract import (
    AbstractRuntime,
    Command,
    ReadFileRequest,
    WriteFileRequest,
)
from swerex.runtime.local import LocalRuntime
from swerex.runtime.remote import RemoteRuntime


def main() -> None:
    logging.disable(logging.CRITICAL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # SWE-ReX prints
    token, port = secrets.token_hex(16), _free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "swerex.server", "--auth-token", token, "--host", "127.0.0.1", "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        asyncio.run(_serve({"local": LocalRuntime(), "server": _remote(token, port)}, server.pid, answers))
    finally:
        server.terminate()
        server.wait()


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _remote(token: str, port: int) -> RemoteRuntime:
    return RemoteRuntime(auth_token=token, host="http://127.0.0.1", port=port, timeout=30)


async def _serve(runtimes: dict[str, AbstractRuntime], server: int, answers: TextIO) -> None:
    for _ in range(150):
        if (await runtimes["server"].is_alive(timeout=1)).is_alive:
            break
        await asyncio.sleep(0.1)
    print(__version__, server, file=answers, flush=True)
    for line in sys.stdin:
        mode, operation, *arguments = line.split()
        begin = time.perf_counter()
        await OPERATIONS[operation](runtimes[mode], *arguments)
        print(time.perf_counter() - begin, file=answers, flush=True)
    for runtime in runtimes.values():
        await runtime.close()


async def _command(runtime: AbstractRuntime) -> None:
    assert (await runtime.execute(Command(command=["true"]))).exit_code == 0


async def _read(runtime: AbstractRuntime, path: str) -> None:
    assert (await runtime.read_file(ReadFileRequest(path=path))).content


async def _write(runtime: AbstractRuntime, path: str) -> None:
    await runtime.write_file(WriteFileRequest(path=path, content="some words\n" * 400))


OPERATIONS: dict[str, Callable[..., Awaitable[Any]]] = {
    "command": _command,
    "read": _read,
    "write": _write,
}

if __name__ == "__main__":
    main()
