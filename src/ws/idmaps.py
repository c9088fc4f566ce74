"""Owners on disk, and owners in a container: how a container with host ids of its own sees files that it shares.

Bases, layers and kept files have the ids of the record on disk (`Ids.host_uid`), whichever container shows them, so
that workspaces share them and a new container changes nothing. A container runs under other host ids (`id_slots`).
Between the two stands an id-mapped mount: the overlay is built over clones of its directories, and a user namespace
says which id on disk is which id of the container.

That namespace takes 10 ms to make and a mount must not wait for it: it is made when the container starts, and kept as a
mount in the container's own mount namespace, beside the shim's socket. It ends with the container, nothing is left on
the host, and the container can neither enter it nor take it away.

Which ids a container has is read from its first process. One that has those of the disk needs no mapping: rootless,
without a container, or on a kernel that has no id-mapped layers for overlays.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator

from ws import id_slots, overlay, userns
from ws.engine import RUN
from ws.engine.inside import open_inside
from ws.errors import ContainerDied, KernelRefused
from ws.layout import Home, Ids
from ws.subordinate_ids import SLOT_IDS

_NAME = "idmap"
_NS_GET_NSTYPE = 0xB703
_CLONE_NEWUSER = 0x10000000
# A kernel or a filesystem without it, or a machine that allows no user namespaces (ENOSPC: user.max_user_namespaces).
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.EPERM, errno.EOPNOTSUPP, errno.ENOSPC)


def container_ids(pid: int, ids: Ids) -> Ids:
    """The ids of a workspace's user, with the host's as the container of process `pid` has them."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            fields = dict(line.split(b":\t", 1) for line in file if b":\t" in line)
    except (FileNotFoundError, ProcessLookupError):
        raise ContainerDied(f"process {pid} is gone") from None
    return Ids(ids.uid, ids.gid, int(fields[b"Uid"].split()[0]), int(fields[b"Gid"].split()[0]))


def own_ids(home: Home, key: str, ids: Ids) -> tuple[Ids, int | None]:
    """Host ids for a new container that no other has, and the map from those on disk, which the caller closes.

    Without a map, those on disk. A slot that is taken here and not used is free again as soon as this process ends.
    """
    if os.geteuid() != 0 or overlay.in_user_namespace():
        return ids, None
    if max(ids.uid, ids.gid) >= SLOT_IDS:  # a workspace of an older ws, on docker
        return ids, None
    on_disk = ids.host_uid - ids.uid, ids.host_gid - ids.gid
    first = id_slots.take_slot(home.run(key), avoid=on_disk)
    inner = Ids(ids.uid, ids.gid, first + ids.uid, first + ids.gid)
    idmap = create(home, ids, inner)
    return (ids, None) if idmap is None else (inner, idmap)


@contextlib.contextmanager
def opened(home: Home, key: str, pid: int, ids: Ids) -> Iterator[int | None]:
    """The user namespace that maps the ids on disk to those of a container; None when they are the same.

    Made and kept if the container does not have it yet, as after a restart by hand. Raises ContainerDied,
    KernelRefused.
    """
    there = container_ids(pid, ids)
    if there == ids:
        yield None
        return
    namespace = _find(pid)
    if namespace is None:
        namespace = _create(ids, there)
        try:
            keep(home, key, pid, namespace)
        except BaseException:
            os.close(namespace)
            raise
    try:
        yield namespace
    finally:
        os.close(namespace)


def create(home: Home, on_disk: Ids, there: Ids) -> int | None:
    """The user namespace for a container that is about to be made; the caller closes it.

    None when this kernel, or the filesystem of WS_HOME, cannot show files under other ids in an overlay. Raises
    KernelRefused for any other trouble: a container must not share ids because memory was short for a moment.
    """
    namespace = -1
    try:
        namespace = _create(on_disk, there)
        parts = (home.at("layers"), home.at("bases"))
        os.close(overlay.MountPlan(lowers=parts, upper=None, idmap=namespace, top=home.root).execute())
    except BaseException as error:
        if namespace >= 0:
            os.close(namespace)
        if isinstance(error, KernelRefused) and error.errno in _UNSUPPORTED:
            return None
        raise
    return namespace


def _create(on_disk: Ids, there: Ids) -> int:
    uids = _extents(on_disk.host_uid - on_disk.uid, there.host_uid - there.uid)
    gids = _extents(on_disk.host_gid - on_disk.gid, there.host_gid - there.gid)
    try:
        return userns.create(userns.IdMapping(uids, gids))
    except OSError as error:
        raise KernelRefused(str(error), errno=error.errno or 0) from error


def _extents(on_disk: int, there: int) -> tuple[tuple[int, int, int], ...]:
    """Root of the host stays itself: whiteouts and work directories are its own."""
    root = (0, 0, 1)
    if on_disk == 0:  # docker: root is no user of a workspace there
        return root, (1, there + 1, SLOT_IDS - 1)
    return root, (on_disk, there, SLOT_IDS)


def _find(pid: int) -> int | None:
    """The namespace that the container has; None when it has none. What else lies there is not believed."""
    try:
        with open_inside(pid, f"{RUN}/{_NAME}") as found:
            if fcntl.ioctl(found, _NS_GET_NSTYPE) == _CLONE_NEWUSER:
                return os.dup(found)
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise
    return None


def keep(home: Home, key: str, pid: int, namespace: int) -> None:
    """Have a container hold the namespace: it lives as long as the container. Raises KernelRefused, ContainerDied."""
    place = os.path.join(home.run(key), _NAME)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(place)
    os.close(os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400))
    mount = overlay.open_tree(f"/proc/self/fd/{namespace}")
    try:
        overlay.attach(mount, pid, f"{RUN}/{_NAME}")
    finally:
        os.close(mount)
