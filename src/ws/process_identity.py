"""What names a process for ever, and a boot of the machine: read from /proc, on every call."""

from __future__ import annotations

import os


def process_start(pid: int) -> int | None:
    """When a process began, in clock ticks since boot: with the pid it names one process for ever. None: gone.

    Not knowing is not being gone: whatever else the kernel says is raised.
    """
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)  # every call asks: no layers of `open`
        try:
            # The command's name is in parentheses and may hold anything, so count from the last one.
            fields = os.read(fd, 4096).rpartition(b")")[2].split()
        finally:
            os.close(fd)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


_boot_id = ""


def boot_id() -> str:
    """What tells this boot of the machine from all others; no process sees two of them."""
    global _boot_id
    if not _boot_id:
        _boot_id = _read_boot_id()
    return _boot_id


def _read_boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
