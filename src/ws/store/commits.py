"""Snapshots in the store: commits, the references that make them count, and their names.

    refs/workspaces/ID/N        the N-th snapshot of a workspace; its rename is the commit point
    refs/workspaces/ID/tags/T   a name for one, claimed before the snapshot is published

A commit's message is the user's text; its last line, `Ws: {…}`, says the rest, so that a list of snapshots
reads commits and no trees. Commit times are whole seconds to git; ours are in that line, and they and the
number make every snapshot's id its own, also where nothing changed.

References (`references`) are written whole and renamed: there is no `.lock` that a killed process could
leave. A tag counts only while the snapshot it points at is published; what a crash left before that can be
claimed anew.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ws import durable
from ws.errors import InvalidName, SnapshotAmbiguous, SnapshotNotFound, StoreDamaged, TagExists
from ws.record_files import parse_json
from ws.store.packs import COMMIT, PackWriter
from ws.store.references import add_packed, ids_that_begin, numbers_of, read_ref, references_of
from ws.store.repository import Store
from ws.store.tags import encode_tag

_IDENTITY = b"ws <ws@localhost>"
_WORKSPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_PREFIX = re.compile(r"[0-9a-f]{1,40}")
_LAST_LINE = b"\nWs: "


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One commit of a workspace, without its tree."""

    id: str
    workspace: str
    number: int
    tree: str
    parents: tuple[str, ...]
    message: str
    created_ns: int
    tag: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)  # the caller's: statistics, base, layers, …

    @property
    def ref(self) -> str:
        return f"refs/workspaces/{self.workspace}/{self.number}"


def add_snapshot(
    writer: PackWriter,
    *,
    workspace: str,
    number: int,
    tree: str,
    parents: Iterable[str] = (),
    message: str = "",
    created_ns: int,
    tag: str | None = None,
    facts: Mapping[str, Any] | None = None,
) -> Snapshot:
    """Store the commit, in the same pack as its tree. It counts once `publish` has named it."""
    if not _WORKSPACE.fullmatch(workspace):
        raise InvalidName(f"{workspace!r} is not the id of a workspace")
    parents = tuple(parents)
    facts = dict(facts or {})
    body = encode_snapshot(
        workspace=workspace,
        number=number,
        tree=tree,
        parents=parents,
        message=message,
        created_ns=created_ns,
        tag=tag,
        facts=facts,
    )
    commit = writer.add(COMMIT, body)
    return Snapshot(
        commit.hex(),
        workspace,
        number,
        tree,
        parents,
        _clean(message).decode(),
        created_ns,
        tag,
        facts,
    )


