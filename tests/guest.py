"""An ordinary user with subordinate ids, lent to the tests: no account of this machine is made or changed.

In a mount namespace of its own `/etc/passwd`, `/etc/subuid` and their like are covered by copies that have one user
more. The checkout, its virtual environment and the interpreter keep their paths; where a directory above them is closed
to other users, it is covered by one that is open and has nothing else. In a pid namespace of its own, all that the user
starts ends with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine_images import pack_busybox
from ws.removing import remove_tree

ID = 54321
SUBORDINATE = "1000000:65536"
IMAGE = "localhost/guest:latest"
REPOSITORY = Path(__file__).parents[1]
# A process that ignores SIGCHLD has its orphans reaped by the kernel.
WAITING = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print("ready", flush=True)
while True:
    signal.pause()
"""
TOOLS = ("podman", "newuidmap", "newgidmap", "unshare", "nsenter", "setpriv", "busybox")


class NoGuest(Exception):
    """Why there can be no ordinary user here."""


@dataclass(frozen=True)
class Guest:
    """The user; `run` is one of the user's commands, started in the user's home."""

    top: Path
    first: int  # the first process of the namespaces
    uid: int = ID

    @property
    def home(self) -> Path:
        return self.top / ("home" if self.uid == ID else "poor")

    @property
    def without_ids(self) -> Guest:
        """Another user, who was given no subordinate ids."""
        return replace(self, uid=ID + 1)

    @property
    def state(self) -> Path:
        return self.home / ".local" / "state" / "ws"

    def words(self, *argv: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> list[str]:
        """What root runs for a command of the user; the exit status is the command's."""
        enter = ["nsenter", "-t", str(self.first), "-m", "-p"]
        become = ["setpriv", "--reuid", str(self.uid), "--regid", str(self.uid), "--clear-groups", "--inh-caps=-all"]
        kept = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        variables = {
            **kept,
            # The interpreter of .venv first: `scripts/setup` makes .venv anew for another one.
            "PATH": f"{sys.base_prefix}/bin:{os.environ['PATH']}",
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.home / "run"),
            **(env or {}),
        }
        clean = ["env", "-i", "-C", str(cwd or self.home), *(f"{key}={value}" for key, value in variables.items())]
        return [*enter, *become, *clean, *argv]

    def run(
        self, *argv: str, deadline_s: float = 60.0, env: dict[str, str] | None = None, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(*argv, env=env, cwd=cwd), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=deadline_s, errors="surrogateescape",
        )  # fmt: skip

    def start(self, *words: str, **options: Any) -> subprocess.Popen[bytes]:
        """`ws` as the user, with pipes for its output; `pid_of` has its pid."""
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen(self.words(*self.ws_command(*words)), stdin=subprocess.DEVNULL, **pipes)

    def pid_of(self, started: subprocess.Popen[bytes]) -> int:
        """The pid of the `ws` that was started: nsenter forks it, all others between exec."""
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, IndexError):
                pid = _child_of(started.pid)
                if b"ws" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:5]:
                    return pid
            time.sleep(0.001)
        raise AssertionError("ws did not start")

    @staticmethod
    def ws_command(*words: str) -> list[str]:
        return [sys.executable, "-P", "-m", "ws", *words]

    def ws(
        self,
        *words: str,
        deadline_s: float = 60.0,
        env: dict[str, str] | None = None,
        cwd: Path | None = None,
    ) -> subprocess.CompletedProcess[str]:
        return self.run(*self.ws_command(*words), deadline_s=deadline_s, env=env, cwd=cwd)

    def says(self, *words: str) -> str:
        done = self.ws(*words)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def data(self, *words: str) -> Any:
        return json.loads(self.says(*words, "--json"))

    def give(self, path: Path) -> None:
        """Make a tree under the user's home the user's."""
        for each in (path, *path.rglob("*")):
            os.chown(each, self.uid, self.uid, follow_symlinks=False)

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
    top = Path(tempfile.mkdtemp(prefix="ws-guest-", dir="/var/tmp"))  # not a tmpfs: overlays of the user lie there
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
    (top / "etc").mkdir()
    lines = {
        "passwd": f"guest:x:{ID}:{ID}::{top / 'home'}:/bin/sh\npoor:x:{ID + 1}:{ID + 1}::{top / 'poor'}:/bin/sh",
        "group": f"guest:x:{ID}:\npoor:x:{ID + 1}:",
        "subuid": f"guest:{SUBORDINATE}",
        "subgid": f"guest:{SUBORDINATE}",
    }
    for name, line in lines.items():
        there = Path("/etc", name)
        (top / "etc" / name).write_text(f"{there.read_text() if there.exists() else ''}{line}\n")
        (top / "etc" / name).chmod(0o644)
    pack_busybox(str(top / "image.tar"))
    # Podman chooses vfs where fuse-overlayfs is missing, and copies the whole image for every container.
    for user in (Guest(top, 0), Guest(top, 0).without_ids):
        settings = user.home / ".config" / "containers" / "storage.conf"
        settings.parent.mkdir(parents=True)
        settings.write_text('[storage]\ndriver = "overlay"\n')
        (user.home / "run").mkdir()
        user.give(user.home)
        for path in (user.home, user.home / "run"):
            path.chmod(0o700)


def _moving_in(top: Path) -> str:
    """What the first process does: cover, bind, say so, and wait."""
    covered = [(top / "etc" / name, Path("/etc", name)) for name in ("passwd", "group", "subuid", "subgid")]
    steps = [
        *(f"touch {target}" for _, target in covered if not target.exists()),  # podman's package expects them anyway
        *(f"mount --bind {shlex.quote(str(source))} {target}" for source, target in covered),
    ]
    needed = sorted({REPOSITORY, Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve()})
    closed = {path: found for path in needed if (found := _closed_above(path))}
    for number, path in enumerate(closed):
        held = shlex.quote(str(top / f"held{number}"))
        steps += [f"mkdir {held}", f"mount --rbind {shlex.quote(str(path))} {held}"]
    steps += [f"mount -t tmpfs -o mode=755 none {shlex.quote(str(path))}" for path in sorted(set(closed.values()))]
    for number, path in enumerate(closed):
        there = shlex.quote(str(path))
        held = shlex.quote(str(top / f"held{number}"))
        steps += [f"mkdir -p {there}", f"mount --move {held} {there}", f"rmdir {held}"]
    steps.append(f"exec {shlex.join([sys.executable, '-c', WAITING])}")
    return "set -e; mount --make-rprivate /; " + "; ".join(steps)


def _closed_above(path: Path) -> Path | None:
    """The topmost directory above a path that other users may not pass through."""
    for each in reversed(path.parents):
        if not each.stat().st_mode & 0o001:
            return each
    return None


def _child_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def _check_podman(guest: Guest) -> None:
    for words in (
        [sys.executable, "-c", "import ws"],
        ["podman", "unshare", "true"],
        ["podman", "import", "--quiet", str(guest.top / "image.tar"), IMAGE],
    ):
        done = guest.run(*words)
        if done.returncode != 0:
            raise NoGuest(f"`{shlex.join(words)}` fails for an ordinary user: {done.stderr.strip()[-400:]}")
