"""The Filesystem protocol: one way to reach files, whatever holds them.

Three layers, as the contract has them (`weakincentives-filesystem-protocol`): streams of bytes are the
primary interface, convenience methods buffer bounded reads and writes on top of them, metadata and mutations
stand beside. Tools are written once against `Filesystem` and run on memory, on a host directory, and in a
container.

**Paths** are strings, relative to `root` or absolute inside it; results carry them relative to `root`, with
`/` between segments and no `.` or `..`, and `"."` for the root itself (absolute for an allowed path outside
the root). Bytes of a name that are not UTF-8 travel as surrogates (PEP 383).

**Links** are not followed under the contract's own `Limits()`: a path that goes through one is refused with
FsViolationError, which names the link. Calls about the link itself work: `stat` and `resolve` with
`follow_symlinks=False`, `read_link`, listings, `delete`, `unlink`, `move`, `copy`. With `follow_links`, as in
`WORKSPACE_LIMITS`, links are followed as long as they stay inside; one that leads out is refused.

**Exceptions** are the builtins that the contract names. Those that ws itself decides on also belong to its
own tree: `FsViolationError` is a PermissionError (the path leads out, or into a restricted part),
`InvalidRequest` a ValueError (empty path, NUL, too long, too deep, `..` at the end, over 32 MB in one piece,
a bad pattern, something that is neither file nor directory).

**Writes** are whole or not at all: bytes go to a temporary file, which takes the name when the stream is
closed without an exception. That rename is the commit point of every write below.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Literal, NamedTuple, Protocol, Self, runtime_checkable

CHUNK_BYTES = 65_536

WriteMode = Literal["create", "overwrite", "append"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a filesystem takes; the defaults are the contract's."""

    max_segments: int = 16
    max_segment_chars: int = 80
    max_content_bytes: int = 32 * 1024 * 1024
    max_matches: int = 1_000
    follow_links: bool = False
    """Whether a path may go through symbolic links that stay inside."""


WORKSPACE_LIMITS = Limits(max_segments=256, max_segment_chars=255, follow_links=True)
"""The limits of a workspace: wider, because real trees are, and links that stay inside are followed, because real trees
have them. 255 bytes a segment is the kernel's own limit and holds in any case."""


@dataclass(frozen=True, slots=True)
class FileStat:
    """What is known about a path.

    `is_symlink` and `target` speak of the path itself, when links are not followed.
    """

    path: str
    is_file: bool
    is_directory: bool
    size_bytes: int
    created_at: datetime
    modified_at: datetime
    accessed_at: datetime
    mode: int
    """Permission bits, 0 to 0o7777."""
    is_symlink: bool = False
    target: str | None = None
    readable: bool = True
    writable: bool = True


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A name in a directory.

    For a link, `is_file` and `is_directory` tell what it leads to inside the root; both are false where links are
    not followed.
    """

    name: str
    path: str
    is_file: bool
    is_directory: bool
    is_symlink: bool = False


class GlobMatch(NamedTuple):
    """A path that matches; a tuple, because there may be a hundred thousand of them."""

    path: str
    is_file: bool
    modified_ns: int = 0


@dataclass(frozen=True, slots=True)
class GrepMatch:
    """A line that matches; the span counts characters of `line_content`, which has no line ending."""

    path: str
    line_number: int
    line_content: str
    match_start: int
    match_end: int
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GrepQuery:
    """A search. `glob` without a `/` is held against the basename, with one against the path below `path`."""

    pattern: str
    path: str = "."
    glob: str | None = None
    ignore_case: bool = False
    context_before: int = 0
    context_after: int = 0
    max_matches: int | None = None
    """Lines in `matches`, or files in `counts`; the filesystem's own limit when None."""
    count_only: bool = False
    """Fill `counts` (every file with a match, and how many lines) instead of `matches`."""


