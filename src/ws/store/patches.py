"""Changes as text: unified diffs as git writes them, a file at a time.

libgit2 compares two buffers and gives the hunks; everything around them is written here. No repository is opened for
it, so no configuration, attribute or filter of anybody has a say: not the user's, not the workspace's.

Two readers are served. People get what changed, told as it is: full modes, owners, FIFOs. `git apply` gets what git
can express: two modes for files, and binary content whole (`for_git`). What git cannot express is named by
`is_expressible`, for the caller to report.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from ws.store import names, trees
from ws.store.diffs import Change, read_content
from ws.store.repository import Store

_NO_ID = "0" * 40
_SHORT_ID = 12
_TYPES = {"d": 0o040000, "f": 0o100000, "c": 0o100000, "l": 0o120000, "p": 0o010000}
_QUOTED = re.compile(rb'[\x00-\x1f"\\\x7f]')
_SHORT = {0x07: b"\\a", 0x08: b"\\b", 0x09: b"\\t", 0x0A: b"\\n", 0x0B: b"\\v", 0x0C: b"\\f", 0x0D: b"\\r"}
_SHORT |= {0x22: b'\\"', 0x5C: b"\\\\"}
_BINARY_LINE = 52
# What git refuses as a path, also in the spellings of other systems (git's verify_path).
_DOT_GIT = re.compile(rb"(?:\.git|git~1)[ .]*(?::.*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Lines:
    """How much of a file changed."""

    added: int
    removed: int
    binary: bool


def is_expressible(change: Change) -> bool:
    """Whether git has words for a change: no directories, FIFOs, owners, times, and no path through a `.git`."""
    sides = [side for side in (change.old, change.new) if side]
    if change.kind == "metadata" or all(side.meta.kind in "dp" for side in sides):
        return False
    if change.kind == "mode" and len({_git_mode(side, for_git=True) for side in sides}) == 1:
        return False
    link = any(side.meta.kind == "l" for side in sides)
    for part in re.split(rb"[/\\]", change.path):
        folded = names.IGNORED_BY_HFS.sub(b"", part).lower()
        if _DOT_GIT.fullmatch(folded) or (link and folded == b".gitmodules"):
            return False
    return True


def count_lines(store: Store, change: Change) -> Lines:
    """Lines added and removed. Raises StoreDamaged."""
    _, lines = _hunks(store, change)
    return lines


def write_patch(store: Store, change: Change, *, for_git: bool = False) -> Iterator[bytes]:
    """The patch of one change, in parts; nothing for what has none. Raises StoreDamaged.

    A change of type is two patches, as git has it: one that deletes and one that adds.
    """
    old, new = _shown(change.old, for_git), _shown(change.new, for_git)
    if change.kind == "metadata" or (for_git and not is_expressible(change)):
        return
    if old and new and change.kind == "type":
        yield from _write(store, replace(change, kind="deleted", old=old, new=None), for_git)
        yield from _write(store, replace(change, kind="added", old=None, new=new), for_git)
    elif old or new:
        yield from _write(store, replace(change, old=old, new=new), for_git)


def _shown(side: trees.File | None, for_git: bool) -> trees.File | None:
    return None if side and for_git and side.meta.kind in "dp" else side


def _write(store: Store, change: Change, for_git: bool) -> Iterator[bytes]:
    if change.kind in ("added", "deleted") and change.is_directory:
        return  # what it holds tells it; an empty one is told by its status
    yield from _header(store, change, for_git)
    if change.kind == "mode":
        return
    hunks, lines = _hunks(store, change)
    old, new = quote_path(b"a/" + change.path), quote_path(b"b/" + change.path)
    if not lines.binary:
        if hunks:
            yield b"--- %s\n" % (_in_hunks(old, change.path) if change.old else b"/dev/null")
            yield b"+++ %s\n" % (_in_hunks(new, change.path) if change.new else b"/dev/null")
            yield hunks
    elif for_git:
        yield b"GIT binary patch\n"
        yield from _binary(store, change.new, change.path)
        yield from _binary(store, change.old, change.path)
    else:
        sides = (old if change.old else b"/dev/null", new if change.new else b"/dev/null")
        yield b"Binary files %s and %s differ\n" % sides


def _header(store: Store, change: Change, for_git: bool) -> Iterator[bytes]:
    old, new = change.old, change.new
    yield b"diff --git %s %s\n" % (quote_path(b"a/" + change.path), quote_path(b"b/" + change.path))
    before = _git_mode(old, for_git=for_git) if old else ""
    after = _git_mode(new, for_git=for_git) if new else ""
    if not old:
        yield f"new file mode {after}\n".encode()
    elif not new:
        yield f"deleted file mode {before}\n".encode()
    elif before != after:
        yield f"old mode {before}\nnew mode {after}\n".encode()
    if old and new and not for_git and (old.meta.uid, old.meta.gid) != (new.meta.uid, new.meta.gid):
        yield b"old owner %d:%d\nnew owner %d:%d\n" % (old.meta.uid, old.meta.gid, new.meta.uid, new.meta.gid)
    ids = [_blob_id(store, side, change.path, for_git) for side in (old, new)]
    if ids[0] != ids[1]:
        same = f" {before}" if old and new and before == after else ""
        before, after = ids if for_git else [oid[:_SHORT_ID] for oid in ids]
        yield f"index {before}..{after}{same}\n".encode()


def _git_mode(side: trees.File, *, for_git: bool) -> str:
    kind, mode = _TYPES[side.meta.kind], side.meta.mode
    if side.meta.kind == "l":
        mode = 0
    elif for_git:
        mode = 0o755 if mode & 0o100 else 0o644
    return f"{kind | mode:06o}"


def _blob_id(store: Store, side: trees.File | None, path: bytes, for_git: bool) -> str:
    if side is None or side.meta.kind in "dp":
        return _NO_ID
    if side.meta.kind != "c" or not for_git:
        return side.oid.hex()
    # Kept in chunks; git names it by all of its bytes.
    digest = hashlib.sha1(b"blob %d\0" % side.meta.size, usedforsecurity=False)
    for chunk in read_content(store, side, path):
        digest.update(chunk)
    return digest.hexdigest()


def _hunks(store: Store, change: Change) -> tuple[bytes, Lines]:
    sides = (change.old, change.new)
    if any(side and side.meta.kind == "c" for side in sides):
        return b"", Lines(0, 0, binary=True)
    if change.kind in ("mode", "metadata"):
        return b"", Lines(0, 0, binary=False)
    old, new = (b"".join(read_content(store, side, change.path)) for side in sides)
    import pygit2  # 140 ms: only when there is something to compare

    found = pygit2.Patch.create_from(old, new, old_as_path="a", new_as_path="b")
    _, added, removed = found.line_stats
    data: bytes = found.data
    start = data.find(b"\n@@ -")
    return data[start + 1 :] if start >= 0 else b"", Lines(added, removed, bool(found.delta.is_binary))


def _binary(store: Store, side: trees.File | None, path: bytes) -> Iterator[bytes]:
    """A side whole, as git writes binary files: compressed, 52 bytes a line in base 85."""
    yield b"literal %d\n" % (side.meta.size if side else 0)
    yield from _base85(_deflated(read_content(store, side, path)))
    yield b"\n"


def _deflated(parts: Iterable[bytes]) -> Iterator[bytes]:
    deflate = zlib.compressobj()
    for part in parts:
        yield deflate.compress(part)
    yield deflate.flush()


def _base85(parts: Iterable[bytes]) -> Iterator[bytes]:
    left = b""
    for part in parts:
        left += part
        whole = len(left) - len(left) % _BINARY_LINE
        yield b"".join(_binary_line(left[at : at + _BINARY_LINE]) for at in range(0, whole, _BINARY_LINE))
        left = left[whole:]
    if left:
        yield _binary_line(left)


def _binary_line(data: bytes) -> bytes:
    size = len(data)
    length = 64 + size if size <= 26 else 70 + size  # A-Z, then a-z
    return bytes((length,)) + base64.b85encode(data, pad=True) + b"\n"


def quote_path(path: bytes) -> bytes:
    """A path as git writes it: in quotes with escapes when it holds control bytes or is not UTF-8."""
    try:
        path.decode()
        odd = _QUOTED.search(path) is not None
    except UnicodeDecodeError:
        odd = True
    if not odd:
        return path
    return b'"%s"' % b"".join(_SHORT.get(byte) or _octal(byte) for byte in path)


def _octal(byte: int) -> bytes:
    return bytes((byte,)) if 0x20 <= byte < 0x7F else b"\\%03o" % byte


def _in_hunks(quoted: bytes, path: bytes) -> bytes:
    # As git does: a tab shows where a name with spaces ends.
    return quoted + b"\t" if b" " in path else quoted
