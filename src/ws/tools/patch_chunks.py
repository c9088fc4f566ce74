"""The chunks of an envelope: old lines that are searched for in a file, and what takes their place.

A chunk's old lines are searched for behind the chunk before it: exactly, then without trailing space, then
without surrounding space, then with typographic punctuation made plain. Each pass looks through the whole
rest of the file before the next one begins. Context lines keep the file's own bytes, whichever pass found
them; a file keeps its line endings, its byte order mark, and whether it ends with a newline.

The `@@` lines of a chunk are searched for one behind the other, each behind the chunk before. One that stands above
that chunk names its parent again (`@@ class T` of a second method): the search goes on where the chunk before ended.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ws.errors import PatchApplyError
from ws.tools.patch_formats import show_lines
from ws.tools.textform import BOM, bare, ending_of, split_lines

_PLAIN = str.maketrans(
    dict.fromkeys("‐‑‒–—―−", "-")
    | dict.fromkeys("‘’‚‛", "'")
    | dict.fromkeys("“”„‟", '"')
    | dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u202f\u205f\u3000", " ")
)


def _exactly(line: bytes) -> bytes:
    return line


def _without_trailing_space(line: bytes) -> bytes:
    return line.rstrip()


def _without_surrounding_space(line: bytes) -> bytes:
    return line.strip()


def _with_plain_punctuation(line: bytes) -> bytes:
    text = line.decode("utf-8", "surrogateescape")
    return text.translate(_PLAIN).strip().encode("utf-8", "surrogateescape")


_PASSES: tuple[Callable[[bytes], bytes], ...] = (
    _exactly,
    _without_trailing_space,
    _without_surrounding_space,
    _with_plain_punctuation,
)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Lines with their marks, without endings, and what is known of where they stand."""

    number: int
    anchors: tuple[bytes, ...]
    lines: tuple[tuple[str, bytes], ...]
    at_end: bool

    @property
    def old(self) -> list[bytes]:
        return [line for mark, line in self.lines if mark != "+"]

    def without(self, mark: bytes) -> Chunk:
        """The same where a byte order mark was copied with a line: the line is meant, and the file keeps its own."""
        anchors = tuple(anchor.removeprefix(mark) for anchor in self.anchors)
        return replace(self, anchors=anchors, lines=tuple((sign, line.removeprefix(mark)) for sign, line in self.lines))


@dataclass(frozen=True, slots=True)
class Chunks:
    """All chunks of one file, in the order of the file."""

    chunks: tuple[Chunk, ...]

    def apply(self, data: bytes, path: str) -> bytes:
        mark = BOM if data.startswith(BOM) else b""
        lines = split_lines(data.removeprefix(mark))
        file = _File(path, lines)
        result: list[bytes] = []
        done = 0
        appended: list[bytes] = []
        for chunk in (chunk.without(mark) for chunk in self.chunks):
            starts = file.starts(chunk, done)
            if not chunk.old:
                appended += [line for _, line in chunk.lines]
                continue
            at = file.find(chunk, starts)
            result.extend(lines[done:at])
            done = at
            for sign, line in chunk.lines:
                if sign == "+":
                    result.append(line + file.ending_near(done))
                    continue
                if sign == " ":
                    result.append(lines[done])
                done += 1
        result.extend(lines[done:])
        result.extend(line + file.ending_near(len(lines)) for line in appended)
        return mark + _finish(result, ends_with_newline=not lines or lines[-1].endswith(b"\n"))


def _finish(lines: list[bytes], *, ends_with_newline: bool) -> bytes:
    """The lines joined, each with an ending but the last, which has one if the file had."""
    ending = next((ending_of(line) for line in lines if line.endswith(b"\n")), b"\n")
    closed = [line if line.endswith(b"\n") else line + ending for line in lines]
    if closed and not ends_with_newline:
        closed[-1] = bare(closed[-1])
    return b"".join(closed)


