"""Import a bundle: read it into a scratch store, check all of it, then take what is needed.

Nothing in a bundle is trusted. It is read into a store of its own in `staging/`, within a budget of objects, paths,
bytes and time (`store.import_limits`). Every object is hashed, every tree and commit is checked for what it says, and
the first state is written out in `staging/` too; only then does anything go to the store. A bundle that is refused
leaves nothing behind. Of what the other machine recorded, that which means something only there (paths of its sources)
stays behind, and what its container was allowed needs the importer's consent (`bundle_manifest`).

The snapshots keep their ids. The workspace gets an id, a container and a base of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from ws import bases
from ws.bundle_manifest import ChosenSpec, Manifest, choose_spec, read_manifest, read_snapshot
from ws.bundles import MANIFEST_REF, SIGNATURE
from ws.containers import EngineFor
from ws.creation import create_workspace, name_taken, whole_or_gone
from ws.durable import state_usable
from ws.engine.base import Engine
from ws.errors import BundleRefused, InvalidRequest, LimitExceeded, StoreDamaged
from ws.layout import History, Home, WorkspaceRecord, new_id, resolve_name
from ws.removal import remove_workspace
from ws.spec import check_image
from ws.staged import staged_directory
from ws.store import commits, references
from ws.store.import_limits import Budget, ImportLimits
from ws.store.intake import take_in
from ws.store.packs import BLOB, COMMIT, PackWriter
from ws.store.reach import reach
from ws.store.repository import Store
from ws.store.tags import encode_tag
from ws.store.tree_check import Totals, TreeCheck
from ws.users import resolve_user

Progress = Callable[[str, int, int], None]

_MAX_HEADER_BYTES = 16 << 20
_REF = re.compile(
    r"refs/workspaces/([A-Za-z0-9][A-Za-z0-9_-]{0,63})/(?:(0|[1-9]\d{0,8})|tags/([A-Za-z0-9._%-]{1,240}))"
)
_LINE = re.compile(rb"([0-9a-f]{40}) ([!-~]{1,255})\n")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was read whole and found sound; its objects are in `store`, a scratch one."""

    store: Store
    manifest: Manifest
    snapshots: tuple[commits.Snapshot, ...]  # without messages and facts
    needed: Mapping[bytes, int]  # objects and their kinds
    totals: Totals  # the largest of each, over all snapshots


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """How a bundle is imported, as the caller asked."""

    name: str | None = None
    image: str | None = None
    trust_spec: bool = False
    limits: ImportLimits = field(default_factory=ImportLimits)


@dataclass(frozen=True, slots=True)
class ImportedBundle:
    """The record of the new workspace, and what its bundle asked for."""

    record: WorkspaceRecord
    spec: ChosenSpec


@state_usable()
def import_bundle(
    home: Home,
    path: str,
    engine: Engine,
    engine_for: EngineFor,
    *,
    options: ImportOptions,
    progress: Progress | None = None,
) -> ImportedBundle:
    """A new workspace from a bundle, with all its snapshots.

    Commit point: the record that says `ready`. Before the pack is finished nothing is outside of `staging/`. References
    written before the commit point are removed on an error; those that a crash left belong to no workspace, and the
    collector drops them.
    Raises BundleRefused, LimitExceeded, WorkspaceExists, ImageNotFound, EngineError, StateUnusable.
    """
    budget = Budget(options.limits)

    def tick(phase: str, done: int, total: int) -> None:
        budget.check_time()
        if progress:
            progress(phase, done, total)

    with open_bundle(home, path, budget, tick) as bundle, Store(home.store) as store:
        chosen = options.name or bundle.manifest.name
        if resolve_name(home, chosen):
            raise name_taken(chosen)
        record, spec = _plan(home, bundle, engine, chosen, options)
        with (
            whole_or_gone(home, record.id, lambda made: remove_workspace(home, engine_for, made, made)),
            bases.staged_base(home, bundle.store, record.base, ids=record.ids, progress=tick) as publish_base,
            store.writing() as writer,  # until the record names its trees, the collector must not look
        ):
            _copy(bundle, writer, tick)
            budget.check_time()
            writer.finish()
            try:
                commits.publish_all(store, (replace(snapshot, workspace=record.id) for snapshot in bundle.snapshots))
                publish_base()
                create_workspace(home, record, engine_for)
            except BaseException:
                references.drop_refs(store, record.id)
                raise
    return ImportedBundle(record, spec)


