"""Who the user of a workspace is: the ids behind `--user`, or behind the user that an image names.

Names are looked up by the engine itself, in a container of the image, which takes a third of a second. An image of one
id never changes, so what was found is kept:

    users/KEY    "UID GID"; KEY is made of the image's id and the name

A few bytes for each name that was ever asked for: not worth collecting.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from dataclasses import replace
from typing import TYPE_CHECKING

from ws import durable
from ws.containers import START_DEADLINE_S, create_run_dir
from ws.engine import RUNTIME
from ws.errors import EngineError, InvalidRequest
from ws.layout import Home, Intent, Options, new_id
from ws.record_fields import is_user_id
from ws.record_files import read_cached_bytes
from ws.removing import remove_tree

if TYPE_CHECKING:
    from ws.engine.base import Engine

DEFAULT_USER = (1000, 1000)


def resolve_user(home: Home, engine: Engine, options: Options, image_id: str, user: str) -> tuple[int, int]:
    """The ids behind `1000`, `1000:1000`, or a name that the image has.

    Raises InvalidRequest for a user that the image does not have.
    """
    if user in ("", "root", "0", "0:0"):
        # An image that names nobody would run as root; we do not, unless it is asked for.
        return (0, 0) if user else DEFAULT_USER
    uid, _, gid = user.partition(":")
    if uid.isdigit() and (gid.isdigit() or not gid):
        return int(uid), int(gid or uid)
    if engine.name == "none":
        return os.geteuid(), os.getegid()
    return _read(home, image_id, user) or _look_up(home, engine, options, image_id, user)


def _path(home: Home, image_id: str, user: str) -> str:
    return home.at("users", hashlib.sha256(f"{image_id}\0{user}".encode()).hexdigest()[:32])


def _read(home: Home, image_id: str, user: str) -> tuple[int, int] | None:
    """What was found before; None when nothing was, or it cannot be read."""
    found = (read_cached_bytes(_path(home, image_id, user), max_bytes=64) or b"").split()
    if len(found) != 2 or not all(part.isdigit() for part in found):
        return None
    uid, gid = map(int, found)
    return (uid, gid) if is_user_id(uid) and is_user_id(gid) else None


def _look_up(home: Home, engine: Engine, options: Options, image_id: str, user: str) -> tuple[int, int]:
    """Ask the image, by its id: its name may mean another by now. Commit point of the keeping: the file's rename."""
    found = _ask(home, engine, replace(options, image=image_id), user, name=options.image)
    with contextlib.suppress(OSError):  # a full disk: asked again next time
        durable.ensure_directory(home.at("users"))
        durable.write_file(_path(home, image_id, user), f"{found[0]} {found[1]}\n".encode())
    return found


def _ask(home: Home, engine: Engine, options: Options, user: str, *, name: str) -> tuple[int, int]:
    from ws.engine.base import ContainerSpec
    from ws.remote.runtime import ensure_runtime, python_command

    runtime = ensure_runtime(home)
    key = new_id()
    ids = engine.host_ids(*DEFAULT_USER)
    python = python_command(RUNTIME)
    intent = Intent(workspace_id=f"user-{key}", operation="create", engine=engine.name, key=key)
    with durable.intent(home.pending(intent.workspace_id), intent.to_bytes()):
        run_dir = create_run_dir(home, ids, key)
        container_id = ""
        try:
            container_id = engine.create(
                ContainerSpec(
                    key=key,
                    home=home.root,
                    workspace_id="",
                    ids=ids,
                    options=options,
                    command=(*python, "-c", "import time; time.sleep(60)"),
                    runtime_dir=runtime.path,
                    run_dir=run_dir,
                )
            )
            engine.start(container_id)
            probe = [*python, "-c", "import os; print(os.getuid(), os.getgid())"]
            output = engine.exec(container_id, probe, user=user, workdir="/", timeout_s=START_DEADLINE_S)
        except EngineError as error:
            raise InvalidRequest(f"{name} has no user {user!r}", hint=str(error)) from error
        finally:
            if container_id:
                engine.remove(container_id)
            remove_tree(run_dir)
    found = output.stdout.split()
    if output.exit_code != 0 or len(found) != 2:
        raise InvalidRequest(f"{name} has no user {user!r}", hint="give it as uid:gid")
    return int(found[0]), int(found[1])
