"""What a bundle may cost the machine that imports it.

A bundle of 9 KB can describe 10^12 directories, because its trees may share their subtrees; 16 MB can inflate to
gigabytes. So everything is counted before it is built: objects and bytes as the pack announces them, paths and bytes
of each snapshot from the graph of its trees, where a shared subtree is counted as often as it would be written but
read once. Memory follows from the same limits: one directory has at most a quarter of the paths.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, fields

from ws.errors import InvalidRequest, LimitExceeded

MAX_OBJECT_BYTES = 64 << 20  # a directory of a million files has a tree of some 40 MB
MAX_COMMIT_BYTES = 4 << 20  # of JSON, which takes thirty times its size in memory
MAX_DEPTH = 20_000  # directories within one another
MEAN_PATH_BYTES = 256


@dataclass(frozen=True, slots=True)
class ImportLimits:
    """The budget of one import. `paths` and `bytes` hold for each snapshot, `bytes` also for the unpacked objects."""

    objects: int = 1_000_000
    paths: int = 1_000_000
    bytes: int = 16 << 30
    time_s: float = 600.0

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not value > 0:  # NaN too
                raise InvalidRequest(f"the limit {field.name!r} is {value}", hint="give a number above zero")

    @property
    def directory_entries(self) -> int:
        """How many entries one directory, or one tree of chunks, may have."""
        return max(self.paths // 4, 1024)

    @property
    def path_bytes(self) -> int:
        """How long all paths of a snapshot may be together: a walk keeps many of them in memory."""
        return self.paths * MEAN_PATH_BYTES


class Budget:
    """Counts one import against its limits; every method raises LimitExceeded."""

    def __init__(self, limits: ImportLimits) -> None:
        self.limits = limits
        self._deadline = time.monotonic() + limits.time_s
        self._bytes = 0
        self._directories = 0

    def check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise _exceeded(f"the import takes longer than {self.limits.time_s:g} s", "--max-time")

    def count_objects(self, announced: int) -> None:
        """All objects at once, as the pack's header announces them."""
        if announced > self.limits.objects:
            raise _exceeded(
                f"the bundle holds {announced:,} objects; the limit is {self.limits.objects:,}", "--max-objects"
            )

    def count_bytes(self, size: int) -> None:
        """One more object, before it is unpacked."""
        self._bytes += size
        if self._bytes > self.limits.bytes:
            raise _exceeded(f"the bundle unpacks to more than {self.limits.bytes:,} bytes", "--max-bytes")

    def count_directory(self) -> None:
        """One more distinct directory, of all snapshots."""
        self._directories += 1
        if self._directories > self.limits.objects:
            raise _exceeded(
                f"the bundle describes more than {self.limits.objects:,} distinct directories", "--max-objects"
            )
        self.check_time()

    def check_entries(self, entries: int) -> None:
        if entries > self.limits.directory_entries:
            raise _exceeded(
                f"a directory of the bundle has more than {self.limits.directory_entries:,} entries", "--max-paths"
            )

    def check_paths(self, paths: int) -> None:
        if paths > self.limits.paths:
            raise _exceeded(f"a snapshot has more than {self.limits.paths:,} paths", "--max-paths")

    def check_path_bytes(self, size: int) -> None:
        if size > self.limits.path_bytes:
            raise _exceeded(f"the paths of a snapshot have more than {self.limits.path_bytes:,} bytes", "--max-paths")

    def check_tree_bytes(self, size: int) -> None:
        if size > self.limits.bytes:
            raise _exceeded(f"a snapshot has more than {self.limits.bytes:,} bytes", "--max-bytes")

    def check_depth(self, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise LimitExceeded(f"a snapshot has directories more than {MAX_DEPTH:,} levels deep")


def _exceeded(message: str, option: str) -> LimitExceeded:
    return LimitExceeded(message, hint=f"if you trust the bundle, raise the limit with {option}")
