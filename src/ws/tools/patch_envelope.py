"""The `*** Begin Patch` envelope: a patch without line numbers, which models write more reliably.

    *** Begin Patch
    *** Add File: PATH            then `+` lines
    *** Delete File: PATH
    *** Update File: PATH         then optionally `*** Move to: PATH`, then chunks
    @@ LINE                       opens a chunk; LINE, if given, is searched for first; several narrow down
     context, -old, +new
    *** End of File               the chunk stands at the end of the file
    *** End Patch

A chunk's old lines are searched for behind the chunk before it: exactly, then without trailing space, then
without surrounding space, then with typographic punctuation made plain. Each pass looks through the whole
rest of the file before the next one begins. Context lines keep the file's own bytes, whichever pass found
them; a file keeps its line endings, its byte order mark, and whether it ends with a newline.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from ws.errors import PatchApplyError, PatchParseError
from ws.tools.patch_formats import AddedContent, FileChange, show_lines
from ws.tools.textform import BOM, bare, ending_of, split_lines
from ws.tools.unified_diff import parse_unified

BEGIN = "*** Begin Patch"
END = "*** End Patch"
_ADD, _DELETE, _UPDATE = "*** Add File:", "*** Delete File:", "*** Update File:"
_MOVE, _END_OF_FILE = "*** Move to:", "*** End of File"
_HERE_DOCUMENT = re.compile(r"(?:[^\n]*\s)?<<-?\s*(['\"]?)(\w+)\1\s*(?:\|.*)?")

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
            start = file.find_anchors(chunk, done)
            if not chunk.old:
                appended += [line for _, line in chunk.lines]
                continue
            at = file.find(chunk, start)
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

    def find_anchors(self, chunk: Chunk, start: int) -> int:
        """The line behind the last of the chunk's `@@` lines."""
        for anchor in chunk.anchors:
            at = self._search([anchor], start, at_end=False)
            if at is None:
                raise PatchApplyError(
                    f"{self._path}: chunk {chunk.number}: its `@@` line {show_lines([anchor])} is not in "
                    f"the file from line {start + 1} on",
                    hint="copy the line behind `@@` from the file, or write `@@` alone; chunks follow the "
                    "order of the file",
                )
            start = at + 1
        return start

    def find(self, chunk: Chunk, start: int) -> int:
        old = chunk.old
        at = self._search(old, start, at_end=chunk.at_end)
        if at is None:
            raise self._not_found(chunk, start)
        return at

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


def is_envelope(text: str) -> bool:
    """Whether the first line that is not blank opens an envelope or a here-document around one."""
    lines = text.strip().split("\n", 2)
    if lines[0].strip() == BEGIN:
        return True
    return bool(_HERE_DOCUMENT.fullmatch(lines[0].strip())) and len(lines) > 1 and lines[1].strip() == BEGIN


def parse_envelope(text: str) -> list[FileChange]:
    """The changes of an envelope. Raises PatchParseError with the line at which it stops being one."""
    return _Parser(text).files()


