"""What goes to an engine to make an image, and what comes back while it does.

The Containerfile beside this module is the one description of the default image. A build runs it; an import
of a root filesystem, which has no build steps, takes over its configuration (USER, ENV, …) and packages.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tarfile
from collections import deque
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from ws.engine.base import Progress
from ws.errors import ImageBuildFailed

IMAGE_DIRECTORY = os.path.join(os.path.dirname(__file__), "image")
_CONFIGURES = ("ENV", "WORKDIR", "USER", "CMD")
_STEP = re.compile(r"STEP (\d+)/(\d+): *(.*)|Step (\d+)/(\d+) *: *(.*)")


def read_containerfile() -> str:
    with open(os.path.join(IMAGE_DIRECTORY, "Containerfile"), encoding="utf-8") as file:
        return file.read()


def read_packages() -> list[str]:
    """The Debian packages of the default image."""
    found = re.search(r'^ARG PACKAGES="(.*)"$', read_containerfile(), re.MULTILINE)
    assert found is not None
    return found[1].split()


def read_changes() -> list[str]:
    """The lines that configure the image rather than fill it; what an import is given as `changes`."""
    return [line for line in read_containerfile().splitlines() if line.split(" ")[0] in _CONFIGURES]


def pack_context(containerfile: str) -> bytes:
    """A build context that holds nothing but the Containerfile."""
    data = containerfile.encode()
    member = tarfile.TarInfo("Containerfile")
    member.size = len(data)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def follow_build(lines: Iterable[bytes], progress: Progress | None) -> None:
    """Report the steps of a build as they come. Raises ImageBuildFailed with the last of its output."""
    tail: deque[str] = deque(maxlen=12)
    for line in lines:
        if not line.strip():
            continue
        event = json.loads(line)
        if event.get("error"):
            said = "".join(tail).strip()
            raise ImageBuildFailed(f"{event['error'].strip()}\n{said}".strip())
        text = str(event.get("stream", ""))
        tail.append(text)
        step = _STEP.match(text)
        if step and progress:
            done, total, what = [group for group in step.groups() if group is not None]
            progress(what.split("\n")[0][:60], int(done), int(total))


class _Counted:
    """A file that reports how much of it has been read."""

    def __init__(self, file: BinaryIO, total: int, progress: Progress | None) -> None:
        self._file = file
        self._total = total
        self._progress = progress
        self._done = 0

    def __len__(self) -> int:
        return self._total

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(max(size, 1 << 20) if size > 0 else size)
        self._done += len(data)
        if self._progress:
            self._progress("import", self._done, self._total)
        return data


@contextlib.contextmanager
def read_counted(path: str, progress: Progress | None) -> Iterator[_Counted]:
    """Open a file for upload, with progress in bytes."""
    with open(path, "rb") as file:
        yield _Counted(file, os.fstat(file.fileno()).st_size, progress)


def stamp_of(path: str) -> tuple[int, ...] | None:
    """What tells a file that is replaced whole from its successors."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
