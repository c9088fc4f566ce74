"""Bundles: a workspace with all its snapshots in one file, for another machine or another WS_HOME.

The file is a git bundle, so stock git reads it too (`git bundle verify`, `git fetch F 'refs/*:refs/*'`):

    # v2 git bundle
    ID refs/ws/workspace              a blob: the Manifest, what the workspace was
    ID refs/workspaces/OLD/0          the base, then every snapshot
    ID refs/workspaces/OLD/tags/T
                                      an empty line, then a pack of everything that these need

Taking one in trusts nothing. It is read into a store of its own in `staging/`; every object is hashed, every tree and
commit is checked for what it says, and only then is what is needed written to the store. Of what the other machine
recorded, that which means something only there (paths of its sources, its runtimes) stays behind.

The snapshots keep their ids. The workspace gets an id, a container and a base of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Annotated, Any, BinaryIO

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ws import bases, durable
from ws.containers import EngineFor
from ws.creation import create_workspace, name_taken, options_of
from ws.engine.base import Engine
from ws.errors import AlreadyExists, BundleRefused, InvalidRequest, LimitExceeded, StoreDamaged
from ws.fs.tags import check_tag
from ws.history import Snapshot
from ws.layout import History, Home, WorkspaceRecord, new_id, resolve_name
from ws.removing import remove_tree
from ws.restores import at_rest
from ws.snapshots import publish, settled_turn
from ws.spec import WorkspaceSpec, check_spec
from ws.store import commits, references, trees
from ws.store.checkout import walk_tree
from ws.store.excludes import Excludes
from ws.store.intake import take_in
from ws.store.packs import BLOB, PackWriter, object_id
from ws.store.reach import reach
from ws.store.repository import Store
from ws.store.tags import encode_tag
from ws.store.verify import Verifier

Progress = Callable[[str, int, int], None]

_SIGNATURE = b"# v2 git bundle\n"
_MANIFEST = "refs/ws/workspace"
_MAX_HEADER_BYTES = 64 << 20
_MAX_MANIFEST_BYTES = 1 << 20
_REF = re.compile(
    r"refs/workspaces/([A-Za-z0-9][A-Za-z0-9_-]{0,63})/(?:(0|[1-9]\d{0,8})|tags/([A-Za-z0-9._%-]{1,240}))"
)
_LINE = re.compile(rb"([0-9a-f]{40}) ([!-~]{1,255})\n")

_Hex = Annotated[str, Field(pattern=r"^[0-9a-f]{40}$")]
_Number = Annotated[int, Field(ge=0, le=999_999_999)]
_Id = Annotated[int, Field(ge=0, lt=(1 << 32) - 1)]


class Manifest(BaseModel):
    """What a workspace was on the machine it comes from."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Annotated[int, Field(ge=1, le=1)] = 1
    name: str
    engine: str
    source: str | None
    exclude: list[str]
    image: str
    options: dict[str, Any]
    uid: _Id
    gid: _Id
    source_tree: _Hex
    head: _Number
    undo: _Number | None

    @classmethod
    def of(cls, record: WorkspaceRecord) -> Manifest:
        options = asdict(record.options)
        return cls(
            name=record.name,
            engine=record.engine,
            source=record.source,
            exclude=list(record.exclude),
            image=options.pop("image"),
            options=options,
            uid=record.ids.uid,
            gid=record.ids.gid,
            source_tree=record.source_tree,
            head=record.history.head,
            undo=record.history.undo,
        )


@dataclass(frozen=True, slots=True)
class ExportedBundle:
    path: str
    snapshots: int
    size_bytes: int


# -- out ---------------------------------------------------------------------------------------------------------


