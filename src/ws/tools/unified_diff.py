"""Unified diffs, as `diff -u` and `git diff` write them, read and applied strictly.

A hunk's lines stand exactly where its header says, and its header's counts are those of its lines: nothing is
searched for, nothing is skipped. Two things that a model cannot see are forgiven when the diff has none of
them and the file does: `\\r` at the ends of lines, and a byte order mark; the file keeps both.

Git's extended headers are understood as far as they speak of text files: creation, deletion, rename, copy,
the executable bit. Binary patches and symlinks are refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ws.errors import PatchApplyError, PatchParseError
from ws.tools.patch_formats import ChangeKind, FileChange, mismatch
from ws.tools.textform import BOM, bare, ending_of, split_lines

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@(?: .*)?")
_QUOTED = re.compile(r"\\([abfnrtv\"\\]|[0-7]{1,3})")
_ESCAPES = {"a": 7, "b": 8, "t": 9, "n": 10, "v": 11, "f": 12, "r": 13, '"': 34, "\\": 92}
_DEV_NULL = "/dev/null"
_READ_AGAIN = "read the file again and make the diff from what is there now"


@dataclass(frozen=True, slots=True)
class Hunk:
    """Lines with their marks (`' '`, `'-'`, `'+'`), each with its ending, and where they stand."""

    number: int
    old_start: int  # as the header has it: 1-based; 0 only where no old line is named
    lines: tuple[tuple[str, bytes], ...]

    @property
    def old(self) -> list[bytes]:
        return [line for mark, line in self.lines if mark != "+"]

    @property
    def at(self) -> int:
        """The 0-based line before which the hunk begins."""
        return self.old_start - 1 if self.old else self.old_start


@dataclass(frozen=True, slots=True)
class Hunks:
    """All hunks of one file, in the order of the file."""

    hunks: tuple[Hunk, ...]

    def apply(self, data: bytes, path: str) -> bytes:
        mark = BOM if data.startswith(BOM) and not self._mentions(BOM) else b""
        body = data.removeprefix(mark)
        try:
            return mark + self._apply(body, path, exact=True)
        except PatchApplyError:
            if b"\r" not in body or self._mentions(b"\r"):
                raise
        return mark + self._apply(body, path, exact=False)

    def _mentions(self, token: bytes) -> bool:
        return any(token in line for hunk in self.hunks for _, line in hunk.lines)

    def _apply(self, data: bytes, path: str, *, exact: bool) -> bytes:
        lines = split_lines(data)
        result: list[bytes] = []
        done = 0
        for hunk in self.hunks:
            if hunk.at < done:
                raise PatchApplyError(
                    f"{path}: hunk {hunk.number} begins at line {hunk.old_start}, inside or before the hunk "
                    "in front of it",
                    hint="order the hunks by line and do not let them overlap",
                )
            _check_hunk(hunk, lines, path, exact=exact)
            result.extend(lines[done : hunk.at])
            done = hunk.at
            for mark, line in hunk.lines:
                if mark == "+":
                    result.append(line if exact else _like(lines, done, line))
                    continue
                if mark == " ":
                    result.append(lines[done])
                done += 1
        result.extend(lines[done:])
        _check_only_last_unfinished(result, path)
        return b"".join(result)


def _check_hunk(hunk: Hunk, lines: list[bytes], path: str, *, exact: bool) -> None:
    part = f"hunk {hunk.number}"
    if hunk.at > len(lines):
        raise PatchApplyError(
            f"{path}: {part} begins at line {hunk.old_start}, but the file has {len(lines)} lines",
            hint=_READ_AGAIN,
        )
    for offset, expected in enumerate(hunk.old):
        at = hunk.at + offset
        found = lines[at] if at < len(lines) else None
        if found == expected or (not exact and found is not None and _same_but_for_ending(found, expected)):
            continue
        if found is not None and found.rstrip(b"\r\n") == expected.rstrip(b"\r\n"):
            has, says = (_describe_ending(line) for line in (found, expected))
            raise PatchApplyError(
                f"{path}: {part} does not fit at line {at + 1}: the file's line ends with {has}, "
                f"the patch's with {says}",
                hint="a last line without newline is followed by the line `\\ No newline at end of file`",
            )
        raise mismatch(path, part, at + 1, expected.rstrip(b"\n"), found and found.rstrip(b"\n"), _advice(hunk, lines))


def _same_but_for_ending(found: bytes, expected: bytes) -> bool:
    return bare(found) == bare(expected) and found.endswith(b"\n") == expected.endswith(b"\n")


def _describe_ending(line: bytes) -> str:
    return {b"\r\n": "CR LF", b"\n": "a newline", b"": "no newline"}[ending_of(line)]


def _advice(hunk: Hunk, lines: list[bytes]) -> str:
    """Where the hunk's lines do stand, if they stand in one place: it is said, never used."""
    old = [bare(line) for line in hunk.old]
    plain = [bare(line) for line in lines]
    places = [n for n in range(len(plain) - len(old) + 1) if plain[n : n + len(old)] == old] if old else []
    if len(places) == 1:
        return f"these lines stand at line {places[0] + 1}: correct the hunk's header to @@ -{places[0] + 1},…"
    return _READ_AGAIN


