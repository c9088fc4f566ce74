"""Snapshots in the store: commits, the references that make them count, and their names.

    refs/workspaces/ID/N        the N-th snapshot of a workspace; its rename is the commit point
    refs/workspaces/ID/tags/T   a name for one, claimed before the snapshot is published
    packed-refs                 where the collector puts references that are many, as stock git does

A commit's message is the user's text; its last line, `Ws: {…}`, says the rest, so that a list of snapshots
reads commits and no trees. Commit times are whole seconds to git; ours are in that line, and they and the
number make every snapshot's id its own, also where nothing changed.

References are plain files, written whole and renamed: there is no `.lock` that a killed process could
leave. A tag counts only while the snapshot it points at is published; what a crash left before that can be
claimed anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ws import durable
from ws.errors import InvalidName, SnapshotAmbiguous, SnapshotNotFound, StoreDamaged, TagExists
from ws.removing import remove_tree
from ws.store.packs import COMMIT, PackWriter
from ws.store.repository import Store

_IDENTITY = b"ws <ws@localhost>"
_TAG = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]|[.](?=[A-Za-z0-9_-])){0,62}")
_WORKSPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_HEX = re.compile(r"[0-9a-f]{4,40}")  # what a tag may not look like
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


def check_tag(tag: str) -> str:
    """A tag that is also a reference and a file name. Raises InvalidName."""
    if not _TAG.fullmatch(tag) or tag.endswith(".lock") or _HEX.fullmatch(tag) or tag == "base":
        raise InvalidName(
            f"{tag!r} cannot be a tag",
            hint="use up to 63 letters, digits, '_', '-' and dots; not `base`, not what could be an id",
        )
    return tag


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
    said = {
        "workspace": workspace,
        "number": number,
        "created_ns": created_ns,
        "tag": tag,
        "facts": dict(facts or {}),
    }
    when = b"%s %d +0000" % (_IDENTITY, max(created_ns, 0) // 1_000_000_000)
    lines = [b"tree " + tree.encode(), *[b"parent " + parent.encode() for parent in parents]]
    lines += [b"author " + when, b"committer " + when, b"", _clean(message)]
    body = b"\n".join(lines) + b"\n" + _LAST_LINE + json.dumps(said, sort_keys=True).encode() + b"\n"
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
        dict(facts or {}),
    )


def _clean(message: str) -> bytes:
    """A commit holds no NUL, and our line must stay the last one."""
    return message.replace("\0", "").strip().encode(errors="replace")


def read_snapshot(store: Store, commit: str) -> Snapshot:
    """Raises StoreDamaged when it is missing, or no snapshot."""
    data = store.read(bytes.fromhex(commit), COMMIT)
    head, _, text = data.partition(b"\n\n")
    message, _, last = text.rpartition(_LAST_LINE)
    try:
        fields = [line.split(b" ", 1) for line in head.split(b"\n")]
        said = json.loads(last)
        return Snapshot(
            id=commit,
            workspace=said["workspace"],
            number=said["number"],
            tree=next(value.decode() for key, value in fields if key == b"tree"),
            parents=tuple(value.decode() for key, value in fields if key == b"parent"),
            message=message.strip().decode(errors="replace"),
            created_ns=said["created_ns"],
            tag=said["tag"],
            facts=said["facts"],
        )
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        raise StoreDamaged(f"the commit {commit} is not a snapshot: {error}") from None


def next_number(store: Store, workspace: str) -> int:
    """The number of a workspace's next snapshot; the caller holds the workspace's lock."""
    return max(_numbers(store, workspace), default=-1) + 1


def publish(store: Store, snapshot: Snapshot) -> None:
    """Make a snapshot count, durably. Its pack is finished, and the store's lock is still held.

    Raises TagExists when another snapshot of the workspace has its tag; then nothing is published.
    Commit point: the rename of the reference.
    """
    durable.write_files(references(store, snapshot))


def references(store: Store, snapshot: Snapshot) -> list[tuple[str, bytes]]:
    """The files that make a snapshot count, in the order in which they must appear: its tag, then its number.

    Raises TagExists when another snapshot of the workspace has its tag.
    """
    directory = os.path.join(store.path, "refs", "workspaces", snapshot.workspace)
    durable.ensure_directory(directory)
    line = snapshot.id.encode() + b"\n"
    claimed = [(_claim(store, snapshot, snapshot.tag), line)] if snapshot.tag else []
    return [*claimed, (os.path.join(directory, str(snapshot.number)), line)]


def _claim(store: Store, snapshot: Snapshot, tag: str) -> str:
    """Where a tag goes. Raises TagExists when it is on a snapshot already."""
    holder = find_tag(store, snapshot.workspace, tag)
    if holder:
        raise TagExists(
            f"the tag {tag!r} is on snapshot {holder[:12]}", hint="choose another tag, or restore by the id"
        )
    tags = os.path.join(store.path, "refs", "workspaces", snapshot.workspace, "tags")
    durable.ensure_directory(tags)
    return os.path.join(tags, check_tag(tag))


def find_tag(store: Store, workspace: str, tag: str) -> str | None:
    """The id of the published snapshot with this tag, or None."""
    commit = _read_ref(store, f"refs/workspaces/{workspace}/tags/{tag}")
    if not commit or not _HEX.fullmatch(commit):  # a crash left it without its bytes
        return None
    try:
        number = read_snapshot(store, commit).number
    except StoreDamaged:
        return None
    return commit if _read_ref(store, f"refs/workspaces/{workspace}/{number}") == commit else None


def snapshot_ids(store: Store, workspace: str) -> list[str]:
    """The ids of a workspace's snapshots, oldest first; reads no objects."""
    return [_id_of(store, workspace, number, known) for number, known in _numbers(store, workspace).items()]


