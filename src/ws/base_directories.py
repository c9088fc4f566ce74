"""The directories under `bases/`: which of them are whole, and how one is put there.

bases/KEY/          data (the immutable tree) and info.json; KEY is the tree and the host ids of its files
bases/KEY.RANDOM/   one whose record was damaged while a container had it mounted: set aside, and left to the
                    collector, which removes it when no container uses KEY (`unused_bases`)
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass

from ws import durable
from ws.errors import StateError
from ws.layers import is_synced, mark_synced
from ws.layout import Home, Ids, boot_id
from ws.record_fields import construct
from ws.record_files import damaged, read_json
from ws.record_types import RULES, Count, TreeId
from ws.records import read_records
from ws.store.scan import Skipped

_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Base:
    """An imported source."""

    key: str
    tree: str
    path: str  # of its data
    files: int
    bytes: int
    skipped: tuple[Skipped, ...] = ()


@dataclass(frozen=True, slots=True)
class _Info:
    """The content of `info.json`."""

    format: int
    tree: TreeId
    files: Count
    bytes: int
    boot: str


def base_key(tree: str, ids: Ids) -> str:
    """The name of a tree's base on this host, for a workspace's user."""
    return f"{tree}-{ids.host_uid}-{ids.host_gid}"


def rename_into_place(
    home: Home,
    key: str,
    data: str,
    tree: str,
    files: int,
    size_bytes: int,
    *,
    synced: bool = False,
    announced: bool = False,
) -> None:
    """Publish a staged copy, unless another process was faster or one is there and sound.

    One that is there and not sound is replaced. A container may have it mounted: then it is set aside, not removed.
    Commit point: the rename to `bases/KEY`, or the exchange with it. A crash before the exchange leaves a whole copy
    at `bases/KEY.RANDOM`, which the collector removes as any other.
    """
    whole = os.path.dirname(data)
    if synced:
        mark_synced(whole)
    info = {"format": _FORMAT, "tree": tree, "files": files, "bytes": size_bytes, "boot": boot_id()}
    durable.write_file(os.path.join(whole, "info.json"), json.dumps(info).encode() + b"\n")
    if announced:
        os.utime(os.path.join(whole, "info.json"), (time.time(), 0))
    try:
        durable.rename_new(whole, home.base(key))
    except FileExistsError:
        if find_base(home, key) is not None:
            return
        if has_container(home, key):
            aside = home.base(f"{key}.{os.urandom(6).hex()}")
            durable.rename_new(whole, aside)
            durable.exchange(aside, home.base(key))
        else:
            durable.exchange(whole, home.base(key))  # the unsound one goes away with the staging directory


def original_key(name: str) -> str:
    """The key of a base, of which `name` may be one that was set aside."""
    return name.partition(".")[0]


def damaged_bases(home: Home) -> list[str]:
    """What is wrong with the records of bases, a line for each that is damaged or missing; those set aside are none."""
    problems = []
    for key in sorted(os.listdir(home.at("bases"))):
        if original_key(key) != key:
            continue
        try:
            if _read_info(home, key) is None:
                problems.append(f"{info_path(home, key)} is missing")
        except StateError as error:
            problems.append(error.message if home.root in error.message else f"{info_path(home, key)}: {error.message}")
    return problems


def has_container(home: Home, key: str) -> bool:
    """Whether a running container may have this base mounted. A workspace whose record is damaged may have any."""
    records, unreadable = read_records(home)
    return bool(unreadable) or any(
        record.base == key and record.container is not None and record.container.alive() for record in records
    )


def find_base(home: Home, key: str) -> Base | None:
    """A base that is there and whole; None when it was not made, or may not have survived a crash."""
    try:
        info = _read_info(home, key)
    except StateError:
        return None
    if info is None or (info.boot != boot_id() and not is_synced(home.base(key))):
        return None
    return Base(key, info.tree, os.path.join(home.base(key), "data"), info.files, info.bytes)


def _read_info(home: Home, key: str) -> _Info | None:
    """What is recorded of a base; None when it was not made. Raises StateError when the record is damaged."""
    path = info_path(home, key)
    fields = read_json(path)
    if fields is None:
        return None
    info = construct(_Info, fields, RULES)
    if info.format != _FORMAT or info.tree != key.partition("-")[0]:
        raise damaged(path, "it is the record of another base")
    return info


def info_path(home: Home, key: str) -> str:
    return os.path.join(home.base(key), "info.json")


def check_info(home: Home, key: str) -> None:
    """Raises StateError when the record of a base is damaged; such a base is made again before it is used."""
    _read_info(home, key)
