"""What a careless agent does to a tree: grown and damaged by a seed, the same everywhere.

Standard library only, and one file: its source is what runs inside the container (`INSIDE`), as the workspace's own
user. What that user may not do (enter a directory of mode 0, say) fails there as it would for anybody, and is not done.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from typing import Any

NAMES = [
    b".git", b".GIT", b"git~1", b".git ", b".g\xe2\x80\x8cit", b".gitmodules", b".gitattributes", b".gitignore",
    b"=", b"=x", b"=.git", b"new\nline", b"\xff\xfe", b" ", b"-rf", b"%41", b"a\\b", b"x" * 255, b"\xff" * 255,
    "e\u0301".encode(), "\u00e9".encode(), b"CON", b"...", b"*", b"plain", b"Plain", b"data.bin", b"src", b"lib",
]  # fmt: skip
MODES = [0o644, 0o755, 0o600, 0o000, 0o111, 0o444, 0o666, 0o4755, 0o2755, 0o1777, 0o7777]
TIMES_NS = [0, 1, -1, -2_147_000_000_123_456_789, 4_102_444_800_000_000_001, 15_000_000_000_000_000_007]
XATTRS = ["user.a", "user.b c", "user.overlay.opaque", "user.overlay.whiteout", "user.overlay.redirect"]
CONTENTS = [b"", b"* text eol=crlf\n* ident\n", b"$Id$\r\n", b"gitdir: /etc\n", bytes(range(256)) * 300]
TARGETS = [b"nowhere", b"..", b"/etc/passwd", b"a\nb", b"\xff\xfe", b"x" * 4095]
GIT = ["git", "-c", "user.name=t", "-c", "user.email=t@example.invalid", "-c", "init.defaultBranch=main"]


class Life:
    """One seed's worth of changes to the tree at `root`."""

    def __init__(self, root: bytes, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.done = 0
        self.refused = 0

    def attempt(self, action: Callable[[], None]) -> None:
        try:
            action()
            self.done += 1
        except (OSError, subprocess.CalledProcessError):
            self.refused += 1

    # -- choosing --------------------------------------------------------------------------------------------

    def paths(self) -> tuple[list[bytes], list[bytes]]:
        """Directories (the root first) and everything else, as far as this user can see them."""
        directories, others = [self.root], []
        for directory in directories:
            try:
                entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                (directories if entry.is_dir(follow_symlinks=False) else others).append(entry.path)
        return directories, others

    def directory(self) -> bytes:
        return self.random.choice(self.paths()[0])

    def other(self) -> bytes:
        others = self.paths()[1]
        if not others:
            raise FileNotFoundError
        return self.random.choice(others)

    def fresh(self) -> bytes:
        name = self.random.choice(NAMES)
        if self.random.random() < 0.5:
            name = self.random.randbytes(self.random.randint(1, 12)).replace(b"/", b"_").replace(b"\0", b"0")
        return os.path.join(self.directory(), name if name not in (b".", b"..") else b"dots")

    def content(self) -> bytes:
        if self.random.random() < 0.3:
            return self.random.choice(CONTENTS)
        return self.random.randbytes(self.random.choice([1, 50, 4096, 70_000]))

    # -- making ----------------------------------------------------------------------------------------------

    def grow(self, steps: int) -> None:
        makers = [self.make_file] * 6 + [self.make_directory] * 4
        makers += [self.make_link, self.make_link, self.make_fifo, self.make_hard_link, self.make_hard_link]
        for _ in range(steps):
            self.attempt(self.random.choice(makers))
        for _ in range(steps // 2):
            self.attempt(self.random.choice([self.set_time, self.set_mode, self.set_xattr]))

    def make_file(self) -> None:
        with open(self.fresh(), "xb") as file:
            file.write(self.content())

    def make_directory(self) -> None:
        os.mkdir(self.fresh(), self.random.choice([0o755, 0o700, 0o777]))

    def make_link(self) -> None:
        os.symlink(self.random.choice(TARGETS), self.fresh())

    def make_fifo(self) -> None:
        os.mkfifo(self.fresh(), 0o640)

    def make_hard_link(self) -> None:
        os.link(self.other(), self.fresh(), follow_symlinks=False)

    def set_time(self) -> None:
        path = self.directory() if self.random.random() < 0.4 else self.other()
        time_ns = self.random.choice(TIMES_NS) if self.random.random() < 0.7 else self.random.randrange(1 << 60)
        os.utime(path, ns=(time_ns, time_ns), follow_symlinks=False)

    def set_mode(self) -> None:
        path = self.directory() if self.random.random() < 0.2 else self.other()
        if not os.path.islink(path):
            # The root stays open for its owner: nothing could be run in it otherwise.
            os.chmod(path, self.random.choice(MODES) | (0o700 if path == self.root else 0))

    def set_xattr(self) -> None:
        path = self.directory() if self.random.random() < 0.4 else self.other()
        os.setxattr(path, self.random.choice(XATTRS), self.random.randbytes(20), follow_symlinks=False)

    # -- damaging --------------------------------------------------------------------------------------------

    def damage(self, steps: int) -> None:
        ways = [
            self.remove_everything_below, self.remove_one, self.rename, self.move_over, self.swap_link,
            self.truncate, self.write_by_mapping, self.append, self.rewrite_the_same, self.open_only, self.replace_kind,
            self.drop_xattr, self.chmod_recursively, self.use_git, self.become_socket,
            self.set_time, self.set_mode, self.set_xattr, self.make_file, self.make_directory, self.make_hard_link,
        ]  # fmt: skip
        for _ in range(steps):
            self.attempt(self.random.choice(ways))

    def remove_everything_below(self) -> None:
        directory = self.directory()
        subprocess.run([b"chmod", b"-R", b"u+rwx", b"--", directory], capture_output=True, check=False)
        if directory != self.root:
            subprocess.run([b"rm", b"-rf", b"--", directory], check=True, capture_output=True)

    def remove_one(self) -> None:
        os.unlink(self.other())

    def rename(self) -> None:
        source, target = self.random.choice([self.directory(), self.other()]), self.fresh()
        if source == self.root or target.startswith(source + b"/"):
            raise FileExistsError
        subprocess.run([b"mv", b"-n", b"--", source, target], check=True, capture_output=True)

    def move_over(self) -> None:
        os.rename(self.other(), self.other())

    def swap_link(self) -> None:
        path = self.random.choice([self.directory(), self.other()])
        if path == self.root:
            raise FileExistsError
        os.rename(path, path[:-1] + b"~") if len(os.path.basename(path)) > 1 else os.unlink(path)
        os.symlink(self.random.choice([b"/etc", b"..", b"../.."]), path)

    def truncate(self) -> None:
        os.truncate(self._regular(), self.random.choice([0, 1, 100_000]))

    def write_by_mapping(self) -> None:
        fd = os.open(self._regular(), os.O_RDWR | os.O_NOFOLLOW)
        try:
            with mmap.mmap(fd, 0) as mapped:  # a shared mapping, never synced
                mapped[self.random.randrange(len(mapped))] ^= 0xFF
        except ValueError:
            raise OSError("an empty file") from None
        finally:
            os.close(fd)

    def append(self) -> None:
        with open(self._regular(), "ab") as file:
            file.write(b"more\n")

    def rewrite_the_same(self) -> None:
        path = self._regular()
        found = os.stat(path)
        with open(path, "rb") as file:
            data = file.read()
        with open(path, "wb") as file:
            file.write(data)
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))

    def open_only(self) -> None:
        os.close(os.open(self._regular(), os.O_RDWR | os.O_NOFOLLOW))  # enough for overlayfs to copy it up

    def replace_kind(self) -> None:
        """What was a directory becomes a file, link or FIFO; what was one of these becomes a directory."""
        path = self.random.choice([self.directory(), self.other()])
        if path == self.root:
            raise FileExistsError
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
            make = [lambda: os.symlink(b"..", path), lambda: os.mkfifo(path), lambda: open(path, "xb").close()]
            self.random.choice(make)()
        else:
            os.unlink(path)
            os.mkdir(path)
            with open(os.path.join(path, b"inner"), "xb") as file:
                file.write(b"now below")

    def drop_xattr(self) -> None:
        path = self.random.choice([self.directory(), self.other()])
        for name in os.listxattr(path, follow_symlinks=False):
            os.removexattr(path, name, follow_symlinks=False)

    def chmod_recursively(self) -> None:
        directory = self.directory()
        if directory == self.root:
            raise PermissionError
        mode = self.random.choice([b"000", b"u=rwX,go=", b"a-w", b"777"])
        subprocess.run([b"chmod", b"-R", mode, b"--", directory], check=True, capture_output=True)

    def become_socket(self) -> None:
        import socket

        path = self._regular()
        os.unlink(path)
        with socket.socket(socket.AF_UNIX) as listener:
            os.chdir(os.path.dirname(path))
            listener.bind(os.path.basename(path)[:90])

    def use_git(self) -> None:
        nested = os.path.join(self.root, b"nested")
        if any(path.startswith(nested) and stat.S_ISFIFO(os.lstat(path).st_mode) for path in self.paths()[1]):
            raise OSError("git would wait for a writer")
        if not os.path.isdir(os.path.join(nested, b".git")):
            subprocess.run([*GIT, "init", "-q", nested], check=True, capture_output=True)
        with open(os.path.join(nested, b"file%d" % self.random.randrange(9)), "ab") as file:
            file.write(self.random.randbytes(30))
        for words in (["add", "-A"], ["commit", "-qm", "more", "--allow-empty"]):
            subprocess.run([*GIT, "-C", nested, *words], check=True, capture_output=True)
        branch = f"b{self.random.randrange(99)}"
        ways = [["checkout", "-qB", branch], ["gc", "-q"], ["reset", "-q", "--hard"], ["tag", "-f", branch]]
        words = self.random.choice([*ways, ["clean", "-fdxq"]])
        subprocess.run([*GIT, "-C", nested, *words], check=True, capture_output=True)
        branch = f"b{self.random.randrange(99)}"
        words = self.random.choice(
            [
                ["checkout", "-qB", branch],
                ["gc", "-q"],
                ["reset", "-q", "--hard", "HEAD"],
                ["tag", "-f", branch],
                ["clean", "-fdxq"],
            ]
        )
        subprocess.run([*GIT, "-C", nested, *words], check=True, capture_output=True)

    def _regular(self) -> bytes:
        files = [path for path in self.paths()[1] if stat.S_ISREG(os.lstat(path).st_mode)]
        if not files:
            raise FileNotFoundError
        return self.random.choice(files)