def _like(lines: list[bytes], at: int, line: bytes) -> bytes:
    """An added line with the ending of a line beside it, else of the file's first."""
    if not line.endswith(b"\n"):
        return line
    for neighbour in (*lines[at : at + 1], *lines[max(at - 1, 0) : at], *lines[:1]):
        if neighbour.endswith(b"\n"):
            return bare(line) + ending_of(neighbour)
    return line


def _check_only_last_unfinished(lines: list[bytes], path: str) -> None:
    for number, line in enumerate(lines[:-1], 1):
        if not line.endswith(b"\n"):
            raise PatchApplyError(
                f"{path}: line {number} of the result has no newline but is not the last",
                hint="only the file's last line may be followed by `\\ No newline at end of file`",
            )


@dataclass(slots=True)
class _Header:
    """What the lines in front of the first hunk say of a file."""

    line: int
    git: tuple[str, str] | None = None
    old: str | None = None
    new: str | None = None
    source: str | None = None
    target: str | None = None
    copied: bool = False
    created: bool = False
    deleted: bool = False
    executable: bool | None = None
    hunks: list[Hunk] = field(default_factory=list)


def parse_unified(text: str) -> list[FileChange]:
    """The changes of a unified diff. Raises PatchParseError with the line at which it stops being one."""
    changes = [_change(header) for header in _Parser(text).files()]
    if not changes:
        raise PatchParseError(
            "line 1: this is no patch: neither a unified diff nor `*** Begin Patch`",
            hint="begin a unified diff with `--- a/FILE` and `+++ b/FILE`, an envelope with `*** Begin Patch`",
        )
    return changes


class _Parser:
    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        if self._lines[-1] == "":
            self._lines.pop()
        if any(line.startswith("@@ -") and line.endswith("\r") for line in self._lines):
            # The headers have CR LF too: the transport put it there, not the file.
            self._lines = [line.removesuffix("\r") for line in self._lines]
        self._at = 0

    def files(self) -> Iterator[_Header]:
        header: _Header | None = None
        while self._at < len(self._lines):
            line, number = self._lines[self._at], self._at + 1
            self._at += 1
            if line.startswith("diff --git "):
                if header:
                    yield header
                header = _Header(number, git=_git_names(line.removeprefix("diff --git ")))
            elif line.startswith("--- ") and self._next_is("+++ "):
                if header is None or header.old is not None:
                    if header:
                        yield header
                    header = _Header(number)
                header.old = _name(line[4:])
                header.new = _name(self._lines[self._at][4:])
                self._at += 1
            elif line.startswith("@@"):
                if header is None or header.old is None:
                    raise _error(number, "a hunk without the names of its file in front of it", _NAMES_FIRST)
                header.hunks.append(self._hunk(line, number, len(header.hunks) + 1))
            elif line == "-- " and header and header.hunks:
                break  # the signature of a mail made by git format-patch
            elif header is not None:
                self._extended(header, line, number)
            elif line.startswith("--- "):
                raise _error(number, "`--- FILE` is not followed by `+++ FILE`", _NAMES_FIRST)
            elif line.startswith("*** "):
                raise _error(
                    number,
                    "this is a context diff, or an envelope without its `*** Begin Patch`",
                    "send a unified diff (diff -u), or begin with the line `*** Begin Patch`",
                )
        if header:
            yield header

    def _next_is(self, prefix: str) -> bool:
        return self._at < len(self._lines) and self._lines[self._at].startswith(prefix)

    def _extended(self, header: _Header, line: str, number: int) -> None:
        key, _, value = line.partition(" ")
        if header.hunks and line[:1] in {"+", "-", " "}:
            raise _error(
                number,
                f"hunk {len(header.hunks)} has more lines than its header says",
                "count the lines of the hunk again: context and `-` for the old side, context and `+` for the new",
            )
        if line.startswith(("GIT binary patch", "Binary files ")):
            raise _error(number, "binary files cannot be patched", "use write_file, or a command")
        if line.startswith(("rename from ", "copy from ")):
            header.source, header.copied = _unquote(line.split(" from ", 1)[1]), key == "copy"
        elif line.startswith(("rename to ", "copy to ")):
            header.target = _unquote(line.split(" to ", 1)[1])
        elif line.startswith(("new file mode ", "deleted file mode ", "new mode ")):
            mode = value.rsplit(" ", 1)[-1]
            if mode not in {"100644", "100755"}:
                raise _error(number, f"mode {mode} is no regular file's", "links are made with a command")
            header.created = header.created or line.startswith("new file")
            header.deleted = header.deleted or key == "deleted"
            if key == "new":
                header.executable = mode == "100755"
        elif header.old is None and line.startswith("--- "):
            raise _error(number, "`--- FILE` is not followed by `+++ FILE`", _NAMES_FIRST)

    def _hunk(self, line: str, number: int, ordinal: int) -> Hunk:
        match = _HUNK.fullmatch(line)
        if not match:
            raise _error(number, f"{line[:80]!r} is no hunk header", "write it like `@@ -10,3 +10,4 @@`")
        old_left = 1 if match[2] is None else int(match[2])
        new_left = 1 if match[4] is None else int(match[4])
        old_start = int(match[1])
        if old_left and not old_start:
            raise _error(number, "line 0 does not exist", "lines are counted from 1")
        lines: list[tuple[str, bytes]] = []
        while old_left or new_left:
            if self._at >= len(self._lines):
                raise _error(
                    self._at,
                    f"hunk {ordinal} ends too early: its header promises {old_left} more old and "
                    f"{new_left} more new lines",
                    "give the hunk in full, or correct the counts in its header",
                )
            body = self._lines[self._at]
            mark = body[:1] or " "  # an empty line is a context line whose space an editor took away
            if body == "\r":
                mark, body = " ", " \r"
            if mark not in {" ", "-", "+"} or (mark != "+" and not old_left) or (mark != "-" and not new_left):
                raise _error(
                    self._at + 1,
                    f"hunk {ordinal} does not have the lines that its header promises: {body[:80]!r} came "
                    f"with {old_left} old and {new_left} new lines to go",
                    "every line begins with a space, `-` or `+`; count them again for the header",
                )
            old_left -= mark != "+"
            new_left -= mark != "-"
            self._at += 1
            lines.append((mark, self._content(body[1:])))
        return Hunk(ordinal, old_start, tuple(lines))

    def _content(self, text: str) -> bytes:
        if self._next_is("\\ "):
            self._at += 1
            return text.encode("utf-8", "surrogateescape")
        return (text + "\n").encode("utf-8", "surrogateescape")