def export_bundle(home: Home, workspace_id: str, path: str, *, progress: Progress | None = None) -> ExportedBundle:
    """Write the workspace and all its snapshots into a new file; what no snapshot has yet is snapshotted first.

    Raises AlreadyExists, InvalidRequest when it cannot be written, SnapshotFailed, Busy, StoreDamaged.
    Commit point: the rename of the file to its name.
    """
    target = os.path.abspath(path)
    if os.path.lexists(target):
        raise AlreadyExists(f"{path} exists already", hint="name a file that does not")
    with settled_turn(home, workspace_id, "snapshot") as (record, store):
        if record.history.count == 0 or not at_rest(home, record):
            _, record = publish(home, store, record, message="before an export", kind="snapshot")
        store.refresh()
        prefix = f"refs/workspaces/{record.id}/"
        refs = {name: commit for name, commit in references.all_refs(store).items() if name.startswith(prefix)}
        staging = home.staging()
        os.mkdir(staging, 0o700)
        try:
            manifest = Manifest.of(record).model_dump_json().encode()
            pack = _write_pack(store, staging, refs, record, manifest, progress)
            refs = {_MANIFEST: object_id(BLOB, manifest).hex(), **refs}
            size_bytes = _write_bundle(target, refs, pack)
        finally:
            remove_tree(staging)
    return ExportedBundle(target, record.history.count, size_bytes)


def _write_pack(
    store: Store,
    staging: str,
    refs: Mapping[str, str],
    record: WorkspaceRecord,
    manifest: bytes,
    progress: Progress | None,
) -> str:
    live: dict[bytes, int] = {}
    reach(store, map(bytes.fromhex, refs.values()), [bytes.fromhex(record.source_tree)], live)
    writer = PackWriter(staging, lambda _: False)
    writer.add(BLOB, manifest)
    for number, (oid, kind) in enumerate(live.items()):
        writer.add_new(oid, kind, store.read(oid, kind))
        if progress and number % 256 == 0:
            progress("bundle", number, len(live))
    written = writer.finish()
    assert written is not None  # it holds at least the manifest
    return written


def _write_bundle(target: str, refs: Mapping[str, str], pack: str) -> int:
    directory, name = os.path.split(target)
    temporary = os.path.join(directory, f".{name[:200]}.{os.urandom(4).hex()}.tmp")
    try:
        with open(temporary, "xb") as file, open(pack, "rb") as body:
            file.write(_SIGNATURE)
            file.writelines(f"{commit} {ref}\n".encode() for ref, commit in sorted(refs.items()))
            file.write(b"\n")
            shutil.copyfileobj(body, file, 1 << 20)
            file.flush()
            os.fsync(file.fileno())
            size_bytes = file.tell()
        durable.rename_new(temporary, target)
        return size_bytes
    except FileExistsError:
        raise AlreadyExists(f"{target} exists already", hint="name a file that does not") from None
    except OSError as error:
        raise InvalidRequest(f"cannot write {target}: {error.strerror}", hint="is there room, and may you?") from error
    finally:
        with contextlib.suppress(OSError):
            os.unlink(temporary)


# -- in ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was read whole and found sound; its objects are in `store`, a scratch one."""

    store: Store
    manifest: Manifest
    spec: WorkspaceSpec
    snapshots: tuple[commits.Snapshot, ...]
    needed: Mapping[bytes, int]  # objects and their kinds


def import_bundle(
    home: Home,
    path: str,
    engine: Engine,
    engine_for: EngineFor,
    *,
    name: str | None = None,
    image: str | None = None,
    progress: Progress | None = None,
) -> WorkspaceRecord:
    """A new workspace from a bundle, with all its snapshots.

    Commit point: the record that says `ready`. References written before it are taken back on an error; those that a
    crash left belong to no workspace, and the collector drops them.
    Raises BundleRefused, LimitExceeded, WorkspaceExists, ImageNotFound, EngineError, StateUnusable.
    """
    with open_bundle(home, path, progress) as bundle, Store(home.store) as store:
        chosen = name or bundle.manifest.name
        if resolve_name(home, chosen):
            raise name_taken(chosen)
        record = _plan(bundle, engine, chosen, image)
        with store.writing() as writer:  # until the record names its trees, the collector must not look
            _copy(bundle, writer, progress)
            writer.finish()
            try:
                for snapshot in bundle.snapshots:
                    commits.publish(store, replace(snapshot, workspace=record.id))
                bases.ensure_base(home, record.base, ids=record.ids, progress=progress)
                create_workspace(home, record, engine_for)
            except BaseException:
                references.drop_refs(store, record.id)
                raise
    return record


