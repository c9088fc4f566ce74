"""The disk that remembers: one file, served by FUSE, whose every write and flush is appended to a log.

Run as a program: `recorder.py BACKING LOG MOUNTPOINT`. It answers one request at a time, so the order of the log is the
order in which the requests were answered: what stands before a flush was on the device when the flush was answered.
The kernel caches nothing of the file (`direct_io`); the loop device hands each flush on as FSYNC.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
from typing import Any

import mfusepy

NAME = "disk"
HEAD = struct.Struct("<cQI")  # kind, offset, length; the bytes of a write follow
WRITE, FLUSH = b"W", b"F"


class RecordedDisk(mfusepy.Operations):  # type: ignore[misc]
    """A directory with one file of fixed size."""

    use_ns = True

    def __init__(self, backing: str, log: str) -> None:
        self._backing = os.open(backing, os.O_RDWR | os.O_CLOEXEC)
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        if path == "/":
            return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
        if path == f"/{NAME}":
            return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": os.fstat(self._backing).st_size}
        raise mfusepy.FuseOSError(errno.ENOENT)

    def readdir(self, path: str, fh: int) -> list[str]:
        return [".", "..", NAME]

    def open(self, path: str, flags: int) -> int:
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(self._backing, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        self._append(HEAD.pack(WRITE, offset, len(data)) + data)
        return os.pwrite(self._backing, data, offset)

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self._append(HEAD.pack(FLUSH, 0, 0))
        return 0

    def _append(self, entry: bytes) -> None:
        if os.write(self._log, entry) != len(entry):
            raise mfusepy.FuseOSError(errno.EIO)  # a log with a hole proves nothing


if __name__ == "__main__":
    backing, log, mountpoint = sys.argv[1:]
    mfusepy.FUSE(RecordedDisk(backing, log), mountpoint, foreground=True, nothreads=True, direct_io=True, fsname="ws")
