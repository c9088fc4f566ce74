"""`tool`: a standard tool, run inside the container by the same functions that run it on a host or in memory.

    tool       body: {"tool", "params", "rules", "env"} in JSON; more of it may follow in data frames
      → started  for a command: its process exists, and the workspace's lock may be let go of
      → result   the tool's result (`tools.results`), what does not fit in data frames before it

A caller that goes away while a command runs takes it along, and ends the work of any other tool that has not begun to
write. Terminal sessions are those of `session.*`: they live on
between calls, and end with the workspace.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from ws.shim.abandonment import Watch
from ws.shim.files import reply_bytes
from ws.shim.places import Place, place_of
from ws.tools.commands import Caller
from ws.tools.dispatch import COMMANDS, run_tool
from ws.tools.results import decode_params, encode_result

if TYPE_CHECKING:
    from ws.shim.server import Handler, Request
    from ws.tools.shells import Commands


class _Connected(Caller):
    """Whoever sent the request, for as long as the connection stands."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.descriptor = request.connection.fileno()

    def started(self) -> None:
        self._request.reply("started", {})

    def look(self) -> None:
        self._request.connection.fill()


def run(request: Request) -> tuple[dict[str, Any], bytes]:
    asked = decode_params(b"".join(request.chunks()))
    place = place_of(request.server, asked.get("rules"))
    name = asked["tool"]
    if name in COMMANDS:
        result = run_tool(
            place.context, name, asked["params"], commands=_commands(request, place, asked.get("env", {}))
        )
    else:
        with Watch(request.connection.fileno()) as watch:
            result = run_tool(replace(place.context, committing=watch.leave), name, asked["params"])
    return reply_bytes(request, encode_result(result))


def _commands(request: Request, place: Place, env: dict[str, str]) -> Commands:
    from ws.shim.running import all_sessions
    from ws.tools.shells import Commands
    from ws.tools.spawning import build_environment

    given = {os.fsencode(key): os.fsencode(value) for key, value in env.items()}
    whole = build_environment(request.server.base_env, given)
    return Commands(
        place.filesystem,
        env={os.fsdecode(key): os.fsdecode(value) for key, value in whole.items()},
        sessions=all_sessions(),
        caps=place.context.caps,
        caller=_Connected(request),
    )


OPS: Final[dict[str, Handler]] = {"tool": run}
