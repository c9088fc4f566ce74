"""`apply_patch`: changes to several files, all of them or none.

    parse all     the text becomes a list of changes                              (unified_diff,
    patch_envelope) check all     each change is made in memory, on top of those before it        →
    FileVersion, one a file stage all     the new versions are written beside the old ones
    rename all    each takes its place; then what goes away is deleted

An error in the first three leaves everything untouched. One in the last (a full disk, a directory that
vanished) is answered by putting back what had been renamed. Backups are taken between staging and the first
rename.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from ws.errors import PatchApplyError, PatchParseError
from ws.fs.protocol import ByteWriter, Filesystem
from ws.tools.context import Summary, ToolContext, ToolResult, cap_text
from ws.tools.diffs import unified_diff
from ws.tools.encodings import decode_file, encode_argument, is_utf8, readable_text
from ws.tools.patch_envelope import BEGIN, is_envelope, opens_file, parse_envelope
from ws.tools.patch_formats import FileChange
from ws.tools.unified_diff import parse_unified

_MARKS = {"added": "A", "deleted": "D", "modified": "M", "renamed": "R"}


@dataclass(slots=True)
class FileVersion:
    """What a patch makes of one path; None stands for no file."""

    path: str  # the one spelling: relative to the root, without links
    before: bytes | None = None
    after: bytes | None = None
    mode: int | None = None  # permission bits of the file before
    executable: bool | None = None  # what the patch says of them
    origin: FileVersion | None = None  # the path from which a rename brings it
    moved_away: bool = False
    encoding: str | None = None  # of its text, where that is not UTF-8
    link: str | None = None  # where the link led that stands here; it may go, its target is another path

    @property
    def changed(self) -> bool:
        return self.before != self.after or (self.executable is not None and self.after is not None)


def apply_patch(context: ToolContext, *, patch: str, encoding: str | None = None, dry_run: bool = False) -> ToolResult:
    """Apply a unified diff or an envelope.

    `encoding` is that of the files which are not UTF-8; new files are UTF-8. Raises PatchParseError with the line,
    PatchApplyError with file, hunk, what was expected and what was found, ToolError for a binary file or one in
    another encoding, FsViolationError for a path that leads out; in each case no file has changed.
    Commit point: for each file the rename that `ByteWriter.close` makes; they follow one another without a
    pause.
    """
    checked = _Checked(context, encoding)
    for change in parse_patch(patch):
        checked.add(change)
    versions = [version for version in checked.versions.values() if version.changed]
    if not dry_run:
        context.committing()
        _Commit(context).run(versions)
    return _result(context, versions, dry_run=dry_run)


def parse_patch(text: str) -> list[FileChange]:
    """The changes that a patch asks for. Raises PatchParseError, ToolValidationError for lone surrogates."""
    encode_argument(text)
    if "\n" not in text and "\r" in text:
        text = text.replace("\r", "\n")
    if is_envelope(text):
        return parse_envelope(text)
    first = next((line for line in text.splitlines() if line.strip()), "")
    if opens_file(first.strip()):
        raise PatchParseError(
            f"line 1: the patch does not begin with `{BEGIN}`", hint=f"put the line `{BEGIN}` in front of it"
        )
    return parse_unified(text)


class _Checked:
    """The files as they would be after the changes so far; nothing is written."""

    def __init__(self, context: ToolContext, encoding: str | None) -> None:
        self._context = context
        self._encoding = encoding
        self._filesystem = context.filesystem
        self.versions: dict[str, FileVersion] = {}

    def add(self, change: FileChange) -> None:
        change = self._with_one_name(change)
        file = self._version(change.path)
        if change.kind == "add":
            self._check_free(file, replaces=change.replaces)
            file.after = change.edits.apply(b"", change.path) if change.edits else b""
            file.executable = change.executable or None
            return
        if file.after is None:
            raise PatchApplyError(
                f"{change.path}: the file does not exist",
                hint="look for it with glob; a new file is added, not updated",
            )
        content = self._edited(change, file, file.after)
        if change.kind == "delete":
            self._check_empty(change, content)
            self._named(file, change.path).after = None
            return
        target = self._version(change.new_path) if change.new_path else file
        if target is not file:
            self._check_free(target, replaces=change.replaces)
            target.executable = file.executable
            if change.kind == "update":
                file = self._named(file, change.path)
                target.origin = file.origin or file
                file.after, file.moved_away = None, True
        target.after = content
        if change.executable is not None:
            target.executable = change.executable

    def _edited(self, change: FileChange, file: FileVersion, data: bytes) -> bytes:
        if change.edits is None:
            return data
        # A patch may touch files in several encodings: the one named is that of the files that need it.
        encoding = self._encoding if data.isascii() or not is_utf8(data) else None
        text = decode_file(data, change.path, encoding)
        file.encoding = text.encoding if text.encoding != "utf-8" else None
        return text.encoded(change.edits.apply(text.content, change.path), change.path)

    def _with_one_name(self, change: FileChange) -> FileChange:
        """`--- x`, `+++ y` without a word about a rename: which of them is there tells what is meant."""
        if not change.moves_if_missing or change.new_path is None:
            return change
        old = self._version(change.path).after is not None
        new = self._version(change.new_path).after is not None
        if old and new:
            raise PatchApplyError(
                f"the patch names {change.path} and {change.new_path}, and both exist",
                hint="give the file that changes the same name on both sides",
            )
        if new:
            return FileChange("update", change.new_path, edits=change.edits, executable=change.executable)
        return change

    def _version(self, path: str) -> FileVersion:
        """What a path leads to; two spellings of one file, or a link and its target, are one version."""
        name = self._context.locate(path)
        own = self._filesystem.resolve(name, follow_symlinks=False)
        place = own if own in self.versions else self._filesystem.resolve(name)
        if place not in self.versions:
            try:
                stat = self._filesystem.stat(name)
            except FileNotFoundError:
                self.versions[place] = FileVersion(place)
            except NotADirectoryError:
                raise PatchApplyError(
                    f"{path}: a part of the path is a file, not a directory", hint="take another path"
                ) from None
            else:
                if not stat.is_file:
                    raise PatchApplyError(f"{path}: is no regular file", hint="patches change files alone")
                data = self._filesystem.read_bytes(place)
                self.versions[place] = FileVersion(place, data, data, stat.mode)
        return self.versions[place]

    def _named(self, file: FileVersion, path: str) -> FileVersion:
        """What goes away with a path: a file, or the link to it alone."""
        name = self._context.locate(path)
        own = self._filesystem.resolve(name, follow_symlinks=False)
        if own == file.path:
            return file
        link = self._filesystem.read_link(own)
        return self.versions.setdefault(own, FileVersion(own, file.after, file.after, file.mode, link=link))

    def _check_free(self, file: FileVersion, *, replaces: bool) -> None:
        if file.link is not None:
            raise PatchApplyError(
                f"{file.path}: a link stands there until the patch is applied", hint="delete it in a patch of its own"
            )
        if file.after is not None and replaces:
            return
        if file.after is not None:
            raise PatchApplyError(
                f"{file.path}: the file exists already", hint="update it, or delete it earlier in the patch"
            )
        check_parents(self._filesystem, file.path)

    def _check_empty(self, change: FileChange, content: bytes) -> None:
        if change.edits and content:
            raise PatchApplyError(
                f"{change.path}: the patch deletes the file, but {len(content)} bytes would be left in it",
                hint="name every line of the file with `-`, or read it again: it has more than the patch knows",
            )


def check_parents(filesystem: Filesystem, path: str) -> list[str]:
    """The directories above a path that do not exist, topmost first.

    Raises PatchApplyError when something above it is a file, FsViolationError when it leads out.
    """
    missing: list[str] = []
    parent = path.rstrip("/")
    while "/" in parent.lstrip("/"):
        parent = parent.rpartition("/")[0]
        try:
            stat = filesystem.stat(parent)
        except FileNotFoundError:
            missing.insert(0, parent)
            continue
        except NotADirectoryError:
            continue  # something above it is a file: the next rounds come to it
        if not stat.is_directory:
            raise PatchApplyError(f"{path}: {parent} is a file, not a directory", hint="take another path")
        break
    return missing


class _Commit:
    """Puts all versions in place; after an error, what was there before."""

    def __init__(self, context: ToolContext) -> None:
        self._filesystem = context.filesystem
        self._backups = context.backups
        self._undo: list[Callable[[], object]] = []

    def run(self, versions: list[FileVersion]) -> None:
        staged: list[tuple[ByteWriter, FileVersion]] = []
        try:
            for version in versions:
                if version.after is not None and version.before != version.after:
                    staged.append((self._stage(version), version))
            self._keep(versions)
            while staged:
                writer, version = staged[0]
                writer.close()
                staged.pop(0)
                self._undo.append(self._put_back(version))
            for version in versions:
                self._finish(version)
        except BaseException:
            for writer, _ in staged:
                with suppress(Exception):
                    writer.discard()
            for step in reversed(self._undo):
                with suppress(Exception):
                    step()
            raise

    def _keep(self, versions: list[FileVersion]) -> None:
        """Back up what is about to change; a rename as one change of two paths, so that it is undone as one."""
        alone = {version.path: version for version in versions}
        for version in versions:
            if version.origin is not None and {version.origin.path, version.path} <= alone.keys():
                self._backups.save_move(version.origin.path, version.path)
                del alone[version.origin.path], alone[version.path]
        for version in alone.values():
            reason = "delete" if version.after is None and not version.moved_away else "patch"
            self._backups.save(version.path, reason=reason, follow_symlinks=False)

    def _stage(self, version: FileVersion) -> ByteWriter:
        for parent in check_parents(self._filesystem, version.path):
            self._filesystem.mkdir(parent, parents=False, exist_ok=True)
            self._undo.append(partial(self._filesystem.delete, parent))
        writer = self._filesystem.open_write(
            version.path, "create" if version.before is None else "overwrite", create_parents=False
        )
        try:
            writer.write(version.after or b"")
        except BaseException:
            writer.discard()
            raise
        return writer

    def _finish(self, version: FileVersion) -> None:
        if version.after is None:
            self._filesystem.delete(version.path)
            self._undo.append(self._put_back(version))
            return
        mode = version.origin.mode if version.origin else None
        if mode is None and version.executable is None:
            return  # the mode of the old file, or what the filesystem gives to new ones
        if mode is None:
            mode = self._filesystem.stat(version.path).mode
        if version.executable is not None:
            mode = mode | 0o111 if version.executable else mode & ~0o111
        self._filesystem.set_mode(version.path, mode)
        self._undo.append(self._put_back(version))

    def _put_back(self, version: FileVersion) -> Callable[[], object]:
        def step() -> None:
            if version.link is not None:
                self._filesystem.make_link(version.path, version.link)
                return
            if version.before is None:
                self._filesystem.delete(version.path)
                return
            self._filesystem.write_bytes(version.path, version.before)
            if version.mode is not None:
                self._filesystem.set_mode(version.path, version.mode)

        return step


def _result(context: ToolContext, versions: list[FileVersion], *, dry_run: bool) -> ToolResult:
    files: list[dict[str, object]] = []
    diffs: list[str] = []
    for version in versions:
        if version.moved_away and version.after is None:
            continue  # told with the file it became
        origin = version.origin or version
        kind = "modified" if version.origin is None else "renamed"
        if origin.before is None:
            kind = "added"
        elif version.after is None:
            kind = "deleted"
        diff = _diff(version, origin)
        diffs.append(diff)
        added, removed = _counts(diff)
        files.append(
            {
                "path": version.path,
                "change": kind,
                "from": origin.path if kind == "renamed" else None,
                "added": added,
                "removed": removed,
                "bytes": len(version.after or b""),
            }
        )
    output, truncated = cap_text("\n".join(_line(file) for file in files), context.caps)
    done = "would change" if dry_run else "changed"
    return ToolResult(
        message=f"{done} {len(files)} {'file' if len(files) == 1 else 'files'}",
        truncated=truncated,
        output=output,
        data={"files": files, "dry_run": dry_run},
        summary=Summary(
            tuple(version.path for version in versions),
            0 if dry_run else sum(len(version.after or b"") for version in versions),
            "".join(diffs),
        ),
    )


def _diff(version: FileVersion, origin: FileVersion) -> str:
    old, new = (
        None if data is None else readable_text(data, origin.encoding, version.path)[0]
        for data in (origin.before, version.after)
    )
    diff = unified_diff(version.path, old, new)
    if origin is version or origin.before is None:
        return diff
    head = f"rename from {origin.path}\nrename to {version.path}\n"
    return head + diff.replace(f"--- a/{version.path}\n", f"--- a/{origin.path}\n", 1)


def _line(file: dict[str, object]) -> str:
    name = f"{file['from']} → {file['path']}" if file["from"] else file["path"]
    return f"{_MARKS[str(file['change'])]} {name} +{file['added']} -{file['removed']}"


def _counts(diff: str) -> tuple[int, int]:
    """Lines added and removed; those of the header stand in front of the first `@@`."""
    _, _, body = diff.partition("\n@@")
    lines = body.split("\n")
    return sum(line[:1] == "+" for line in lines), sum(line[:1] == "-" for line in lines)
