"""Index files of git made by hand: what git itself would never write."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

REGULAR, EXECUTABLE, LINK = 0o100644, 0o100755, 0o120000
EMPTY_BLOB = bytes.fromhex("e69de29bb2d1d6434b8b29ae775ad8c2e48c5391")


def make_index(
    names: Sequence[bytes],
    *,
    version: int = 2,
    mode: int = REGULAR,
    oid: bytes = EMPTY_BLOB,
    flags: int = 0,
    more_flags: int | None = None,
    extensions: Sequence[tuple[bytes, bytes]] = (),
    hash_name: str = "sha1",
) -> bytes:
    """An index with these entries and extensions, and the right checksum."""
    body = struct.pack(">4sII", b"DIRC", version, len(names))
    previous = b""
    for name in names:
        body += make_entry(name, version, mode, oid, flags, more_flags, previous)
        previous = name
    for signature, data in extensions:
        body += struct.pack(">4sI", signature, len(data)) + data
    return body + hashlib.new(hash_name, body).digest()


def make_entry(
    name: bytes, version: int, mode: int, oid: bytes, flags: int, more_flags: int | None, previous: bytes
) -> bytes:
    entry = struct.pack(">10I", 0, 0, 0, 0, 0, 0, mode, 0, 0, 0) + oid
    extended = 0x4000 if more_flags is not None else 0
    entry += struct.pack(">H", min(len(name), 0xFFF) | extended | flags)
    if more_flags is not None:
        entry += struct.pack(">H", more_flags)
    if version == 4:
        assert len(previous) < 128
        return entry + bytes([len(previous)]) + name + b"\0"  # shares nothing with the entry before
    entry += name
    return entry + bytes(8 - len(entry) % 8)
