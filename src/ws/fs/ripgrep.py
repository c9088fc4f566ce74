"""Searching with ripgrep, in two steps, so that it is quick, complete, in order, and cannot be led astray.

First `rg -l` finds, with all cores, the names of the files that hold a match: a name is cheap, and the number
of matches does not matter. The names are sorted; then, in that order, the files are opened beneath the root
and their descriptors handed to a second `rg`, which reports lines. What is shown therefore comes from
descriptors that the kernel let us have: a directory that is swapped for a link while `rg` walks gains nobody
a byte.

Patterns that ripgrep's engine does not take (look-around, back-references) are answered with None, and the
caller searches in Python.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ws.errors import InvalidRequest, LimitExceeded
from ws.fs.protocol import CHUNK_BYTES, ByteReader, GrepMatch, GrepQuery, GrepReport
from ws.fs.search import (
    Opener,
    clean_line,
    compile_pattern,
    is_binary,
    report_of,
    search_one,
    with_context,
)

if TYPE_CHECKING:
    from subprocess import Popen

_ALWAYS = ("--no-config", "--no-messages", "--color=never", "--no-mmap", "--crlf", "--encoding=none")
_WALK = ("--files-with-matches", "--null", "--no-ignore", "--hidden")
_LINES = ("--text", "--threads=1")
_BATCH = 64
_MAX_JSON_LINE_BYTES = 4 << 20

Descriptor = Callable[[ByteReader], int]


@dataclass(frozen=True, slots=True)
class Ripgrep:
    """How to run `rg`: the command, with its loader in front where the image has none for it."""

    command: tuple[str, ...]
    timeout_s: float = 120.0

    def file_names(self, query: GrepQuery, directory: int) -> list[str] | None:
        """The files below a directory that hold a match, unsorted; None for a pattern that rg does not
        take.
        """
        arguments = [*_WALK, *_simple_glob(query.glob), *_pattern(query), "--", "./"]
        code, output = self._output(arguments, cwd=f"/proc/self/fd/{directory}", fds=(directory,))
        lost = code == 0 and not output  # the embedding program reaped rg, and its status with it
        if (code == 2 or lost) and not self.takes(query):
            return None
        names = os.fsdecode(output).split("\0")
        return [name.removeprefix("./") for name in names if name]

    def takes(self, query: GrepQuery) -> bool:
        """Whether the pattern is one for rg."""
        from subprocess import PIPE

        code, complaint = self._output([*_pattern(query), "--", "-"], stderr=PIPE)
        return code != 2 and not (code == 0 and complaint)  # 0 without a match: the status is lost

    def search_files(
        self, query: GrepQuery, paths: Sequence[str], open_read: Opener, descriptor: Descriptor, limit: int
    ) -> GrepReport:
        """Search files in the order given; those that are gone or cannot be read are passed over."""
        matches: list[GrepMatch] = []
        counts: list[tuple[str, int]] = []
        for start in range(0, len(paths), _BATCH):
            if len(matches) > limit or len(counts) > limit:
                break
            readers: list[ByteReader] = []
            try:
                for path in paths[start : start + _BATCH]:
                    try:
                        readers.append(open_read(path))
                    except (OSError, ValueError):
                        continue  # gone, or swapped for something that leads out
                texts = [reader for reader in readers if not is_binary(reader.read(CHUNK_BYTES))]
                if query.count_only:
                    counts += self._counts(query, texts, descriptor)
                else:
                    matches += self._lines(query, texts, descriptor, limit + 1 - len(matches))
            finally:
                for reader in readers:
                    reader.close()
        return report_of(matches, counts, limit)

    def _counts(self, query: GrepQuery, readers: list[ByteReader], descriptor: Descriptor) -> list[tuple[str, int]]:
        """The paths that hold a match, in their order, and the number of matching lines."""
        if not readers:
            return []
        by_name = {f"/proc/self/fd/{descriptor(reader)}": reader for reader in readers}
        arguments = [*_LINES, "--count", "--with-filename", "--null", *_pattern(query), "--", *by_name]
        _, output = self._output(arguments, fds=tuple(map(descriptor, readers)))
        found = dict(line.split("\0", 1) for line in os.fsdecode(output).splitlines())
        out: list[tuple[str, int]] = []
        for name, reader in by_name.items():
            count = int(found.get(name, 0))
            if count and _has_nul(reader, reader.size):
                count = len(_search_in_python(query, reader, count))
            if count:
                out.append((reader.path, count))
        return out

    def _lines(
        self, query: GrepQuery, readers: list[ByteReader], descriptor: Descriptor, limit: int
    ) -> list[GrepMatch]:
        """Up to `limit` matching lines, in the order of the readers."""
        if not readers:
            return []
        by_name = {f"/proc/self/fd/{descriptor(reader)}": reader for reader in readers}
        found: dict[str, list[GrepMatch]] = {name: [] for name in by_name}
        seen_to = dict.fromkeys(by_name, 0)
        arguments = [*_LINES, "--json", f"--max-count={limit}", *_pattern(query), "--", *by_name]
        with self._start(arguments, fds=tuple(map(descriptor, readers))) as process:
            current, total = "", 0
            for event in _events(process, self.timeout_s):
                if event is None:
                    seen_to[current] = -1
                elif event["type"] == "begin":
                    current = event["data"]["path"]["text"]
                    if total >= limit:
                        break
                elif event["type"] == "match":
                    match, end = _match(by_name[current].path, event["data"])
                    found[current].append(match)
                    seen_to[current] = max(end, seen_to[current]) if seen_to[current] >= 0 else -1
                    total += 1
        out: list[GrepMatch] = []
        for name, reader in by_name.items():
            # A line too long to be handed over as JSON, or a NUL far down: this one file is searched in
            # Python.
            if seen_to[name] < 0 or (found[name] and _has_nul(reader, seen_to[name])):
                found[name] = _search_in_python(query, reader, limit)
            out += with_context(query, reader, found[name])
        return out[:limit]

    def _output(
        self, arguments: Sequence[str], *, cwd: str | None = None, fds: tuple[int, ...] = (), stderr: int | None = None
    ) -> tuple[int, bytes]:
        """Its status, and its output; with `stderr` what it complains of."""
        from subprocess import TimeoutExpired

        with self._start(arguments, cwd=cwd, fds=fds, stderr=stderr) as process:
            try:
                output, complaint = process.communicate(timeout=self.timeout_s)
            except TimeoutExpired:
                process.kill()
                raise _too_slow(self.timeout_s) from None
            except BaseException:
                process.kill()
                raise
        return process.returncode, output if stderr is None else complaint

    def _start(
        self, arguments: Sequence[str], *, cwd: str | None = None, fds: tuple[int, ...] = (), stderr: int | None = None
    ) -> Popen[bytes]:
        from subprocess import DEVNULL, PIPE, Popen

        return Popen(
            [*self.command, *_ALWAYS, *arguments],
            cwd=cwd,
            env={"PATH": "/usr/bin:/bin"},
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=DEVNULL if stderr is None else stderr,
            pass_fds=fds,
        )


def _pattern(query: GrepQuery) -> tuple[str, ...]:
    from ws.fs.patterns import ripgrep_pattern

    return (*(("--ignore-case",) if query.ignore_case else ()), f"--regexp={ripgrep_pattern(query.pattern)}")


def _simple_glob(glob: str | None) -> tuple[str, ...]:
    """Let rg leave out files by name where its globs mean what ours do; the names are filtered again
    anyway.
    """
    if glob is None or "/" in glob or "?" in glob or "**" in glob or not glob.isascii():
        return ()
    escaped = "".join("\\" + char if char in "\\[]{}!," else char for char in glob)
    return (f"--glob={escaped}",)


def _events(process: Popen[bytes], timeout_s: float) -> Iterator[dict[str, Any] | None]:
    """The JSON lines of rg; None for one that is too long to be taken in. Ends the process, in any case."""
    from json import loads
    from threading import Timer

    assert process.stdout is not None
    read = process.stdout.readline
    watchdog = Timer(timeout_s, process.kill)
    watchdog.start()
    try:
        while line := read(_MAX_JSON_LINE_BYTES):
            if line.endswith(b"\n"):
                yield loads(line)
                continue
            while line and not line.endswith(b"\n"):
                line = read(_MAX_JSON_LINE_BYTES)
            yield None
    finally:
        expired = not watchdog.is_alive()
        watchdog.cancel()
        process.kill()
    if expired:
        raise _too_slow(timeout_s)


def _too_slow(timeout_s: float) -> LimitExceeded:
    return LimitExceeded(f"the search took longer than {timeout_s:g} s", hint="search a smaller directory")


def _match(path: str, data: dict[str, Any]) -> tuple[GrepMatch, int]:
    """A match, and the offset in the file at which its line ends."""
    raw = _bytes_of(data["lines"])
    text = clean_line(raw)
    spans = data["submatches"]
    start, end = (spans[0]["start"], spans[0]["end"]) if spans else (0, 0)
    in_characters = (len(raw[:offset].decode("utf-8", "replace")) for offset in (start, end))
    first, last = (min(offset, len(text)) for offset in in_characters)
    return GrepMatch(path, data["line_number"], text, first, last), data["absolute_offset"] + len(raw)


def _search_in_python(query: GrepQuery, reader: ByteReader, limit: int) -> list[GrepMatch]:
    try:
        return search_one(query, compile_pattern(query), reader.path, reader, limit)
    except InvalidRequest:
        return []  # a pattern that only ripgrep understands, in a file that ripgrep cannot show


def _has_nul(reader: ByteReader, end: int) -> bool:
    reader.seek(0)
    for chunk in reader:
        if b"\0" in chunk:
            return chunk.index(b"\0") + reader.position - len(chunk) < end
        if reader.position >= end:
            return False
    return False


def _bytes_of(value: dict[str, str]) -> bytes:
    if "text" in value:
        return value["text"].encode()
    from base64 import b64decode

    return b64decode(value["bytes"])
