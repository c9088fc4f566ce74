"""What a bundle says of its workspace and of its snapshots, read field by field, and how much of it the importer takes.

The manifest is a JSON blob in the bundle. A bundle may come from anywhere, so of what it asks for the container (user,
network, limits, environment, patterns to exclude, a writable root, a runtime) nothing is taken unless the importer
says so with `--trust-spec`: without it the defaults of this machine hold, and what was not taken is reported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ws.creation import options_of
from ws.errors import BundleRefused, InvalidRequest
from ws.fs.tags import MAX_TAG_BYTES, check_tag
from ws.layout import Options, WorkspaceRecord
from ws.spec import WorkspaceSpec, check_spec
from ws.store import commits
from ws.store.excludes import Excludes
from ws.strict_json import Fields, read_json

MAX_MANIFEST_BYTES = 1 << 20
MAX_SNAPSHOTS = 999_999_999

_FORMAT = 1
_MAX_ID = (1 << 32) - 2
_MAX_PATH = 1 << 16
_MAX_COUNT = 1 << 53
_MAX_COMMIT_HEADER = 1024  # a tree, a parent, author and committer
_TIMES_NS = (-62_135_596_800 * 10**9, 253_402_300_799 * 10**9)  # the years 1 to 9999, which a datetime can hold
_HEX = re.compile(r"[0-9a-f]{40}")
_WORKSPACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
_RUNTIME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # a name, never a path


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a workspace was on the machine it comes from."""

    name: str
    image: str
    exclude: tuple[str, ...]
    spec: WorkspaceSpec  # its options, as a request
    runtime: str | None
    unknown: Mapping[str, Any]  # options that this version of ws does not have
    uid: int
    gid: int
    source_tree: str
    head: int
    undo: int | None


@dataclass(frozen=True, slots=True)
class SpecChange:
    """One thing that a bundle asks for and that is not the default here."""

    field: str
    asked: str
    used: str


@dataclass(frozen=True, slots=True)
class ChosenSpec:
    """What the container of an imported workspace gets, and what of the bundle differs from the defaults."""

    options: Options
    exclude: tuple[str, ...]
    user: tuple[int, int] | None  # None: that of the image
    changes: tuple[SpecChange, ...]
    trusted: bool

    def with_user(self, asked: tuple[int, int], used: tuple[int, int]) -> ChosenSpec:
        """The same, with the user that the engine gave it."""
        if asked == used:
            return self
        change = SpecChange("user", "{}:{}".format(*asked), "{}:{}".format(*used))
        return replace(self, changes=(*self.changes, change))


def write_manifest(record: WorkspaceRecord) -> bytes:
    """The manifest of a workspace."""
    options = asdict(record.options)
    said = {
        "format": _FORMAT,
        "name": record.name,
        "engine": record.engine,
        "source": record.source,
        "exclude": list(record.exclude),
        "image": options.pop("image"),
        "options": options,
        "uid": record.ids.uid,
        "gid": record.ids.gid,
        "source_tree": record.source_tree,
        "head": record.history.head,
        "undo": record.history.undo,
    }
    return json.dumps(said).encode()  # in ASCII: a path that is not UTF-8 is spelled with surrogates


def read_manifest(data: bytes) -> Manifest:
    """Raises BundleRefused unless every field is what it must be."""
    try:
        fields = Fields(read_json(data, max_bytes=MAX_MANIFEST_BYTES, surrogates=True), "manifest")
        if fields.integer("format", 0, _MAX_COUNT) != _FORMAT:
            raise ValueError("the bundle was written by another version of ws")
        fields.text("engine", 64)
        fields.optional_text("source", _MAX_PATH)
        name, image = fields.text("name", 255), fields.text("image", 1024)
        exclude = fields.texts("exclude", 10_000, 4096)
        Excludes(exclude)
        options = fields.fields("options")
        runtime = options.optional_text("runtime", 4096)
        spec = check_spec(
            name=name,
            image=image,
            network=options.text("network", 4096),
            memory=options.integer("memory_bytes", 0, _MAX_COUNT),
            cpus=options.number("cpus"),
            pids=options.integer("pids", 0, _MAX_COUNT),
            disk=options.optional_integer("disk_bytes", 0, _MAX_COUNT),
            env=options.mapping("env", 10_000, 1 << 17),
            read_write_root=options.flag("read_write_root"),
            exclude=exclude,
        )
        manifest = Manifest(
            name=name,
            image=image,
            exclude=exclude,
            spec=spec,
            runtime=runtime,
            unknown=options.rest(),
            uid=fields.integer("uid", 0, _MAX_ID),
            gid=fields.integer("gid", 0, _MAX_ID),
            source_tree=_hex(fields.text("source_tree", 40)),
            head=fields.integer("head", 0, MAX_SNAPSHOTS),
            undo=fields.optional_integer("undo", 0, MAX_SNAPSHOTS),
        )
        fields.end()
    except (ValueError, InvalidRequest) as error:
        raise BundleRefused(f"the bundle describes no workspace that ws can make: {_one_line(error)}") from None
    return manifest


