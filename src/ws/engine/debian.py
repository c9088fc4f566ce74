"""A Debian root filesystem from Debian's packages alone, by mmdebstrap; no registry, root not needed.

The mirror is the one this machine is configured with, if it is a Debian machine. What is left out (manuals,
translations) is a fifth of the size.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence

from ws.engine.base import Progress
from ws.errors import ImageBuildFailed

SUITE = "bookworm"
_MIRROR = "http://deb.debian.org/debian"
_SECURITY = "http://deb.debian.org/debian-security"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_LEFT_OUT = ("doc", "man", "info", "locale")
_TIMEOUT_S = 1200
# apt and dpkg say these once for each package; together they are the whole of the work.
_COUNTED = re.compile(r"Get:\d+ http|Preparing to unpack |Setting up ")
_ANNOUNCED = re.compile(r"\d+ upgraded, (\d+) newly installed")


def read_sources(suite: str = SUITE) -> list[str]:
    """apt source lines for a suite, from this machine's own mirrors where they carry Debian."""
    mirror, security = _MIRROR, _SECURITY
    for uri in _configured():
        if uri.endswith("/debian"):
            mirror = uri
        elif uri.endswith("/debian-security"):
            security = uri
    signed = f"[signed-by={_KEYRING}] " if os.path.exists(_KEYRING) else ""
    return [f"deb {signed}{mirror} {suite} main", f"deb {signed}{security} {suite}-security main"]


def _configured(root: str = "/etc/apt") -> Iterator[str]:
    """The URIs in sources.list, *.list and *.sources, in no special order, without a final slash."""
    paths = [
        os.path.join(root, "sources.list"),
        *sorted(glob.glob(os.path.join(root, "sources.list.d", "*"))),
    ]
    for path in paths:
        try:
            with open(path, encoding="utf-8") as file:
                text = file.read()
        except OSError:
            continue
        for line in text.splitlines():
            if line.startswith(("deb ", "URIs:")):
                yield from (word.rstrip("/") for word in line.split() if re.match(r"https?://", word))


def build_rootfs(
    output: str,
    *,
    packages: Sequence[str],
    sources: Sequence[str],
    suite: str = SUITE,
    variant: str = "essential",
    customize: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Write the tar of a root filesystem. Raises ImageBuildFailed with the end of mmdebstrap's output."""
    binary = shutil.which("mmdebstrap")
    if binary is None:
        raise ImageBuildFailed("mmdebstrap is not installed", hint="apt-get install mmdebstrap")
    argv = [binary, "--verbose", f"--variant={variant}", f"--include={','.join(packages)}", "--format=tar"]
    argv.append('--aptopt=Acquire::Languages "none"')
    argv += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _LEFT_OUT]
    if customize:
        argv.append(f'--customize-hook=sh "{customize}" "$1"')
    argv += [suite, output, *sources]
    # Its own locale and no questions: the output is read, and nobody is there to answer.
    env = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    tail: deque[str] = deque(maxlen=8)
    with subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as child:
        try:
            assert child.stdout is not None
            _follow(child.stdout, tail, progress)
            status = child.wait(_TIMEOUT_S)
        except BaseException:
            child.terminate()
            raise
    if status != 0:
        said = "".join(tail).strip()
        raise ImageBuildFailed(
            f"mmdebstrap failed: {said}", hint="is the Debian mirror in /etc/apt reachable from here?"
        )


def _follow(lines: Iterator[str], tail: deque[str], progress: Progress | None) -> None:
    done = total = 0
    phase = "debian packages"
    for line in lines:
        tail.append(line)
        announced = _ANNOUNCED.search(line)
        if announced:
            total += 3 * int(announced[1])
        elif line.startswith("I: "):
            phase = line[3:].strip().rstrip(".")
        elif not _COUNTED.match(line):
            continue
        else:
            done += 1
        if progress:
            progress(phase, done, max(total, done))
