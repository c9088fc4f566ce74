"""What a patch says, whatever format said it: an ordered list of changes to files.

    unified_diff.py     --- / +++ / @@ -1,3 +1,4 @@       strict: lines stand where the header says
    patch_envelope.py   *** Begin Patch … *** End Patch    lines are searched for, in four passes (patch_chunks.py)
    patching.py         checks all changes, stages all, renames all

Both formats reduce to `FileChange`, whose `edits` turn the old bytes of a file into the new ones. Content is
bytes from here on; a patch arrives as text and is encoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from ws.errors import PatchApplyError

ChangeKind = Literal["add", "delete", "update", "copy"]


class Edits(Protocol):
    """The changes to the inside of one file."""

    def apply(self, data: bytes, path: str) -> bytes:
        """The new bytes. Raises PatchApplyError naming file, hunk, what was expected and what was found."""
        ...


@dataclass(frozen=True, slots=True)
class FileChange:
    """One file of a patch. `new_path` is set where it moves; `executable` where the patch says so."""

    kind: ChangeKind
    path: str
    new_path: str | None = None
    edits: Edits | None = None
    executable: bool | None = None
    moves_if_missing: bool = False  # two names and no word on which: the files that exist decide
    replaces: bool = False  # a file that exists at the new path is replaced; a unified diff refuses it


@dataclass(frozen=True, slots=True)
class AddedContent:
    """A new file, whole."""

    content: bytes

    def apply(self, data: bytes, path: str) -> bytes:
        del data, path
        return self.content


def show_lines(lines: Sequence[bytes], *, limit: int = 3) -> str:
    """Lines for an error message: quoted, short, and few."""
    shown = [repr(line.decode("utf-8", "replace")[:120]) for line in lines[:limit]]
    more = len(lines) - limit
    return " / ".join(shown) + (f" (and {more} more)" if more > 0 else "")


def mismatch(path: str, part: str, line: int, expected: bytes, found: bytes | None, hint: str) -> PatchApplyError:
    """The error for a line that is not what the patch says it is."""
    there = "the end of the file" if found is None else show_lines([found])
    return PatchApplyError(
        f"{path}: {part} does not fit at line {line}: expected {show_lines([expected])}, found {there}",
        hint=hint,
    )
