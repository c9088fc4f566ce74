"""The records of the Filesystem protocol as rows of plain values, and back: how they cross from the shim to the host.

Rows are what JSON holds. Whoever has the container by then wrote them, so the way back takes nothing on trust: the
number of values, the type of each, names that are one segment. What is wrong raises ProtocolError, and nothing else.
Times are whole microseconds since 1970, exactly what a datetime holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from ws.errors import ProtocolError
from ws.fs.protocol import FileEntry, FileStat, GlobMatch, GrepMatch, GrepQuery, GrepReport, Limits

_EPOCH = datetime.fromtimestamp(0, UTC)
_MICROSECOND = timedelta(microseconds=1)
_MAX_SIZE = 1 << 63


def stat_row(status: FileStat) -> list[Any]:
    return [
        status.path,
        status.is_file,
        status.is_directory,
        status.size_bytes,
        *((moment - _EPOCH) // _MICROSECOND for moment in (status.created_at, status.modified_at, status.accessed_at)),
        status.mode,
        status.is_symlink,
        status.target,
        status.readable,
        status.writable,
    ]


def read_stat(row: object) -> FileStat:
    path, is_file, is_directory, size, created, modified, accessed, mode, is_link, target, readable, writable = _values(
        row, str, bool, bool, int, int, int, int, int, bool, None, bool, bool
    )
    if target is not None and type(target) is not str:
        raise ProtocolError("the peer sent a link's target that is no text")
    if not 0 <= size < _MAX_SIZE or not 0 <= mode <= 0o7777:
        raise ProtocolError("the peer sent a size or a mode that no file has")
    return FileStat(
        _path(path),
        is_file,
        is_directory,
        size,
        _moment(created),
        _moment(modified),
        _moment(accessed),
        mode,
        is_link,
        target,
        readable,
        writable,
    )


def entry_row(entry: FileEntry) -> list[Any]:
    return [entry.name, entry.path, entry.is_file, entry.is_directory, entry.is_symlink]


def read_entry(row: object) -> FileEntry:
    name, path, is_file, is_directory, is_symlink = _values(row, str, str, bool, bool, bool)
    return FileEntry(_segment(name), _path(path), is_file, is_directory, is_symlink)


def glob_row(match: GlobMatch) -> list[Any]:
    return [match.path, match.is_file, match.modified_ns]


def read_glob(row: object) -> GlobMatch:
    path, is_file, modified_ns = _values(row, str, bool, int)
    return GlobMatch(_path(path), is_file, modified_ns)


def report_row(report: GrepReport) -> list[Any]:
    matches = [
        [
            match.path,
            match.line_number,
            match.line_content,
            match.match_start,
            match.match_end,
            list(match.before),
            list(match.after),
        ]
        for match in report.matches
    ]
    return [matches, [list(pair) for pair in report.counts], list(report.binary_files), report.truncated]


def read_report(row: object) -> GrepReport:
    matches, counts, binary_files, truncated = _values(row, list, list, list, bool)
    return GrepReport(
        tuple(map(_read_match, matches)), tuple(map(_read_count, counts)), _texts(binary_files), truncated
    )


def _read_match(row: object) -> GrepMatch:
    path, number, line, start, end, before, after = _values(row, str, int, str, int, int, list, list)
    return GrepMatch(_path(path), number, line, start, end, _texts(before), _texts(after))


def _read_count(row: object) -> tuple[str, int]:
    path, count = _values(row, str, int)
    return _path(path), count


def query_row(query: GrepQuery) -> list[Any]:
    return [getattr(query, name) for name in GrepQuery.__slots__]


def read_query(row: Sequence[Any]) -> GrepQuery:
    """The host wrote it: taken as it is."""
    return GrepQuery(*row)


def limits_row(limits: Limits) -> list[int]:
    return [getattr(limits, name) for name in Limits.__slots__]


def read_text(value: object) -> str:
    """Raises ProtocolError when it is no text."""
    if type(value) is not str:
        raise ProtocolError("the peer sent something else than text")
    return value


def read_path(value: object) -> str:
    """Raises ProtocolError when it is no path as results carry them."""
    return _path(read_text(value))


def read_rows(value: object) -> list[Any]:
    """Raises ProtocolError when it is no list."""
    if type(value) is not list:
        raise ProtocolError("the peer sent something else than a list")
    return value


def _values(row: object, *kinds: type | None) -> list[Any]:
    if type(row) is not list or len(row) != len(kinds):
        raise ProtocolError("the peer sent a row that is none")
    for value, kind in zip(row, kinds, strict=True):
        if kind is not None and type(value) is not kind:
            raise ProtocolError(f"the peer sent a row with {type(value).__name__} where {kind.__name__} stands")
    return row


def _texts(values: list[Any]) -> tuple[str, ...]:
    for value in values:
        read_text(value)
    return tuple(values)


def _path(path: str) -> str:
    if not path or "\0" in path or ".." in path.split("/"):
        raise ProtocolError("the peer sent a path that no result has")
    return path


def _segment(name: str) -> str:
    """One that may be joined to a path of the host."""
    if "/" in name or "\0" in name or name in ("", ".", ".."):
        raise ProtocolError("the peer sent a name that no directory holds")
    return name


def _moment(microseconds: int) -> datetime:
    try:
        return _EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        raise ProtocolError("the peer sent a time that no calendar has") from None