def list_snapshots(store: Store, workspace: str) -> list[Snapshot]:
    """A workspace's snapshots, oldest first; reads commits and no trees. Raises StoreDamaged."""
    return [read_snapshot(store, commit) for commit in snapshot_ids(store, workspace)]


def snapshot_id(store: Store, workspace: str, number: int) -> str | None:
    """The id of a workspace's snapshot by its number, or None: one look, however many there are.

    Raises StoreDamaged when there is a reference that holds no id.
    """
    name = f"refs/workspaces/{workspace}/{number}"
    commit = _read_ref(store, name)
    return None if commit is None else _checked(name, commit)


def newest_snapshot(store: Store, workspace: str, *, after: int = -1) -> Snapshot | None:
    """The newest snapshot if its number is over `after`, else None. Numbers have no gaps: those below cost nothing."""
    newest = None
    while commit := snapshot_id(store, workspace, after + 1):
        newest, after = commit, after + 1
    return read_snapshot(store, newest) if newest else None


def find_snapshot(store: Store, workspace: str, wanted: str) -> Snapshot:
    """The snapshot that a user means: an id or a unique prefix of one, a tag, `base`, `~N` (N before the
    newest).

    `base` is the first one, from which all others come.
    Raises SnapshotNotFound, SnapshotAmbiguous.
    """
    ids = snapshot_ids(store, workspace)
    missing = SnapshotNotFound(f"there is no snapshot {wanted!r}", hint="`ws log` lists the snapshots")
    if wanted == "base" and ids:
        return read_snapshot(store, ids[0])
    if re.fullmatch(r"~\d{1,9}", wanted):
        back = int(wanted[1:])
        if back >= len(ids):
            raise missing
        return read_snapshot(store, ids[-1 - back])
    if _TAG.fullmatch(wanted) and (tagged := find_tag(store, workspace, wanted)):
        return read_snapshot(store, tagged)
    fitting = [commit for commit in ids if commit.startswith(wanted)] if _PREFIX.fullmatch(wanted) else []
    if len(fitting) > 1:
        raise SnapshotAmbiguous(f"{wanted!r} fits {len(fitting)} snapshots", hint="write more of the id")
    if not fitting:
        raise missing
    return read_snapshot(store, fitting[0])


