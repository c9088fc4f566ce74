"""Names of records: one directory for each path, and in it a file for each record, named as Convergio names them.

    <basename>-<crc of the path>/<filename>.<timestamp>.bak      a backup
    <basename>-<crc of the path>/<timestamp>_<basename>          something that was deleted
    <either of them>.tree                                        the directory, or the large file, that it is about

Timestamps are UTC with nanoseconds. Where two records of a path have the same one, the later gets a suffix of eight
hexadecimal digits behind the timestamp. A file name that does not fit is cut, and one that would make the name
ambiguous gets a `~` behind it. Records of earlier versions, `<timestamp>-<token>.bak` and `….tree`, are read as they
are.
"""

from __future__ import annotations

import re
import time
from binascii import crc32

from ws.fs.protocol import Limits

BACKUP, TREE = ".bak", ".tree"
_MAX_BYTES = 255
_BESIDE = 48  # a timestamp (26), a suffix (9), `.bak`, `.tree`, a separator, a `~`: what a name needs beside the file's

_STAMP = r"(?P<stamp>\d{8}T\d{6}\.\d{9}Z)"
_SUFFIX = r"(?:-[0-9a-f]{8})?"
_BACKUP = re.compile(rf".+\.{_STAMP}{_SUFFIX}\.bak\Z", re.DOTALL)
_TRASH = re.compile(rf"{_STAMP}{_SUFFIX}_.+\Z", re.DOTALL)
_EARLIER = re.compile(rf"{_STAMP}-[0-9a-f]{{8}}\.bak\Z")


def directory_of(path: str) -> str:
    """The directory that holds the records of a path."""
    base = path.rpartition("/")[2]
    readable = "".join(char if (char.isalnum() and char.isascii()) or char in "._-" else "_" for char in base)
    return f"{readable[:40].lstrip('.')}-{crc32(path.encode('utf-8', 'surrogateescape')):08x}"


def record_name(path: str, stamp: str, *, trash: bool, limits: Limits, suffix: str = "") -> str:
    """The name of a record of a path."""
    base = _fitting(path.rpartition("/")[2], limits)
    when = f"{stamp}-{suffix}" if suffix else stamp
    if not trash:
        return f"{base}.{when}{BACKUP}"
    name = f"{when}_{base}"
    return f"{name}~" if name.endswith(TREE) or _BACKUP.match(name) else name


def _fitting(base: str, limits: Limits) -> str:
    """As much of a file name as leaves room for the rest."""
    base = base[: max(1, limits.max_segment_chars - _BESIDE)]
    while len(base.encode("utf-8", "surrogateescape")) > _MAX_BYTES - _BESIDE:
        base = base[:-1]
    return base


def stamp_of(name: str) -> str | None:
    """The timestamp of a record by its name; None for what is no record, such as a tree."""
    if name.endswith(TREE):
        return None
    found = _BACKUP.match(name) or _EARLIER.match(name) or _TRASH.match(name)
    return found and found["stamp"]


def age_of(name: str) -> tuple[str, str]:
    """By what records are sorted, the oldest first."""
    return stamp_of(name) or "", name


def tree_of(record_id: str) -> str:
    """Where the directory or the large file lies that a record is about."""
    if _EARLIER.match(record_id.rpartition("/")[2]):
        return record_id.removesuffix(BACKUP) + TREE
    return record_id + TREE


def stamp(nanoseconds: int) -> str:
    """A moment as it stands in a name; stamps sort as moments do."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}.{rest:09d}Z"


def nanoseconds(stamp: str) -> int:
    """The moment of a stamp; by hand, because strptime brings in the locale modules."""
    from calendar import timegm

    parts = (stamp[0:4], stamp[4:6], stamp[6:8], stamp[9:11], stamp[11:13], stamp[13:15])
    return timegm(tuple(map(int, parts))) * 1_000_000_000 + int(stamp[16:25])
