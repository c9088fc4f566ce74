"""An ordinary user with subordinate ids, lent for a test: no account of this machine is made or changed.

In a mount namespace of its own `/etc/passwd`, `/etc/subuid` and their like are covered by copies that know one user
more, and interpreter, packages and sources are bound to where that user can read them; in a pid namespace of its own
all that the user starts ends with it.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ws
from engine_images import pack_busybox
from ws.removing import remove_tree

ID = 54321
SUBORDINATE = "1000000:65536"
IMAGE = "localhost/guest:latest"
# Who ignores SIGCHLD has the children that are left to him reaped by the kernel.
WAITING = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)
while True:
    signal.pause()
"""
TOOLS = ("podman", "newuidmap", "newgidmap", "unshare", "nsenter", "setpriv", "busybox")


class NoGuest(Exception):
    """Why no ordinary user can be had here."""


@dataclass(frozen=True)
class Guest:
    """The user; `run` is a command of theirs in their home."""

    top: Path
    first: int  # the first process of the namespaces

    @property
    def home(self) -> Path:
        return self.top / "home"

    def run(self, *argv: str, deadline_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        enter = ["nsenter", "-t", str(self.first), "-m", "-p"]
        become = ["setpriv", "--reuid", str(ID), "--regid", str(ID), "--clear-groups", "--inh-caps=-all"]
        variables = {
            "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.top / "run"),
            "PYTHONPATH": f"{self.top / 'src'}:{self.top / 'packages'}",
        }
        clean = ["env", "-i", "-C", str(self.home), *(f"{key}={value}" for key, value in variables.items())]
        return subprocess.run(
            [*enter, *become, *clean, *argv], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=deadline_s, errors="surrogateescape",
        )  # fmt: skip

    def ws(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run(self.python, "-P", "-m", "ws", *words)

    @property
    def python(self) -> str:
        """The interpreter of the tests, in the place that it is bound to."""
        name = f"python{sys.version_info.major}.{sys.version_info.minor}"
        return str(self.top / "python" / "bin" / name)

    def processes(self) -> list[str]:
        listed = self.run("sh", "-c", "cat /proc/[0-9]*/comm")
        return sorted(set(listed.stdout.split()))


@contextlib.contextmanager
def lend_guest() -> Iterator[Guest]:
    """An ordinary user whose podman works and has the image IMAGE. Raises NoGuest with the reason."""
    if os.geteuid() != 0:
        raise NoGuest("lending a user takes root")
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        raise NoGuest(f"not installed: {', '.join(missing)}")
    top = Path(tempfile.mkdtemp(prefix="ws-guest-", dir="/var/tmp"))  # not a tmpfs: it takes overlays of its user
    try:
        _furnish(top)
        words = ["unshare", "-m", "-p", "-f", "--kill-child", "--mount-proc", "sh", "-c", _moving_in(top)]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as holder:
            try:
                assert holder.stdout is not None
                assert holder.stderr is not None
                if holder.stdout.readline() != "ready\n":
                    raise NoGuest(f"no namespaces: {holder.stderr.read().strip()}")
                guest = Guest(top, _child_of(holder.pid))
                _check_podman(guest)
                yield guest
            finally:
                holder.kill()
    finally:
        remove_tree(str(top))


def _furnish(top: Path) -> None:
    top.chmod(0o755)
    for name in ("etc", "src", "packages", "python", "home", "run"):
        (top / name).mkdir()
    lines = {
        "passwd": f"guest:x:{ID}:{ID}::{top / 'home'}:/bin/sh",
        "group": f"guest:x:{ID}:",
        "subuid": f"guest:{SUBORDINATE}",
        "subgid": f"guest:{SUBORDINATE}",
    }
    for name, line in lines.items():
        there = Path("/etc", name)
        (top / "etc" / name).write_text(f"{there.read_text() if there.exists() else ''}{line}\n")
        (top / "etc" / name).chmod(0o644)
    pack_busybox(str(top / "image.tar"))
    for name in ("home", "run"):
        os.chown(top / name, ID, ID)
        (top / name).chmod(0o700)


def _moving_in(top: Path) -> str:
    """What the first process does: cover, bind, say so, and wait."""
    covered = [(top / "etc" / name, Path("/etc", name)) for name in ("passwd", "group", "subuid", "subgid")]
    bound = [
        (Path(ws.__file__).parents[1], top / "src"),
        (Path(sysconfig.get_path("purelib")), top / "packages"),
        (Path(sys.base_prefix), top / "python"),
    ]
    steps = [
        *(f"touch {target}" for _, target in covered if not target.exists()),  # podman's package expects them anyway
        *(f"mount --bind {shlex.quote(str(source))} {shlex.quote(str(target))}" for source, target in covered + bound),
        f"exec {shlex.join([sys.executable, '-c', WAITING])}",
    ]
    return "set -e; " + "; ".join(steps)


def _child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _check_podman(guest: Guest) -> None:
    for words in (
        [guest.python, "-c", "import ws"],
        ["podman", "unshare", "true"],
        ["podman", "import", "--quiet", str(guest.top / "image.tar"), IMAGE],
    ):
        done = guest.run(*words)
        if done.returncode != 0:
            raise NoGuest(f"`{shlex.join(words)}` fails for an ordinary user: {done.stderr.strip()[-400:]}")