def choose_spec(manifest: Manifest, image: str, *, trust: bool) -> ChosenSpec:
    """The container of an imported workspace: the defaults of this machine, or with `trust` what the bundle asks for.

    Raises BundleRefused for a runtime that is not a plain name.
    """
    default = options_of(check_spec(), image)
    asked = options_of(manifest.spec, image)
    changes = [
        SpecChange(name, _shown(theirs), _shown(theirs if trust else ours))
        for name, theirs in asdict(asked).items()
        if (ours := getattr(default, name)) != theirs and name != "disk_bytes"
    ]
    if asked.disk_bytes is not None:  # a limit that nothing here enforces
        changes.append(SpecChange("disk_bytes", _shown(asked.disk_bytes), _shown(None)))
    if manifest.runtime is not None:
        if trust and not _RUNTIME.fullmatch(manifest.runtime):
            raise BundleRefused(f"the bundle asks for the runtime {manifest.runtime!r:.80}, which is not a name")
        changes.append(SpecChange("runtime", manifest.runtime, manifest.runtime if trust else _shown(None)))
    if manifest.exclude:
        changes.append(SpecChange("exclude", _shown(manifest.exclude), _shown(manifest.exclude if trust else ())))
    changes += [SpecChange(name, _shown(value), _shown(None)) for name, value in manifest.unknown.items() if value]
    if not trust:
        return ChosenSpec(default, (), None, tuple(changes), trusted=False)
    options = replace(asked, disk_bytes=None, runtime=manifest.runtime)
    return ChosenSpec(options, manifest.exclude, (manifest.uid, manifest.gid), tuple(changes), trusted=True)


def read_snapshot(commit: str, data: bytes, number: int) -> commits.Snapshot:
    """A snapshot from the bytes of its commit, without message and facts; they are checked and not kept.

    Raises BundleRefused unless every field is what it must be and the commit has the bytes that ws writes.
    """
    try:
        if not 0 < data.find(b"\n\n") < _MAX_COMMIT_HEADER:
            raise ValueError("it is not written as ws writes it")
        header, message, last = commits.split_snapshot(data)
        said = read_json(last, max_bytes=len(data), surrogates=True)
        fields = Fields(said, "snapshot")
        workspace, tag = fields.text("workspace", 64), fields.optional_text("tag", MAX_TAG_BYTES)
        if fields.integer("number", number, number) != number or not _WORKSPACE.fullmatch(workspace):
            raise ValueError("it belongs to another workspace")
        if tag is not None:
            check_tag(tag)
        created_ns = fields.integer("created_ns", *_TIMES_NS)
        _check_facts(fields.fields("facts"), number)
        fields.end()
        trees = [_hex(line[1].decode()) for line in header if line[0] == b"tree"]
        parents = tuple(_hex(line[1].decode()) for line in header if line[0] == b"parent")
        again = commits.encode_snapshot(
            workspace=workspace,
            number=number,
            tree=trees[0],
            parents=parents,
            message=message.decode(),
            created_ns=created_ns,
            tag=tag,
            facts=said["facts"],
        )
        if again != data or len(parents) > 1:
            raise ValueError("it is not written as ws writes it")
    except (ValueError, IndexError, InvalidRequest) as error:
        raise BundleRefused(f"snapshot {commit[:12]} cannot be read: {_one_line(error)}") from None
    return commits.Snapshot(commit, workspace, number, trees[0], parents, "", created_ns, tag)


def _check_facts(facts: Fields, number: int) -> None:
    if facts.text("kind", 16) not in ("base", "snapshot", "safety"):
        raise ValueError("its kind is not known")
    facts.text("root", _MAX_PATH)
    facts.integer("paths_changed", 0, _MAX_COUNT)
    facts.integer("size_bytes", 0, _MAX_COUNT)
    facts.texts("skipped", 1_000_000, _MAX_PATH)
    facts.optional_integer("parent", 0, max(number - 1, 0))
    facts.optional_integer("restored", 0, number)
    facts.optional_texts("layers", 1000, 64)
    facts.end()


def _hex(text: str) -> str:
    if not _HEX.fullmatch(text):
        raise ValueError("it names no object")
    return text


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _one_line(error: Exception) -> str:
    return (str(error).splitlines() or ["malformed"])[0][:200]
