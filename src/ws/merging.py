"""Merging layers, so that a chain stays short however many snapshots it has seen.

Eight neighbours of one level become one layer of the next, as in a log-structured tree: a thousand snapshots leave
at most some twenty layers, and each file is linked again once per level. Files, links and whiteouts are hard links to
the originals, so a merge copies no bytes; directories are made anew with the metadata of the topmost.

What the kernel would show through the merged layer is what it shows through the chain:
- the topmost entry of a name wins; a whiteout is kept only over something, else the kernel would list its name
- directories merge with those below them, down to the first opaque one or the first entry that is no directory
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import stat
from collections.abc import Sequence

from ws.errors import LimitExceeded
from ws.layers import create_layer, release_layers
from ws.layout import Home, new_id
from ws.overlay import shown_xattrs

WIDTH = 8
MAX_DEPTH = 400  # directories are held open along the way down; deeper trees are left unmerged

_WHITEOUT = os.makedev(0, 0)


def level_of(layer: str) -> int:
    """How often a layer was merged; its name says so."""
    return int(layer.partition("-")[2] or 0)


def plan_merge(layers: Sequence[str]) -> int:
    """How many layers from the top should become one; 0 for none.

    Of each level from the lowest up: WIDTH layers of it, or of stretches of lower ones between them, become one, which
    counts at the next level, so that one merge may go through several. The stretch at the very top waits to be merged
    by itself. So at most WIDTH - 1 layers of a level stay, in whatever order the levels come.
    """
    rest = [level_of(layer) for layer in layers]
    planned = carried = 0
    for level in range(max(rest, default=-1) + 2):
        within = list(itertools.takewhile(lambda each: each <= level, rest))  # noqa: B023
        counted = itertools.dropwhile(lambda each: each < level, within)  # noqa: B023
        groups = itertools.groupby(counted, key=lambda each: each == level)
        if sum(len(list(members)) if same else 1 for same, members in groups) >= WIDTH:
            planned += len(within) - carried
            rest = [level + 1, *rest[len(within) :]]
            carried = 1
    return planned


def merge_layers(home: Home, layers: Sequence[str], below: Sequence[str] | None, user: str, *, opaque: str) -> str:
    """One layer that shows what `layers`, from the top down, show together over the directories `below`.

    Without `below` every whiteout is kept: for a layer that is read and never mounted, over what may have been lost.
    `opaque` is the mount's xattr for opaque directories. Raises LimitExceeded for trees too deep; nothing is left then.
    Commit point: the rename of the new layer into its place; the old ones are left as they are.
    """
    merged = f"{new_id()}-{max(map(level_of, layers)) + 1}"
    tops = [os.path.join(home.layer(layer), "data") for layer in layers]
    building = f"{merged}.new"
    path = create_layer(home, building, user, like=tops[0])
    try:
        with contextlib.ExitStack() as held:
            sources = [_open(top, held) for top in tops]
            target = _open(os.path.join(path, "data"), held)
            under = None if below is None else [_open(place, held) for place in below]
            _merge_directory(sources, under, target, opaque, MAX_DEPTH)
            _copy_metadata(sources[0], target, opaque, is_opaque=False)
        os.rename(path, home.layer(merged))
    except BaseException:
        release_layers(home, [building, merged], user)  # an interrupt comes at the end of a call
        raise
    return merged


def _open(name: str, held: contextlib.ExitStack, dir_fd: int | None = None) -> int:
    fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    held.callback(os.close, fd)
    return fd


def _merge_directory(sources: Sequence[int], below: Sequence[int] | None, target: int, opaque: str, depth: int) -> None:
    """Fill `target` from the directories of the same name in each layer, topmost first."""
    if depth == 0:
        raise LimitExceeded(f"a directory is more than {MAX_DEPTH} levels deep")
    found: dict[str, list[tuple[int, bool]]] = {}
    for source in sources:
        with os.scandir(source) as entries:
            for entry in entries:
                found.setdefault(entry.name, []).append((source, entry.is_dir(follow_symlinks=False)))
    for name, places in found.items():
        source, is_directory = places[0]
        if is_directory:
            _merge_below(name, places, below, target, opaque, depth)
        elif not _is_whiteout(name, source) or _shows(name, below):
            _link(name, source, target)


def _merge_below(
    name: str, places: Sequence[tuple[int, bool]], below: Sequence[int] | None, target: int, opaque: str, depth: int
) -> None:
    with contextlib.ExitStack() as held:
        directories = [place for place, _ in itertools.takewhile(lambda place: place[1], places)]
        inner, hidden = _merging(name, directories, opaque, held)
        hidden = hidden or len(directories) < len(places)
        under: Sequence[int] | None = []
        if not hidden:
            under = None if below is None else _merging(name, below, opaque, held)[0]
        os.mkdir(name, 0o700, dir_fd=target)
        made = _open(name, held, target)
        _merge_directory(inner, under, made, opaque, depth - 1)
        _copy_metadata(inner[0], made, opaque, is_opaque=hidden)


def _merging(name: str, parents: Sequence[int], opaque: str, held: contextlib.ExitStack) -> tuple[list[int], bool]:
    """The directories of a name that merge, topmost first, and whether something hides all that is further down."""
    opened: list[int] = []
    for parent in parents:
        try:
            opened.append(_open(name, held, parent))
        except FileNotFoundError:
            continue
        except NotADirectoryError:
            return opened, True
        except OSError as error:
            if error.errno != errno.ELOOP:  # a symlink, seen through O_NOFOLLOW
                raise
            return opened, True
        if _xattr(opened[-1], opaque) == b"y":
            return opened, True
    return opened, False


def _is_whiteout(name: str, directory: int) -> bool:
    status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == _WHITEOUT


def _shows(name: str, below: Sequence[int] | None) -> bool:
    """Whether something further down has the name. A whiteout over nothing would be listed, yet not be found."""
    if below is None:
        return True
    for directory in below:
        try:
            return not _is_whiteout(name, directory)
        except FileNotFoundError:
            continue
    return False


def _link(name: str, source: int, target: int) -> None:
    try:
        os.link(name, name, src_dir_fd=source, dst_dir_fd=target, follow_symlinks=False)
    except OSError as error:
        # ext4 gives an inode 65,000 names, and the kernel makes all whiteouts links of one.
        if error.errno != errno.EMLINK or not _is_whiteout(name, source):
            raise
        os.mknod(name, stat.S_IFCHR, _WHITEOUT, dir_fd=target)


def _copy_metadata(source: int, target: int, opaque: str, *, is_opaque: bool) -> None:
    status = os.fstat(source)
    os.fchown(target, status.st_uid, status.st_gid)
    os.fchmod(target, stat.S_IMODE(status.st_mode))
    for name, value in shown_xattrs(source).items():
        os.setxattr(target, name, value)
    if is_opaque:
        os.setxattr(target, opaque, b"y")
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))


def _xattr(fd: int, name: str) -> bytes:
    try:
        return os.getxattr(fd, name)
    except OSError:
        return b""
