"""The log of a recorded disk, the cuts that it allows, and filesystems on loop devices."""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import subprocess
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from power.recorder import FLUSH, HEAD, NAME

SECTOR = 512  # what a device writes whole
# Images are flushed again and again by the filesystems in them; in memory that costs nothing.
IMAGES = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass(frozen=True)
class Filesystem:
    """A kind of filesystem: how it is made, and what a boot does before it is mounted."""

    size_bytes: int
    make: tuple[str, ...]
    check: tuple[str, ...] = ()  # those with a journal replay it when they are mounted
    options: str = "rw"


_EXT4 = ("mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0")
FILESYSTEMS = {
    "ext4": Filesystem(64 << 20, _EXT4),
    "ext4-no-journal": Filesystem(64 << 20, (*_EXT4, "-O", "^has_journal"), check=("e2fsck", "-f", "-y")),
    "xfs": Filesystem(300 << 20, ("mkfs.xfs", "-q", "-f", "-K")),
}
TOOLS = {"losetup", "mount", "mkfs.ext4", "e2fsck", "mkfs.xfs", "fusermount3", "unshare"}


@dataclass(frozen=True)
class Entry:
    """A write, by where its bytes are in the log, or a flush."""

    kind: bytes
    offset: int
    length: int
    at: int  # of its bytes in the log
    end: int  # of the entry in the log


@dataclass(frozen=True)
class Cut:
    """The power goes before entry `position`: all up to the last flush is kept, of what follows what `seed` says."""

    position: int
    flushed: int  # how many entries the last flush covers
    kept: str  # "none", "all" or "some" of the writes after it
    seed: int = 0

    def __str__(self) -> str:
        return f"entry {self.position}, flushed {self.flushed}, kept {self.kept}, seed {self.seed}"


class Log:
    """What a filesystem sent to its disk, in order."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.entries: list[Entry] = []
        at, size = 0, os.fstat(self._fd).st_size
        while at < size:
            kind, offset, length = HEAD.unpack(os.pread(self._fd, HEAD.size, at))
            at += HEAD.size + length
            self.entries.append(Entry(kind, offset, length, at - length, at))
        self._ends = [entry.end for entry in self.entries]

    def position(self, size_bytes: int) -> int:
        """How many entries there were when the log had that size."""
        return bisect_right(self._ends, size_bytes)

    def flushes(self, start: int) -> list[int]:
        return [i for i, entry in enumerate(self.entries) if i >= start and entry.kind == FLUSH]

    def cut_at(self, position: int) -> Cut:
        """The cut at an instant that loses all that was not flushed then."""
        flushed = next((i + 1 for i in range(position - 1, -1, -1) if self.entries[i].kind == FLUSH), 0)
        return Cut(position, flushed, "none")

    def cuts(self, start: int, *, random_cuts: int, seed: int) -> Iterator[Cut]:
        """At every flush after `start`: right after it, and before the next one with some of what came between.

        The last cut of an interval comes just before the next flush: all that was reported by then was reported without
        that flush, and is judged so.
        """
        flushes = [*self.flushes(start), len(self.entries)]
        chance = random.Random(seed)
        for flush, following in itertools.pairwise(flushes):
            yield Cut(following, flush + 1, "none")
            if following - flush > 1:
                yield Cut(following, flush + 1, "all")
                for _ in range(random_cuts):
                    position = chance.randint(flush + 2, following)
                    yield Cut(position, flush + 1, "some", chance.getrandbits(32))

    def read(self, entry: Entry) -> bytes:
        return os.pread(self._fd, entry.length, entry.at)

    def apply(self, image: int, start: int, stop: int) -> None:
        """Write entries to an image, whole."""
        for entry in self.entries[start:stop]:
            if entry.kind != FLUSH:
                os.pwrite(image, self.read(entry), entry.offset)

    def apply_cut(self, image: int, cut: Cut) -> None:
        """What of the writes after the last flush reached the disk: whole writes, and sectors of some."""
        if cut.kept == "none":
            return
        if cut.kept == "all":
            self.apply(image, cut.flushed, cut.position)
            return
        chance = random.Random(cut.seed)
        odds = chance.choice((0.2, 0.5, 0.8))
        for entry in self.entries[cut.flushed : cut.position]:
            if entry.kind == FLUSH or chance.random() > odds:
                continue
            data = self.read(entry)
            torn = chance.random() < 0.3
            for at in range(0, entry.length, SECTOR) if torn else ():
                if chance.random() < 0.5:
                    os.pwrite(image, data[at : at + SECTOR], entry.offset + at)
            if not torn:
                os.pwrite(image, data, entry.offset)

    def close(self) -> None:
        os.close(self._fd)


def spread(cuts: Sequence[Cut], about: int) -> list[Cut]:
    """Some of the cuts, evenly; all when `about` is negative."""
    if about < 0 or about >= len(cuts):
        return list(cuts)
    return [cuts[round(i * (len(cuts) - 1) / max(about - 1, 1))] for i in range(about)]


def run(*words: str, allowed: Sequence[int] = (0,)) -> str:
    done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False, timeout=120)
    assert done.returncode in allowed, f"{' '.join(words)}: exit {done.returncode}: {done.stdout}{done.stderr}"
    return done.stdout.strip()


@contextlib.contextmanager
def loop_device(path: str) -> Iterator[str]:
    """A block device over a file. It is freed with its last user, also when this process is killed."""
    device = run("losetup", "--find", "--show", path)
    try:
        yield device
    finally:
        run("losetup", "--detach", device, allowed=(0, 1))


@contextlib.contextmanager
def mounted(path: str, kind: str, at: str) -> Iterator[None]:
    """The filesystem of an image, as the next boot finds it: checked or replayed, then mounted."""
    with loop_device(path) as device:
        if check := FILESYSTEMS[kind].check:
            run(*check, device, allowed=(0, 1, 2))  # 1 and 2: errors were corrected
        run("mount", "-t", kind.partition("-")[0], "-o", FILESYSTEMS[kind].options, device, at)
    try:
        yield
    finally:
        run("umount", "--lazy", at)  # a failed check may have left a process there


@contextlib.contextmanager
def recorded_disk(log: str, size_bytes: int) -> Iterator[str]:
    """A disk that logs all that is written to it: the path of its file."""
    with tempfile.TemporaryDirectory(prefix="ws-power-", dir=IMAGES) as top:
        backing, mountpoint = os.path.join(top, "backing"), os.path.join(top, "fuse")
        os.mkdir(mountpoint)
        with open(backing, "wb") as file:
            file.truncate(size_bytes)
        with subprocess.Popen([sys.executable, "-m", "power.recorder", backing, log, mountpoint]) as server:
            try:
                path = os.path.join(mountpoint, NAME)
                deadline = time.monotonic() + 20
                while not os.path.exists(path):
                    assert server.poll() is None, "the FUSE server ended"
                    assert time.monotonic() < deadline, "the FUSE server does not answer"
                    time.sleep(0.01)
                yield path
            finally:
                run("umount", mountpoint, allowed=(0, 1, 32))
                try:
                    server.wait(20)
                except subprocess.TimeoutExpired:
                    server.kill()
