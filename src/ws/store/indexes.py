"""The index beside a pack, version 2: a fan-out table, sorted ids, CRCs, offsets.

An index never changes, so one that was read serves every store of this process. That of a pack of some thousand objects
is a dictionary; that of a base, which may hold a million, is mapped and searched where it lies.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import sys
from array import array
from collections.abc import Iterable
from itertools import accumulate

from ws.errors import StoreDamaged
from ws.store.plain import open_plain
from ws.store.vouching import Ledger

_HEAD = b"\xfftOc\x00\x00\x00\x02"
_IDS = 8 + 256 * 4
_BIG_OFFSET = 1 << 31
_SMALL_BYTES = 256 << 10  # some 9,000 objects


def encode_index(ids: list[bytes], crcs: array[int], offsets: array[int], trailer: bytes) -> bytes:
    """The bytes of an index; `trailer` is the checksum of the pack."""
    order = sorted(range(len(ids)), key=ids.__getitem__)
    counts = [0] * 256
    for oid in ids:
        counts[oid[0]] += 1
    small, big = array("I"), array("Q")
    for i in order:
        offset = offsets[i]
        if offset < _BIG_OFFSET:
            small.append(offset)
        else:
            small.append(_BIG_OFFSET | len(big))
            big.append(offset)
    body = b"".join(
        (
            _HEAD,
            _big_endian(array("I", accumulate(counts))),
            *[ids[i] for i in order],
            _big_endian(array("I", [crcs[i] for i in order])),
            _big_endian(small),
            _big_endian(big),
            trailer,
        )
    )
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def _big_endian(numbers: array[int]) -> bytes:
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers.tobytes()


def read_index(path: str, ledger: Ledger) -> Index:
    """Raises StoreDamaged when the file is no index, not that of its pack, or does not have its checksum.

    That of a small one is looked at each time, that of a large one once in a boot.
    """
    name = os.path.basename(path)
    fd = open_plain(path)
    try:
        found = os.fstat(fd)
        size = found.st_size
        if size < _IDS + 40:
            raise StoreDamaged(f"the index {name} is cut short")
        # Not closed by us: the mapping goes with the last who knows the index, as memory does.
        data = os.read(fd, size) if size <= _SMALL_BYTES else mmap.mmap(fd, size, prot=mmap.PROT_READ)
    finally:
        os.close(fd)
    if data[-40:-20].hex() != name.removeprefix("pack-").removesuffix(".idx"):
        raise StoreDamaged(f"the index {name} is that of another pack")
    seen = found.st_ino, size, found.st_mtime_ns, found.st_ctime_ns
    sound = ledger.verdict(name, seen) if size > _SMALL_BYTES else None
    if sound is None:
        sound = hashlib.sha1(memoryview(data)[:-20], usedforsecurity=False).digest() == data[-20:]
        if size > _SMALL_BYTES:
            ledger.note(name, seen, sound=sound)
    if not sound:
        raise StoreDamaged(f"the index {name} does not have its checksum")
    return Index(name, data)


class Index:
    """What one pack holds."""

    __slots__ = ("_data", "_fanout", "_positions", "count", "pack_bytes", "small")

    def __init__(self, name: str, data: bytes | mmap.mmap, *, pack_bytes: int = -1) -> None:
        self._data = data
        self.small = len(data) <= _SMALL_BYTES
        self.count = int.from_bytes(data[_IDS - 4 : _IDS], "big")
        if data[:8] != _HEAD or len(data) < _IDS + self.count * 28 + 40:
            raise StoreDamaged(f"the index {name} is not one, or is cut short")
        self._positions: dict[bytes, int] | None = None
        self._fanout: list[int] = []
        self.pack_bytes = pack_bytes  # the size of its pack, once somebody has asked for it
        if self.small:
            self._positions = {oid: position for position, oid in enumerate(self.ids())}
        else:
            self._fanout = [0, *self._numbers(8, 256)]

    def _numbers(self, start: int, count: int) -> array[int]:
        numbers = array("I", self._data[start : start + 4 * count])
        if sys.byteorder == "little":
            numbers.byteswap()
        return numbers

    def find(self, oid: bytes) -> int:
        """The position of an id, or −1."""
        if self._positions is not None:
            return self._positions.get(oid, -1)
        data, first = self._data, oid[0]
        low, high = self._fanout[first], self._fanout[first + 1]
        while low < high:
            middle = (low + high) // 2
            at = _IDS + 20 * middle
            found = data[at : at + 20]
            if found < oid:
                low = middle + 1
            elif found > oid:
                high = middle
            else:
                return middle
        return -1

    def offset(self, position: int) -> int:
        """Where in the pack the entry at this position begins."""
        table = _IDS + self.count * 24
        at = table + 4 * position
        offset = int.from_bytes(self._data[at : at + 4], "big")
        if offset & _BIG_OFFSET:
            at = table + 4 * self.count + 8 * (offset ^ _BIG_OFFSET)
            offset = int.from_bytes(self._data[at : at + 8], "big")
        return offset

    def ids(self) -> list[bytes]:
        """Every id, in the order of the index."""
        data = self._data[_IDS : _IDS + 20 * self.count]
        return [data[at : at + 20] for at in range(0, len(data), 20)]

    def small_ids(self) -> Iterable[bytes]:
        """Every id of a small index; none of a large one."""
        return self._positions or ()

    def crcs(self) -> array[int]:
        """The CRC of each entry, in the order of the ids."""
        return self._numbers(_IDS + 20 * self.count, self.count)
