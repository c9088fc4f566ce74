"""Random directory trees on a real filesystem, and pictures of them that show every difference.

Written against the standard library alone: it judges the store and must not share its mistakes.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from ws.subordinate_ids import FIRST, SLOT_IDS

Picture = dict[bytes, tuple[Any, ...]]


def _of_container(number: int) -> int:
    """An id as the container has it, where it is one of a container's own range: another has another range."""
    return number % SLOT_IDS if number >= FIRST else number


def picture(root: str | Path, *, owners: bool = True) -> Picture:
    """Everything that must come back, by path; hard links as the sorted names of their group."""
    top = os.fsencode(root)
    found: Picture = {}
    groups: dict[tuple[int, int], list[bytes]] = {}
    pending = [b""]
    while pending:
        path = pending.pop()
        full = os.path.join(top, path) if path else top
        look = os.lstat(full)
        owner = (_of_container(look.st_uid), _of_container(look.st_gid)) if owners else ()
        content: Any = None
        if stat.S_ISDIR(look.st_mode):
            pending += [os.path.join(path, name) for name in os.listdir(full)]
        elif stat.S_ISLNK(look.st_mode):
            content = os.readlink(full)
        elif stat.S_ISREG(look.st_mode):
            content = hashlib.sha256(Path(os.fsdecode(full)).read_bytes()).hexdigest()
        xattrs = ()
        if not stat.S_ISLNK(look.st_mode) and not stat.S_ISFIFO(look.st_mode):
            keys = [key for key in os.listxattr(full) if key.startswith("user.")]
            xattrs = tuple(sorted((key, os.getxattr(full, key)) for key in keys))
        if not stat.S_ISDIR(look.st_mode):
            groups.setdefault((look.st_dev, look.st_ino), []).append(path)
        mode = 0 if stat.S_ISLNK(look.st_mode) else stat.S_IMODE(look.st_mode)
        found[path] = (stat.S_IFMT(look.st_mode), mode, *owner, look.st_mtime_ns, content, xattrs)
    for paths in groups.values():
        for path in paths:
            found[path] += (tuple(sorted(paths)),)
    return found


@dataclass(frozen=True)
class File:
    data: bytes
    mode: int = 0o644
    mtime_ns: int = 1_000_000_000
    xattrs: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Link:
    target: bytes
    mtime_ns: int = 1_000_000_000


@dataclass(frozen=True)
class Fifo:
    mode: int = 0o600
    mtime_ns: int = 1_000_000_000


@dataclass(frozen=True)
class Hardlink:
    """Another name of the first file that was made, if there is one yet; else a file of its own."""


@dataclass(frozen=True)
class Directory:
    entries: Mapping[bytes, Any]
    mode: int = 0o755
    mtime_ns: int = 1_000_000_000
    xattrs: Mapping[str, bytes] = field(default_factory=dict)


HOSTILE_NAMES = [
    b".git",
    b".GIT",
    b".gIt",
    b"git~1",
    b"GIT~1",
    b".git ",
    b".git.",
    b".git...",
    b".git::$INDEX_ALLOCATION",
    b".g\xe2\x80\x8cit",
    b"\xe2\x80\x8c.git",
    b".git\xef\xbb\xbf",
    b".git\xff",
    b".git\\x",
    b"a\\.git",
    b"a\\git~1\\b",
    b"\\.git",
    b".git\\",
    b".gitmodules",
    b".GITMODULES",
    b"gitmod~1",
    b"GI7EBA~1",
    b"gi7eb~12",
    b"~1234567",
    b".gitmodules .",
    b"a\\.gitmodules",
    b".gitattributes",
    b"gi7d29~1",
    b".gitignore",
    b".mailmap",
    b"maba30~1",
    b".github",
    b".gitkeep",
    b".gitlab-ci.yml",
    b"=",
    b"==",
    b"=x",
    b"=.git",
    b"=dir",
    b"=links",
    b"\\=x",
    b"a\\=",
    b"\xff",
    b"\xff\xfe=",
    b"new\nline",
    b"tab\there",
    b" ",
    b"%",
    b"%41",
    b"-rf",
    b"x" * 255,
    b"\\" * 255,
    b".git" + b"." * 251,
    "ｎａｍｅ".encode(),
    "e\u0301".encode(),
    b"CON",
    b"nul.txt",
    b"con:",
    b"...",
    b"*",
    b"'\"",
]

