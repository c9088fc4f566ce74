"""Once in each boot: what a power cut may have taken beside a workspace's record is made again from the record.

The record is synced when a workspace is made. Its name and the marks of its layers are not, each by itself: a journal
keeps them in order with the record. An ext4 without a journal does not: e2fsck removes a name whose inode had not
reached the disk. Without its name a workspace is found only by reading all records, and a layer without a mark of its
user is taken away. The other way round, a mark that was removed may be back: its workspace is gone, and the layer would
stay for ever. (Lock files are made again by `durable.locked`.)
"""

from __future__ import annotations

import contextlib
import os

from ws import durable
from ws.layers import remove_unused_layers, share_layers
from ws.layout import Home, WorkspaceRecord, boot_id
from ws.record_files import read_cached_bytes
from ws.records import read_records
from ws.stacks import needed_layers


def mend_after_boot(home: Home) -> list[str]:
    """Compare every record with what belongs to it, unless that was done in this boot; a line for each mended one.

    Idempotent, and safe beside other processes: all that is made is made only where nothing is. Commit point: the
    rename of `boot`, which says that this boot has been dealt with.
    """
    marker = home.at("boot")
    if read_cached_bytes(marker, max_bytes=64) == boot_id().encode():  # else never written, or lost in the cut
        return []
    mended = [record.name for record in read_records(home)[0] if record.state == "ready" and _mend(home, record)]
    _forget_users_that_are_gone(home)
    with contextlib.suppress(OSError):  # a full disk: the next command compares again
        durable.write_file(marker, boot_id().encode(), sync=False)
    return [f"restored what a power cut took of {name}" for name in mended]


def _forget_users_that_are_gone(home: Home) -> None:
    """Remove the marks of workspaces that are not there, and the layers that only they used.

    A workspace has an intent before it has a directory, and a directory before the intent goes.
    """
    for layer in os.listdir(home.at("layers")):
        users = home.at("layers", layer, "users")
        with contextlib.suppress(OSError):  # not a directory: recovery deals with it
            for user in os.listdir(users):
                if not os.path.lexists(home.pending(user)) and not os.path.lexists(home.workspace(user)):
                    os.unlink(os.path.join(users, user))
    remove_unused_layers(home)


def _mend(home: Home, record: WorkspaceRecord) -> bool:
    mended = False
    with contextlib.suppress(FileExistsError):
        os.symlink(record.id, home.name(record.name))
        mended = True
    needed = [layer for layer in needed_layers(home, record) if os.path.isdir(os.path.join(home.layer(layer), "data"))]
    for layer in needed:
        for part in (os.path.join(home.layer(layer), name) for name in ("work", "users")):
            if not os.path.isdir(part):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(part)
                os.mkdir(part, 0o700)
                mended = True
    share_layers(home, needed, record.id)
    return mended
