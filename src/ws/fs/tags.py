"""Names of snapshots: one rule for every backend."""

from __future__ import annotations

import re

from ws.errors import InvalidName

MAX_TAG_BYTES = 200
_RESERVED = re.compile(r"base|source|[@~]\d*|turn:\d+")


def check_tag(tag: str) -> str:
    """A tag: printable text of up to 200 bytes that does not mean something else. Raises InvalidName."""
    encoded = tag.encode("utf-8", "replace")
    if not tag or not tag.isprintable() or len(encoded) > MAX_TAG_BYTES or tag != tag.strip():
        raise InvalidName(
            f"{tag[:80]!r} cannot be a tag",
            hint=f"use printable text of up to {MAX_TAG_BYTES} bytes, without space at its ends",
        )
    if _RESERVED.fullmatch(tag):
        raise InvalidName(
            f"{tag!r} cannot be a tag: it names a snapshot by its place", hint="add a word, such as green-1"
        )
    return tag
