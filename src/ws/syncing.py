"""What the disk has for good: bases and sealed layers that a sync has covered count after a reboot too.

An import, a seal and a merge do not wait for the disk, and what they made is in doubt after a crash of the machine. Any
later sync of the filesystem ends that doubt. A restore makes one anyway, a rebuilt base waits for its own; the removal
of a workspace, whose overlay has just been synced by the kernel, makes one for its base; collecting, pruning and
verifying make one for all there is.

What counts is what was whole before the sync began. An upper is never noted: it is written to afterwards.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

from ws import bases, durable, layers
from ws.layout import Home, WorkspaceRecord
from ws.records import read_records
from ws.stacks import read_stack, stack_numbers


def ensure_synced(home: Home, *, only_base: str | None = None) -> None:
    """Sync once, and note that of every base and sealed layer, or of one base; nothing where all is noted already.

    Never fails: what a disk that refuses cannot note stays in doubt. Commit point of each: its file `synced`.
    """
    keys = os.listdir(home.at("bases")) if only_base is None else [only_base]
    sealed = _sealed_layers(home) if only_base is None else set[str]()
    with contextlib.ExitStack() as held:
        whole = [_pinned(home.base(key), held) for key in keys if bases.find_base(home, key)]
        whole += [_pinned(home.layer(layer), held) for layer in sealed if layers.is_trusted(home, layer)]
        unmarked = [directory for directory in whole if directory and not layers.is_synced(directory)]
        with contextlib.suppress(OSError):
            if unmarked:
                durable.sync_filesystem(home.root)
                note_synced(unmarked)


def note_synced(directories: Iterable[str]) -> None:
    """Note of bases and sealed layers that the sync which the caller made has covered them."""
    for directory in directories:
        with contextlib.suppress(OSError):  # removed meanwhile, or the disk is full: in doubt, as before
            if not layers.is_synced(directory):
                layers.mark_synced(directory)


def _pinned(directory: str, held: contextlib.ExitStack) -> str:
    """A path to this very directory: another of its name, made after the sync, must not be taken for it. "": gone."""
    try:
        fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    held.callback(os.close, fd)
    return f"/proc/self/fd/{fd}"


def _sealed_layers(home: Home) -> set[str]:
    """The layers below the uppers of all workspaces, and those of their snapshots."""
    records = read_records(home)[0]
    sealed = {layer for record in records for layer in _below(home, record)}
    return sealed - {record.upper for record in records}


def _below(home: Home, record: WorkspaceRecord) -> Iterable[str]:
    yield from record.layers
    for waiting in record.history.unsettled:
        yield from waiting.layers
    for number in stack_numbers(home, record.id):
        stack = read_stack(home, record.id, number)
        yield from stack.layers if stack else ()
