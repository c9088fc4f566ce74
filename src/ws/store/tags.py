"""Tags as names of references: any printable text becomes a component that git and the filesystem accept.

green, v1.0        as they are
tests pass         tests%20pass: bytes other than letters, digits, `_` and `-` in hexadecimal
longer ones        %sha256-HEX: a file name has 255 bytes at most; the commit has the text
"""

from __future__ import annotations

import hashlib
import re

_PLAIN = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|[.](?=[A-Za-z0-9_-])){0,62}")
_UNQUOTED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")
_MAX_CHARS = 200


def encode_tag(tag: str) -> str:
    """The last component of the reference of a tag."""
    if _PLAIN.fullmatch(tag) and not tag.endswith(".lock"):
        return tag
    data = tag.encode("utf-8")
    quoted = "".join(chr(byte) if byte in _UNQUOTED else f"%{byte:02X}" for byte in data)
    return quoted if len(quoted) <= _MAX_CHARS else f"%sha256-{hashlib.sha256(data).hexdigest()}"