names = st.one_of(
    st.sampled_from(HOSTILE_NAMES),
    st.text("abcXYZ .-_=%~\\gitGIT1", min_size=1, max_size=12).map(str.encode),
    st.binary(min_size=1, max_size=40),
).filter(lambda name: name not in (b".", b"..") and b"/" not in name and b"\0" not in name)

file_modes = st.sampled_from([0o644, 0o755, 0o600, 0o000, 0o111, 0o444, 0o666, 0o4755, 0o2755, 0o1777, 0o7777])
times = st.one_of(
    st.integers(0, 2_000_000_000_000_000_000),
    st.sampled_from([0, 1, -1, -2_147_000_000_000_000_000, 4_102_444_800_000_000_001, 15_000_000_000_000_000_000]),
)
xattrs = st.dictionaries(
    st.sampled_from(["user.a", "user.b c", "user.overlay.opaque", "user.overlay.redirect", "user.x=%"]),
    st.binary(max_size=60),
    max_size=2,
)
contents = st.one_of(
    st.binary(max_size=200),
    st.sampled_from([b"", b'[submodule "../x"]\n\tpath = ../../etc\r\n\turl = -evil\n', b"* text eol=crlf\n* ident\n"]),
    st.integers(1, 70_000).map(lambda size: bytes(range(256)) * (size // 256 + 1)),
)
files = st.builds(File, contents, file_modes, times, xattrs)
links = st.builds(
    Link,
    st.one_of(
        st.sampled_from([b"nowhere", b"..", b"/etc/passwd", b"a\nb", b"\xff\xfe", b"x" * 4095]),
        st.binary(min_size=1, max_size=50).filter(lambda target: b"\0" not in target),
    ),
    times,
)
leaves = st.one_of(files, files, files, links, st.builds(Fifo, file_modes, times), st.just(Hardlink()))


def directories(children: st.SearchStrategy[Any]) -> st.SearchStrategy[Directory]:
    return st.builds(Directory, st.dictionaries(names, children, max_size=5), file_modes, times, xattrs)


random_trees = directories(st.recursive(leaves, directories, max_leaves=12))


def build(root: str | Path, tree: Directory) -> None:
    """Make the tree in a directory that exists and is empty."""
    first: list[bytes] = []
    _fill(os.fsencode(root), tree, first)


def _fill(path: bytes, tree: Directory, first: list[bytes]) -> None:
    for name, node in tree.entries.items():
        make(os.path.join(path, name), node, first)
    _finish(path, tree)


def make(full: bytes, node: Any, first: list[bytes]) -> None:
    """Make one entry of any kind."""
    if isinstance(node, Directory):
        os.mkdir(full)
        _fill(full, node, first)
    elif isinstance(node, Link):
        os.symlink(node.target, full)
        os.utime(full, ns=(node.mtime_ns, node.mtime_ns), follow_symlinks=False)
    elif isinstance(node, Fifo):
        os.mkfifo(full)
        os.chmod(full, node.mode)
        os.utime(full, ns=(node.mtime_ns, node.mtime_ns))
    elif isinstance(node, Hardlink):
        if first:
            os.link(first[0], full)
        else:
            make(full, File(b"alone"), first)
    else:
        Path(os.fsdecode(full)).write_bytes(node.data)
        _finish(full, node)
        if not first:
            first.append(full)


def _finish(path: bytes, node: File | Directory) -> None:
    for key, value in node.xattrs.items():
        os.setxattr(path, key, value)
    os.chmod(path, node.mode)
    os.utime(path, ns=(node.mtime_ns, node.mtime_ns))
