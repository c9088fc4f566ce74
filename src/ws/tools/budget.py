"""How much backups and trash may take: bytes and entries, over all paths of a workspace. The oldest go first.

What there is is counted once from the store, then kept in step; before anything is removed it is counted again, because
other processes and other sets of rules write to the same store.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

from ws.errors import FsViolationError, InvalidRequest, LimitExceeded
from ws.fs.protocol import Filesystem
from ws.tools.record_names import tree_of


@runtime_checkable
class Measurable(Protocol):
    """A filesystem that counts a tree itself, also what lies deeper than a path may name."""

    def measure(self, path: str, most_bytes: int, most_entries: int) -> tuple[int, int]: ...


class Size(NamedTuple):
    """Bytes, and entries: files, links and directories."""

    size_bytes: int = 0
    entries: int = 0


UNKNOWN = Size(1 << 62, 1 << 62)
"""Of a tree that cannot be counted: it has directories that may not be read."""


def size_of(filesystem: Filesystem, path: str, most: Size = UNKNOWN) -> Size:
    """What a path and all below it take; links are not followed. Stops counting beyond `most`.

    Raises FsViolationError for a path that leads out: a directory above it may have become a link since it was checked.
    """
    if isinstance(filesystem, Measurable) and path != ".":
        try:
            return Size(*filesystem.measure(path, *most))
        except (FileNotFoundError, NotADirectoryError):
            return Size()
        except FsViolationError:
            raise
        except (OSError, ValueError, InvalidRequest):
            return UNKNOWN
    size_bytes = entries = 0
    pending = [path]
    while pending:
        if size_bytes > most.size_bytes or entries > most.entries:
            break
        place = pending.pop()
        try:
            status = filesystem.stat(place, follow_symlinks=False)
            entries += 1
            if status.is_directory and not status.is_symlink:
                pending += [entry.path for entry in filesystem.list(place)]
            elif status.is_file:
                size_bytes += status.size_bytes
        except (FileNotFoundError, NotADirectoryError):
            continue  # gone meanwhile
        except FsViolationError:
            raise
        except (OSError, ValueError, InvalidRequest):
            return UNKNOWN
    return Size(size_bytes, entries)


class Budget:
    """The budget of one store of records."""

    def __init__(
        self, store: Filesystem, most: Size, *, ids: Callable[[], list[str]], forget: Callable[[str], None]
    ) -> None:
        """`ids` lists the records, the oldest first; `forget` removes one."""
        self._store, self._most = store, most
        self._ids, self._forget = ids, forget
        self._used: Size | None = None
        self.removed = 0  # records that went since the last look, for the result of the call

    def make_room(self, path: str, needed: Size) -> None:
        """Remove the oldest records until one of this size fits. Raises LimitExceeded when it never would."""
        if needed.size_bytes > self._most.size_bytes or needed.entries > self._most.entries:
            limits = f"the most are {self._most.size_bytes:,} bytes and {self._most.entries:,} entries"
            raise LimitExceeded(
                f"{path!r} cannot be kept: not all of it can be read; {limits}"
                if needed.size_bytes >= UNKNOWN.size_bytes
                else f"{path!r} is too large to be kept; {limits}",
                hint="delete it with permanent=true, after a snapshot of the workspace if you may want it back",
            )
        if self._used is None or not self._fits(needed):
            self._evict(needed)
        assert self._used is not None  # _evict counted
        self._used = Size(self._used.size_bytes + needed.size_bytes, self._used.entries + needed.entries)

    def _fits(self, needed: Size) -> bool:
        assert self._used is not None
        return (
            self._used.size_bytes + needed.size_bytes <= self._most.size_bytes
            and self._used.entries + needed.entries <= self._most.entries
        )

    def _evict(self, needed: Size) -> None:
        sizes = {record: self._size(record) for record in self._ids()}
        self._used = Size(sum(size.size_bytes for size in sizes.values()), sum(size.entries for size in sizes.values()))
        for record, size in sizes.items():
            if self._fits(needed):
                return
            self._forget(record)
            self.removed += 1
            self._used = Size(self._used.size_bytes - size.size_bytes, self._used.entries - size.entries)

    def _size(self, record: str) -> Size:
        try:
            parts = [size_of(self._store, place, self._most) for place in (record, tree_of(record))]
        except FsViolationError:  # a command in the workspace put a link into the store
            return UNKNOWN
        return Size(sum(part.size_bytes for part in parts), sum(part.entries for part in parts))

    def take_removed(self) -> int:
        removed, self.removed = self.removed, 0
        return removed
