"""A Debian root filesystem from Debian's packages alone, by mmdebstrap; no registry needed.

mmdebstrap runs the host's own apt, told by a configuration file under tmp/ of the new root not to use the host's
directories. When that file is missing, apt acts on the host. So mmdebstrap runs with a host that is read-only
(`read_only_host`), whatever a script does to the new root.

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
from ws.engine.read_only_host import WRITABLE, start_with_read_only_host
from ws.errors import ImageBuildFailed

SUITE = "bookworm"
_MIRROR = "http://deb.debian.org/debian"
_SECURITY = "http://deb.debian.org/debian-security"
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_LEFT_OUT = ("doc", "man", "info", "locale")
_TIMEOUT_S = 1200
_OUTPUT = f"{WRITABLE}/rootfs.tar"
_HINT_MIRROR = "is the Debian mirror in /etc/apt reachable from here?"
_UNREACHABLE = re.compile(
    r"Failed to fetch|Could not (resolve|connect)|Temporary failure|Unable to (connect|locate)|timed out|no address"
)
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
    scratch: str,
    *,
    packages: Sequence[str],
    sources: Sequence[str],
    suite: str = SUITE,
    variant: str = "essential",
    customize: str | None = None,
    progress: Progress | None = None,
) -> str:
    """Build a root filesystem in the empty directory `scratch`; returns the path of its tar there.

    `customize` is a shell script, by its text: mmdebstrap runs it with the root of the new system as $1. Neither it nor
    mmdebstrap can write outside of `scratch`. Raises ImageBuildFailed with the end of mmdebstrap's output.
    """
    binary = shutil.which("mmdebstrap")
    if binary is None:
        raise ImageBuildFailed("mmdebstrap is not installed", hint="apt-get install mmdebstrap")
    if os.geteuid() != 0:
        raise ImageBuildFailed(
            "building a root filesystem takes root, at least in a user namespace",
            hint="`ws image build` enters the one of rootless podman; `podman unshare` does so for other programs",
        )
    # mode=root: in a user namespace too, where mmdebstrap finds out by itself what it may mount and make.
    argv = [binary, "--verbose", "--mode=root", f"--variant={variant}", f"--include={','.join(packages)}"]
    argv += ["--format=tar", '--aptopt=Acquire::Languages "none"']
    argv += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in _LEFT_OUT]
    if customize:
        argv.append(f"--customize-hook={customize}")
    argv += [suite, _OUTPUT, *sources]
    os.chmod(scratch, 0o1777)  # it is /tmp for mmdebstrap, and apt downloads as a user of its own
    tail: deque[str] = deque(maxlen=8)
    with start_with_read_only_host(
        argv,
        writable=scratch,
        env=_environment(),
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
        hint = _HINT_MIRROR if _UNREACHABLE.search(said) else "the message above is mmdebstrap's own"
        raise ImageBuildFailed(f"mmdebstrap failed: {said}", hint=hint)
    return os.path.join(scratch, os.path.relpath(_OUTPUT, WRITABLE))


def _environment() -> dict[str, str]:
    """What mmdebstrap may know of the caller: where programs are, and how the mirror is reached."""
    kept = {name: value for name, value in os.environ.items() if name == "PATH" or name.lower().endswith("_proxy")}
    # The locale: the output is parsed. The frontend: there is no terminal to ask questions on.
    return {**kept, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "HOME": WRITABLE, "TMPDIR": WRITABLE}


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