def encode_snapshot(
    *,
    workspace: str,
    number: int,
    tree: str,
    parents: Iterable[str],
    message: str,
    created_ns: int,
    tag: str | None,
    facts: Mapping[str, Any],
) -> bytes:
    """The bytes of a commit. The same snapshot always gives the same bytes."""
    said = {"workspace": workspace, "number": number, "created_ns": created_ns, "tag": tag, "facts": dict(facts)}
    when = b"%s %d +0000" % (_IDENTITY, max(created_ns, 0) // 1_000_000_000)
    lines = [b"tree " + tree.encode(), *[b"parent " + parent.encode() for parent in parents]]
    lines += [b"author " + when, b"committer " + when, b"", _clean(message)]
    return b"\n".join(lines) + b"\n" + _LAST_LINE + json.dumps(said, sort_keys=True).encode() + b"\n"


def split_snapshot(data: bytes) -> tuple[list[list[bytes]], bytes, bytes]:
    """The header lines of a commit as key and value, its message, and the JSON of its last line."""
    head, _, text = data.partition(b"\n\n")
    message, _, last = text.rpartition(_LAST_LINE)
    return [line.split(b" ", 1) for line in head.split(b"\n")], message.strip(), last


def _clean(message: str) -> bytes:
    """A commit holds no NUL, and our line must stay the last one."""
    return message.replace("\0", "").strip().encode(errors="replace")


def read_snapshot(store: Store, commit: str) -> Snapshot:
    """Raises StoreDamaged when it is missing, or no snapshot."""
    fields, message, last = split_snapshot(store.read(bytes.fromhex(commit), COMMIT))
    try:
        said = parse_json(last)
        return Snapshot(
            id=commit,
            workspace=said["workspace"],
            number=said["number"],
            tree=next(value.decode() for key, value in fields if key == b"tree"),
            parents=tuple(value.decode() for key, value in fields if key == b"parent"),
            message=message.decode(errors="replace"),
            created_ns=said["created_ns"],
            tag=said["tag"],
            facts=said["facts"],
        )
    except (ValueError, KeyError, TypeError, StopIteration, RecursionError) as error:
        raise StoreDamaged(f"the commit {commit} is not a snapshot: {error}") from None


def next_number(store: Store, workspace: str) -> int:
    """The number of a workspace's next snapshot; the caller holds the workspace's lock."""
    return max(numbers_of(store, workspace), default=-1) + 1


def publish(store: Store, snapshot: Snapshot, *, force: bool = False) -> None:
    """Make a snapshot count, durably. Its pack is finished, and the store's lock is still held.

    Raises TagExists when another snapshot of the workspace has its tag; then nothing is published.
    Commit point: the rename of the reference.
    """
    durable.write_files(references(store, snapshot, force=force))


def publish_all(store: Store, snapshots: Iterable[Snapshot]) -> None:
    """Make the snapshots of a new workspace count, however many; their packs are finished, the store's lock is held.

    Commit point: the rename of `packed-refs`.
    """
    new: dict[str, str] = {}
    for snapshot in snapshots:
        new[snapshot.ref] = snapshot.id
        if snapshot.tag:
            new[f"refs/workspaces/{snapshot.workspace}/tags/{encode_tag(snapshot.tag)}"] = snapshot.id
    add_packed(store, new)


def references(store: Store, snapshot: Snapshot, *, force: bool = False) -> list[tuple[str, bytes]]:
    """The files that make a snapshot count, in the order in which they must appear: its tag, then its number.

    With `force` a tag is moved from the snapshot that has it, after the number: until then that one keeps it.
    Raises TagExists when another snapshot of the workspace has its tag.
    """
    directory = os.path.join(store.path, "refs", "workspaces", snapshot.workspace)
    durable.ensure_directory(directory)
    line = snapshot.id.encode() + b"\n"
    number = (os.path.join(directory, str(snapshot.number)), line)
    if not snapshot.tag:
        return [number]
    holder = find_tag(store, snapshot.workspace, snapshot.tag)
    if holder and not force:
        raise TagExists(
            f"the tag {snapshot.tag!r} is on snapshot {holder[:12]}", hint="choose another tag, or move it with --force"
        )
    tags = os.path.join(directory, "tags")
    durable.ensure_directory(tags)
    tag = (os.path.join(tags, encode_tag(snapshot.tag)), line)
    return [number, tag] if holder else [tag, number]


def find_tag(store: Store, workspace: str, tag: str) -> str | None:
    """The id of the published snapshot with this tag, or None."""
    commit = read_ref(store, f"refs/workspaces/{workspace}/tags/{encode_tag(tag)}")
    if not commit:  # or a crash left it without its bytes
        return None
    try:
        number = read_snapshot(store, commit).number
    except StoreDamaged:
        return None
    return commit if read_ref(store, f"refs/workspaces/{workspace}/{number}") == commit else None


def snapshot_ids(store: Store, workspace: str) -> list[str]:
    """The ids of a workspace's snapshots, oldest first; reads no objects. Raises StoreDamaged."""
    return [_checked(store, workspace, *each) for each in references_of(store, workspace).items()]


def list_snapshots(store: Store, workspace: str) -> list[Snapshot]:
    """A workspace's snapshots, oldest first; reads commits and no trees. Raises StoreDamaged.

    A commit says which tag it was given; the reference says which snapshot has it now.
    """
    found = [read_snapshot(store, commit) for commit in snapshot_ids(store, workspace)]
    given = Counter(snapshot.tag for snapshot in found if snapshot.tag)
    return [
        replace(one, tag=None)
        if one.tag and given[one.tag] > 1 and find_tag(store, workspace, one.tag) != one.id
        else one
        for one in found
    ]


def snapshot_id(store: Store, workspace: str, number: int) -> str | None:
    """The id of a workspace's snapshot by its number, or None: one look, however many there are.

    Raises StoreDamaged when there is a reference that holds no id.
    """
    name = f"refs/workspaces/{workspace}/{number}"
    commit = read_ref(store, name)
    if commit is None and os.path.lexists(os.path.join(store.path, name)):
        commit = ""
    return None if commit is None else _checked(store, workspace, number, commit)


def newest_snapshot(store: Store, workspace: str, *, after: int = -1) -> Snapshot | None:
    """The newest snapshot if its number is over `after`, else None. Numbers have no gaps: those below cost nothing."""
    newest = None
    while commit := snapshot_id(store, workspace, after + 1):
        newest, after = commit, after + 1
    return read_snapshot(store, newest) if newest else None


def find_snapshot(store: Store, workspace: str, wanted: str) -> Snapshot:
    """The snapshot that a user means: an id or a unique prefix of one, a tag, `base`.

    `base` is the first one, from which all others come.
    Raises SnapshotNotFound, SnapshotAmbiguous.
    """
    missing = SnapshotNotFound(f"there is no snapshot {wanted!r}", hint="`ws log` lists the snapshots")
    if wanted == "base":
        numbers = numbers_of(store, workspace)
        commit = snapshot_id(store, workspace, numbers[0]) if numbers else None
        if commit is None:
            raise missing
        return read_snapshot(store, commit)
    found = _find_prefix(store, workspace, wanted) if _PREFIX.fullmatch(wanted) else None
    found = found or (find_tag(store, workspace, wanted) if wanted.isprintable() and wanted else None)
    if found is None:
        raise missing
    return read_snapshot(store, found)


def _find_prefix(store: Store, workspace: str, wanted: str) -> str | None:
    """The id that begins so; None when none does. Raises SnapshotAmbiguous, StoreDamaged."""
    # A damaged reference stands in the way of no other snapshot: it is looked for only when none of them fits.
    fitting = sorted(ids_that_begin(store, workspace, wanted))
    if not fitting:
        ids = references_of(store, workspace)
        found = [_checked(store, workspace, number, "") for number, commit in ids.items() if not commit]
        fitting = [commit for commit in found if commit.startswith(wanted)]
    if len(fitting) > 1:
        raise SnapshotAmbiguous(f"{wanted!r} fits {len(fitting)} snapshots", hint="write more of the id")
    return fitting[0] if fitting else None


def _checked(store: Store, workspace: str, number: int, commit: str) -> str:
    """An id as it is or, where the reference holds none, as the commits in the packs say it. Raises StoreDamaged."""
    from ws.store.repairs import find_published

    found = commit or find_published(store, workspace, [number]).get(number, "")
    if not found:
        raise StoreDamaged(
            f"the reference refs/workspaces/{workspace}/{number} holds no id, and no pack has its commit",
            hint="`ws verify` says which snapshots are left",
        )
    return found
