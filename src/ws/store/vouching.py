"""Which files of the store were found sound since the machine was started.

The bytes of a pack may rot, or be written over, after they were stored. A snapshot that relies on an object that is
stored already must not take a damaged copy for the object. To read every such object back would double the time of
a snapshot, so a whole pack is checked, by the checksum that it ends with, once in each boot.

    ws.checked    a line for each file that was checked: boot, name, inode, size, mtime, ctime, verdict

A file that was written to since has another ctime, so its line no longer counts. The file is a cache: it is not
synced, and what cannot be read of it is checked again. A pack that this process wrote counts without a line.

A check reads the pack at about 1 GB/s, so what one writer checks is bounded (`Checks.budget`): a pack that is larger
than what is left of it stays unchecked, and the objects in it that the writer relies on are compared one by one with
the bytes at hand. The collector, which has the time, checks every pack that it keeps.
"""

from __future__ import annotations

import contextlib
import hashlib
import os

from ws import durable
from ws.errors import StoreDamaged
from ws.layout import boot_id
from ws.store.plain import open_plain

QUICK_BYTES = 32 << 20  # that a snapshot checks: some 30 ms, once in a boot
THOROUGH_BYTES = 256 << 20  # that an import checks, which takes longer anyway
UNBOUNDED = 1 << 62

_LEDGER_BYTES = 256 << 10  # beyond that the ledger is written anew, with what is still there
_READ_BYTES = 1 << 20

Identity = tuple[int, int, int, int]


def identity(path: str) -> Identity:
    """What changes when a file is written to or replaced. Raises FileNotFoundError."""
    found = os.lstat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def is_whole(path: str) -> bool:
    """Whether a pack has the checksum that it ends with and that is its name. Raises FileNotFoundError."""
    promised = os.path.basename(path).removeprefix("pack-").removesuffix(".pack")
    try:
        fd = open_plain(path)
    except StoreDamaged:
        return False
    try:
        left = os.fstat(fd).st_size - 20
        digest = hashlib.sha1(usedforsecurity=False)
        while left > 0 and (data := os.read(fd, min(left, _READ_BYTES))):
            digest.update(data)
            left -= len(data)
        return left == 0 and os.read(fd, 21) == digest.digest() and digest.hexdigest() == promised
    except OSError:
        return False  # the disk cannot read it
    finally:
        os.close(fd)


class Ledger:
    """The verdicts of this boot, by file name; shared by all stores of a process that last."""

    def __init__(self, store_path: str) -> None:
        self._directory = os.path.join(store_path, "objects", "pack")
        self._path = os.path.join(store_path, "ws.checked")
        self._verdicts: dict[str, tuple[Identity, bool]] = {}
        self._read_at: Identity | None = None

    def verdict(self, name: str, found: Identity) -> bool | None:
        """Whether a file was found sound, or damaged; None when it was not checked as it is now."""
        known = self._verdicts.get(name)
        if known is None or known[0] != found:
            self._read()
            known = self._verdicts.get(name)
        return known[1] if known and known[0] == found else None

    def trust(self, name: str) -> None:
        """Know a pack as sound that this process has just written; nothing is written down."""
        with contextlib.suppress(FileNotFoundError):
            self._verdicts[name] = identity(os.path.join(self._directory, name)), True

    def note(self, name: str, found: Identity, *, sound: bool) -> None:
        """Write a verdict down. A ledger that cannot be written costs another check, and fails nothing."""
        self._verdicts[name] = found, sound
        with contextlib.suppress(OSError):
            try:
                size = os.lstat(self._path).st_size
            except FileNotFoundError:
                size = 0
            if size > _LEDGER_BYTES or (size and self._read_at is None):
                self._write_anew()
                return
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            fd = os.open(self._path, flags, 0o600)
            try:
                os.write(fd, self._line(name).encode())
            finally:
                os.close(fd)

    def _line(self, name: str) -> str:
        found, sound = self._verdicts[name]
        return f"{boot_id()} {name} {' '.join(map(str, found))} {'sound' if sound else 'damaged'}\n"

    def _write_anew(self) -> None:
        """Without lines of another boot, and of packs that are gone. A line of another process may be lost."""
        present = set(os.listdir(self._directory))
        lines = [self._line(name) for name in self._verdicts if name in present]
        durable.write_file(self._path, "".join(lines).encode(), sync=False)

    def _read(self) -> None:
        """Learn what other processes have checked since, if it is of this boot."""
        try:
            found = identity(self._path)
            if found == self._read_at:
                return
            fd = open_plain(self._path)
            try:
                text = os.read(fd, 4 * _LEDGER_BYTES).decode("ascii", "replace")
            finally:
                os.close(fd)
        except (OSError, StoreDamaged):
            return
        boot, of_this_boot = boot_id(), False
        for line in text.split("\n"):
            fields = line.split(" ")
            if len(fields) == 7 and fields[0] == boot and all(map(str.isdecimal, fields[2:6])):
                inode, size, mtime, ctime = map(int, fields[2:6])
                self._verdicts[fields[1]] = (inode, size, mtime, ctime), fields[6] == "sound"
                of_this_boot = True
        self._read_at = found if of_this_boot else None


class Checks:
    """What one store has made of its packs since it last looked which there are."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._verdicts: dict[str, bool | None] = {}
        self.budget = 0

    def verdict(self, name: str) -> bool | None:
        """Whether a pack, by its path without an ending, is sound; None: too large for what is left of the budget.

        Raises FileNotFoundError when it is gone.
        """
        if name in self._verdicts:
            return self._verdicts[name]
        path = name + ".pack"
        found, short = identity(path), os.path.basename(path)
        sound = self._ledger.verdict(short, found)
        if sound is None and found[1] <= self.budget:
            self.budget -= found[1]
            sound = is_whole(path)
            self._ledger.note(short, found, sound=sound)
        self._verdicts[name] = sound
        return sound

    def forget(self) -> None:
        """Look at each pack again when it is next asked for."""
        self._verdicts.clear()
