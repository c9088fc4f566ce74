"""The file `format` of a WS_HOME: the version of its layout, and its repair when it is damaged."""

from __future__ import annotations

import os
from collections.abc import Sequence

from ws import durable
from ws.errors import StateError, StateUnusable
from ws.record_files import read_state_file

FORMAT = 1


def read_format(root: str, parts: Sequence[str]) -> int | None:
    """The version of the layout; None when the file is there and does not hold a number.

    Raises FileNotFoundError when it is missing.
    """
    try:
        text = read_state_file(os.path.join(root, "format"), max_bytes=64).strip()
    except FileNotFoundError:
        if _has_all_parts(root, parts):
            return None
        raise
    except StateUnusable:
        raise
    except StateError:
        return None
    return int(text) if text.isdigit() else None


def repair_format(root: str, parts: Sequence[str]) -> None:
    """Write a damaged `format` again. Its truth is elsewhere: the directories there are, and the format of each record.

    A record of another format is refused when it is read, so a wrong guess here harms nothing.
    """
    marker = os.path.join(root, "format")
    if not _has_all_parts(root, parts):
        hint = f"set WS_HOME to another directory, or, if this is the state of ws, write {FORMAT} into {marker}"
        raise StateUnusable(f"{marker} is damaged: it does not hold a number", hint=hint)
    try:
        durable.write_file(marker, f"{FORMAT}\n".encode())
    except OSError as error:
        raise StateUnusable(f"{marker} is damaged and cannot be written: {error.strerror}") from error


def _has_all_parts(root: str, parts: Sequence[str]) -> bool:
    """Whether a directory has all that a WS_HOME has once it was used, so that it is one without its `format`."""
    return all(os.path.isdir(os.path.join(root, part)) for part in (*parts, "store"))