def _plan(
    home: Home, bundle: Bundle, engine: Engine, name: str, options: ImportOptions
) -> tuple[WorkspaceRecord, ChosenSpec]:
    manifest = bundle.manifest
    image = check_image(options.image) if options.image is not None else manifest.image
    facts = engine.image(image)
    spec = choose_spec(manifest, image, trust=options.trust_spec)
    user = spec.user or resolve_user(home, engine, spec.options, facts.id, facts.user)
    ids = engine.host_ids(*user)
    spec = spec.with_user((manifest.uid, manifest.gid), (ids.uid, ids.gid))
    _check_owners(engine, bundle.totals)
    tree = bundle.snapshots[manifest.head].tree
    record = WorkspaceRecord(
        id=new_id(),
        name=name,
        state="ready",
        engine=engine.name,
        created_at=time.time(),
        base=bases.base_key(tree, ids),
        tree=tree,
        origin_tree=bundle.snapshots[0].tree,
        source_tree=manifest.source_tree,
        upper=new_id(),
        ids=ids,
        options=spec.options,
        source=None,  # a path of another machine says nothing here, and a forged one could name anything of ours
        exclude=spec.exclude,
        image_id=facts.id,
        image_env=dict(facts.env),
        history=History(head=manifest.head, count=bundle.snapshots[-1].number, undo=manifest.undo),
    )
    return record, spec


def _check_owners(engine: Engine, totals: Totals) -> None:
    """An owner that the engine cannot map would become another user of this host, or none at all."""
    try:
        engine.host_ids(max(totals.max_uid, 1), max(totals.max_gid, 1))
    except InvalidRequest as error:
        raise BundleRefused(
            f"the bundle holds files of a user that {engine.name} cannot map: {error.message}"
        ) from None


def _copy(bundle: Bundle, writer: PackWriter, progress: Progress) -> None:
    for number, (oid, kind) in enumerate(bundle.needed.items()):
        writer.add(kind, bundle.store.read(oid, kind))  # also what is stored already, if that copy is damaged
        if number % 256 == 0:
            progress("store", number, len(bundle.needed))


@contextlib.contextmanager
def open_bundle(home: Home, path: str, budget: Budget, progress: Progress) -> Iterator[Bundle]:
    """Read a bundle into a scratch store and check all of it. Raises BundleRefused, LimitExceeded, InvalidRequest."""
    with (
        staged_directory(home) as staging,
        _open_file(path) as file,
        Store(os.path.join(staging, "store")) as store,
    ):
        refs = _read_header(file)
        with store.writing() as writer:
            take_in(file, writer, budget, progress)
            writer.finish()
        store.refresh()
        try:
            bundle = _check(home, store, refs, budget, progress)
        except StoreDamaged as error:
            raise BundleRefused(f"the bundle is damaged: {error.message}") from None
        yield bundle


def _open_file(path: str) -> BinaryIO:
    try:
        # O_NONBLOCK: a FIFO must not hold us up.
        return open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb")
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidRequest(f"cannot read {path}: {reason}") from None


def _read_header(file: BinaryIO) -> dict[str, str]:
    """The references. Raises BundleRefused."""
    if file.readline(len(SIGNATURE)) != SIGNATURE:
        raise BundleRefused("this is not a bundle of ws", hint="`ws export --bundle F` makes one")
    refs: dict[str, str] = {}
    left = _MAX_HEADER_BYTES
    while (line := file.readline(400)) != b"\n":
        match = _LINE.fullmatch(line)
        left -= len(line)
        if match is None or left < 0 or (ref := match[2].decode()) in refs:
            raise BundleRefused("this is not a bundle of ws: its list of references cannot be read")
        refs[ref] = match[1].decode()
    return refs


