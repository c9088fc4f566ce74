"""Copying a file or a tree from one filesystem to another, as `cp -r` would: planned as a value, then carried out.

The plan says what goes where and how much it is; nothing is written before it is whole, and what cannot be (a file over
a directory, a directory over a file) is refused in it. Links inside a tree are copied as links and never followed;
sockets, pipes and devices are named and left out. Files keep their permissions, without setuid and setgid, and their
modification times. Each file is whole or not there; a copy that fails halfway leaves what it has done.

Names come from a filesystem that may be hostile. They are joined to paths of the other side only after `check_segment`,
and that side is itself confined to its root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from ws.errors import InvalidRequest, LimitExceeded, ProtocolError
from ws.fs.protocol import FileStat, Filesystem

Progress = Callable[[str, int, int], None]  # phase, bytes done, bytes in all

PERMISSIONS = 0o777
MAX_STEPS = 5_000_000
_MAX_DEPTH = 4_000


class CopyTarget(Filesystem, Protocol):
    """A filesystem that takes a file with all that is copied of it."""

    def put(self, path: str, chunks: Iterable[bytes], *, permissions: int, modified_ns: int) -> None: ...


@dataclass(frozen=True, slots=True)
class CopyStep:
    kind: Literal["file", "directory", "link"]
    source: str
    target: str
    size_bytes: int
    permissions: int
    modified_ns: int
    link: str = ""
    merges: bool = False  # a directory that is there already, and stays as it is but for what is added


@dataclass(frozen=True, slots=True)
class CopyPlan:
    """What a copy would do, in order; directories come before what is in them."""

    target: str
    steps: tuple[CopyStep, ...]
    left_out: tuple[str, ...] = field(default=())  # neither file, directory nor link

    @property
    def size_bytes(self) -> int:
        return sum(step.size_bytes for step in self.steps)

    @property
    def files(self) -> int:
        return sum(step.kind != "directory" for step in self.steps)


def plan_copy(source: Filesystem, path: str, target: Filesystem, destination: str) -> CopyPlan:
    """Plan to copy `path` to `destination`; into it, under its own name, when that is a directory.

    A path that ends in `/.` stands for what is in the directory, not for the directory itself.
    Raises FileNotFoundError, FileExistsError, IsADirectoryError, NotADirectoryError, InvalidRequest.
    """
    contents = path == "." or path.endswith("/.")
    status = source.stat(path)
    old = _present(target, destination)
    place = destination
    if old is not None and old.is_directory and not contents:
        place = _join(destination, check_segment(_name_of(path, source)))
        old = _present(target, place)
    elif destination.endswith("/") and old is None and not status.is_directory:
        raise NotADirectoryError(20, "Not a directory", destination)
    check_replaceable(status, old, place)
    if not status.is_file and not status.is_directory:
        raise InvalidRequest(f"{path!r} is neither a file nor a directory", hint="pipes, sockets and devices stay")
    steps: list[CopyStep] = []
    left_out: list[str] = []
    for found, there in _walk(source, status, place):
        standing = None if old is None else _present(target, there)
        check_replaceable(found, standing, there)
        step = _step(found, there, merges=standing is not None)
        if step is None:
            left_out.append(found.path)
            continue
        steps.append(step)
        if len(steps) > MAX_STEPS:
            raise LimitExceeded(f"{path!r} holds more than {MAX_STEPS:,} files", hint="copy parts of it")
    return CopyPlan(place, tuple(steps), tuple(left_out))


def _walk(source: Filesystem, status: FileStat, place: str) -> Iterator[tuple[FileStat, str]]:
    pending = [(status, place)]
    while pending:
        found, there = pending.pop()
        yield found, there
        if there.count("/") > _MAX_DEPTH:
            raise LimitExceeded(f"{there[:80]!r}… is nested too deeply")
        if found.is_directory and not found.is_symlink:
            pending += [
                (entry, _join(there, check_segment(entry.path.rpartition("/")[2]))) for entry in source.scan(found.path)
            ]


def _step(found: FileStat, there: str, *, merges: bool) -> CopyStep | None:
    modified_ns = round(found.modified_at.timestamp() * 1e6) * 1000
    permissions = found.mode & PERMISSIONS
    if found.is_symlink and found.target is not None:
        return CopyStep("link", found.path, there, 0, permissions, modified_ns, found.target)
    if found.is_directory:
        return CopyStep("directory", found.path, there, 0, permissions, modified_ns, merges=merges)
    if found.is_file:
        return CopyStep("file", found.path, there, found.size_bytes, permissions, modified_ns)
    return None


def check_replaceable(new: FileStat, old: FileStat | None, place: str) -> None:
    """Raises when what stands at a place is of another kind than what is to come there."""
    if old is None:
        return
    if new.is_directory and not new.is_symlink:
        if not old.is_directory or old.is_symlink:
            raise NotADirectoryError(20, "a directory cannot take the place of what is no directory", place)
    elif old.is_directory and not old.is_symlink:
        raise IsADirectoryError(21, "a file cannot take the place of a directory", place)


def check_segment(name: str) -> str:
    """A name that may be joined to a path. Raises ProtocolError."""
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise ProtocolError(f"{name!r} is no name of a file")
    return name


def carry_out(plan: CopyPlan, source: Filesystem, target: CopyTarget, *, progress: Progress | None = None) -> None:
    """Do what a plan says. Raises what reading and writing raise.

    Commit point of each file: the rename to its name.
    """
    total, done = plan.size_bytes, 0

    def counted(chunks: Iterator[bytes]) -> Iterator[bytes]:
        nonlocal done
        for chunk in chunks:
            yield chunk
            done += len(chunk)
            if progress is not None:
                progress("copying", done, total)

    for step in plan.steps:
        if step.kind == "directory":
            if not step.merges:
                target.mkdir(step.target, parents=False)
                target.set_mode(step.target, step.permissions | 0o700)  # until its contents are there
        elif step.kind == "link":
            _replace_link(target, step)
        else:
            with source.open_read(step.source) as reader:
                target.put(
                    step.target, counted(iter(reader)), permissions=step.permissions, modified_ns=step.modified_ns
                )
    for step in reversed(plan.steps):
        if step.kind == "directory" and not step.merges:
            target.set_mode(step.target, step.permissions)
            target.set_modified(step.target, step.modified_ns)


def _replace_link(target: Filesystem, step: CopyStep) -> None:
    try:
        target.stat(step.target, follow_symlinks=False)
        target.delete(step.target)
    except FileNotFoundError:
        pass
    target.make_link(step.target, step.link)
    target.set_modified(step.target, step.modified_ns)


def _present(filesystem: Filesystem, path: str) -> FileStat | None:
    """What a path leads to: for the place itself links are followed, as cp does; a link to nowhere is nothing."""
    try:
        return filesystem.stat(path)
    except FileNotFoundError:
        return None


def _name_of(path: str, filesystem: Filesystem) -> str:
    return path.rstrip("/").rpartition("/")[2] or filesystem.root.rstrip("/").rpartition("/")[2]


def _join(directory: str, name: str) -> str:
    return name if directory in ("", ".") else f"{directory.rstrip('/')}/{name}"