_NAMES_FIRST = "put `--- a/FILE` and `+++ b/FILE` in front of the first hunk of each file"


def _error(line: int, message: str, hint: str) -> PatchParseError:
    return PatchParseError(f"line {line}: {message}", hint=hint)


def _change(header: _Header) -> FileChange:
    old, new = _names(header)
    edits = Hunks(tuple(header.hunks)) if header.hunks else None
    kind: ChangeKind = "update"
    if header.copied:
        kind = "copy"
    elif header.created or old == _DEV_NULL:
        return FileChange("add", new, edits=edits, executable=header.executable)
    elif header.deleted or new == _DEV_NULL:
        return FileChange("delete", old, edits=edits)
    moves = old != new
    if edits is None and not moves and header.executable is None:
        raise _error(header.line, f"nothing is said of what changes in {old}", "add a hunk, or leave the file out")
    return FileChange(
        kind,
        old,
        new_path=new if moves else None,
        edits=edits,
        executable=header.executable,
        moves_if_missing=moves and header.source is None,
    )


def _names(header: _Header) -> tuple[str, str]:
    """The two names of a file, without the `a/` and `b/` that git puts in front of them."""
    if header.source is not None and header.target is not None:
        return header.source, header.target
    old, new = (header.old, header.new) if header.old and header.new else header.git or ("", "")
    if not old or not new or old == new == _DEV_NULL:
        raise _error(header.line, "the name of the file is missing", _NAMES_FIRST)
    prefixed = all(name == _DEV_NULL or name.startswith(prefix) for name, prefix in ((old, "a/"), (new, "b/"))) and (
        header.git is None or (header.git[0].startswith("a/") and header.git[1].startswith("b/"))
    )
    if prefixed:
        old, new = (name if name == _DEV_NULL else name[2:] for name in (old, new))
    if header.created or header.deleted:
        return (new, new) if header.created else (old, old)
    return old, new


def _name(text: str) -> str:
    """The name in a `---` or `+++` line; a tab parts it from a timestamp."""
    return _unquote(text) if text.startswith('"') else text.split("\t", 1)[0].rstrip("\r")


def _git_names(text: str) -> tuple[str, str]:
    """The two names of a `diff --git` line; without quotes they are equal but for the prefix."""
    if text.startswith('"') and (match := re.fullmatch(r'("(?:[^"\\]|\\.)*") ("?.*)', text)):
        return _unquote(match[1]), _unquote(match[2])
    half = len(text) // 2
    first, second = text[:half], text[half + 1 :]
    if first.removeprefix("a/") == second.removeprefix("b/"):
        return first, second
    first, _, second = text.partition(" b/")
    return (first, "b/" + second) if second else ("", "")


def _unquote(text: str) -> str:
    """A name as git writes it: in quotes, with C escapes for its bytes, where it is unusual."""
    text = text.rstrip("\t\r")
    if not (len(text) >= 2 and text.startswith('"') and text.endswith('"')):
        return text
    raw = bytearray()
    position = 0
    inner = text[1:-1]
    for match in _QUOTED.finditer(inner):
        raw += inner[position : match.start()].encode("utf-8", "surrogateescape")
        raw.append(_ESCAPES[match[1]] if match[1] in _ESCAPES else int(match[1], 8) & 0xFF)
        position = match.end()
    raw += inner[position:].encode("utf-8", "surrogateescape")
    return raw.decode("utf-8", "surrogateescape")