def _check(home: Home, store: Store, refs: dict[str, str], budget: Budget, progress: Progress) -> Bundle:
    manifest_id = refs.pop(MANIFEST_REF, "")
    if not manifest_id:
        raise BundleRefused("this is a git bundle, but none of ws", hint="`ws export --bundle F` makes one")
    manifest = read_manifest(store.read(bytes.fromhex(manifest_id), BLOB))
    snapshots = _read_snapshots(store, refs, progress)
    if manifest.head >= len(snapshots) or (manifest.undo or 0) >= len(snapshots):
        raise BundleRefused("the bundle names snapshots that it does not hold")
    check = TreeCheck(store, budget)
    found: list[Totals] = []
    wanted = [(snapshot.id[:12], snapshot.tree) for snapshot in snapshots]
    for number, (name, tree) in enumerate([*wanted, ("the source", manifest.source_tree)]):
        progress("verify", number, len(wanted))
        try:
            found.append(check.check(tree))
        except StoreDamaged as error:
            raise BundleRefused(f"the bundle is damaged: {name}: {error.message}") from None
    _check_room(home, found[manifest.head])
    needed: dict[bytes, int] = {}
    reach(
        store,
        [bytes.fromhex(one.id) for one in snapshots],
        [bytes.fromhex(manifest.source_tree)],
        needed,
        tick=budget.check_time,
    )
    if not all(map(store.contains, needed)):
        raise BundleRefused("the bundle does not hold all that it names")
    return Bundle(store, manifest, snapshots, needed, Totals(*map(max, zip(*found, strict=True))))


def _read_snapshots(store: Store, refs: dict[str, str], progress: Progress) -> tuple[commits.Snapshot, ...]:
    """The snapshots, from the base on, each one checked against the references. Raises BundleRefused."""
    numbered: dict[int, str] = {}
    tags: dict[str, str] = {}
    owners = set()
    for name, commit in refs.items():
        match = _REF.fullmatch(name)
        if match is None:
            raise BundleRefused(f"the bundle holds the reference {name!r}, which is none of ws")
        owners.add(match[1])
        if match[2]:
            numbered[int(match[2])] = commit
        else:
            tags[match[3]] = commit
    if len(owners) != 1 or len(numbered) < 2 or sorted(numbered) != list(range(len(numbered))):
        raise BundleRefused("the bundle does not hold a whole line of snapshots")
    found: list[commits.Snapshot] = []
    ids: set[str] = set()
    for number in range(len(numbered)):
        if number % 256 == 0:
            progress("verify", number, len(numbered))
        commit = numbered[number]
        snapshot = read_snapshot(commit, store.read(bytes.fromhex(commit), COMMIT), number)
        if commit in ids or not ids.issuperset(snapshot.parents):
            raise BundleRefused("the bundle does not hold a whole line of snapshots")
        ids.add(commit)
        found.append(snapshot)
    given = {(encode_tag(snapshot.tag), snapshot.id) for snapshot in found if snapshot.tag}
    if not given.issuperset(tags.items()):  # a tag that was moved is on the newer one
        raise BundleRefused("the tags in the bundle contradict its snapshots")
    tagged = set(tags.values())
    return tuple(one if one.id in tagged else replace(one, tag=None) for one in found)


def _check_room(home: Home, totals: Totals) -> None:
    """A tree may name the same large file a million times: what it takes on disk is not what it took in the bundle."""
    disk = os.statvfs(home.root)
    room = disk.f_bavail * disk.f_frsize
    if totals.size_bytes > room:
        raise LimitExceeded(
            f"the workspace has {totals.size_bytes >> 20:,} MiB, there is room for {room >> 20:,}",
            hint="make room, or set WS_HOME to a larger filesystem",
        )
    if disk.f_files and totals.paths > disk.f_favail:  # some filesystems count none
        raise LimitExceeded(
            f"the workspace has {totals.paths:,} paths, there are inodes for {disk.f_favail:,}",
            hint="make room, or set WS_HOME to a larger filesystem",
        )
