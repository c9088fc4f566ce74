"""References: files of their own when they are new, lines of `packed-refs` once they are many.

    refs/workspaces/ID/N        the N-th snapshot of a workspace
    refs/workspaces/ID/tags/T   a name for one
    packed-refs                 as stock git writes it, sorted by name

A reference in a file of its own is newer than the one in `packed-refs`. `packed-refs` is sorted, so one workspace's
part is found without reading the rest: what one workspace does costs the same beside a million snapshots of others.

References are moved into `packed-refs` by the collector, and by a snapshot that finds many files (`pack_if_many`). That
is done while no process publishes (`locking`): else a reference that is written anew, in the instant between the
reading and the unlinking of its file, would be lost.

What is not a regular file, or does not hold an id, is damage. It is no reference to a lookup; `repairs` finds the id.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping

from ws import durable
from ws.errors import Busy
from ws.removing import remove_any, remove_tree
from ws.store import locking
from ws.store.plain import is_plain
from ws.store.reference_files import ID, find_section, open_packed, read_loose, read_reference
from ws.store.repository import Store

MANY_LOOSE = 64
_LOOK_EVERY = 16  # snapshots: to count the files takes a while, too

_LINE = re.compile(rb"^([0-9a-f]{40}) (\S+)$", re.M)
_NAME = re.compile(r"\d{1,9}|tags/[^/.][^/]*")


def read_ref(store: Store, name: str) -> str | None:
    """The id that a reference holds; None when there is none, or nothing that is an id."""
    return read_reference(store.path, name)


def references_of(store: Store, workspace: str) -> dict[int, str]:
    """The ids of a workspace's snapshots by their numbers, in order; "" where a reference holds none."""
    prefix = f"refs/workspaces/{workspace}/"
    rule = re.compile(rb"^([0-9a-f]{40}) %s(\d{1,9})$" % re.escape(prefix.encode()), re.M)
    with open_packed(store.path) as packed:
        found = {int(number): oid.decode() for oid, number in rule.findall(find_section(packed, prefix.encode()))}
    for entry in _listed(os.path.join(store.path, prefix)):
        if entry.isdecimal():
            found[int(entry)] = read_loose(store.path, prefix + entry) or found.get(int(entry), "")
    return dict(sorted(found.items()))


def ids_that_begin(store: Store, workspace: str, begin: str) -> set[str]:
    """The ids of a workspace's snapshots that begin so; looks at no other line of `packed-refs`."""
    prefix = f"refs/workspaces/{workspace}/"
    entries = [entry for entry in _listed(os.path.join(store.path, prefix)) if entry.isdecimal()]
    loose = {entry: read_loose(store.path, prefix + entry) for entry in entries}
    found = {oid for oid in loose.values() if oid and oid.startswith(begin)}
    with open_packed(store.path) as packed:
        section = b"\n" + find_section(packed, prefix.encode())
    at, wanted = -1, b"\n" + begin.encode()
    while (at := section.find(wanted, at + 1)) >= 0:
        line = section[at + 1 : section.find(b"\n", at + 1)].decode("ascii", "replace")
        oid, _, name = line.partition(" ")
        number = name.removeprefix(prefix)
        if ID.fullmatch(oid) and number.isdecimal() and not loose.get(number):
            found.add(oid)
    return found


def numbers_of(store: Store, workspace: str) -> list[int]:
    """The numbers of a workspace's snapshots, oldest first; opens none of the references."""
    prefix = f"refs/workspaces/{workspace}/"
    rule = re.compile(rb"^[0-9a-f]{40} %s(\d{1,9})$" % re.escape(prefix.encode()), re.M)
    with open_packed(store.path) as packed:
        found = set(map(int, rule.findall(find_section(packed, prefix.encode()))))
    found.update(int(entry) for entry in _listed(os.path.join(store.path, prefix)) if entry.isdecimal())
    return sorted(found)


