"""A strict reader of git's index file: it accepts only an index of which every reader of git sees the same entries.

Git does not verify the paths of an index when it reads one. `git restore .` writes `.git/hooks/x`, `../x` and absolute
paths if the index names them. So an index of a workspace is accepted only if

    version       is 2, 3 or 4, and the checksum is right (or zero, as `index.skipHash` writes it)
    every entry   is a path that git checks out, with a known mode, no unknown flag and zeroed padding, in order, and
                  no entry lies below another
    extensions    are TREE and REUC with valid paths, or EOIE and IEOT that agree with the entries: git's threads start
                  to read where IEOT says. Split indexes (`link`), FSMN, UNTR, sparse directories (`sdir`) and unknown
                  extensions name files of their own or change what the entries mean

`Documentation/gitformat-index.txt` of git describes the format.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

from ws.store.git_names import is_checkout_path

SHA1_BYTES = 20
SHA256_BYTES = 32

_MODES = {0o100644, 0o100755, 0o120000, 0o160000}
_LINK = 0o120000
_HEADER_BYTES = 12
_STAT_BYTES = 40  # times, device, inode, mode, owner, size
_NAME_MASK = 0xFFF
_ASSUME_VALID, _EXTENDED, _STAGE = 0x8000, 0x4000, 0x3000
_SKIP_WORKTREE, _INTENT_TO_ADD = 0x4000, 0x2000
_ALIGNMENT = 8
_MAX_NAME_BYTES = 4096
_MAX_NAME_PARTS = 256
_MAX_NAMES_BYTES = 64 << 20  # of all entries: version 4 says a long path in a few bytes


class IndexRefused(ValueError):
    """Not an index that may be brought; the message says why."""


@dataclass(frozen=True, slots=True)
class GitIndex:
    """What is in an accepted index."""

    entries: int
    hidden: frozenset[bytes]  # paths whose changes `git status` does not show: assume-unchanged, skip-worktree


@dataclass(slots=True)
class _Entry:
    name: bytes
    stage: int
    start: int
    end: int
    whole_name: bool  # does not depend on the entry before it
    hidden: bool
    intended: bool  # to be added later


def parse_index(data: bytes, hash_bytes: int = SHA1_BYTES) -> GitIndex:
    """Check a whole index file. Raises IndexRefused."""
    if len(data) < _HEADER_BYTES + hash_bytes or data[:4] != b"DIRC":
        raise IndexRefused("it is not an index")
    body, checksum = data[:-hash_bytes], data[-hash_bytes:]
    algorithm = hashlib.sha1 if hash_bytes == SHA1_BYTES else hashlib.sha256
    if checksum not in (algorithm(body, usedforsecurity=False).digest(), bytes(hash_bytes)):
        raise IndexRefused("its checksum is wrong")
    version, count = struct.unpack_from(">II", data, 4)
    if version not in (2, 3, 4):
        raise IndexRefused(f"its version {version} is unknown")
    try:
        entries = _read_entries(body, version, count, hash_bytes)
        _check_order(entries)
        end = entries[-1].end if entries else _HEADER_BYTES
        _check_extensions(body, end, entries, hash_bytes)
    except (struct.error, IndexError):
        raise IndexRefused("it is cut off") from None
    return GitIndex(len(entries), frozenset(entry.name for entry in entries if entry.hidden))


def staged_content(data: bytes) -> bytes | None:
    """A digest of what an index stages: paths, modes, ids and flags. None when it cannot be read, or lies in two files.

    `git status` writes the index anew when only times or caches in it changed: the digest stays the same then.
    """
    try:
        version, count = struct.unpack_from(">II", data, 4)
        if data[:4] != b"DIRC" or version not in (2, 3, 4):
            return None
        entries = _read_entries(data[:-SHA1_BYTES], version, count, SHA1_BYTES)
        at = entries[-1].end if entries else _HEADER_BYTES
        while at < len(data) - SHA1_BYTES:
            signature, size = struct.unpack_from(">4sI", data, at)
            if signature in (b"link", b"sdir"):
                return None
            at += 8 + size
    except (struct.error, IndexError, IndexRefused):
        return None
    digest = hashlib.sha256()
    for entry in entries:
        fixed = data[entry.start + 24 : entry.start + 28] + data[entry.start + _STAT_BYTES :][:SHA1_BYTES]
        digest.update(b"%s %d %d %d\0%s\0" % (fixed, entry.stage, entry.hidden, entry.intended, entry.name))
    return digest.digest()


def _read_entries(body: bytes, version: int, count: int, hash_bytes: int) -> list[_Entry]:
    entries: list[_Entry] = []
    at, previous, names_bytes = _HEADER_BYTES, b"", 0
    for _ in range(count):
        entry = _read_entry(body, at, version, hash_bytes, previous)
        entries.append(entry)
        at, previous = entry.end, entry.name
        names_bytes += len(previous)
        if names_bytes > _MAX_NAMES_BYTES:
            raise IndexRefused("its paths are too long together")
    return entries


def _read_entry(body: bytes, start: int, version: int, hash_bytes: int, previous: bytes) -> _Entry:
    (mode,) = struct.unpack_from(">I", body, start + 24)
    at = start + _STAT_BYTES + hash_bytes
    (flags,) = struct.unpack_from(">H", body, at)
    at += 2
    more = 0
    if flags & _EXTENDED:
        (more,) = struct.unpack_from(">H", body, at)
        at += 2
        if version < 3 or more & ~(_SKIP_WORKTREE | _INTENT_TO_ADD):
            raise IndexRefused("an entry has unknown flags")
    whole = True
    if version == 4:
        strip, at = _read_varint(body, at)
        if strip > len(previous):
            raise IndexRefused("an entry takes more from the one before than that has")
        whole = strip == len(previous)
        end = body.find(b"\0", at)
        name = previous[: len(previous) - strip] + body[at:end]
        next_at = end + 1
    else:
        end = body.find(b"\0", at)
        name = body[at:end]
        length = end - start
        next_at = start + (length + _ALIGNMENT) // _ALIGNMENT * _ALIGNMENT
        if any(body[end:next_at]) or next_at > len(body):
            raise IndexRefused("an entry is not padded with zeros")
    if end < 0:
        raise IndexRefused("a path has no end")
    if len(name) > _MAX_NAME_BYTES or name.count(b"/") >= _MAX_NAME_PARTS:
        raise IndexRefused("a path is too long")
    if flags & _NAME_MASK != min(len(name), _NAME_MASK):
        raise IndexRefused("an entry has a wrong length")
    if mode not in _MODES:
        raise IndexRefused(f"an entry has the mode {mode:o}")
    if not is_checkout_path(name, link=mode == _LINK):
        raise IndexRefused(f"it has an entry {name[:200]!r}, which is not a path that git checks out")
    hidden = bool(flags & _ASSUME_VALID or more & _SKIP_WORKTREE)
    return _Entry(name, (flags & _STAGE) >> 12, start, next_at, whole, hidden, bool(more & _INTENT_TO_ADD))


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """A number as git writes offsets: seven bits a byte, and one is added for each byte that follows."""
    byte = data[at]
    value = byte & 0x7F
    while byte & 0x80:
        at += 1
        byte = data[at]
        value = ((value + 1) << 7) | (byte & 0x7F)
        if value > 1 << 20:
            raise IndexRefused("a path is too long")
    return value, at + 1


def _check_order(entries: list[_Entry]) -> None:
    names = {entry.name for entry in entries}
    last: tuple[bytes, int] = (b"", -1)
    for entry in entries:
        if (entry.name, entry.stage) <= last:
            raise IndexRefused("its entries are not in order")
        last = entry.name, entry.stage
        above = entry.name
        while above := above.rpartition(b"/")[0]:
            if above in names:
                raise IndexRefused(f"{above[:200]!r} is a file and a directory in it")


def _check_extensions(body: bytes, at: int, entries: list[_Entry], hash_bytes: int) -> None:
    end_of_entries, seen = at, set[bytes]()
    while at < len(body):
        signature, size = struct.unpack_from(">4sI", body, at)
        data = body[at + 8 : at + 8 + size]
        if len(data) != size:
            raise IndexRefused("an extension is cut off")
        if signature in seen or b"EOIE" in seen:
            raise IndexRefused("its extensions are not in order")
        seen.add(signature)
        if signature == b"TREE":
            _check_cache_tree(data, hash_bytes)
        elif signature == b"REUC":
            _check_resolve_undo(data, hash_bytes)
        elif signature == b"IEOT":
            _check_offsets(data, entries)
        elif signature == b"EOIE":
            if size != 4 + hash_bytes or struct.unpack_from(">I", data)[0] != end_of_entries:
                raise IndexRefused("it says that its entries end elsewhere")
        else:
            raise IndexRefused(f"it has the extension {signature!r}")
        at += 8 + size


def _check_cache_tree(data: bytes, hash_bytes: int) -> None:
    """Per directory: name, NUL, number of entries, space, number of directories below, newline, tree id if valid."""
    at, pending = 0, [1]  # directories that are still to come, at each level
    while pending:
        if pending[-1] == 0:
            pending.pop()
            continue
        pending[-1] -= 1
        try:
            end = data.index(b"\0", at)
            line = data.index(b"\n", end)
            count, below = map(int, data[end + 1 : line].split(b" "))
        except ValueError:
            raise IndexRefused("its cached trees cannot be read") from None
        name = data[at:end]
        if below < 0 or (name == b"") != (len(pending) == 1) or (name and b"/" in name):
            raise IndexRefused("its cached trees cannot be read")
        if name and not is_checkout_path(name, link=False):
            raise IndexRefused(f"it has a cached tree {name[:200]!r}")
        at = line + 1 + (hash_bytes if count >= 0 else 0)
        pending.append(below)
    if at != len(data):
        raise IndexRefused("its cached trees cannot be read")


def _check_resolve_undo(data: bytes, hash_bytes: int) -> None:
    """Per path: path, NUL, three octal modes with a NUL each, and an id for each mode that is not zero."""
    at = 0
    while at < len(data):
        try:
            end = data.index(b"\0", at)
            name, at, modes = data[at:end], end + 1, list[int]()
            for _ in range(3):
                end = data.index(b"\0", at)
                modes.append(int(data[at:end], 8))
                at = end + 1
        except ValueError:
            raise IndexRefused("its resolved conflicts cannot be read") from None
        if not {*modes} <= _MODES | {0} or not is_checkout_path(name, link=_LINK in modes):
            raise IndexRefused(f"it has a resolved conflict in {name[:200]!r}")
        at += hash_bytes * sum(map(bool, modes))
    if at != len(data):
        raise IndexRefused("its resolved conflicts cannot be read")


def _check_offsets(data: bytes, entries: list[_Entry]) -> None:
    """Each block starts where an entry starts, with a name of its own, and the blocks hold all entries once."""
    (version,) = struct.unpack_from(">I", data)
    position = 0
    if version != 1 or len(data) % 8 != 4:
        raise IndexRefused("its table of offsets cannot be read")
    for start, count in struct.iter_unpack(">II", data[4:]):
        if position >= len(entries) or entries[position].start != start or not entries[position].whole_name:
            raise IndexRefused("its table of offsets does not fit its entries")
        position += count
    if position != len(entries):
        raise IndexRefused("its table of offsets does not fit its entries")
