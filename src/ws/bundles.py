"""Bundles: a workspace with all its snapshots in one file, for another machine or another WS_HOME.

The file is a git bundle, so stock git reads it too (`git bundle verify`, `git fetch F 'refs/*:refs/*'`):

    # v2 git bundle
    ID refs/ws/workspace              a blob: the manifest, what the workspace was (`bundle_manifest`)
    ID refs/workspaces/OLD/0          the base, then every snapshot
    ID refs/workspaces/OLD/tags/T
                                      an empty line, then a pack of everything that these need

This module writes them; `bundle_import` reads them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ws import durable
from ws.bundle_manifest import write_manifest
from ws.errors import AlreadyExists, InvalidRequest
from ws.layout import Home, WorkspaceRecord
from ws.restores import at_rest
from ws.snapshots import publish, settled_turn
from ws.staged import staged_directory
from ws.store import references
from ws.store.packs import BLOB, PackWriter, object_id
from ws.store.reach import reach
from ws.store.repository import Store

Progress = Callable[[str, int, int], None]

SIGNATURE = b"# v2 git bundle\n"
MANIFEST_REF = "refs/ws/workspace"


@dataclass(frozen=True, slots=True)
class ExportedBundle:
    path: str
    snapshots: int
    size_bytes: int


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
        with staged_directory(home) as staging:
            manifest = write_manifest(record)
            pack = _write_pack(store, staging, refs, record, manifest, progress)
            refs = {MANIFEST_REF: object_id(BLOB, manifest).hex(), **refs}
            size_bytes = _write_bundle(target, refs, pack)
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
            file.write(SIGNATURE)
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
