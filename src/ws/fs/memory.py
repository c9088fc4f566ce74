"""A Filesystem in memory: for tests, for plans, for an agent that needs no disk.

The rules of paths, links, writes and errors are those of a host directory; one conformance suite runs on
both. Trees share their structure (`memory_tree`), so a snapshot is O(1) and a restore is one assignment. A
file's bytes are held once; readers look at them without a copy. Mutations are serialised by a lock.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from threading import Lock
from typing import Literal

from ws.errors import FsViolationError, InvalidRequest, TagExists
from ws.fs.globs import check_pattern, compile_glob, filter_for
from ws.fs.memory_streams import MemoryReader, MemoryWriter
from ws.fs.memory_tree import (
    FILE_MODE,
    MAX_LINKS,
    DirectoryNode,
    FileNode,
    LinkNode,
    Node,
    empty_directory,
    lookup,
    walk,
    with_node,
)
from ws.fs.paths import OUTSIDE, TOO_MANY_LINKS_HINT, Missing, PathRules, Place, is_left_again
from ws.fs.protocol import (
    CHUNK_BYTES,
    FileEntry,
    FileStat,
    FilesystemSnapshot,
    GlobMatch,
    GrepQuery,
    GrepReport,
    Limits,
    WriteMode,
)
from ws.fs.search import check_query, is_binary, search_files
from ws.fs.streams import Convenience, check_chunk_size, check_write_mode
from ws.fs.tags import check_tag

_Segments = tuple[str, ...]


class MemoryFilesystem(Convenience):
    """Files in this process, below a root that exists in name only."""

    def __init__(
        self,
        root: str = "/workspace",
        *,
        limits: Limits | None = None,
        read_only: bool = False,
        restricted_paths: Sequence[str] = (),
        allowed_paths: Sequence[str] = (),
        home: str | None = None,
    ) -> None:
        self._limits = limits or Limits()
        self._read_only = read_only
        self._rules = PathRules.of(
            root,
            limits=self._limits,
            allowed_paths=tuple(allowed_paths),
            restricted_paths=tuple(restricted_paths),
            home=home,
        )
        self._tree = empty_directory(time.time_ns())
        self._snapshots: dict[str, DirectoryNode] = {}
        self._tags: dict[str, str] = {}
        self._lock = Lock()

    @property
    def root(self) -> str:
        return self._rules.root

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def limits(self) -> Limits:
        return self._limits

    # streams

    def open_read(self, path: str, *, chunk_size: int = CHUNK_BYTES) -> MemoryReader:
        check_chunk_size(chunk_size)
        node = self._node(path)
        if isinstance(node, DirectoryNode):
            raise _os_error(errno.EISDIR, path)
        assert isinstance(node, FileNode)
        return MemoryReader(self._shown(path), node.data, chunk_size)

    def open_write(self, path: str, mode: WriteMode = "overwrite", create_parents: bool = True) -> MemoryWriter:
        check_write_mode(mode)
        self._check_writable(path)
        if path.endswith("/"):
            raise _os_error(errno.EISDIR, path)
        with self._lock:
            before = self._tree
            segments = self._resolve(path, missing="make" if create_parents else "refuse")
            made = sum(lookup(before, segments[:depth]) is None for depth in range(1, len(segments)))
        old = lookup(self._tree, segments)
        if isinstance(old, DirectoryNode):
            raise _os_error(errno.EISDIR, path)
        if old is not None and mode == "create":
            raise _os_error(errno.EEXIST, path)
        start = old.data if mode == "append" and isinstance(old, FileNode) else b""
        place = self._rules.parse(path)
        shown = self._rules.shown(Place(self.root, segments) if ".." in place.segments else place)
        return MemoryWriter(
            shown,
            start,
            put=lambda data: self._put_file(segments, data, mode, shown),
            give_up=lambda: self._remove_made(segments, made),
        )

    def _put_file(self, segments: _Segments, data: bytes, mode: WriteMode, path: str) -> None:
        with self._lock:
            now = time.time_ns()
            if not isinstance(lookup(self._tree, segments[:-1]), DirectoryNode):
                raise _os_error(errno.ENOENT, path)
            old = lookup(self._tree, segments)
            if mode == "create" and old is not None:
                raise _os_error(errno.EEXIST, path)
            if isinstance(old, DirectoryNode):
                raise _os_error(errno.EISDIR, path)
            kept = (old.mode & 0o1777, old.created_ns) if old else (FILE_MODE, now)
            self._tree = with_node(self._tree, segments, FileNode(*kept, now, data), now)

    def _remove_made(self, segments: _Segments, count: int) -> None:
        """Take away the last `count` directories above a path, as far as they are empty."""
        with self._lock:
            for depth in range(len(segments) - 1, len(segments) - 1 - count, -1):
                node = lookup(self._tree, segments[:depth])
                if not isinstance(node, DirectoryNode) or node.entries:
                    return
                self._tree = with_node(self._tree, segments[:depth], None, time.time_ns())

    # metadata

    def exists(self, path: str) -> bool:
        try:
            self._node(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def stat(self, path: str, *, follow_symlinks: bool = True) -> FileStat:
        return self._describe(self._node(path, follow_last=follow_symlinks), self._shown(path))

    def list(self, path: str = ".") -> Sequence[FileEntry]:
        directory, prefix, hides = self._directory(path)
        found: list[FileEntry] = []
        for name, node in sorted(directory.entries.items()):
            if hides(name):
                continue
            kind = self._behind_link(prefix + name) if isinstance(node, LinkNode) else node
            found.append(
                FileEntry(
                    name,
                    prefix + name,
                    isinstance(kind, FileNode),
                    isinstance(kind, DirectoryNode),
                    isinstance(node, LinkNode),
                )
            )
        return found

    def scan(self, path: str = ".") -> Sequence[FileStat]:
        directory, prefix, hides = self._directory(path)
        return [
            self._describe(node, prefix + name) for name, node in sorted(directory.entries.items()) if not hides(name)
        ]

    def resolve(self, path: str, *, follow_symlinks: bool = True, whole: bool = False) -> str:
        place = Place(self.root, self._resolve(path, follow_last=follow_symlinks, missing="pass"))
        if whole:
            self._rules.check_whole(place, path)
        return self._rules.shown(place)

    def read_link(self, path: str) -> str:
        node = self._node(path, follow_last=False)
        if not isinstance(node, LinkNode):
            raise _os_error(errno.EINVAL, path)
        return node.target

    def glob(self, pattern: str, path: str = ".") -> Sequence[GlobMatch]:
        matches = compile_glob(check_pattern(pattern))
        directory, prefix, hides = self._directory(path)
        found: list[GlobMatch] = []
        for below, node in walk(directory):
            if matches(below) and not hides(below):
                kind = self._behind_link(prefix + below) if isinstance(node, LinkNode) else node
                found.append(GlobMatch(prefix + below, isinstance(kind, FileNode), node.modified_ns))
        return sorted(found, key=lambda match: match.path)

    def search(self, query: GrepQuery) -> GrepReport:
        limit = check_query(query, self._limits.max_matches)
        node = self._node(query.path)
        if isinstance(node, FileNode):
            shown = self._shown(query.path)
            if is_binary(node.data[:CHUNK_BYTES]):
                return GrepReport(binary_files=(shown,))
            return search_files(query, [shown], self.open_read, limit)
        accepts = filter_for(query.glob)
        directory, prefix, hides = self._directory(query.path)
        names = (
            prefix + below
            for below, node in walk(directory)
            if isinstance(node, FileNode) and (accepts is None or accepts(below)) and not hides(below)
        )
        return search_files(query, names, self.open_read, limit)

    # mutations

    def delete(self, path: str, recursive: bool = False) -> None:
        self._check_writable(path)
        with self._lock:
            segments = self._changeable(path)
            node = lookup(self._tree, segments)
            if node is None:
                raise _os_error(errno.ENOENT, path)
            if isinstance(node, DirectoryNode) and node.entries and not recursive:
                raise _os_error(errno.ENOTEMPTY, path)
            self._tree = with_node(self._tree, segments, None, time.time_ns())

    def unlink(self, path: str) -> None:
        self._check_writable(path)
        with self._lock:
            segments = self._changeable(path)
            if isinstance(self._existing(segments, path), DirectoryNode):
                raise _os_error(errno.EISDIR, path)
            self._tree = with_node(self._tree, segments, None, time.time_ns())

    def rmdir(self, path: str) -> None:
        self._check_writable(path)
        with self._lock:
            segments = self._changeable(path)
            node = self._existing(segments, path)
            if not isinstance(node, DirectoryNode):
                raise _os_error(errno.ENOTDIR, path)
            if node.entries:
                raise _os_error(errno.ENOTEMPTY, path)
            self._tree = with_node(self._tree, segments, None, time.time_ns())

    def mkdir(self, path: str, parents: bool = True, exist_ok: bool = True) -> None:
        self._check_writable(path)
        with self._lock:
            segments = self._resolve(path, follow_last=False, missing="make" if parents else "refuse")
            if lookup(self._tree, segments) is None:
                now = time.time_ns()
                self._tree = with_node(self._tree, segments, empty_directory(now), now)
                return
        if not exist_ok or not self._is_directory(path):
            raise _os_error(errno.EEXIST, path)

    def _is_directory(self, path: str) -> bool:
        """Whether a directory stands at a path, or a link to one where links are followed. Raises FsViolationError."""
        try:
            return isinstance(self._node(path, follow_last=self._limits.follow_links), DirectoryNode)
        except FileNotFoundError:
            return False  # a link that leads nowhere

    def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        self._transfer(source, destination, "moved", overwrite=overwrite)

    def copy(self, source: str, destination: str, overwrite: bool = False) -> None:
        """Commit point: one assignment. The copy shares its nodes with the original; they never change."""
        self._transfer(source, destination, "copied", overwrite=overwrite)

    def _transfer(self, source: str, destination: str, what: Literal["moved", "copied"], *, overwrite: bool) -> None:
        self._check_writable(source)
        with self._lock:
            old, new = self._changeable(source), self._changeable(destination)
            node = self._existing(old, source)
            if isinstance(node, DirectoryNode) and new[: len(old)] == old and new != old:
                raise InvalidRequest(f"{source!r} cannot be {what} into itself ({destination!r})")
            there = lookup(self._tree, new)
            if there is not None and not overwrite:
                raise _os_error(errno.EEXIST, destination)
            if old == new:
                return
            if there is not None:
                _check_replaceable(node, there, destination)
            now = time.time_ns()
            tree = with_node(self._tree, old, None, now) if what == "moved" else self._tree
            self._tree = with_node(tree, new, node, now)

    def make_link(self, path: str, target: str) -> None:
        self._check_writable(path)
        with self._lock:
            segments = self._changeable(path)
            if lookup(self._tree, segments) is not None:
                raise _os_error(errno.EEXIST, path)
            now = time.time_ns()
            self._tree = with_node(self._tree, segments, LinkNode(0o777, now, now, target), now)

    def set_mode(self, path: str, mode: int) -> None:
        self._check_writable(path)
        with self._lock:
            segments = self._resolve(path)
            node = replace(self._existing(segments, path), mode=mode & 0o7777)
            self._tree = with_node(self._tree, segments, node, time.time_ns())

    def set_modified(self, path: str, modified_ns: int) -> None:
        self._check_writable(path)
        with self._lock:
            segments = self._resolve(path, follow_last=False)
            node = replace(self._existing(segments, path), modified_ns=modified_ns)
            self._tree = with_node(self._tree, segments, node, time.time_ns())

    # snapshots

    def snapshot(self, tag: str | None = None, *, force: bool = False) -> FilesystemSnapshot:
        """Keep the tree as it is. Raises InvalidName, TagExists. Commit point: the reference to its root."""
        snapshot_id = os.urandom(16).hex()
        with self._lock:
            if tag is not None:
                holder = self._tags.get(check_tag(tag))
                if holder and not force:
                    raise TagExists(f"the tag {tag!r} is on snapshot {holder[:12]}", hint="choose another, or force it")
                self._tags[tag] = snapshot_id
            self._snapshots[snapshot_id] = self._tree
        return FilesystemSnapshot(
            snapshot_id, datetime.now(UTC), commit_ref=f"memory:{snapshot_id}", root_path=self.root, tag=tag
        )

    def restore(self, snapshot: FilesystemSnapshot) -> None:
        """Make the tree what it was. Raises PermissionError, InvalidRequest. Commit point: one assignment."""
        self._check_writable(self.root)
        tree = self._snapshots.get(snapshot.snapshot_id)
        if tree is None:
            raise InvalidRequest(f"snapshot {snapshot.snapshot_id!r} is not one of this filesystem")
        with self._lock:
            self._tree = tree

    # finding

    def _resolve(self, path: str, *, follow_last: bool = True, missing: Missing = "refuse") -> _Segments:
        """The real segments of a path, links resolved; the last one need not exist. Holds no lock itself."""
        place = self._rules.parse(path)
        if place.anchor != self._rules.root:
            raise self._rules.violation(path, OUTSIDE)
        real: list[str] = []
        pending = list(reversed(place.segments))
        links = 0
        while pending:
            segment = pending.pop()
            if segment in ("", "."):
                continue
            if segment == "..":
                if not real:
                    raise self._rules.violation(path, OUTSIDE)
                real.pop()
                continue
            node = lookup(self._tree, (*real, segment))
            if isinstance(node, LinkNode) and (pending or follow_last):
                if not self._limits.follow_links:
                    raise self._rules.link_violation(path, Place(self._rules.root, (*real, segment)))
                links += 1
                if links > MAX_LINKS:
                    raise self._rules.violation(path, "too many links", hint=TOO_MANY_LINKS_HINT)
                target = _below_root(node.target, self._rules, path)
                if target is not node.target:
                    real.clear()
                pending += reversed(target.split("/"))
                continue
            real.append(segment)
            if missing == "make" and node is None and is_left_again(pending):
                continue
            if pending and not isinstance(node, DirectoryNode) and missing != "pass":
                self._rules.check_on_the_way(Place(self._rules.root, tuple(real)), path)
                self._make_parent(tuple(real), node, path, create=missing == "make")
        self._rules.check_real(Place(self._rules.root, tuple(real)), path)
        return tuple(real)

    def _make_parent(self, segments: _Segments, node: Node | None, path: str, *, create: bool) -> None:
        if node is not None:
            raise _os_error(errno.ENOTDIR, path)
        if not create:
            raise _os_error(errno.ENOENT, path)
        now = time.time_ns()
        self._tree = with_node(self._tree, segments, empty_directory(now), now)

    def _changeable(self, path: str) -> _Segments:
        """The segments of a path that is about to come or go as a whole; its parent exists."""
        segments = self._resolve(path, follow_last=False)
        if not segments:
            raise self._rules.violation(path, "it is the root itself", hint="name what lies below the root")
        self._rules.check_whole(Place(self.root, segments), path)
        return segments

    def _existing(self, segments: _Segments, path: str) -> Node:
        node = lookup(self._tree, segments)
        if node is None:
            raise _os_error(errno.ENOENT, path)
        return node

    def _node(self, path: str, *, follow_last: bool = True) -> Node:
        return self._existing(self._resolve(path, follow_last=follow_last), path)

    def _directory(self, path: str) -> tuple[DirectoryNode, str, Callable[[str], bool]]:
        """A directory, what the paths of its entries begin with, and which of them the rules hide."""
        segments = self._resolve(path)
        node = self._existing(segments, path)
        if not isinstance(node, DirectoryNode):
            raise _os_error(errno.ENOTDIR, path)
        shown = self._shown(path)
        start = self._rules.absolute(Place(self.root, segments)).rstrip("/") + "/"
        return node, "" if shown == "." else shown + "/", lambda below: self._rules.is_restricted(start + below)

    def _behind_link(self, path: str) -> Node | None:
        try:
            return self._node(path)
        except (OSError, ValueError):
            return None

    def _shown(self, path: str) -> str:
        place = self._rules.parse(path)
        if ".." in place.segments:
            place = Place(place.anchor, self._resolve(path, follow_last=False))
        return self._rules.shown(place)

    def _describe(self, node: Node, path: str) -> FileStat:
        target = node.target if isinstance(node, LinkNode) else None
        size = len(node.data) if isinstance(node, FileNode) else len(target or "")
        created, modified = (datetime.fromtimestamp(ns / 1e9, UTC) for ns in (node.created_ns, node.modified_ns))
        return FileStat(
            path,
            isinstance(node, FileNode),
            isinstance(node, DirectoryNode),
            size,
            created,
            modified,
            modified,
            node.mode,
            target is not None,
            target,
            writable=not self._read_only,
        )

    def _check_writable(self, path: str) -> None:
        if self._read_only:
            raise PermissionError(errno.EROFS, "the filesystem is read-only", path)


def _below_root(target: str, rules: PathRules, path: str) -> str:
    """A link's target, or what an absolute one says below the root. Raises FsViolationError."""
    if not target.startswith("/"):
        return target
    try:
        anchor, below = rules.parse_target(target)
    except FsViolationError:
        anchor, below = "", ""
    if anchor != rules.root:
        raise rules.violation(path, f"{OUTSIDE}: a link on the way leads to {target!r}")
    return below


def _check_replaceable(node: Node, there: Node, path: str) -> None:
    """What rename(2) refuses to put over what."""
    if isinstance(there, DirectoryNode):
        if not isinstance(node, DirectoryNode):
            raise _os_error(errno.EISDIR, path)
        if there.entries:
            raise _os_error(errno.ENOTEMPTY, path)
    elif isinstance(node, DirectoryNode):
        raise _os_error(errno.ENOTDIR, path)


def _os_error(code: int, path: str) -> OSError:
    return OSError(code, os.strerror(code), path)