@dataclass(frozen=True, slots=True)
class GrepReport:
    """What a search found, in the order of paths and lines; `truncated` when there was more."""

    matches: tuple[GrepMatch, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    binary_files: tuple[str, ...] = ()
    """The file that was asked about, when it is binary (a NUL in the first 64 KB); below a directory such
    files are passed over without a word."""
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class WriteResult:
    path: str
    bytes_written: int
    mode: WriteMode


@dataclass(frozen=True, slots=True)
class WholeFile:
    """A file as it was at one moment: what an edit starts from, and what its backup keeps."""

    content: bytes
    mode: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class FilesystemSnapshot:
    """A state that can be come back to."""

    snapshot_id: str
    created_at: datetime
    commit_ref: str
    root_path: str
    git_dir: str | None = None
    tag: str | None = None


class ByteReader(Protocol):
    """A file open for reading. After `close` every call raises ValueError: I/O operation on closed file."""

    @property
    def path(self) -> str: ...
    @property
    def size(self) -> int:
        """Bytes in the file when it was opened."""
        ...

    @property
    def position(self) -> int: ...
    @property
    def closed(self) -> bool: ...

    def read(self, size: int = -1, /) -> bytes:
        """Up to `size` bytes from the position on, all that is left when negative; b"" at the end."""
        ...

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Move (0 from the start, 1 from here, 2 from the end) and return the new position.

        Raises ValueError.
        """
        ...

    def chunks(self, size: int = CHUNK_BYTES) -> Iterator[bytes]:
        """The rest of the file, `size` bytes at a time; the last chunk may be shorter."""
        ...

    def __iter__(self) -> Iterator[bytes]:
        """The rest of the file in chunks of the size that `open_read` was given."""
        ...

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class ByteWriter(Protocol):
    """A file open for writing. After `close` every write raises ValueError: I/O operation on closed file.

    Commit point: `close`, or the end of the `with` block. An exception in the block, or `discard`, leaves
    what was there before; directories that were made for the file go again, unless they are in use by then.
    """

    @property
    def path(self) -> str: ...
    @property
    def bytes_written(self) -> int: ...
    @property
    def closed(self) -> bool: ...

    def write(self, data: bytes | bytearray | memoryview, /) -> int:
        """Take the whole of `data`; returns its length."""
        ...

    def write_all(self, chunks: Iterable[bytes], /) -> int:
        """Take every chunk; returns the bytes taken by this call."""
        ...

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Raises OSError: Illegal seek. Writers go forward only."""
        ...

    def close(self) -> None:
        """Make the file what was written.

        Raises FileExistsError when mode is "create" and someone was faster.
        """
        ...

    def discard(self) -> None:
        """Close, and leave everything as it was before the stream was opened."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class TextReader(Protocol):
    """Lines of UTF-8, decoded as they are asked for; lines end at `\\n` and keep their ending.

    Raises UnicodeDecodeError, naming the byte of the file, when the line in hand is not UTF-8.
    """

    @property
    def path(self) -> str: ...
    @property
    def encoding(self) -> str: ...
    @property
    def line_number(self) -> int:
        """Lines read so far."""
        ...

    @property
    def closed(self) -> bool: ...

    def readline(self) -> str:
        """The next line with its ending; "" at the end of the file."""
        ...

    def read(self) -> str:
        """What is left of the file. Memory grows with it; iterate instead where that matters."""
        ...

    def lines(self, *, strip: bool = False) -> Iterator[str]:
        """The lines that are left, with their endings; `strip` removes trailing white space and the ending."""
        ...

    def __iter__(self) -> Iterator[str]:
        """As `lines()`."""
        ...

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@runtime_checkable
class Filesystem(Protocol):
    """Files below one root. Every method may raise FsViolationError and InvalidRequest for its paths.

    When `read_only` is true, every mutation raises PermissionError before it does anything.
    """

    @property
    def root(self) -> str:
        """The absolute path that tools see as the root."""
        ...

    @property
    def read_only(self) -> bool: ...
    @property
    def limits(self) -> Limits: ...

    # streams

    def open_read(self, path: str, *, chunk_size: int = CHUNK_BYTES) -> ByteReader:
        """A stream over a regular file, which iterates in chunks of `chunk_size` bytes.

        Raises FileNotFoundError, IsADirectoryError, PermissionError; ValueError for a chunk size below 1.
        """
        ...

    def open_write(self, path: str, mode: WriteMode = "overwrite", create_parents: bool = True) -> ByteWriter:
        """A stream that becomes the file when it is closed; mode and owner of an old file are kept.

        Raises FileExistsError (mode "create"), FileNotFoundError (a parent is missing and `create_parents` is
        false), IsADirectoryError, NotADirectoryError (a parent is a file), PermissionError.
        """
        ...

    def open_text(self, path: str, encoding: str = "utf-8") -> TextReader:
        """A stream of lines. Raises as `open_read`; ValueError for an encoding other than UTF-8."""
        ...

    # convenience, capped at `limits.max_content_bytes`

    def read_bytes(self, path: str, offset: int = 0, limit: int | None = None) -> bytes:
        """`limit` bytes from `offset` on, or all. Raises as `open_read`; ValueError over the cap."""
        ...

    def read(self, path: str, offset: int = 0, limit: int | None = None, encoding: str = "utf-8") -> str:
        """`limit` lines after the first `offset`, or all, endings kept.

        Raises as `read_bytes`, UnicodeDecodeError.
        """
        ...

    def read_whole(self, path: str) -> WholeFile:
        """All bytes of a file, its permissions and its time. Raises as `read_bytes`."""
        ...

    def write_bytes(
        self, path: str, content: bytes, mode: WriteMode = "overwrite", create_parents: bool = True
    ) -> WriteResult:
        """Raises as `open_write`; ValueError over the cap. Commit point: the rename."""
        ...

    def write(self, path: str, content: str, mode: WriteMode = "overwrite", create_parents: bool = True) -> WriteResult:
        """The same, as UTF-8."""
        ...

    def add(self, path: str, content: bytes) -> None:
        """Make a new file that may be seen before it is whole, for whoever can tell. Raises as `open_write`."""
        ...

    # metadata

    def exists(self, path: str) -> bool:
        """Whether the path leads to something; false for a link that leads nowhere inside the root."""
        ...

    def stat(self, path: str, *, follow_symlinks: bool = True) -> FileStat:
        """Raises FileNotFoundError, NotADirectoryError."""
        ...

    def list(self, path: str = ".") -> Sequence[FileEntry]:
        """The entries of a directory but the restricted ones, sorted by name.

        Raises FileNotFoundError, NotADirectoryError.
        """
        ...

    def scan(self, path: str = ".") -> Sequence[FileStat]:
        """What `list` has, each as `stat(…, follow_symlinks=False)` would tell it.

        `created_at`, `readable` and `writable` are those of `stat` only where they come for free.
        """
        ...

    def resolve(self, path: str, *, follow_symlinks: bool = True, whole: bool = False) -> str:
        """The one spelling of a path: no `..` and no link in it, the last one too unless it is not followed.

        What is missing on the way counts as a directory that is yet to be made. With `whole`, a path that has a
        restricted one below it is refused as well: it may neither come nor go as a whole.
        """
        ...

    def read_link(self, path: str) -> str:
        """The target of a symbolic link, as it is written. Raises OSError (EINVAL) when it is none."""
        ...

    def glob(self, pattern: str, path: str = ".") -> Sequence[GlobMatch]:
        """Everything below `path` whose path relative to it matches, sorted by path.

        `*` and `?` stay within a segment, `**` crosses them, `**/x` matches `x` too; all else is literal.
        Hidden files match like others; directories that are links are not entered.
        """
        ...

    def grep(
        self, pattern: str, path: str = ".", glob: str | None = None, max_matches: int | None = None
    ) -> Sequence[GrepMatch]:
        """The first matching lines below a directory, or in a file. Raises ValueError for a bad pattern."""
        ...

    def search(self, query: GrepQuery) -> GrepReport:
        """What `grep` does, with everything a tool asks for."""
        ...

    # mutations

    def delete(self, path: str, recursive: bool = False) -> None:
        """Remove a file, a link (never its target), or a directory.

        Raises FileNotFoundError; OSError (ENOTEMPTY) for a directory with entries unless `recursive`.
        """
        ...

    def unlink(self, path: str) -> None:
        """Remove a file or a link (never its target). Raises FileNotFoundError, IsADirectoryError."""
        ...

    def rmdir(self, path: str) -> None:
        """Remove an empty directory.

        Raises FileNotFoundError, NotADirectoryError (also for a link to a directory), OSError (ENOTEMPTY).
        """
        ...

    def mkdir(self, path: str, parents: bool = True, exist_ok: bool = True) -> None:
        """Make a directory. Raises FileExistsError, FileNotFoundError, NotADirectoryError."""
        ...

    def move(self, source: str, destination: str, *, overwrite: bool = False) -> None:
        """Rename a file, a link or a directory; the parents of `destination` must exist.

        Raises FileNotFoundError, FileExistsError, IsADirectoryError and NotADirectoryError as rename(2) has
        them, ValueError for a directory into itself. Commit point: the rename.
        """
        ...

    def copy(self, source: str, destination: str, overwrite: bool = False) -> None:
        """Copy a file, a directory with all below it, or a link as a link: content, modes and times.

        The parents of `destination` must exist. Raises as `move`; FsViolationError for a directory with a restricted
        path below it. Commit point: the rename of the finished copy.
        """
        ...

    def make_link(self, path: str, target: str) -> None:
        """Make a symbolic link, whatever it leads to. Raises FileExistsError, FileNotFoundError."""
        ...

    def set_mode(self, path: str, mode: int) -> None:
        """Set the permission bits of a file or directory."""
        ...

    def set_modified(self, path: str, modified_ns: int) -> None:
        """Set the time of the last modification of a file, directory or link."""
        ...


@runtime_checkable
class SnapshotableFilesystem(Filesystem, Protocol):
    """A filesystem that can come back to an earlier state, all or nothing."""

    def snapshot(self, tag: str | None = None, *, force: bool = False) -> FilesystemSnapshot:
        """Capture the state now. A tag is printable text of up to 200 bytes; `force` moves one that is in use.

        Raises InvalidName, TagExists.
        """
        ...

    def restore(self, snapshot: FilesystemSnapshot) -> None:
        """Make everything below the root what it was.

        Raises PermissionError when `read_only`, ValueError for a snapshot that is not of this root.
        """
        ...