def workspaces(store: Store) -> set[str]:
    """The ids of all workspaces that have references."""
    found = {name.split("/")[2] for name in _packed(store) if name.startswith("refs/workspaces/")}
    return found | set(os.listdir(os.path.join(store.path, "refs", "workspaces")))


def all_refs(store: Store) -> dict[str, str]:
    """Every reference and the id it holds; loose ones win over packed ones."""
    found = _packed(store)
    for workspace in os.listdir(os.path.join(store.path, "refs", "workspaces")):
        for part in ("", "/tags"):
            name = f"refs/workspaces/{workspace}{part}"
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                for entry in os.listdir(os.path.join(store.path, name)):
                    commit = None if entry.startswith(".") or entry == "tags" else _read_loose(store, f"{name}/{entry}")
                    if commit:
                        found[f"{name}/{entry}"] = commit
    return found


def drop_refs(store: Store, workspace: str) -> None:
    """Forget all snapshots of a workspace; their objects go with the next collection. Idempotent.

    Commit point: the removal of its directory of references, after those in `packed-refs`.
    """
    prefix = f"refs/workspaces/{workspace}/"
    with durable.locked(store.refs_lock, what="the list of references"):
        packed = _packed(store)
        kept = {name: commit for name, commit in packed.items() if not name.startswith(prefix)}
        if len(kept) != len(packed):
            _write_packed(store, kept)
        remove_tree(os.path.join(store.path, prefix.rstrip("/")))


def pack_refs(store: Store) -> None:
    """Move all references into `packed-refs`: a thousand files of 41 bytes take four megabytes of disk.

    Commit point: the rename of `packed-refs`; a loose reference that is still there says the same.
    """
    with durable.locked(store.refs_lock, what="the list of references"):
        refs = all_refs(store)
        if refs != _packed(store):
            _write_packed(store, refs)
        for name in refs:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(store.path, name))


def _write_packed(store: Store, refs: Mapping[str, str]) -> None:
    lines = ["# pack-refs with: peeled fully-peeled sorted \n"]
    lines += [f"{commit} {name}\n" for name, commit in sorted(refs.items())]
    durable.write_file(os.path.join(store.path, "packed-refs"), "".join(lines).encode())


def _packed(store: Store) -> dict[str, str]:
    return {name: commit for commit, name in re.findall(r"^([0-9a-f]{40}) (\S+)$", _packed_text(store), re.M)}


def _packed_text(store: Store) -> str:
    try:
        return durable.read_file(os.path.join(store.path, "packed-refs")).decode()
    except FileNotFoundError:
        return ""


def _read_ref(store: Store, name: str) -> str | None:
    """What a reference holds; None when there is none. Loose ones are written later than packed ones."""
    loose = _read_loose(store, name)
    return loose or _find_packed(_packed_text(store), name) or loose


def _find_packed(text: str, name: str) -> str | None:
    at = text.find(f" {name}\n")  # a line is an id and a name
    return text[max(at - 40, 0) : at] if at >= 0 else None


def _read_loose(store: Store, name: str) -> str | None:
    try:
        return durable.read_file(os.path.join(store.path, name))[:64].decode("ascii", "replace").strip()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return None


def _numbers(store: Store, workspace: str) -> dict[int, str | None]:
    """The numbers of the published snapshots, oldest first; with their ids where these are at hand."""
    prefix = f"refs/workspaces/{workspace}/"
    rule = rf"^([0-9a-f]{{40}}) {re.escape(prefix)}(\d+)$"
    found: dict[int, str | None] = {
        int(number): commit for commit, number in re.findall(rule, _packed_text(store), re.M)
    }
    with contextlib.suppress(FileNotFoundError):
        found.update((int(entry), None) for entry in os.listdir(os.path.join(store.path, prefix)) if entry.isdigit())
    return dict(sorted(found.items()))


def _id_of(store: Store, workspace: str, number: int, known: str | None) -> str:
    name = f"refs/workspaces/{workspace}/{number}"
    return _checked(name, known or _read_ref(store, name) or "")


def _checked(name: str, commit: str) -> str:
    if len(commit) != 40 or not _HEX.fullmatch(commit):
        raise StoreDamaged(f"the reference {name} holds no id")
    return commit
