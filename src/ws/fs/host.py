"""A directory of this machine as a Filesystem: the host's own, and inside a container the workspace itself.

Every call opens what it needs beneath the root (`confine`) and keeps nothing open afterwards, so one object
serves many threads, and the directory may be mounted anew or exchanged as a whole between two calls. That is
also the seam for snapshots: whoever has a store derives a SnapshotableFilesystem from this class, stages a
tree beside the root and exchanges the two.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Sequence
from operator import attrgetter

from ws.errors import InvalidRequest
from ws.fs import sizes
from ws.fs.confine import Confinement, check_regular
from ws.fs.globs import (
    check_pattern,
    compile_for_names,
    compile_glob,
    filter_for,
    literal_prefix,
    max_depth,
)
from ws.fs.host_changes import HostChanges
from ws.fs.host_streams import NEW, HostReader, HostWriter, sync_directory, write_all
from ws.fs.kernel import DIRECTORY, READ
from ws.fs.metadata import birth_time, describe, statx_of
from ws.fs.paths import PathRules, Place
from ws.fs.protocol import (
    CHUNK_BYTES,
    ByteReader,
    FileEntry,
    FileStat,
    GlobMatch,
    GrepQuery,
    GrepReport,
    Limits,
    WholeFile,
    WriteMode,
)
from ws.fs.ripgrep import Ripgrep
from ws.fs.search import check_query, is_binary, search_files
from ws.fs.streams import Convenience, check_chunk_size, check_page, check_write_mode
from ws.fs.trees import (
    Hidden,
    ordered_files,
    walk,
)


class HostFilesystem(HostChanges, Convenience):
    """Files below a directory of this machine."""

    def __init__(
        self,
        root: str,
        *,
        limits: Limits | None = None,
        read_only: bool = False,
        durable: bool = True,
        allowed_paths: Sequence[str] = (),
        restricted_paths: Sequence[str] = (),
        home: str | None = None,
        rg: Sequence[str] | None = None,
    ) -> None:
        """Raises FileNotFoundError, NotADirectoryError.

        `rg` is the command that runs ripgrep, if there is one.
        """
        self._root = os.path.realpath(root)
        os.close(os.open(self._root, DIRECTORY))
        self._limits = limits or Limits()
        self._read_only = read_only
        self._durable = durable
        self._rules = PathRules.of(
            self._root,
            limits=self._limits,
            allowed_paths=tuple(allowed_paths),
            restricted_paths=tuple(restricted_paths),
            home=home,
        )
        self._confinement = Confinement(self._rules)
        self._rg = Ripgrep(tuple(rg)) if rg else None

    @property
    def root(self) -> str:
        return self._root

    @property
    def read_only(self) -> bool:
        return self._read_only

    @property
    def limits(self) -> Limits:
        return self._limits

    # streams

    def open_read(self, path: str, *, chunk_size: int = CHUNK_BYTES) -> HostReader:
        check_chunk_size(chunk_size)
        place = self._rules.parse(path)
        fd, status = self._open_regular(place, path)
        try:
            return HostReader(self._shown(path, place), fd, status.st_size, chunk_size)
        except BaseException:
            os.close(fd)
            raise

    def _open_regular(self, place: Place, path: str) -> tuple[int, os.stat_result]:
        """A descriptor of a regular file, and what it is like."""
        try:
            fd = self._confinement.open_place(place, path, READ)
        except OSError as error:
            if error.errno == errno.ENXIO:
                raise InvalidRequest(f"{path!r} is a socket, not a regular file") from None
            raise
        try:
            status = os.fstat(fd)
            check_regular(status, path)
        except BaseException:
            os.close(fd)
            raise
        return fd, status

    def open_write(
        self, path: str, mode: WriteMode = "overwrite", create_parents: bool = True, *, unnamed: bool = False
    ) -> HostWriter:
        """See `Filesystem`, and `HostWriter` for what is unnamed."""
        check_write_mode(mode)
        self._check_writable(path)
        if path.endswith("/"):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        with self._confinement.parent(path, follow_last=True, create_parents=create_parents) as pinned:
            if not pinned.name:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            root_born = None if self._durable else self._root_born
            place = self._rules.parse(path)
            shown = self._shown(path, pinned.place if ".." in place.segments else place)
            return HostWriter(shown, pinned, mode, sync=self._durable, unnamed=unnamed, root_born=root_born)

    def put(self, path: str, chunks: Iterable[bytes], *, permissions: int, modified_ns: int) -> None:
        with self.open_write(path, "overwrite", False) as writer:
            writer.become(permissions=permissions, modified_ns=modified_ns)
            writer.write_all(chunks)

    def add(self, path: str, content: bytes) -> None:
        self._check_writable(path)
        with self._confinement.parent(path, create_parents=True) as pinned:
            fd = os.open(pinned.name, NEW, 0o666, dir_fd=pinned.parent)
            try:
                write_all(fd, content)
                if self._durable:
                    os.fsync(fd)
                    sync_directory(pinned.parent)
            except BaseException:
                os.unlink(pinned.name, dir_fd=pinned.parent)
                raise
            finally:
                os.close(fd)

    def read_bytes(self, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        check_page(offset, limit)
        fd, status = self._open_regular(self._rules.parse(path), path)
        try:
            left = max(0, status.st_size - offset)
            wanted = left if limit is None else min(left, limit)
            self._check_size(path, wanted, "read_bytes")
            return os.pread(fd, wanted, offset)
        finally:
            os.close(fd)

    def read_whole(self, path: str) -> WholeFile:
        fd, status = self._open_regular(self._rules.parse(path), path)
        try:
            self._check_size(path, status.st_size, "read_whole")
            return WholeFile(os.pread(fd, status.st_size, 0), stat.S_IMODE(status.st_mode), status.st_mtime_ns)
        finally:
            os.close(fd)

    # metadata

    def exists(self, path: str) -> bool:
        try:
            os.close(self._confinement.open(path, os.O_PATH | os.O_CLOEXEC))
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def stat(self, path: str, *, follow_symlinks: bool = True) -> FileStat:
        if follow_symlinks:
            fd = self._confinement.open(path, os.O_PATH | os.O_CLOEXEC)
        else:
            with self._confinement.parent(path) as pinned:
                name, flags = pinned.name or ".", os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
                fd = os.open(name, flags, dir_fd=pinned.parent)
        try:
            return statx_of(fd, self._shown(path), read_only=self._read_only)
        finally:
            os.close(fd)

    def resolve(self, path: str, *, follow_symlinks: bool = True, whole: bool = False) -> str:
        place = self._confinement.resolve(self._rules.parse(path), path, follow_last=follow_symlinks)
        if whole:
            self._rules.check_whole(place, path)
        return self._rules.shown(place)

    def list(self, path: str = ".") -> Sequence[FileEntry]:
        prefix = self._prefix(path)
        hidden = self._hidden(path)
        entries: list[FileEntry] = []
        fd = self._confinement.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with os.scandir(fd) as found:
                for entry in found:
                    if hidden is not None and hidden.hides(entry.name):
                        continue
                    is_link = entry.is_symlink()
                    is_file = entry.is_file(follow_symlinks=False)
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if is_link:
                        is_file, is_directory = self._behind_link(prefix + entry.name)
                    entries.append(FileEntry(entry.name, prefix + entry.name, is_file, is_directory, is_link))
        finally:
            os.close(fd)
        entries.sort(key=_by_name)
        return entries

    def scan(self, path: str = ".") -> Sequence[FileStat]:
        prefix = self._prefix(path)
        hidden = self._hidden(path)
        found: list[FileStat] = []
        fd = self._confinement.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with os.scandir(fd) as entries:
                for entry in entries:
                    if hidden is not None and hidden.hides(entry.name):
                        continue
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except FileNotFoundError:
                        continue  # gone between the listing and the look
                    target = _target(entry.name, fd) if stat.S_ISLNK(status.st_mode) else None
                    found.append(describe(status, prefix + entry.name, target))
        finally:
            os.close(fd)
        found.sort(key=_by_path)
        return found

    def read_link(self, path: str) -> str:
        with self._confinement.parent(path) as pinned:
            return os.readlink(pinned.name or ".", dir_fd=pinned.parent)

    def glob(self, pattern: str, path: str = ".") -> Sequence[GlobMatch]:
        pattern = check_pattern(pattern)
        by_name = compile_for_names(pattern)
        prefix = self._prefix(path)
        found: list[GlobMatch] = []
        top = self._confinement.open(path, DIRECTORY)
        try:
            entries = walk(
                top,
                start=literal_prefix(pattern),
                max_depth=max_depth(pattern),
                hidden=self._hidden(path),
                matches_path=compile_glob(pattern) if by_name is None else None,
                matches_name=by_name,
            )
            for below, entry in entries:
                try:
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                is_file = stat.S_ISREG(status.st_mode)
                if stat.S_ISLNK(status.st_mode):
                    is_file = self._behind_link(prefix + below)[0]
                found.append(GlobMatch(prefix + below, is_file, status.st_mtime_ns))
        finally:
            os.close(top)
        found.sort()  # by path, which no two share
        return found

    def search(self, query: GrepQuery) -> GrepReport:
        limit = check_query(query, self._limits.max_matches)
        shown = self._shown(query.path)
        top = self._confinement.open(query.path, os.O_PATH | os.O_CLOEXEC)
        try:
            status = os.fstat(top)
            if stat.S_ISDIR(status.st_mode):
                return self._search_below(query, top, limit)
        finally:
            os.close(top)
        check_regular(status, query.path)
        if is_binary(self.read_bytes(shown, 0, CHUNK_BYTES)):
            return GrepReport(binary_files=(shown,))
        if self._rg is not None and self._rg.takes(query):
            return self._rg.search_files(query, [shown], self.open_read, _descriptor, limit)
        return search_files(query, [shown], self.open_read, limit)

    def _search_below(self, query: GrepQuery, top: int, limit: int) -> GrepReport:
        prefix = self._prefix(query.path)
        accepts = filter_for(query.glob)
        found = self._rg.file_names(query, top) if self._rg is not None else None
        if self._rg is not None and found is not None:
            names = sorted(prefix + name for name in found if accepts is None or accepts(name))
            return self._rg.search_files(query, names, self.open_read, _descriptor, limit)
        inside = ordered_files(top, hidden=self._hidden(query.path))
        chosen = (prefix + name for name in inside if accepts is None or accepts(name))
        return search_files(query, chosen, self.open_read, limit)

    def measure(self, path: str, most_bytes: int, most_entries: int) -> tuple[int, int]:
        """Bytes and entries of a tree of any depth, counted up to a bound (`sizes`)."""
        with self._confinement.parent(path) as pinned:
            return sizes.measure(pinned.parent, pinned.name, most_bytes, most_entries)

    def _shown(self, path: str, place: Place | None = None) -> str:
        """The path as results carry it. A `..` on the way is resolved by the kernel, not by its spelling."""
        place = place or self._rules.parse(path)
        if ".." in place.segments:
            place = self._confinement.real_place(place, path)
        return self._rules.shown(place)

    def _prefix(self, path: str) -> str:
        """What the paths of a directory's entries begin with."""
        shown = self._shown(path)
        return "" if shown == "." else shown + "/"

    def _root_born(self) -> float | None:
        fd = os.open(self._root, DIRECTORY)
        try:
            return birth_time(fd)
        finally:
            os.close(fd)

    def _hidden(self, path: str) -> Hidden | None:
        """What the rules keep from whoever looks at a directory, by the path below it."""
        if self._rules.anywhere:
            return None
        real = self._confinement.resolve(self._rules.parse(path), path, follow_last=True)
        start = self._rules.absolute(real).rstrip("/") + "/"
        return Hidden(
            hides=lambda below: self._rules.is_restricted(start + below),
            closes=lambda below: self._rules.is_closed(start + below),
        )


def _target(name: str, directory: int) -> str | None:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:
        return None  # no link any more


def _descriptor(reader: ByteReader) -> int:
    assert isinstance(reader, HostReader)
    return reader.fileno()


_by_name = attrgetter("name")
_by_path = attrgetter("path")