def _plan(bundle: Bundle, engine: Engine, name: str, image: str | None) -> WorkspaceRecord:
    manifest, spec = bundle.manifest, bundle.spec
    chosen = image or manifest.image
    facts = engine.image(chosen)
    tree = bundle.snapshots[manifest.head].tree
    ids = engine.host_ids(manifest.uid, manifest.gid)
    return WorkspaceRecord(
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
        options=options_of(spec, chosen),  # without a runtime, which this machine may not have
        # A path of the other machine says nothing here, and one that somebody made up could name anything of ours.
        source=None,
        exclude=spec.exclude,
        image_id=facts.id,
        image_env=dict(facts.env),
        history=History(head=manifest.head, count=bundle.snapshots[-1].number, undo=manifest.undo),
    )


def _copy(bundle: Bundle, writer: PackWriter, progress: Progress | None) -> None:
    for number, (oid, kind) in enumerate(bundle.needed.items()):
        writer.add(kind, bundle.store.read(oid, kind))  # also what is stored already, if that copy is damaged
        if progress and number % 256 == 0:
            progress("store", number, len(bundle.needed))


@contextlib.contextmanager
def open_bundle(home: Home, path: str, progress: Progress | None = None) -> Iterator[Bundle]:
    """Read a bundle into a scratch store and check all of it. Raises BundleRefused, LimitExceeded, InvalidRequest."""
    staging = home.staging()
    os.mkdir(staging, 0o700)
    try:
        with _open_file(path) as file, Store(os.path.join(staging, "store")) as store:
            refs = _read_header(file)
            with store.writing() as writer:
                take_in(file, writer, progress)
                writer.finish()
            store.refresh()
            try:
                bundle = _check(home, store, refs, progress)
            except StoreDamaged as error:
                raise BundleRefused(f"the bundle is damaged: {error.message}") from None
            yield bundle
    finally:
        remove_tree(staging)


def _open_file(path: str) -> BinaryIO:
    try:
        # O_NONBLOCK: a FIFO must not hold us up.
        return open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY), "rb")
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror}") from None


def _read_header(file: BinaryIO) -> dict[str, str]:
    """The references. Raises BundleRefused."""
    if file.readline(len(_SIGNATURE)) != _SIGNATURE:
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


def _check(home: Home, store: Store, refs: dict[str, str], progress: Progress | None) -> Bundle:
    manifest, spec = _read_manifest(store, refs.pop(_MANIFEST, ""))
    snapshots = _read_snapshots(home, store, refs)
    if manifest.head >= len(snapshots) or (manifest.undo or 0) >= len(snapshots):
        raise BundleRefused("the bundle names snapshots that it does not hold")
    _check_room(home, store, snapshots[manifest.head].tree)
    verifier = Verifier(store)
    wanted = [(snapshot.id[:12], snapshot.tree) for snapshot in snapshots]
    for number, (name, tree) in enumerate([*wanted, ("the source", manifest.source_tree)]):
        for damage in verifier.check(tree):
            raise BundleRefused(f"the bundle is damaged: {name}: {damage.path}: {damage.problem}")
        if progress:
            progress("verify", number, len(wanted))
    needed: dict[bytes, int] = {}
    reach(store, [bytes.fromhex(one.id) for one in snapshots], [bytes.fromhex(manifest.source_tree)], needed)
    if not all(map(store.contains, needed)):
        raise BundleRefused("the bundle does not hold all that it names")
    return Bundle(store, manifest, spec, snapshots, needed)


