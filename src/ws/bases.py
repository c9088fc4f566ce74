"""Bases: a source as it is, imported once, immutable, shared by every workspace made from the same tree.

    bases/KEY/data        the tree, everything in it owned by the workspace's user
    bases/KEY/info.json   what it is; KEY is the tree's id in the store and the ids it belongs to on this host
    bases/KEY/synced      is there once the disk has all of it (`syncing`)
    imports/KEY           what the source looked like, so that the next import costs one lstat a file

An import reads everything that is there, dirty files and ignored files and `.git` too, puts it into the
store and copies it in the same pass, then looks again: if no inode and ctime moved meanwhile, what it has
is the source at one instant. Otherwise it reads again what changed. Files that did not change since the
earlier import are hard links to those of the earlier base; both are immutable, and both go their own way.

A base is a cache, the store is the truth. The pack is synced before the base appears; the base itself is
not, because waiting for a gigabyte to reach the disk would double the time of an import. It remembers the
boot it was made in, and one that may not have reached the disk before a crash is rebuilt from the store
(`ensure_base`). What a later sync has covered counts after a reboot too.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import pwd
from collections.abc import Callable, Iterator, Sequence

from ws import durable
from ws.base_directories import Base, base_key, check_info, find_base, info_path, rename_into_place
from ws.claiming import touch
from ws.errors import InvalidRequest, SourceChanged, SourceRefused, StateError
from ws.layout import Home, Ids
from ws.record_fields import is_component
from ws.staged import staged_directory
from ws.store.checkout import host_layer, materialise
from ws.store.copying import finish_copy
from ws.store.gathering import Owners
from ws.store.packs import PackWriter
from ws.store.reading import MOUNT_POINT, Rules
from ws.store.repository import Store
from ws.store.scan import Scan, Skipped, scan_tree
from ws.store.statcache import StatCache, load_cache
from ws.together import Together

__all__ = [
    "Base",
    "Progress",
    "base_key",
    "check_info",
    "check_source",
    "ensure_base",
    "find_base",
    "import_source",
    "info_path",
    "scan_source",
    "staged_base",
]

Progress = Callable[[str, int, int], None]

_ROUNDS = 4  # of reading a source that keeps changing


_imports: Together[Base] = Together()


@durable.state_usable()
def import_source(
    home: Home,
    source: str | None,
    *,
    ids: Ids,
    exclude: Sequence[str] = (),
    progress: Progress | None = None,
) -> Base:
    """The base of a source directory, or the empty one; made if it is not there yet.

    `exclude` holds patterns as in `ws.store.excludes`. Several processes may import the same source at once; threads
    do it together.
    Raises SourceRefused, InvalidRequest (missing, not a directory, unreadable), SourceChanged (it never held
    still), StateUnusable.
    Commit point: the rename of the staged directory to `bases/KEY`; its objects are durable before. A crash
    leaves a directory under `staging/` and at most a `tmp_` file in the store.
    """
    while True:
        if source is None:
            base = find_base(home, _empty.get((home.root, ids), "")) or _import_nothing(home, ids)
        else:
            real, excluded = check_source(home, source), tuple(exclude)
            base = _imports.do(
                (home.root, real, ids, excluded), functools.partial(_import, home, real, ids, excluded, progress)
            )
        if touch(home, base.key):
            return base


def check_source(home: Home, source: str) -> str:
    """The real path of a directory that may become a workspace. Raises InvalidRequest, SourceRefused."""
    real = os.path.realpath(source)
    try:
        entries = os.open(real, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ENOTDIR:
            raise InvalidRequest(f"{source} is not a directory", hint="name the project's directory") from None
        raise InvalidRequest(f"cannot open {source}: {error.strerror}", hint="name the project's directory") from None
    os.close(entries)
    hint = "name the directory of one project"
    if real == "/":
        raise SourceRefused("the whole filesystem cannot be a workspace", hint=hint)
    if real == os.path.realpath(os.path.expanduser("~")):
        raise SourceRefused(f"{source} is a home directory", hint=hint)
    for user_home in _homes():
        if _within(user_home, real):
            raise SourceRefused(f"{source} is or holds a home directory ({user_home})", hint=hint)
    own = os.path.realpath(home.root)
    if _within(own, real) or _within(real, own):
        raise SourceRefused(
            f"{source} and the state of ws ({own}) lie in one another",
            hint="set WS_HOME to a directory outside the project",
        )
    return real


@functools.cache
def _homes() -> frozenset[str]:
    """The home directories of people; system accounts live in places like /var/www that may be projects."""
    people = (user.pw_dir for user in pwd.getpwall() if user.pw_uid == 0 or 1000 <= user.pw_uid < 65000)
    return frozenset(os.path.realpath(path) for path in people if path not in ("", "/") and os.path.isabs(path))


def _within(path: str, directory: str) -> bool:
    return path == directory or path.startswith(directory.rstrip("/") + "/")


_empty: dict[tuple[str, Ids], str] = {}  # the keys of empty bases that this process has seen


def _import_nothing(home: Home, ids: Ids) -> Base:
    """The empty base: one directory, of no particular time, so that it is always the same one."""
    with staged_directory(home) as staging, Store(home.store) as store, store.writing() as writer:
        source = os.path.join(staging, "empty")
        os.mkdir(source)
        os.chmod(source, 0o755)
        os.utime(source, ns=(0, 0))
        scan, data = _read_until_still(store, writer, source, staging, ids, (), None, None, None)
        writer.finish()
        base = _publish(home, scan, data, ids)
    _empty[home.root, ids] = base.key
    return base


def _import(home: Home, source: str, ids: Ids, exclude: tuple[str, ...], progress: Progress | None) -> Base:
    cache_path = home.at("imports", _cache_key(source, exclude, ids))
    cache = load_cache(cache_path)
    earlier = _earlier_base(home, cache)
    if cache and earlier and _unchanged(source, cache, earlier):
        return earlier
    with staged_directory(home) as staging, Store(home.store) as store, store.writing() as writer:
        scan, data = _read_until_still(
            store, writer, source, staging, ids, exclude, cache if earlier else None, earlier, progress
        )
        writer.finish()
        base = _publish(home, scan, data, ids)
    scan.cache.facts = {
        "base": base.key,
        "skipped": [[skipped.path, skipped.reason] for skipped in scan.skipped],
    }
    durable.write_file(cache_path, scan.cache.to_bytes())
    return base


def scan_source(
    home: Home,
    store: Store,
    writer: PackWriter,
    source: str,
    *,
    ids: Ids,
    exclude: Sequence[str] = (),
    passing_over: Sequence[str] = (),
    progress: Progress | None = None,
) -> tuple[str, StatCache]:
    """The tree that an import of a directory would have now, and what was seen of each file; nothing is copied.

    `source` is a path that `check_source` gave. `passing_over` are patterns of what ws itself may have left there.
    Raises InvalidRequest, SourceChanged, StateUnusable.
    """
    cache = load_cache(home.at("imports", _cache_key(source, tuple(exclude), ids)))
    earlier = _earlier_base(home, cache)
    if earlier is None:
        cache = None  # what it names may be gone from the store
    elif cache and _unchanged(source, cache, earlier):
        return earlier.tree, cache
    changed: bytes | None = None
    for _ in range(_ROUNDS):
        with contextlib.ExitStack() as stack:
            top = _open_directory(stack, source)
            rules = Rules(os.fstat(top).st_dev, Owners((ids.uid, ids.gid)), exclude=(*exclude, *passing_over))
            scan = scan_tree(store, writer, top, rules, cache=cache, progress=progress)
        changed, cache = scan.cache.first_change(source), scan.cache
        if changed is None:
            return scan.tree.hex(), cache
    raise _never_still(source, changed)


def _never_still(source: str, changed: bytes | None) -> SourceChanged:
    return SourceChanged(
        f"{os.fsdecode(changed or b'')} kept changing while {source} was read",
        hint="stop what writes there, or leave it out with --exclude",
    )


def _cache_key(source: str, exclude: tuple[str, ...], ids: Ids) -> str:
    facts = json.dumps([source, sorted(exclude), ids.uid, ids.gid, ids.host_uid, ids.host_gid])
    return hashlib.sha256(facts.encode(errors="surrogateescape")).hexdigest()[:32]


def _earlier_base(home: Home, cache: StatCache | None) -> Base | None:
    """The base that a cache speaks of, if it is whole."""
    if cache is None:
        return None
    key = cache.facts.get("base")
    base = find_base(home, str(key)) if is_component(key) else None
    if base is None:
        return None
    skipped = tuple(Skipped(path, reason) for path, reason in cache.facts["skipped"])
    return Base(base.key, base.tree, base.path, base.files, base.bytes, skipped)


def _unchanged(source: str, cache: StatCache, earlier: Base) -> bool:
    """Whether an import would find what it found before. A mount leaves no trace in its parent when it goes."""
    left = (os.path.join(source, skipped.path) for skipped in earlier.skipped if skipped.reason == MOUNT_POINT)
    return all(map(os.path.ismount, left)) and cache.first_change(source) is None


def _read_until_still(
    store: Store,
    writer: PackWriter,
    source: str,
    staging: str,
    ids: Ids,
    exclude: tuple[str, ...],
    cache: StatCache | None,
    earlier: Base | None,
    progress: Progress | None,
) -> tuple[Scan, str]:
    """Read the source until nothing in it moved while it was read; the scan, and where its copy is.

    Each round knows what the one before it read, as if that had been an earlier import.
    """
    previous = earlier.path if earlier else None
    changed: bytes | None = None
    with contextlib.ExitStack() as stack:
        for number in range(_ROUNDS):
            # Where it stays: whoever is not root cannot move a directory that is read-only to another parent.
            os.mkdir(os.path.join(staging, f"{number}"), 0o700)
            data = os.path.join(staging, f"{number}", "data")
            os.mkdir(data, 0o700)
            top, copy = _open_directory(stack, source), _open_directory(stack, data)
            rules = Rules(
                device=os.fstat(top).st_dev,
                exclude=exclude,
                owners=Owners((ids.uid, ids.gid)),
                copy_owner=(ids.host_uid, ids.host_gid),
                copy_layer=host_layer(),
            )
            scan = scan_tree(
                store,
                writer,
                top,
                rules,
                copy=copy,
                earlier=_open_directory(stack, previous) if previous else None,
                cache=cache,
                progress=progress,
            )
            changed = scan.cache.first_change(source)
            if changed is None:
                finish_copy(copy, scan.links, scan.closed, replace=True)
                return scan, data
            cache, previous = scan.cache, data
    raise _never_still(source, changed)


def _open_directory(stack: contextlib.ExitStack, path: str) -> int:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    return fd


def _publish(home: Home, scan: Scan, data: str, ids: Ids) -> Base:
    tree = scan.tree.hex()
    key = base_key(tree, ids)
    rename_into_place(home, key, data, tree, scan.files, scan.size_bytes)
    return Base(key, tree, os.path.join(home.base(key), "data"), scan.files, scan.size_bytes, scan.skipped)


def ensure_base(home: Home, key: str, *, ids: Ids, announced: bool = False, progress: Progress | None = None) -> Base:
    """The base with this key, rebuilt from the store if it is gone or may have been lost in a crash.

    `announced` as for `touch`. Raises StoreDamaged when the store cannot give it back.
    Commit point: as in `import_source`.
    """
    base = find_base(home, key)
    if base and touch(home, key, announced=announced):
        return base
    with (
        Store(home.store) as store,
        staged_base(home, store, key, ids=ids, announced=announced, progress=progress) as publish,
    ):
        publish()
    base = find_base(home, key)
    if base is None or not touch(home, key, announced=announced):
        raise StateError(f"the base {key} vanished while it was rebuilt", hint="try again")
    return base


@contextlib.contextmanager
def staged_base(
    home: Home, store: Store, key: str, *, ids: Ids, announced: bool = False, progress: Progress | None
) -> Iterator[Callable[[], None]]:
    """A base in `staging/` from any store that has its tree; calling what is yielded publishes it, else it is removed.

    Raises StoreDamaged. Commit point: as in `import_source`.
    """
    tree = key.split("-")[0]
    with staged_directory(home) as staging:
        os.mkdir(os.path.join(staging, "0"), 0o700)
        data = os.path.join(staging, "0", "data")
        made = materialise(store, tree, data, ids=ids, progress=progress)
        durable.sync_filesystem(staging)
        yield lambda: rename_into_place(
            home, key, data, tree, made.files, made.size_bytes, synced=True, announced=announced
        )
