"""What the filesystem under a path promises about the order in which names and bytes reach the disk."""

from __future__ import annotations

import ctypes
import functools
import os
import sys

_libc = ctypes.CDLL(None, use_errno=True)
_EXT4, _XFS, _BTRFS, _TMPFS = 0xEF53, 0x58465342, 0x9123683E, 0x01021994
_FSID = 7 * ctypes.sizeof(ctypes.c_long)


def keeps_order(path: str) -> bool:
    """Whether the filesystem never shows a later rename without an earlier one after a power cut.

    True of XFS and ext4, whose journal is one sequence; not of btrfs, where a sync logs one directory alone, nor of an
    ext4 that was made without a journal, as small virtual machines have it.
    """
    return _filesystem(path)[0] in (_XFS, _EXT4) and not lacks_journal(path)


def takes_bytes_along(path: str) -> bool:
    """Whether a rename over a file never reaches the disk without the new bytes, also when these were not synced.

    True of btrfs, and of ext4 by its journal: without one the name may lead to an inode that was never written.
    """
    return _filesystem(path)[0] in (_EXT4, _BTRFS, _TMPFS) and not lacks_journal(path)


def lacks_journal(path: str) -> bool:
    """Whether a path lies on an ext4 without a journal."""
    kind, identity = _filesystem(path)
    return kind == _EXT4 and not _has_journal(os.stat(path).st_dev, identity)


@functools.lru_cache(maxsize=16)
def _has_journal(device: int, _identity: bytes) -> bool:
    """Whether the kernel says that an ext4 has a journal; what cannot be asked has none.

    Asked once of a filesystem, for every snapshot wants to know. A device may become another filesystem's, so the
    kernel's id of that counts too.
    """
    try:
        name = os.path.basename(os.readlink(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"))
        return _read(f"/sys/fs/ext4/{name}/journal_task").strip().isdigit()
    except OSError:
        return False


def _filesystem(path: str) -> tuple[int, bytes]:
    """What kind of filesystem a path lies on, by the kernel's number, and which; 0 when it does not say."""
    found = ctypes.create_string_buffer(256)  # struct statfs: its first long is the kind, its eighth the id
    if _libc.statfs(os.fsencode(path), found) != 0:
        return 0, b""
    return int.from_bytes(found.raw[:4], sys.byteorder), found.raw[_FSID : _FSID + 8]


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
