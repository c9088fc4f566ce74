"""Differences between two versions of one object, in git's delta format.

From one snapshot to the next a tree or a record changes in one place: a difference of common beginning, new
middle, common end is nearly the best there is, and costs two searches by halving.
"""

from __future__ import annotations

_COPY_MAX = 0xFFFF  # git allows 24 bits, old readers 16


def encode_delta(base: bytes, data: bytes) -> bytes:
    """What makes `data` of `base`."""
    head = _common(base, data)
    tail = _common(base[head:][::-1], data[head:][::-1])
    delta = bytearray(_varint(len(base)) + _varint(len(data)))
    _copy(delta, 0, head)
    for at in range(head, len(data) - tail, 127):
        part = data[at : min(at + 127, len(data) - tail)]
        delta.append(len(part))
        delta += part
    _copy(delta, len(base) - tail, tail)
    return bytes(delta)


def apply_delta(base: bytes, delta: bytes) -> bytes:
    """Raises ValueError when the two do not belong together."""
    base_size, at = _read_varint(delta, 0)
    size, at = _read_varint(delta, at)
    if base_size != len(base):
        raise ValueError("the delta belongs to another object")
    parts: list[bytes] = []
    while at < len(delta):
        code = delta[at]
        at += 1
        if code & 0x80:
            offset = length = 0
            for i in range(4):
                if code & 1 << i:
                    offset |= delta[at] << 8 * i
                    at += 1
            for i in range(3):
                if code & 0x10 << i:
                    length |= delta[at] << 8 * i
                    at += 1
            parts.append(base[offset : offset + (length or 0x10000)])
        elif code:
            parts.append(delta[at : at + code])
            at += code
        else:
            raise ValueError("the delta has an unknown instruction")
    data = b"".join(parts)
    if len(data) != size:
        raise ValueError("the delta does not have the size it says")
    return data


def _common(first: bytes, second: bytes) -> int:
    """How many bytes at the beginning are the same."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _copy(delta: bytearray, offset: int, size: int) -> None:
    while size:
        length = min(size, _COPY_MAX)
        code, numbers = 0x80, bytearray()
        for i in range(4):
            if byte := offset >> 8 * i & 0xFF:
                code |= 1 << i
                numbers.append(byte)
        for i in range(2):
            if byte := length >> 8 * i & 0xFF:
                code |= 0x10 << i
                numbers.append(byte)
        delta.append(code)
        delta += numbers
        offset += length
        size -= length


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            return number, at