def _read_manifest(store: Store, oid: str) -> tuple[Manifest, WorkspaceSpec]:
    if not oid:
        raise BundleRefused("this is a git bundle, but none of ws", hint="`ws export --bundle F` makes one")
    data = store.read(bytes.fromhex(oid), BLOB)
    if len(data) > _MAX_MANIFEST_BYTES:
        raise BundleRefused("the bundle describes its workspace at too great a length")
    try:
        manifest = Manifest.model_validate_json(data)
        options = manifest.options
        Excludes(manifest.exclude)
        spec = check_spec(
            name=manifest.name,
            image=manifest.image,
            network=options["network"],
            memory=options["memory_bytes"],
            cpus=options["cpus"],
            pids=options["pids"],
            disk=options["disk_bytes"],
            env=options["env"],
            read_write_root=options["read_write_root"],
            exclude=tuple(manifest.exclude),
        )
    except (ValidationError, InvalidRequest, KeyError, RecursionError) as error:
        told = str(error).splitlines()[0]
        raise BundleRefused(f"the bundle describes no workspace that ws can make: {told}") from None
    return manifest, spec


def _read_snapshots(home: Home, store: Store, refs: dict[str, str]) -> tuple[commits.Snapshot, ...]:
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
    found = tuple(_read_snapshot(home, store, number, numbered[number]) for number in range(len(numbered)))
    ids = {snapshot.id for snapshot in found}
    if len(ids) != len(found) or not ids.issuperset(parent for snapshot in found for parent in snapshot.parents):
        raise BundleRefused("the bundle does not hold a whole line of snapshots")
    given = {(encode_tag(snapshot.tag), snapshot.id) for snapshot in found if snapshot.tag}
    if not given.issuperset(tags.items()):  # a tag that was moved is on the newer one
        raise BundleRefused("the tags in the bundle contradict its snapshots")
    tagged = set(tags.values())
    return tuple(one if one.id in tagged else replace(one, tag=None) for one in found)


def _read_snapshot(home: Home, store: Store, number: int, commit: str) -> commits.Snapshot:
    stored = commits.read_snapshot(store, commit)
    try:
        shown = Snapshot.of(home, stored)
        facts = (
            (stored.number == number, "number"),
            (shown.kind in ("base", "snapshot", "safety"), "kind"),
            (isinstance(shown.root_path, str), "root"),
            (all(isinstance(line, str) for line in shown.skipped), "skipped"),
            (all(type(count) is int for count in (shown.paths_changed, shown.size_bytes)), "counts"),
            (all(at is None or type(at) is int for at in (shown.parent, shown.restored)), "parent"),
            (stored.tag is None or check_tag(stored.tag) == stored.tag, "tag"),
            (re.fullmatch(r"[0-9a-f]{40}", stored.tree) is not None, "tree"),
            ("layers" in stored.facts, "layers"),
        )
    except (KeyError, TypeError, ValueError, OverflowError, OSError) as error:
        raise BundleRefused(f"snapshot {commit[:12]} cannot be read: {error}") from None
    for sound, what in facts:
        if not sound:
            raise BundleRefused(f"snapshot {commit[:12]} cannot be read: its {what} is wrong")
    return stored


def _check_room(home: Home, store: Store, tree: str) -> None:
    """A tree may name the same large file a million times: what it takes on disk is not what it took in the bundle."""
    disk = os.statvfs(home.root)
    room = disk.f_bavail * disk.f_frsize
    zeros = object_id(BLOB, bytes(trees.CHUNK_BYTES))
    needed = 0
    for path, listing in walk_tree(store, trees.read_root(store, bytes.fromhex(tree)).node):
        for file in listing.files.values():
            if file.meta.kind == "c":
                chunks = trees.read_tree(store, file.oid, path)
                needed += trees.CHUNK_BYTES * sum(oid != zeros for _, _, oid in chunks)
            else:
                needed += file.meta.size
        if needed > room:
            raise LimitExceeded(
                f"the workspace has more than {needed >> 20} MiB, there is room for {room >> 20}",
                hint="make room, or set WS_HOME to a larger filesystem",
            )