class _File:
    """The lines of the file being changed, searched in four passes."""

    def __init__(self, path: str, lines: list[bytes]) -> None:
        self._path = path
        self._lines = lines
        self._bare = [bare(line) for line in lines]

    def ending_near(self, at: int) -> bytes:
        for line in (*self._lines[at : at + 1], *self._lines[max(at - 1, 0) : at], *self._lines[:1]):
            if line.endswith(b"\n"):
                return ending_of(line)
        return b"\n"

    def starts(self, chunk: Chunk, done: int) -> list[int]:
        """The lines from which the old lines of a chunk are searched for, the best first.

        Raises PatchApplyError when an `@@` line is not in the file.
        """
        start, repeats_parent = done, False
        for anchor in chunk.anchors:
            at = self._search([anchor], start, at_end=False)
            if at is None:
                if self._search([anchor], 0, at_end=False) is None:
                    raise self._no_anchor(chunk, anchor)
                repeats_parent = True  # it stands above: the search goes on inside of what it opens
                continue
            start = at + 1
        # Where an `@@` line leads past the place (a later line of the same text), the place is before it.
        passed = bool(chunk.anchors) and not repeats_parent and self._stands_before(chunk.anchors[0], done)
        return [start, done] if passed and start != done else [start]

    def _stands_before(self, anchor: bytes, end: int) -> bool:
        at = self._search([anchor], 0, at_end=False)
        return at is not None and at < end

    def _no_anchor(self, chunk: Chunk, anchor: bytes) -> PatchApplyError:
        return PatchApplyError(
            f"{self._path}: chunk {chunk.number}: its `@@` line {show_lines([anchor])} is not in the file",
            hint="copy the line behind `@@` from the file, or write `@@` alone; chunks follow the order of the file",
        )

    def find(self, chunk: Chunk, starts: list[int]) -> int:
        old = chunk.old
        for start in starts:
            at = self._search(old, start, at_end=chunk.at_end)
            if at is not None:
                return at
        raise self._not_found(chunk, starts[0])

    def _search(self, old: list[bytes], start: int, *, at_end: bool) -> int | None:
        last = len(self._bare) - len(old)
        first = max(start, last) if at_end else start
        for normalise in _PASSES:
            wanted = [normalise(line) for line in old]
            there = [normalise(line) for line in self._bare[first:]]
            for offset in range(last - first + 1):
                if there[offset] == wanted[0] and there[offset : offset + len(wanted)] == wanted:
                    return first + offset
        return None

    def _not_found(self, chunk: Chunk, start: int) -> PatchApplyError:
        old = chunk.old
        where = f"from line {start + 1} on" if start else "in the file"
        place = " at the end of the file" if chunk.at_end else ""
        matched, at = self._longest_beginning(old, start)
        if matched:
            line = at + matched
            found = show_lines([self._bare[line]]) if line < len(self._bare) else "the end of the file"
            detail = (
                f"the best place is line {at + 1}, but at line {line + 1} expected "
                f"{show_lines([old[matched]])}, found {found}"
                if matched < len(old)
                else f"they stand at line {at + 1}"
            )
        else:
            detail = f"expected {show_lines(old)}"
        hint = "read the file again and copy the lines from what is there now"
        if start and self._search(old, 0, at_end=False) is not None:
            hint = "the lines stand before the chunk in front of it: order the chunks as in the file"
        elif chunk.at_end and matched == len(old):
            hint = "leave out `*** End of File`, or give the lines that do end the file"
        return PatchApplyError(
            f"{self._path}: chunk {chunk.number} ({len(old)} old lines) is not found{place} {where}: {detail}",
            hint=hint,
        )

    def _longest_beginning(self, old: list[bytes], start: int) -> tuple[int, int]:
        best, place = 0, start
        wanted = [_with_plain_punctuation(line) for line in old]
        there = [_with_plain_punctuation(line) for line in self._bare]
        for at in range(start, len(there)):
            n = 0
            while n < len(wanted) and at + n < len(there) and there[at + n] == wanted[n]:
                n += 1
            if n > best:
                best, place = n, at
        return best, place
