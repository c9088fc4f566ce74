"""The law: streams take the memory of a chunk, whatever the size of the file.

A gigabyte goes through each way of streaming in a process of its own, whose peak stays under 64 MB.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = str(Path(__file__).parents[2] / "src")
GIGABYTE = 1 << 30

# ru_maxrss of a new process begins with what its parent had before exec; VmHWM is its own.
_PEAK = """
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
"""

_MEASURED = """
import sys
from ws.fs.host import HostFilesystem
from ws.fs.memory import MemoryFilesystem
from ws.fs.protocol import Limits
from ws.tools.context import ToolContext
from ws.tools.reading import read_file
from ws.tools.trash import Backups, Retention
fs = HostFilesystem(sys.argv[1], durable=False)
{body}
assert peak() < 64 * 1024, f"{{peak()}} KB"
"""

BODIES = {
    "read in chunks": "with fs.open_read('big') as r: assert sum(map(len, r)) == 1 << 30",
    "read and write": ("with fs.open_read('big') as r, fs.open_write('copy') as w: assert w.write_all(r) == 1 << 30"),
    "append": (
        "with fs.open_write('big', 'append') as w: w.write(b'x')\nassert fs.stat('big').size_bytes == (1 << 30) + 1"
    ),
    "read a part": "assert fs.read_bytes('big', (1 << 30) - 5) == bytes(5)",
    "lines of text": "with fs.open_text('lines') as t: assert sum(1 for _ in t) == 100_000",
    "refuse a line": (
        "small = HostFilesystem(sys.argv[1], limits=Limits(max_content_bytes=1 << 20))\n"
        "try: small.read('big', limit=1)\n"
        "except ValueError: assert small.read('big', offset=1, limit=1) == ''\n"
        "else: raise AssertionError"
    ),
    "grep in one line": "assert fs.grep('needle', 'big') == ()",
    "keep a backup": (
        "kept = HostFilesystem(sys.argv[1] + '/kept', durable=False)\n"
        "Backups(fs, kept, retention=Retention(max_bytes=2 << 30)).save('big')"
    ),
    "read_file": ("read_file(ToolContext(fs, Backups(fs, MemoryFilesystem())), path='lines', view_range=[90_000, -1])"),
}


@pytest.mark.parametrize("name", BODIES)
def test_a_gigabyte_goes_through_in_64_mb(tmp_path: Path, name: str) -> None:
    with open(tmp_path / "big", "wb") as file:
        file.truncate(GIGABYTE)
    (tmp_path / "kept").mkdir()
    (tmp_path / "lines").write_text(("x" * 999 + "\n") * 100_000)
    subprocess.run(
        [sys.executable, "-c", _PEAK + _MEASURED.format(body=BODIES[name]), str(tmp_path)],
        check=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    for left in ("big", "copy", "lines"):
        (tmp_path / left).unlink(missing_ok=True)


def test_memory_holds_a_file_once_and_readers_share_it(tmp_path: Path) -> None:
    script = """
from ws.fs.memory import MemoryFilesystem
fs = MemoryFilesystem()
with fs.open_write("f") as w:
    for _ in range(1024): w.write(bytes(65536))
written = peak()
readers = [fs.open_read("f") for _ in range(20)]
snapshots = [fs.snapshot() for _ in range(20)]
assert [sum(map(len, r)) for r in readers] == [64 << 20] * 20
grown = peak() - written
assert grown < 8 * 1024, f"{grown} KB"
"""
    subprocess.run([sys.executable, "-c", _PEAK + script], check=True, env={**os.environ, "PYTHONPATH": SOURCE})
