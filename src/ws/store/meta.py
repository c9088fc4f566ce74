"""What git does not keep of a file, in records of one line an entry.

Each directory has one record: first the directory itself under the name `.`, then its files, links and
FIFOs, sorted. Subdirectories are not in it, they have records of their own; so a record never depends on
another directory, and a change costs one record and the trees above it.

    . d755 1000:1000 1731700000123456789 -
    notes%20today.txt f644 . 1731700000000000000 1935
    run f4755 0:0 -1 88 user.origin=https://example.org/%0A

name · type and permission bits · owner (`.`: the directory's) · mtime in ns · size · user xattrs. Types:
`d`, `f`, `c` a file kept in chunks, `l` symlink, `p` FIFO. Space, `%`, `=` in keys and control bytes are
written `%XX`; other bytes stand for themselves. The same tree always gives the same bytes: lines are sorted
as bytes, and a space sorts before every character of a name.

Hard links are one blob for the whole tree: a line a group, paths sorted, groups of two or more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ws.errors import StoreDamaged

_QUOTED = re.compile(rb"[\x00-\x20%\x7f]")
_QUOTED_KEY = re.compile(rb"[\x00-\x20%\x7f=]")
_LINE = re.compile(rb"(?=([^ \n]+) )(.*)\n")
_ESCAPE = re.compile(rb"%([0-9A-F]{2})")

Xattrs = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Meta:
    """All that is kept of a directory entry besides its name and bytes."""

    kind: str  # d f c l p, as in the record
    mode: int  # the 12 permission bits
    uid: int
    gid: int
    mtime_ns: int
    size: int = 0
    xattrs: Xattrs = ()


def quote(name: bytes) -> bytes:
    if not _QUOTED.search(name):
        return name
    return _QUOTED.sub(lambda match: b"%%%02X" % match[0][0], name)


def unquote(name: bytes) -> bytes:
    if b"%" not in name:
        return name
    return _ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), name)


def quote_xattrs(xattrs: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The end of a line: nothing, or a space and `key=value` for each, sorted."""
    return b"".join(
        b" %s=%s" % (_QUOTED_KEY.sub(lambda match: b"%%%02X" % match[0][0], key), quote(value))
        for key, value in sorted(xattrs)
    )


def encode_line(name: bytes, meta: Meta, directory: Meta | None) -> bytes:
    """One entry of the record of `directory` (None: the directory's own line), without the newline."""
    owner = (
        b"."
        if directory and (meta.uid, meta.gid) == (directory.uid, directory.gid)
        else b"%d:%d" % (meta.uid, meta.gid)
    )
    size = b"-" if meta.kind in "dp" else b"%d" % meta.size
    return b"%s %s%o %s %d %s%s" % (
        quote(name), meta.kind.encode(), meta.mode, owner, meta.mtime_ns, size, quote_xattrs(meta.xattrs),
    )  # fmt: skip


def decode_line(line: bytes, directory: Meta | None) -> tuple[bytes, Meta]:
    """The name and metadata in one line. Raises StoreDamaged."""
    try:
        name, kind, owner, mtime, size, *xattrs = line.split(b" ")
        if owner == b".":
            assert directory
            uid, gid = directory.uid, directory.gid
        else:
            uid, gid = map(int, owner.split(b":"))
        return unquote(name), Meta(
            kind=chr(kind[0]),
            mode=int(kind[1:], 8),
            uid=uid,
            gid=gid,
            mtime_ns=int(mtime),
            size=0 if size == b"-" else int(size),
            xattrs=tuple((unquote(key), unquote(value)) for key, value in (pair.split(b"=", 1) for pair in xattrs)),
        )
    except (ValueError, IndexError, AssertionError):
        raise StoreDamaged(f"a line of a record cannot be read: {line[:80]!r}") from None


def join_record(head: bytes, lines: Iterable[bytes]) -> bytes:
    """A record from its lines, in any order."""
    return b"\n".join([head, *sorted(lines)]) + b"\n"


def split_record(record: bytes) -> dict[bytes, bytes]:
    """The lines by their quoted names, in order and without their ends; the directory's own is `.`."""
    return dict(_LINE.findall(record))


def owner_field(line: bytes) -> bytes:
    """The third field of a line."""
    return line.split(b" ", 3)[2]


def encode_record(directory: Meta, entries: Mapping[bytes, Meta]) -> bytes:
    return join_record(
        encode_line(b".", directory, None),
        [encode_line(name, meta, directory) for name, meta in entries.items()],
    )


def decode_record(record: bytes) -> tuple[Meta, dict[bytes, Meta]]:
    """The directory's own metadata, and that of its entries by name. Raises StoreDamaged."""
    lines = split_record(record)
    _, directory = decode_line(lines.pop(b".", b""), None)
    if directory.kind != "d" or record.count(b"\n") != len(lines) + 1:
        raise StoreDamaged(f"a record cannot be read: {record[:80]!r}")
    return directory, dict(decode_line(line, directory) for line in lines.values())


def encode_links(groups: Iterable[Iterable[bytes]]) -> bytes:
    """The hard links of a tree; empty when there are none."""
    lines = sorted(b" ".join(sorted(map(quote, group))) for group in groups)
    return b"".join(line + b"\n" for line in lines)


def decode_links(data: bytes) -> list[list[bytes]]:
    return [[unquote(path) for path in line.split(b" ")] for line in data.split(b"\n") if line]
