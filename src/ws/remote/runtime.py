"""The runtime directory: what is mounted read-only into every container so that the shim runs in any image.

`runtimes/KEY/` is named after everything that goes into it (interpreter, sources of the shim, ripgrep), so
a new version of ws makes a new one beside the old, which running containers keep. It is built in staging
and renamed into its place; two processes may do so at once, and one of them throws its own away.

Each file's sha256 is in the manifest. Hashing 20 MB at each create would cost more than anything else
there, so a full check leaves a stamp: a digest of every file's inode, size, mode, mtime and ctime. As long
as the kernel reports the same, nobody has written to any of them.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import json
import os
import stat
import sys
import threading
from typing import Final

from ws import durable
from ws.errors import StateError
from ws.layout import Home
from ws.record_files import damaged, read_cached_bytes, read_json
from ws.removing import remove_tree
from ws.shim.place import python_command, rg_command, shim_command

__all__ = ["Runtime", "check_runtime", "current_key", "ensure_runtime", "python_command", "rg_command", "shim_command"]

_FORMAT: Final = "1"
_MANIFEST: Final = "manifest.json"

# One thread at a time: CPython 3.11 counts the depth of `ast.parse` for all threads together, and fails when two meet
# in it (gh-106905). Processes build side by side.
_BUILDING = threading.Lock()


class Runtime:
    """A runtime that is complete."""

    __slots__ = ("key", "path")

    def __init__(self, key: str, path: str) -> None:
        self.key = key
        self.path = path


def ensure_runtime(home: Home) -> Runtime:
    """The runtime of this ws and this interpreter, built on first use and rebuilt when it is damaged.

    Raises StateUnusable when the interpreter cannot be taken along. Commit point: the rename to its place.
    """
    key = current_key()
    runtime = Runtime(key, home.at("runtimes", key))
    if _is_stamped(runtime):
        return runtime
    with _BUILDING:
        return _checked_or_built(home, runtime)


def _checked_or_built(home: Home, runtime: Runtime) -> Runtime:
    if os.path.lexists(runtime.path):
        try:
            check_runtime(runtime)
            return runtime
        except StateError:
            _set_aside(home, runtime)
    _build(home, runtime)
    return runtime


def check_runtime(runtime: Runtime) -> None:
    """Read every file and compare it with the manifest. Raises StateError naming the first that differs."""
    manifest = _read_manifest(runtime)
    for name, expected in manifest.items():
        if _sha256(os.path.join(runtime.path, name)) != expected:
            raise StateError(f"the runtime's file {name} is damaged", hint="the next create rebuilds it")
    stamp = _stamp(runtime, manifest)
    if stamp is not None:
        durable.write_file(runtime.path + ".stamp", stamp.encode())


@functools.cache
def current_key() -> str:
    """The name of the runtime that this ws uses: of this process for good, whatever happens to its sources."""
    from ws.remote import gathering

    digest = hashlib.sha256(f"{_FORMAT}\n{sys.version}\n".encode())
    for program in (gathering.interpreter(), gathering.ripgrep()):
        facts = os.stat(program) if program else None
        digest.update(f"{program} {facts and (facts.st_size, facts.st_mtime_ns)}\n".encode())
    package = gathering.package_directory()
    for source in gathering.sources():
        digest.update(f"{source}\n".encode())
        with open(os.path.join(package, source), "rb") as file:
            digest.update(hashlib.sha256(file.read()).digest())
    return digest.hexdigest()[:16]


def _build(home: Home, runtime: Runtime) -> None:
    from ws.remote import gathering

    staging = home.staging()
    os.mkdir(staging, 0o755)
    try:
        gathering.gather(staging)
        manifest = {name: _sha256(os.path.join(staging, name)) for name in _files(staging)}
        durable.write_file(os.path.join(staging, _MANIFEST), json.dumps(manifest, indent=1).encode(), mode=0o444)
        _protect(staging)
        durable.sync_filesystem(staging)
        try:
            durable.rename_new(staging, runtime.path)
            os.chmod(runtime.path, 0o555)
        except FileExistsError:
            pass  # somebody else was faster, with the same bytes
    finally:
        remove_tree(staging)
    check_runtime(runtime)


def _set_aside(home: Home, runtime: Runtime) -> None:
    """Give a damaged runtime another name. Containers that use it keep it; the collector removes it after them."""
    try:
        if not os.path.islink(runtime.path):
            os.chmod(runtime.path, 0o755)
        os.rename(runtime.path, home.at("runtimes", f"{runtime.key}.damaged-{os.urandom(4).hex()}"))
    except FileNotFoundError:
        return  # another process rebuilds it as well


def _files(top: str) -> list[str]:
    return sorted(
        os.path.relpath(os.path.join(directory, name), top) for directory, _, names in os.walk(top) for name in names
    )


def _protect(top: str) -> None:
    # Readable by any user: a container's has another id than ours.
    for directory, _, names in os.walk(top):
        for name in names:
            path = os.path.join(directory, name)
            os.chmod(path, 0o555 if os.stat(path).st_mode & 0o100 else 0o444)
        if directory != top:  # whose owner must be able to move it, which changes its ".."
            os.chmod(directory, 0o555)


def _sha256(path: str) -> str:
    try:
        with open(path, "rb", opener=_open_file) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise StateError(f"the runtime's file {path} cannot be read: {error.strerror}") from error


def _open_file(path: str, flags: int) -> int:
    """A FIFO in the place of a file must not block."""
    fd = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd


def _read_manifest(runtime: Runtime) -> dict[str, str]:
    path = os.path.join(runtime.path, _MANIFEST)
    manifest = read_json(path)
    if manifest is None:
        raise damaged(path, "it is missing")
    if not all(isinstance(digest, str) and _is_below(name) for name, digest in manifest.items()):
        raise damaged(path, "it does not name files and their checksums")
    return manifest


def _is_below(name: str) -> bool:
    """Whether a name of the manifest is that of a file in the runtime."""
    parts = name.split("/")
    return "\0" not in name and all(part not in ("", ".", "..") for part in parts)


def _stamp(runtime: Runtime, manifest: dict[str, str]) -> str | None:
    """What the kernel says of all files, in short; None when one is missing."""
    digest = hashlib.sha256()
    try:
        for name in (_MANIFEST, *manifest):
            it = os.lstat(os.path.join(runtime.path, name))
            facts = (name, it.st_ino, it.st_size, it.st_mode, it.st_mtime_ns, it.st_ctime_ns)
            digest.update(repr(facts).encode())
    except OSError:
        return None
    return digest.hexdigest()


def _is_stamped(runtime: Runtime) -> bool:
    stamp = read_cached_bytes(runtime.path + ".stamp", max_bytes=4096)
    try:
        return stamp is not None and stamp.decode("ascii", "replace") == _stamp(runtime, _read_manifest(runtime))
    except StateError:
        return False
