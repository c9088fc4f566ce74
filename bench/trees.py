"""Real trees to measure on: files that programs shipped, each content once, not generated noise."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

LARGEST = 1 << 20


def _candidates() -> Iterator[Path]:
    """Installed Pythons first, then what any Debian has."""
    prefix = Path(sys.base_prefix)
    if prefix.parent.name == "versions":  # pyenv keeps several beside each other
        yield from sorted(path for path in prefix.parent.iterdir() if path.is_dir() and not path.is_symlink())
    yield prefix / "lib"
    for place in ("/usr/lib/python3", "/usr/lib/node_modules", "/usr/share", "/usr/include", "/usr/lib"):
        yield Path(place)


def make_real_tree(destination: Path, files: int) -> int:
    """Copy real files until there are `files` of them; returns the bytes. Raises when the machine has too few."""
    count = size = 0
    for number, top in enumerate(_candidates()):
        for directory, _, names in os.walk(top):
            inside = destination / f"{number:02}-{top.name}" / os.path.relpath(directory, top)
            made = False
            for name in names:
                source = os.path.join(directory, name)
                if os.path.islink(source) or not os.path.isfile(source) or os.path.getsize(source) > LARGEST:
                    continue
                if not made:
                    inside.mkdir(parents=True, exist_ok=True)
                    made = True
                shutil.copyfile(source, inside / name)
                count += 1
                size += os.path.getsize(source)
                if count >= files:
                    return size
    raise RuntimeError(f"this machine has only {count} files to copy, {files} are wanted")
