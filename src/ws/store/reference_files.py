"""One reference read from the files of the store: no lock, no `Store`, and little to import, for `ws tool`.

`references` says which files there are, and writes them.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

from ws.errors import StoreDamaged
from ws.store.plain import open_plain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from mmap import mmap

    Packed = bytes | mmap

ID = re.compile(r"[0-9a-f]{40}")
_MAPPED_BYTES = 64 << 10
_REF_BYTES = 64


def read_reference(path: str, name: str) -> str | None:
    """The id that a reference of the store at `path` holds; None when there is none, or nothing that is an id."""
    loose = read_loose(path, name)
    if loose:
        return loose
    with open_packed(path) as packed:
        line = next(
            (line for line in find_section(packed, name.encode()).split(b"\n") if line[41:] == name.encode()), b""
        )
    return line[:40].decode() or None


@contextlib.contextmanager
def open_packed(path: str) -> Iterator[Packed]:
    """The bytes of `packed-refs` of the store at `path`; none when it is not there, or is not a regular file."""
    try:
        fd = open_plain(os.path.join(path, "packed-refs"))
    except (FileNotFoundError, StoreDamaged):
        yield b""
        return
    try:
        size = os.fstat(fd).st_size
        if size <= _MAPPED_BYTES:
            yield os.read(fd, size)
            return
        from mmap import PROT_READ, mmap

        with mmap(fd, size, prot=PROT_READ) as mapped:
            yield mapped
    finally:
        os.close(fd)


def find_section(packed: Packed, prefix: bytes) -> bytes:
    """The lines whose names begin so, found by halving: the file is sorted by name."""
    start = _first_line(packed, prefix)
    return packed[start : _first_line(packed, prefix + b"\xff")]


def _first_line(packed: Packed, name: bytes) -> int:
    """Where the first line begins whose name is not before `name`."""
    low, high = 0, len(packed)
    while low < high:
        begin = packed.rfind(b"\n", 0, (low + high) // 2) + 1
        while begin > low and packed[begin : begin + 1] == b"^":  # belongs to the line before it; ws writes none
            begin = packed.rfind(b"\n", 0, begin - 1) + 1
        end = packed.find(b"\n", begin)
        end = len(packed) if end < 0 else end
        if packed[begin : begin + 1] == b"#" or packed[begin + 41 : end] < name:
            low = end + 1
        else:
            high = begin
    return low


def read_loose(path: str, name: str) -> str | None:
    """The id in a file of its own; None when there is none, and when it holds no id."""
    try:
        fd = open_plain(os.path.join(path, name))
    except (FileNotFoundError, StoreDamaged):
        return None
    try:
        text = os.read(fd, _REF_BYTES).decode("ascii", "replace").strip()
    finally:
        os.close(fd)
    return text if ID.fullmatch(text) else None