class _Parser:
    def __init__(self, text: str) -> None:
        self._lines = [line.removesuffix("\r") for line in text.split("\n")]
        self._at = 0
        self._end = len(self._lines)

    def files(self) -> list[FileChange]:
        self._open()
        inner = next((line for line in self._lines[self._at : self._end] if line.strip()), "")
        if inner.startswith(("--- ", "diff --git ")):
            # Some models put a unified diff between the markers. The blank lines keep its line numbers right.
            return parse_unified("\n" * self._at + "\n".join(self._lines[self._at : self._end]) + "\n")
        changes: list[FileChange] = []
        while self._at < self._end:
            line = self._lines[self._at].strip()
            self._at += 1
            if line.startswith(_ADD):
                changes.append(self._add(self._path(line, _ADD)))
            elif line.startswith(_DELETE):
                changes.append(FileChange("delete", self._path(line, _DELETE)))
            elif line.startswith(_UPDATE):
                changes.append(self._update(self._path(line, _UPDATE)))
            elif line:
                raise self._error(
                    f"{line[:80]!r} opens no file",
                    f"a file is opened by `{_ADD} PATH`, `{_UPDATE} PATH` or `{_DELETE} PATH`",
                )
        if not changes:
            raise self._error("the patch names no file", f"add `{_UPDATE} PATH` and its chunks")
        return changes

    def _open(self) -> None:
        """Find the first and the last line, and take a here-document off."""
        while self._lines[self._at].strip() == "":
            self._at += 1
        while self._lines[self._end - 1].strip() == "":
            self._end -= 1
        wrapper = _HERE_DOCUMENT.fullmatch(self._lines[self._at].strip())
        if wrapper:
            self._at += 1
            if self._lines[self._end - 1].strip() != wrapper[2]:
                self._at = self._end
                raise self._error(f"the here-document is not closed by {wrapper[2]}", f"end with the line {wrapper[2]}")
            self._end -= 1
            while self._lines[self._end - 1].strip() == "":
                self._end -= 1
        self._at += 1
        if self._lines[self._end - 1].strip() != END:
            self._at = self._end
            raise self._error(f"the patch does not end with `{END}`", f"put `{END}` behind the last file")
        self._end -= 1

    def _add(self, path: str) -> FileChange:
        content: list[str] = []
        while self._at < self._end and not self._lines[self._at].startswith("*** "):
            line = self._lines[self._at]
            self._at += 1
            if line.startswith("+"):
                content.append(line[1:] + "\n")
            elif line.strip():
                raise self._error(
                    f"a line of the new file {path} does not begin with `+`: {line[:80]!r}",
                    "put `+` in front of every line of a new file, empty ones too",
                )
        return FileChange("add", path, edits=AddedContent("".join(content).encode("utf-8", "surrogateescape")))

    def _update(self, path: str) -> FileChange:
        new_path = None
        if self._at < self._end and self._lines[self._at].strip().startswith(_MOVE):
            self._at += 1
            new_path = self._path(self._lines[self._at - 1].strip(), _MOVE)
        chunks: list[Chunk] = []
        while self._at < self._end and not self._opens_file():
            if self._lines[self._at] == "":
                self._at += 1
                continue
            chunks.append(self._chunk(len(chunks) + 1, path))
        if not chunks and new_path is None:
            raise self._error(
                f"nothing is said of what changes in {path}",
                "add a chunk: `@@`, then lines that begin with a space, `-` or `+`",
            )
        return FileChange("update", path, new_path=new_path, edits=Chunks(tuple(chunks)) if chunks else None)

    def _opens_file(self) -> bool:
        return self._lines[self._at].startswith((_ADD, _DELETE, _UPDATE))

    def _chunk(self, number: int, path: str) -> Chunk:
        anchors: list[bytes] = []
        while self._at < self._end and self._lines[self._at].startswith("@@"):
            line = self._lines[self._at]
            if line != "@@" and not line.startswith("@@ "):
                self._at += 1
                raise self._error(f"{line[:80]!r} opens no chunk", "write `@@`, or `@@ ` and a line of the file")
            if anchor := _anchor(line):
                anchors.append(anchor.encode("utf-8", "surrogateescape"))
            self._at += 1
        lines: list[tuple[str, bytes]] = []
        at_end = False
        while self._at < self._end and not self._opens_file():
            line = self._lines[self._at]
            if line.startswith("@@"):
                break
            self._at += 1
            if line.startswith(_END_OF_FILE):
                at_end = True
                break
            if line[:1] not in {"", " ", "-", "+"}:
                raise self._error(
                    f"a line of chunk {number} of {path} does not begin with a space, `-` or `+`: {line[:80]!r}",
                    "put a space in front of lines that stay, `-` and `+` in front of those that change",
                )
            lines.append((line[:1], line[1:].encode("utf-8", "surrogateescape")))
        while lines and lines[-1][0] == "":
            lines.pop()  # an empty line in front of a marker parts two things; inside a chunk it is context
        if not lines:
            raise self._error(f"chunk {number} of {path} has no lines", "add the lines that change, or leave it out")
        return Chunk(number, tuple(anchors), tuple((mark or " ", line) for mark, line in lines), at_end)

    def _path(self, line: str, prefix: str) -> str:
        path = line.removeprefix(prefix).strip()
        if not path:
            raise self._error(f"`{prefix}` without a path", f"write `{prefix} PATH`")
        return path

    def _error(self, message: str, hint: str) -> PatchParseError:
        return PatchParseError(f"line {self._at}: {message}", hint=hint)


def _anchor(line: str) -> str:
    """The text behind `@@`; one that is a unified header's numbers says nothing that can be searched for."""
    text = line[2:].removeprefix(" ")
    if match := re.fullmatch(r"-\d+(?:,\d+)? \+\d+(?:,\d+)? @@ ?(.*)", text):
        return match[1].strip()
    return text if text.strip() else ""
