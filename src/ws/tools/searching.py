"""Finding files by name and by what they hold: glob and grep. Tier: safe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from operator import attrgetter

from ws.errors import ToolValidationError
from ws.fs.globs import basename_filter
from ws.fs.protocol import GrepMatch, GrepQuery, GrepReport
from ws.tools.context import TRUNCATED_LINE, Caps, ToolContext, ToolResult, cap_lines

OUTPUT_MODES = ("content", "files_with_matches", "count")


def glob(
    context: ToolContext,
    *,
    pattern: str,
    path: str = ".",
    max_results: int = 100,
    exclude: Sequence[str] = (),
) -> ToolResult:
    """Files whose path below `path` matches, newest first. `exclude` holds globs on basenames.

    An excluded directory hides all below it. Raises InvalidRequest for a bad pattern, and as `list`.
    """
    if max_results < 1:
        raise ToolValidationError(f"max_results is {max_results}; the least is 1")
    place = context.locate(path)
    found = [match for match in context.filesystem.glob(pattern, place) if match.is_file]
    excluded = basename_filter(exclude)
    if excluded is not None:
        top = context.filesystem.stat(place).path
        above = 0 if top == "." else len(top.split("/"))
        found = [match for match in found if not any(map(excluded, match.path.split("/")[above:]))]
    found.sort(key=attrgetter("modified_ns"), reverse=True)  # stable: by path where times are equal
    paths = [match.path for match in found[:max_results]]
    output, shown = cap_lines(paths, context.caps)
    message = f"{len(found)} files" if len(found) != 1 else "1 file"
    if len(found) > shown:
        more = " or raise `max_results`" if shown == len(paths) else ""
        message += f", the newest {shown} shown; narrow the pattern{more}"
    return ToolResult(
        message=message,
        truncated=len(found) > shown,
        output=output,
        data={"paths": paths, "total": len(found)},
    )


def grep(
    context: ToolContext,
    *,
    pattern: str,
    path: str = ".",
    glob: str | None = None,
    context_before: int = 0,
    context_after: int = 0,
    ignore_case: bool = False,
    output_mode: str = "content",
    max_matches: int = 50,
) -> ToolResult:
    """Lines that match a regular expression as `file:line:text`, or the files alone, or their counts.

    Binary files are skipped, and the message says so. Raises InvalidRequest for a bad pattern.
    """
    if output_mode not in OUTPUT_MODES:
        raise ToolValidationError(f"output_mode is {output_mode!r}", hint=f"one of {', '.join(OUTPUT_MODES)}")
    query = GrepQuery(
        pattern=pattern,
        path=context.locate(path),
        glob=glob,
        ignore_case=ignore_case,
        context_before=context_before,
        context_after=context_after,
        max_matches=max_matches,
        count_only=output_mode != "content",
    )
    report = context.filesystem.search(query)
    report = replace(report, matches=tuple(_shown(match, context.caps) for match in report.matches))
    if output_mode == "content":
        lines = _content(report.matches)
        message = f"{len(report.matches)} matches in {len({match.path for match in report.matches})} files"
    elif output_mode == "count":
        lines = [f"{name}:{count}" for name, count in report.counts]
        message = f"{sum(count for _, count in report.counts)} matches in {len(report.counts)} files"
    else:
        lines = [name for name, _ in report.counts]
        message = f"{len(lines)} files"
    if report.truncated:
        message += f"; stopped at `max_matches={max_matches}`"
    output, shown = cap_lines(lines, context.caps)
    return ToolResult(
        message=message + _binary_note(report),
        truncated=report.truncated or shown < len(lines),
        output=output,
        data=_data(report, output_mode),
    )


def _content(matches: Sequence[GrepMatch]) -> list[str]:
    """Lines as grep prints them: `:` marks a match, `-` its surroundings, `--` a gap between groups."""
    files: dict[str, dict[int, tuple[str, str]]] = {}
    for match in matches:
        lines = files.setdefault(match.path, {})
        number = match.line_number
        for before, text in enumerate(reversed(match.before), 1):
            lines.setdefault(number - before, ("-", text))
        for after, text in enumerate(match.after, 1):
            lines.setdefault(number + after, ("-", text))
        lines[number] = (":", match.line_content)
    grouped = any(match.before or match.after for match in matches)
    out: list[str] = []
    last: tuple[str, int] | None = None
    for path, lines in files.items():
        for number, (mark, text) in sorted(lines.items()):
            if grouped and last is not None and last != (path, number - 1):
                out.append("--")
            out.append(f"{path}{mark}{number}{mark}{text}")
            last = (path, number)
    return out


def _shown(match: GrepMatch, caps: Caps) -> GrepMatch:
    """A match with its lines as they are shown; `match_start` and `match_end` are places in what is shown."""
    text, moved = _window(match.line_content, match.match_start, caps)
    start, end = (min(max(0, at - moved), len(text)) for at in (match.match_start, match.match_end))
    before, after = (tuple(_window(line, 0, caps)[0] for line in lines) for lines in (match.before, match.after))
    return replace(match, line_content=text, match_start=start, match_end=end, before=before, after=after)


def _window(line: str, start: int, caps: Caps) -> tuple[str, int]:
    """The part of a long line that has the match in it, and by how much its characters moved to the left.

    A byte order mark is not shown: nobody who copies the line means it.
    """
    mark = len(line) - len(line.removeprefix("\ufeff"))
    width = caps.max_line_chars
    if len(line) <= width:
        return line[mark:], mark
    first = mark if start < width // 2 else start - width // 4
    before = "…" if first > mark else ""
    return before + line[first : first + width] + TRUNCATED_LINE, first - len(before)


def _binary_note(report: GrepReport) -> str:
    if report.binary_files:
        return f"; {report.binary_files[0]} is binary and was skipped"
    return "; binary files are skipped"


def _data(report: GrepReport, output_mode: str) -> dict[str, object]:
    data: dict[str, object] = {"binary_files": list(report.binary_files)}
    if output_mode == "content":
        data["matches"] = [
            {
                "path": match.path,
                "line": match.line_number,
                "text": match.line_content,
                "start": match.match_start,
                "end": match.match_end,
            }
            for match in report.matches
        ]
    elif output_mode == "count":
        data["counts"] = dict(report.counts)
    else:
        data["files"] = [name for name, _ in report.counts]
    return data
