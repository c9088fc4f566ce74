"""The `*** Begin Patch` envelope: a patch without line numbers, which models write more reliably.

    *** Begin Patch
    *** Add File: PATH            then `+` lines
    *** Delete File: PATH
    *** Update File: PATH         then optionally `*** Move to: PATH`, then chunks
    @@ LINE                       opens a chunk; LINE, if given, is searched for first; several narrow down
     context, -old, +new
    *** End of File               the chunk stands at the end of the file
    *** End Patch

A here-document, a markdown fence and lines of prose around the envelope are ignored, as the tools that models are
trained on ignore them. `*** Add File` and `*** Move to` replace a file that exists. `patch_chunks` finds and applies
the chunks.
"""

from __future__ import annotations

import re

from ws.errors import PatchParseError
from ws.tools.patch_chunks import Chunk, Chunks
from ws.tools.patch_formats import AddedContent, FileChange
from ws.tools.unified_diff import parse_unified

BEGIN = "*** Begin Patch"
END = "*** End Patch"
_ADD, _DELETE, _UPDATE = "*** Add File:", "*** Delete File:", "*** Update File:"
_MOVE, _END_OF_FILE = "*** Move to:", "*** End of File"
_HERE_DOCUMENT = re.compile(r"(?:[^\n]*\s)?<<-?\s*(['\"]?)(\w+)\1\s*(?:\|.*)?")


def is_envelope(text: str) -> bool:
    """Whether a line opens an envelope, with no unified diff in front of it.

    A context line of a diff begins with a space, so that a diff about envelopes is not one.
    """
    for line in text.lstrip().splitlines():
        if line.rstrip() == BEGIN:
            return True
        if line.startswith(("--- ", "diff --git ", "@@ -")):
            return False
    return False


def opens_file(line: str) -> bool:
    """Whether a line is one of an envelope's own that names a file."""
    return line.startswith((_ADD, _DELETE, _UPDATE))


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
        """Find the first and the last line of the envelope; what surrounds it is ignored unless it names a file."""
        while self._lines[self._at].strip() != BEGIN:
            self._at += 1
        closing = [n for n in range(self._at, self._end) if self._lines[n].strip() == END]
        if not closing:
            wrapper = _HERE_DOCUMENT.fullmatch(self._lines[self._at - 1].strip()) if self._at else None
            while self._lines[self._end - 1].strip() in ("", "```", wrapper[2] if wrapper else ""):
                self._end -= 1
            self._at = self._end
            raise self._error(f"the patch does not end with `{END}`", f"put `{END}` behind the last file")
        behind = next((n for n in range(closing[0] + 1, self._end) if self._lines[n].startswith("*** ")), None)
        if behind is not None:
            self._at = behind + 1
            raise self._error(f"a line of a patch stands behind `{END}`", f"put `{END}` behind the last file alone")
        self._at += 1
        self._end = closing[0]

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
        return FileChange("add", path, edits=AddedContent("".join(content).encode("utf-8")), replaces=True)

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
        edits = Chunks(tuple(chunks)) if chunks else None
        return FileChange("update", path, new_path=new_path, edits=edits, replaces=True)

    def _opens_file(self) -> bool:
        return opens_file(self._lines[self._at])

    def _chunk(self, number: int, path: str) -> Chunk:
        anchors: list[bytes] = []
        while self._at < self._end and self._lines[self._at].startswith("@@"):
            line = self._lines[self._at]
            if line != "@@" and not line.startswith("@@ "):
                self._at += 1
                raise self._error(f"{line[:80]!r} opens no chunk", "write `@@`, or `@@ ` and a line of the file")
            if anchor := _anchor(line):
                anchors.append(anchor.encode("utf-8"))
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
            lines.append((line[:1], line[1:].encode("utf-8")))
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