def look(root: bytes) -> dict[str, list[Any]]:
    """Every path below the root as this user sees it, with all that must come back; hard links by their group."""
    os.chdir(root)
    found: dict[str, list[Any]] = {}
    groups: dict[tuple[int, int], list[str]] = {}
    pending = [b"."]
    while pending:
        path = pending.pop()
        try:
            status = os.lstat(path)
        except PermissionError:  # listed by a directory that lets nobody in
            found[path.hex()] = ["denied"]
            continue
        kind, content = stat.S_IFMT(status.st_mode), ""
        try:
            if kind == stat.S_IFDIR:
                pending += [os.path.join(path, name) for name in os.listdir(path)]
            elif kind == stat.S_IFLNK:
                content = os.readlink(path).hex()
            elif kind == stat.S_IFREG:
                with open(path, "rb") as file:
                    content = hashlib.sha256(file.read()).hexdigest()
            names = [] if kind == stat.S_IFLNK else sorted(os.listxattr(path))
            xattrs = {name: os.getxattr(path, name).hex() for name in names}
        except PermissionError:
            content, xattrs = "denied", {}
        if kind == stat.S_IFSOCK:
            continue
        if kind != stat.S_IFDIR:
            groups.setdefault((status.st_dev, status.st_ino), []).append(path.hex())
        facts = [kind, status.st_mode & 0o7777, status.st_uid, status.st_gid, status.st_mtime_ns, status.st_size]
        found[path.hex()] = [*facts[: 5 if kind == stat.S_IFDIR else 6], content, xattrs]
    for paths in groups.values():
        for name in paths:
            found[name].append(sorted(paths))
    return found


def live(root: bytes, what: str, seed: int, steps: int) -> Life:
    os.umask(0o022)
    life = Life(root, seed)
    life.grow(steps) if what == "grow" else life.damage(steps)
    return life


if __name__ == "__main__":
    place = os.fsencode(os.getcwd())
    if sys.argv[1] == "look":
        print(json.dumps(look(place)))
    else:
        print(live(place, sys.argv[1], int(sys.argv[2]), int(sys.argv[3])).done)
else:
    with open(__file__, encoding="utf-8") as _own:
        INSIDE = _own.read()