def workspaces(store: Store) -> set[str]:
    """The ids of all workspaces that have references."""
    found = {name.split("/")[2] for name in _all_packed(store) if re.match(r"refs/workspaces/[^/]+/", name)}
    return found | set(_listed(os.path.join(store.path, "refs", "workspaces")))


def all_refs(store: Store) -> dict[str, str]:
    """Every reference and the id it holds. What holds no id is left out."""
    found = _all_packed(store)
    for workspace in _listed(os.path.join(store.path, "refs", "workspaces")):
        for part in ("", "tags/"):
            prefix = f"refs/workspaces/{workspace}/{part}"
            for entry in _listed(os.path.join(store.path, prefix)):
                if _NAME.fullmatch(part + entry) and (loose := read_loose(store.path, prefix + entry)):
                    found[prefix + entry] = loose
    return found


def drop_refs(store: Store, workspace: str) -> None:
    """Forget all snapshots of a workspace; their objects go with the next collection. Idempotent.

    Commit point: the removal of its directory of references, after those in `packed-refs`.
    """
    prefix = f"refs/workspaces/{workspace}/"
    with locking.listing_references(store):
        packed = _all_packed(store)
        kept = {name: oid for name, oid in packed.items() if not name.startswith(prefix)}
        if len(kept) != len(packed):
            _write_packed(store, kept)
        remove_tree(os.path.join(store.path, prefix.rstrip("/")))


def write_ref(store: Store, name: str, oid: str) -> None:
    """Put a reference in the place of one that was damaged. The caller holds `ws.lock`.

    Commit point: the rename of the file.
    """
    path = os.path.join(store.path, name)
    for directory in (os.path.dirname(os.path.dirname(path)), os.path.dirname(path)):
        if not os.path.isdir(directory):
            remove_any(directory)
        durable.ensure_directory(directory)
    if not is_plain(path):
        remove_any(path)
    durable.write_file(path, oid.encode() + b"\n")


def pack_refs(store: Store) -> None:
    """Move all references into `packed-refs`: a thousand files of 41 bytes take four megabytes of disk.

    The caller holds `ws.lock` exclusively. Commit point: the rename of `packed-refs`; a reference that is still in a
    file of its own says the same.
    """
    with locking.listing_references(store):
        refs = all_refs(store)
        if refs != _all_packed(store):
            _write_packed(store, refs)
        for name in refs:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                os.unlink(os.path.join(store.path, name))


def add_packed(store: Store, refs: Mapping[str, str]) -> None:
    """Add references to `packed-refs`, however many. The caller holds `ws.lock`. Commit point: the file's rename."""
    with locking.listing_references(store):
        _write_packed(store, {**_all_packed(store), **refs})


def pack_references(store: Store) -> bool:
    """Move all references into `packed-refs`, if no process publishes right now; whether it could."""
    try:
        with locking.removing(store, timeout_s=0):
            pack_refs(store)
    except Busy:
        return False
    return True


def pack_if_many(store: Store, workspace: str, number: int) -> None:
    """Move references into `packed-refs` when a workspace has many files; for one that has just published `number`."""
    if number % _LOOK_EVERY:
        return
    if len(_listed(os.path.join(store.path, "refs", "workspaces", workspace))) > MANY_LOOSE:
        pack_references(store)


def _write_packed(store: Store, refs: Mapping[str, str]) -> None:
    lines = ["# pack-refs with: peeled fully-peeled sorted \n"]
    lines += [f"{oid} {name}\n" for name, oid in sorted(refs.items())]
    path = os.path.join(store.path, "packed-refs")
    if os.path.lexists(path) and not is_plain(path):
        remove_any(path)
    durable.write_file(path, "".join(lines).encode())


def _all_packed(store: Store) -> dict[str, str]:
    with open_packed(store.path) as packed:
        return {name.decode("ascii", "replace"): oid.decode() for oid, name in _LINE.findall(packed)}


def _listed(directory: str) -> list[str]:
    try:
        return os.listdir(directory)
    except (FileNotFoundError, NotADirectoryError):
        return []
