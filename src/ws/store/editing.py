"""Change a few entries of a tree or a record without taking it apart.

A snapshot rewrites the directories above each changed file, and most of them in one place. So the bytes
stay as they are and the place is found in them; only when entries come or go, or a good part of them
changes, are they split into a dictionary. (Splitting and joining all of them took two thirds of the time of
a snapshot.) Whoever edits in the order of names has each byte looked at once.

Finding is exact, not a guess. A line of a record begins after a newline, which nothing inside a line can
be. A tree is binary, and a name may look like an entry; a place counts as an entry only if everything
before it reads as whole entries, which have only one reading.
"""

from __future__ import annotations

import re

from ws.errors import StoreDamaged
from ws.store import meta, trees

_FEW = 4  # edits for which a dictionary never pays
_BYTES_AN_EDIT = 250  # one edit in five entries or more, and it does
_WHOLE = re.compile(rb"(?:[0-7]{5,6} [^\0]++\0.{20})*+", re.DOTALL)  # never backs up: one reading, linear time


class TreeEditor:
    """A tree object; entries are raw, by escaped name."""

    __slots__ = ("_added", "_data", "_entries", "_places", "_sure")

    def __init__(self, data: bytes = b"", *, edits: int = 1) -> None:
        self._data: bytes | bytearray = data
        self._sure = 0  # all before it reads as whole entries
        self._entries: dict[bytes, bytes] | None = None if data else {}
        self._added = False
        self._places: dict[bytes, tuple[int, int]] = {}  # edits do not move them: ids are all of one size
        if edits > _FEW + len(data) // _BYTES_AN_EDIT:
            self._split()

    def holds_only(self, name: bytes) -> bool:
        """Whether nothing else is in it."""
        if self._entries is not None:
            return self._entries.keys() <= {name}
        start, end = self._find(name)
        return end - start == len(self._data)

    def get(self, name: bytes) -> bytes | None:
        if self._entries is not None:
            return self._entries.get(name)
        start, end = self._find(name)
        return bytes(self._data[start:end]) if end else None

    def put(self, name: bytes, entry: bytes) -> None:
        if self._entries is None:
            start, end = self._find(name)
            if end and entry[:3] == self._data[start : start + 3]:  # a file for a file, a tree for a tree
                if isinstance(self._data, bytes):
                    self._data = bytearray(self._data)
                self._data[start:end] = entry
                return
        entries = self._split()
        old = entries.get(name)
        if old is None or old[:3] != entry[:3]:
            self._added = True
        entries[name] = entry

    def pop(self, name: bytes) -> bytes | None:
        if self._entries is None and not self._find(name)[1]:
            return None
        return self._split().pop(name, None)

    def to_bytes(self) -> bytes:
        if self._entries is None:
            return bytes(self._data)
        return trees.join_tree(self._entries, in_order=not self._added)

    def _split(self) -> dict[bytes, bytes]:
        if self._entries is None:
            self._entries = trees.split_tree(bytes(self._data))
        return self._entries

    def _find(self, name: bytes) -> tuple[int, int]:
        """Where the entry begins and ends; 0, 0 when there is none."""
        place = self._places.get(name)
        if place:
            return place
        found = self._find_from(self._sure, name) or (self._sure and self._find_from(0, name))
        if not found:
            return 0, 0
        self._places[name] = found
        self._sure = max(self._sure, found[0])
        return found

    def _find_from(self, begin: int, name: bytes) -> tuple[int, int] | None:
        """The entry of this name behind `begin`, where an entry begins."""
        data, needle = self._data, b" %s\0" % name
        at = data.find(needle, begin)
        while at >= 0:
            start = at - 5 if data[at - 5 : at] == trees.DIRECTORY else at - 6
            # A mode is digits alone: in `40000  a` the name ` a` begins with a space, and `a` is not in it.
            if start >= begin and data[start:at].isdigit():
                before = _WHOLE.match(data, begin, start)
                if before and before.end() == start:
                    return start, at + len(needle) + 20
            at = data.find(needle, at + 1)
        return None


class RecordEditor:
    """A record; lines by quoted name, the directory's own as `.`."""

    __slots__ = ("_added", "_lines", "_near", "_text")

    def __init__(self, text: bytes = b"", *, edits: int = 1) -> None:
        if text and not (text.startswith(b". ") and text.endswith(b"\n")):
            raise StoreDamaged(f"a record cannot be read: {text[:80]!r}")
        self._text: bytes | bytearray = text
        self._near = 0  # where the last line was found: the next one comes soon after
        self._lines: dict[bytes, bytes] | None = None if text else {}
        self._added = not text
        if edits > _FEW + len(text) // _BYTES_AN_EDIT:
            self.split()

    def get(self, name: bytes) -> bytes | None:
        if self._lines is not None:
            return self._lines.get(name)
        start, end = self._find(name)
        return bytes(self._text[start:end]) if end else None

    def put(self, name: bytes, line: bytes) -> None:
        if self._lines is None:
            start, end = self._find(name)
            if end:
                if isinstance(self._text, bytes):
                    self._text = bytearray(self._text)
                self._text[start:end] = line
                return
        lines = self.split()
        self._added = self._added or name not in lines
        lines[name] = line

    def pop(self, name: bytes) -> bytes | None:
        if self._lines is None and not self._find(name)[1]:
            return None
        return self.split().pop(name, None)

    def replace_all(self, lines: dict[bytes, bytes]) -> None:
        self._lines, self._added = lines, True

    def to_bytes(self) -> bytes:
        if self._lines is None:
            return bytes(self._text)
        if not self._added:
            return b"\n".join(self._lines.values()) + b"\n"
        lines = dict(self._lines)
        return meta.join_record(lines.pop(b"."), lines.values())

    def split(self) -> dict[bytes, bytes]:
        if self._lines is None:
            self._lines = meta.split_record(bytes(self._text))
        return self._lines

    def _find(self, name: bytes) -> tuple[int, int]:
        if name == b".":
            return 0, self._text.find(b"\n")
        text, needle = self._text, b"\n%s " % name
        at = text.find(needle, self._near)
        if at < 0 and self._near:
            at = text.find(needle, 0, self._near + len(needle))
        if at < 0:
            return 0, 0
        self._near = at
        return at + 1, text.find(b"\n", at + 1)
