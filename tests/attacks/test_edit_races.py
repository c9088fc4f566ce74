"""The law: a directory that is swapped for a link while a file in it is edited or patched leads no edit out,
and a patch of several files still changes all of them or none that lie inside (HARDENING B1, B2)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from swapping import CANARY, Arena, arena, exchanging, rounds, turns

from ws.errors import FsViolationError, PatchApplyError, TextNotFoundError
from ws.fs.host import HostFilesystem
from ws.fs.memory import MemoryFilesystem
from ws.fs.protocol import WORKSPACE_LIMITS
from ws.tools.context import ToolContext, ToolResult
from ws.tools.editing import insert, str_replace
from ws.tools.patching import apply_patch
from ws.tools.trash import Backups, Retention

ROUNDS = rounds(3_000)


def envelope(body: str) -> str:
    return f"*** Begin Patch\n{body}*** End Patch\n"


def replace(context: ToolContext, n: int) -> ToolResult:
    try:
        return str_replace(context, path="dir/file", old_str="inside", new_str="INSIDE")
    except TextNotFoundError:
        return str_replace(context, path="dir/file", old_str="INSIDE", new_str="inside")


def insert_line(context: ToolContext, n: int) -> ToolResult:
    return insert(context, path="dir/sub/file", line=-1, text=f"{n}") if n % 50 else reset(context)


def reset(context: ToolContext) -> ToolResult:
    context.filesystem.write("dir/sub/file", "inside\n")
    return ToolResult()


def patch_add(context: ToolContext, n: int) -> ToolResult:
    return apply_patch(context, patch=envelope(f"*** Add File: dir/new/{n}\n+x\n"))


def patch_delete(context: ToolContext, n: int) -> ToolResult:
    apply_patch(context, patch=envelope(f"*** Add File: dir/{n}\n+x\n"))
    return apply_patch(context, patch=envelope(f"*** Delete File: dir/{n}\n"))


def patch_move(context: ToolContext, n: int) -> ToolResult:
    apply_patch(context, patch=envelope(f"*** Add File: {n}\n+x\n"))
    return apply_patch(context, patch=envelope(f"*** Update File: {n}\n*** Move to: dir/moved/{n}\n"))


CALLS: dict[str, Callable[[ToolContext, int], ToolResult]] = {
    "str_replace": replace,
    "insert": insert_line,
    "patch adds": patch_add,
    "patch deletes": patch_delete,
    "patch moves": patch_move,
}


@pytest.fixture(params=["absolute", "relative"])
def place(request: pytest.FixtureRequest) -> Iterator[Arena]:
    with arena(link=request.param) as made:
        yield made


def context_of(place: Arena) -> ToolContext:
    filesystem = HostFilesystem(str(place.root), limits=WORKSPACE_LIMITS, durable=False)
    store = MemoryFilesystem(limits=WORKSPACE_LIMITS)
    return ToolContext(filesystem, Backups(filesystem, store, retention=Retention(max_per_path=2)))


def attempt(call: Callable[[], ToolResult]) -> str:
    try:
        result = call()
    except FsViolationError:
        return "refused"
    except (FileNotFoundError, FileExistsError, NotADirectoryError, PatchApplyError):
        return "missed"
    assert CANARY not in repr(result)
    return "done"


@pytest.mark.parametrize("name", CALLS)
def test_a_swapped_directory_leads_no_edit_out(place: Arena, name: str) -> None:
    context = context_of(place)
    before = place.outside_now()
    seen: dict[str, int] = {}
    with exchanging(place.real, place.decoy):
        for n in turns(ROUNDS, lambda: {"done", "refused"} <= seen.keys()):
            what = attempt(lambda n=n: CALLS[name](context, n))  # type: ignore[misc]
            seen[what] = seen.get(what, 0) + 1
    assert place.outside_now() == before
    assert seen.get("refused"), f"the attack did not take place: {seen}"
    assert seen.get("done"), f"the attack left no chance: {seen}"


def test_two_files_that_stay_in_place_change_together_or_not_at_all(place: Arena) -> None:
    """The patch names two files beside the swapped directory and, last, one in it."""
    context = context_of(place)
    context.filesystem.write("first", "0\n")
    context.filesystem.write("second", "0\n")
    done = 0
    with exchanging(place.real, place.decoy):
        for n in itertools.count():
            now = context.filesystem.read("first").strip()
            body = "".join(f"*** Update File: {name}\n@@\n-{now}\n+{n + 1}\n" for name in ("first", "second"))
            what = attempt(lambda b=body, n=n: apply_patch(context, patch=envelope(f"{b}*** Add File: dir/{n}\n+x\n")))  # type: ignore[misc]
            first, second = (context.filesystem.read(name) for name in ("first", "second"))
            assert first == second
            assert (first.strip() == str(n + 1)) == (what == "done")
            done += what == "done"
            if n >= ROUNDS:
                break
    assert done
