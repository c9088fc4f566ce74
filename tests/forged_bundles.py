"""Bundles of sound objects that mean harm, and bundles whose objects were changed, for the tests of `ws import`."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ws.bundles import MANIFEST_REF
from ws.store import commits, intake, trees
from ws.store.packs import BLOB, COMMIT, TREE, PackWriter, entry_header, object_id

DIRECTORY_LINE = b". d755 1000:1000 0 -\n"


class Forger:
    """Makes bundles of sound objects that mean harm."""

    def __init__(self, top: Path) -> None:
        self.pack = top / "forged"
        self.pack.mkdir()
        self.writer = PackWriter(str(self.pack), lambda _: False)
        self.facts: dict[str, Any] = {
            "kind": "snapshot", "root": "/workspace", "paths_changed": 0, "size_bytes": 0, "skipped": [],
            "parent": 0, "restored": None, "layers": None,
        }  # fmt: skip
        self.manifest: dict[str, Any] = {
            "format": 1, "name": "forged", "engine": "none", "source": "/etc", "exclude": [], "image": "x",
            "options": {
                "network": "none", "memory_bytes": 1 << 30, "cpus": 1.0, "pids": 64, "disk_bytes": None, "env": {},
                "read_write_root": False, "runtime": "/tmp/evil",
            },
            "uid": 1000, "gid": 1000, "head": 1, "undo": None,
        }  # fmt: skip

    def tree(
        self,
        record: bytes = b". d755 1000:1000 0 -\n",
        items: list[trees.Item] | None = None,
        links: bytes = b"",
    ) -> str:
        node = trees.add_directory(self.writer, self.writer.add(BLOB, record), items or [], [], links)
        return trees.add_root(self.writer, node).hex()

    def bundle(self, tree: str, /, **manifest: Any) -> bytes:
        refs = {}
        for number in (0, 1):
            made = commits.add_snapshot(
                self.writer, workspace="w", number=number, tree=tree, created_ns=0, facts=self.facts
            )
            refs[made.ref] = made.id
        said = {**self.manifest, "source_tree": tree, **manifest}
        refs[MANIFEST_REF] = self.writer.add(BLOB, json.dumps(said).encode()).hex()
        written = self.writer.finish()
        assert written
        head = b"".join(f"{oid} {ref}\n".encode() for ref, oid in sorted(refs.items()))
        return b"# v2 git bundle\n" + head + b"\n" + Path(written).read_bytes()


def repacked(data: bytes, change: Callable[[list[tuple[int, bytes]]], list[bytes]]) -> bytes:
    """The same bundle with its entries made anew by `change`."""
    start = data.index(b"\n\nPACK") + 2
    stream = intake._Stream(io.BytesIO(data[start:]))
    count = struct.unpack(">4sII", stream.take(12))[2]
    objects = []
    for _ in range(count):
        kind, size = intake._entry_header(stream)
        objects.append((kind, stream.inflate(size)))
    entries = change(objects)
    body = b"PACK" + struct.pack(">II", 2, len(entries)) + b"".join(entries)
    return data[:start] + body + hashlib.sha1(body).digest()


@functools.lru_cache(maxsize=1000)
def plain(kind: int, content: bytes) -> bytes:
    return entry_header(kind, len(content)) + zlib.compress(content)


Object = tuple[int, bytes]


class OpenedBundle:
    """A bundle taken apart: its references, and its objects by their ids."""

    def __init__(self, data: bytes) -> None:
        start = data.index(b"\n\nPACK") + 2
        lines = data[:start].splitlines()[1:-1]
        self.refs = {ref.decode(): oid.decode() for oid, ref in (line.split(b" ") for line in lines)}
        self.objects: dict[bytes, Object] = {}

        def keep(objects: list[Object]) -> list[bytes]:
            self.objects = {object_id(kind, content): (kind, content) for kind, content in objects}
            return []

        repacked(data, keep)

    @property
    def manifest(self) -> bytes:
        return bytes.fromhex(self.refs[MANIFEST_REF])

    def rebuilt(self, changed: dict[bytes, bytes]) -> bytes:
        """The bundle with other bytes for some objects; whatever refers to them names their new ids."""
        new: dict[bytes, bytes] = {}  # old id → new id
        contents: dict[bytes, Object] = {}

        def add(oid: bytes) -> bytes:
            if oid in new or oid not in self.objects:
                return new.get(oid, oid)
            kind, content = self.objects[oid]
            content = changed.get(oid, content)
            if oid not in changed:
                for other in self._named(kind, content):
                    moved = add(other)
                    content = (
                        content.replace(other, moved)
                        if kind == TREE
                        else content.replace(other.hex().encode(), moved.hex().encode())
                    )
            new[oid] = object_id(kind, content)
            contents[new[oid]] = kind, content
            return new[oid]

        manifest = self.manifest
        for oid in self.objects:
            if oid != manifest:
                add(oid)
        content = changed.get(manifest, self.objects[manifest][1])
        for old, moved in new.items():
            content = content.replace(old.hex().encode(), moved.hex().encode())
        new[manifest] = object_id(BLOB, content)
        contents[new[manifest]] = BLOB, content
        refs = {ref: new[bytes.fromhex(oid)].hex() for ref, oid in self.refs.items()}
        return bundle_of(refs, list(contents.values()))

    @staticmethod
    def _named(kind: int, content: bytes) -> list[bytes]:
        if kind == TREE:
            return [oid for _, _, oid in trees.decode_tree(content)]
        if kind == COMMIT:
            head = content.partition(b"\n\n")[0].split(b"\n")
            return [bytes.fromhex(line.split(b" ")[1].decode()) for line in head if line[:4] in (b"tree", b"pare")]
        return []


def bundle_of(refs: dict[str, str], objects: list[Object]) -> bytes:
    """A bundle of these references and objects, whatever they say."""
    head = b"".join(f"{oid} {ref}\n".encode() for ref, oid in sorted(refs.items()))
    body = b"PACK" + struct.pack(">II", 2, len(objects)) + b"".join(plain(*one) for one in objects)
    return b"# v2 git bundle\n" + head + b"\n" + body + hashlib.sha1(body).digest()
