"""podman's service in the caller's mount namespace: one that runs outside does not see a disk that is mounted here."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator

from ws.engine.podman_service import ensure_own_service
from ws.engine.processes import kill_all
from ws.engine.runtimes import choose_runtime
from ws.layout import EngineName, open_home


@contextlib.contextmanager
def engine_here(engine: EngineName) -> Iterator[None]:
    """The engine can be used inside this block; nothing of it outlives the block."""
    if engine != "podman":
        yield
        return
    with tempfile.TemporaryDirectory(prefix="ws-podman-", ignore_cleanup_errors=True) as top:
        service = ensure_own_service(open_home(top).root, choose_runtime(None))
        os.environ["CONTAINER_HOST"] = f"unix://{service.socket}"
        try:
            yield
        finally:
            del os.environ["CONTAINER_HOST"]
            kill_all(service.peer.pid)
