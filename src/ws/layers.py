"""Layers: the directories an overlay is made of, above the base.

An upper is a layer that is still written to; sealing it changes nothing on disk but the record that names it. So a
layer is made once, in its final place, and shared by name:

    layers/LAYER/data    the files, whiteouts and opaque directories, as overlayfs wrote them
    layers/LAYER/work    overlayfs' own scratch space while the layer is an upper
    layers/LAYER/users/  a mark for each workspace that needs the layer
    layers/LAYER/boot-B  marks the boot it was made in: a layer is not synced when it is made, so after a power cut it
                         is in doubt
    layers/LAYER/synced  is there once the layer was sealed and the disk has all of it (`syncing`)

A mark says all by its name. It is one more name of a file that is there already, so it takes nothing but the name.

The last user to go takes the layer away. Whoever shares a layer holds the lock of a workspace that uses it, so a layer
without users is one that nobody can come to share: `rmdir users` is the test and the decision in one call.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable

from ws import durable
from ws.layout import Home, boot_id
from ws.overlay import shown_xattrs
from ws.removing import remove_any
from ws.stacks import forget_stack, read_stack, stack_numbers
from ws.staged import remove_staged


def create_layer(home: Home, layer: str, user: str, *, like: str) -> str:
    """A new, empty layer whose root looks like the directory `like` to the container.

    Commit point: the rename into `layers/`.
    """
    staged = home.staging()
    data = os.path.join(staged, "data")
    for part in (staged, data, os.path.join(staged, "work"), os.path.join(staged, "users")):
        os.mkdir(part, 0o700)
    _mark(_boot_mark(staged), home.lock(user))
    _mark(os.path.join(staged, "users", user), home.lock(user))
    copy_root(like, data)
    os.rename(staged, home.layer(layer))
    return home.layer(layer)


def copy_root(like: str, data: str) -> None:
    """Give one directory all that the container sees of another: the root of the workspace itself."""
    status = os.stat(like)
    for name, value in shown_xattrs(like).items():
        os.setxattr(data, name, value)
    if os.geteuid() == 0:
        os.chown(data, status.st_uid, status.st_gid)
    os.chmod(data, status.st_mode & 0o7777)
    os.utime(data, ns=(status.st_atime_ns, status.st_mtime_ns))


def is_trusted(home: Home, layer: str) -> bool:
    """Whether a layer is there and has what was written to it: made since the machine started, or synced since."""
    directory = home.layer(layer)
    known = os.path.exists(_boot_mark(directory)) or is_synced(directory)
    return known and os.path.isdir(os.path.join(directory, "data"))


def note_boot(directory: str) -> None:
    """Note of a layer that from now on it has what is written to it: what a crash left of it is taken as it is."""
    durable.put_file(_boot_mark(directory))


def _boot_mark(directory: str) -> str:
    return os.path.join(directory, f"boot-{boot_id()}")


def _mark(path: str, like: str) -> None:
    """Put a mark where there may be one already: another name of `like`, else a file of its own.

    On an ext4 without a journal a new file takes 0.15 ms for some seconds after many were removed, and a restore comes
    just then; a new name always takes 0.01.
    """
    try:
        os.link(like, path)
    except FileExistsError:
        return
    except OSError:  # there is none, or it has as many names as it can
        durable.put_file(path)


def is_synced(directory: str) -> bool:
    """Whether a layer, or a base, is noted as one that the disk has."""
    return os.path.exists(os.path.join(directory, "synced"))


def mark_synced(directory: str) -> None:
    """Note of a sealed layer, or of a base, that a sync has covered all of it. Only ever after that sync."""
    _mark(os.path.join(directory, "synced"), _boot_mark(directory))


def is_present(home: Home, layer: str) -> bool:
    """Whether a layer can be an upper again, whatever it has kept."""
    return all(os.path.isdir(os.path.join(home.layer(layer), part)) for part in ("data", "work", "users"))


def forget_doubtful_stacks(home: Home, user: str) -> None:
    """Forget which layers made up a workspace's snapshots, where these may have been lost: git has the snapshots."""
    for number in stack_numbers(home, user):
        stack = read_stack(home, user, number)
        if stack is None or not all(is_trusted(home, layer) for layer in stack.layers):
            forget_stack(home, user, number)


def share_layers(home: Home, layers: Iterable[str], user: str) -> None:
    """Make a workspace one more user of layers. The caller holds the lock of one that uses them already."""
    for layer in layers:
        _mark(os.path.join(home.layer(layer), "users", user), home.lock(user))


def release_layers(home: Home, layers: Iterable[str], user: str) -> None:
    """A workspace needs these layers no more; those that nobody needs are removed. Idempotent."""
    for layer in layers:
        users = os.path.join(home.layer(layer), "users")
        remove_any(os.path.join(users, user))
        try:
            os.rmdir(users)
        except OSError as error:
            if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                continue
            if not isinstance(error, FileNotFoundError | NotADirectoryError):  # a power cut leaves neither whole
                raise
        remove_layer(home, layer)


def remove_layer(home: Home, layer: str) -> None:
    """Take a layer without users away."""
    staged = home.staging()
    with contextlib.suppress(FileNotFoundError):
        os.rename(home.layer(layer), staged)
        remove_staged(staged)


def layers_of(home: Home, user: str) -> set[str]:
    """Every layer that names a workspace as a user, whether its record knows or not. Looks at all layers there are."""
    names = os.listdir(home.at("layers"))
    return {name for name in names if os.path.exists(home.at("layers", name, "users", user))}


def unused_layers(home: Home) -> list[str]:
    """Layers that nobody uses. Looks at all layers there are."""
    found = []
    for name in os.listdir(home.at("layers")):
        try:
            used = bool(os.listdir(home.at("layers", name, "users")))
        except (FileNotFoundError, NotADirectoryError):
            used = False
        if not used:
            found.append(name)
    return found


def remove_unused_layers(home: Home) -> list[str]:
    """Take away layers whose last user went, but which a crash kept from being removed. Looks at all layers there are.

    A layer appears with its first user, so one without any is nobody's.
    """
    removed = []
    for name in os.listdir(home.at("layers")):
        users = home.at("layers", name, "users")
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # a power cut leaves neither whole
            try:
                os.rmdir(users)
            except OSError as error:
                if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
                    continue
                raise
        remove_layer(home, name)
        removed.append(name)
    return removed
