"""Many workspaces of one plan, made side by side."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Container
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace

from ws.containers import EngineFor
from ws.creation import create_workspace, name_taken, whole_or_gone
from ws.errors import InvalidRequest
from ws.layout import Home, WorkspaceRecord, new_id, resolve_name
from ws.spec import check_name, default_name

MAX_COUNT = 10_000

Progress = Callable[[str, int, int], None]


def create_many(
    home: Home,
    plan: WorkspaceRecord,
    count: int,
    engine_for: EngineFor,
    *,
    name: str | None,
    pool_size: int | None,
    remove: Callable[[str], object],
    progress: Progress | None,
) -> list[WorkspaceRecord]:
    """Workspaces that differ in their names alone, as many at once as there is something to wait for.

    All or none: when one fails, those made are removed, and its error is raised.
    Commit point of each: its record that says `ready`.
    """
    if not 1 <= count <= MAX_COUNT:
        raise InvalidRequest(f"the count is a number from 1 to {MAX_COUNT}, not {count}")
    planned: dict[str, WorkspaceRecord] = {}
    for number in range(1, count + 1):
        record = _another(home, plan, name, number, planned)
        if resolve_name(home, record.name):
            raise name_taken(record.name)
        planned[record.name] = record
    made: list[WorkspaceRecord] = []
    with contextlib.ExitStack() as all_or_none:
        for record in planned.values():
            all_or_none.enter_context(whole_or_gone(home, record.id, remove))
        with ThreadPoolExecutor(min(count, _at_once())) as workers:
            begun = {
                workers.submit(create_workspace, home, record, engine_for, pool_size=pool_size): record
                for record in planned.values()
            }
            try:
                for each in as_completed(begun):
                    each.result()
                    made.append(begun[each])
                    if progress:
                        progress("creating", len(made), count)
            except BaseException:
                workers.shutdown(cancel_futures=True)
                raise
    return list(planned.values())


def _at_once() -> int:
    """Two for each core: while an engine starts one container for us, another one's overlay is built."""
    return 2 * (os.cpu_count() or 1)


def _another(
    home: Home, plan: WorkspaceRecord, name: str | None, number: int, planned: Container[str]
) -> WorkspaceRecord:
    def taken(wanted: str) -> bool:
        return wanted in planned or resolve_name(home, wanted) is not None

    workspace_id = new_id()
    return replace(
        plan,
        id=workspace_id,
        name=check_name(f"{name}-{number}") if name else default_name(plan.source, workspace_id, taken),
        upper=new_id(),
        created_at=time.time(),
    )
