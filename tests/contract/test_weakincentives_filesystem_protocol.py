"""The law: `weakincentives-filesystem-protocol.md`, line by line, on memory, on a host directory, and in containers.

Each class is a section of the document; what the conformance suite proves for all backends is called from
here under the words of the document, so that every row can be seen green.
"""

from __future__ import annotations

import inspect
import itertools
import shutil
import subprocess
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from workspaces import SharedWorkspaces
from ws import HostFilesystem
from ws.errors import FsViolationError, OperationNotSupportedError
from ws.fs import protocol
from ws.fs.memory import MemoryFilesystem
from ws.fs.protocol import (
    CHUNK_BYTES,
    WORKSPACE_LIMITS,
    FileStat,
    Filesystem,
    FilesystemSnapshot,
    Limits,
    SnapshotableFilesystem,
)
from ws.remote.channel import Channel
from ws.remote.filesystem import RemoteFilesystem
from ws.testing import path_checks, stream_checks, tree_checks
from ws.testing.checking import MakeFilesystem
from ws.tools.context import ToolContext
from ws.tools.editing import str_replace
from ws.tools.managing import delete, undo
from ws.tools.writing import write_file


@pytest.fixture(params=["memory", "host", "podman", "docker"])
def make(request: pytest.FixtureRequest, tmp_path: Path, shared: Callable[[str], SharedWorkspaces]) -> MakeFilesystem:
    if request.param == "memory":
        return MemoryFilesystem
    if request.param in ("podman", "docker"):
        return shared(request.param).make_filesystem
    number = itertools.count()
    rg = shutil.which("rg")

    def make_host(*, limits: Limits | None = None, read_only: bool = False) -> Filesystem:
        root = tmp_path / str(next(number))
        root.mkdir()
        return HostFilesystem(str(root), limits=limits, read_only=read_only, rg=(rg,) if rg else None)

    return make_host


@pytest.fixture
def fs(make: MakeFilesystem) -> Filesystem:
    return make()


class TestGuidingPrinciples:
    def test_single_access_pattern(self, fs: Filesystem) -> None:
        assert isinstance(fs, Filesystem)

    def test_context_scoped(self) -> None:
        assert "filesystem" in inspect.signature(ToolContext).parameters

    def test_a_handler_works_on_the_filesystem_of_its_context(self, make: MakeFilesystem) -> None:
        """`ToolContext` is made of a filesystem alone; tools and their undo work on any backend through it."""
        fs = make(limits=WORKSPACE_LIMITS)
        context = ToolContext(filesystem=fs)
        assert context.filesystem is fs
        write_file(context, path="f", content="one\n")
        str_replace(context, path="f", old_str="one", new_str="two")
        assert context.filesystem.read("f") == "two\n"
        delete(context, path="f")
        assert not fs.exists("f")
        for state in ("two\n", "one\n"):
            undo(context, path="f")
            assert fs.read("f") == state
        assert [entry.name for entry in fs.list()] == ["f"]

    def test_reads_return_immutable_data(self, fs: Filesystem) -> None:
        fs.write("f", "x")
        for result in (fs.stat("f"), fs.list()[0], fs.glob("*")[0], fs.grep("x")[0], fs.write("g", "")):
            with pytest.raises(AttributeError):
                result.path = "other"  # type: ignore[misc, union-attr]

    def test_bytes_first_and_lazy_encoding(self, fs: Filesystem) -> None:
        fs.write_bytes("f", b"good\n\xff\n")
        assert fs.read_bytes("f") == b"good\n\xff\n"
        with fs.open_text("f") as text:
            assert text.readline() == "good\n"


class TestStreamingTypes:
    def test_byte_reader_yields_chunks_and_supports_seek_position_size(self, make: MakeFilesystem) -> None:
        stream_checks.iteration_goes_in_chunks_of_64_kb(make)
        stream_checks.readers_seek_and_tell(make)

    def test_byte_writer_accepts_chunks_and_tracks_bytes_written(self, make: MakeFilesystem) -> None:
        stream_checks.bytes_written_are_bytes_read(make)

    def test_the_chunk_size_is_given_to_open_read(self, make: MakeFilesystem) -> None:
        stream_checks.the_chunk_size_is_chosen_when_a_file_is_opened(make)

    def test_text_reader_has_lines(self, fs: Filesystem) -> None:
        fs.write("f", "one  \ntwo\n")
        with fs.open_text("f") as text:
            assert list(text.lines()) == ["one  \n", "two\n"]
        with fs.open_text("f") as text:
            assert list(text.lines(strip=True)) == ["one", "two"]

    def test_text_reader_decodes_lazily_and_goes_by_line(self, make: MakeFilesystem) -> None:
        stream_checks.text_is_decoded_line_by_line(make)


class TestResultTypes:
    @pytest.mark.parametrize(
        ("name", "properties"),
        [
            ("FileStat", "path is_file is_directory size_bytes created_at modified_at"),
            ("FileEntry", "name path is_file is_directory"),
            ("GlobMatch", "path is_file"),
            ("GrepMatch", "path line_number line_content match_start match_end"),
            ("WriteResult", "path bytes_written mode"),
            ("FilesystemSnapshot", "snapshot_id created_at commit_ref root_path git_dir tag"),
        ],
    )
    def test_properties(self, name: str, properties: str) -> None:
        have = list(inspect.signature(getattr(protocol, name)).parameters)
        assert have[: len(properties.split())] == properties.split()

    def test_times_are_datetimes(self, fs: Filesystem) -> None:
        fs.write("f", "")
        status: FileStat = fs.stat("f")
        assert isinstance(status.created_at, datetime)
        assert isinstance(status.modified_at, datetime)


METHODS = {
    "open_read": "path",
    "open_write": "path mode create_parents",
    "open_text": "path encoding",
    "read_bytes": "path offset limit",
    "read": "path offset limit encoding",
    "write_bytes": "path content mode create_parents",
    "write": "path content mode create_parents",
    "exists": "path",
    "stat": "path",
    "list": "path",
    "glob": "pattern path",
    "grep": "pattern path glob max_matches",
    "delete": "path recursive",
    "mkdir": "path parents exist_ok",
    "copy": "source destination overwrite",
    "rmdir": "path",
    "unlink": "path",
}


class TestFilesystemProtocol:
    @pytest.mark.parametrize("cls", [Filesystem, MemoryFilesystem, HostFilesystem])
    @pytest.mark.parametrize("method", METHODS)
    def test_methods_take_these_parameters_in_this_order(self, cls: type, method: str) -> None:
        parameters = list(inspect.signature(getattr(cls, method)).parameters.values())[1:]
        positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
        assert positional == METHODS[method].split()

    def test_streaming_operations(self, make: MakeFilesystem) -> None:
        stream_checks.bytes_written_are_bytes_read(make)
        stream_checks.a_write_that_fails_leaves_what_was_there(make)
        stream_checks.nothing_is_seen_before_the_stream_is_closed(make)

    def test_convenience_operations(self, make: MakeFilesystem) -> None:
        stream_checks.parts_of_files_are_read(make)
        stream_checks.parents_are_made_when_asked(make)

    def test_write_modes_create_overwrite_append(self, make: MakeFilesystem) -> None:
        stream_checks.write_modes_do_what_they_say(make)

    def test_exists_and_stat(self, make: MakeFilesystem) -> None:
        tree_checks.exists_is_true_for_what_is_there(make)
        tree_checks.stat_tells_what_there_is(make)

    def test_list(self, make: MakeFilesystem) -> None:
        tree_checks.listings_are_sorted_and_typed(make)

    def test_glob(self, make: MakeFilesystem) -> None:
        tree_checks.globs_know_three_wildcards(make)

    def test_grep_is_a_regex_search(self, make: MakeFilesystem) -> None:
        tree_checks.grep_finds_lines(make)

    def test_delete_and_mkdir(self, make: MakeFilesystem) -> None:
        tree_checks.deleting_is_careful(make)
        tree_checks.directories_are_made(make)

    def test_copy_rmdir_and_unlink(self, make: MakeFilesystem) -> None:
        tree_checks.files_are_unlinked_and_directories_removed(make)
        tree_checks.copying_keeps_everything_and_the_original(make)

    def test_metadata_properties_root_and_read_only(self, make: MakeFilesystem) -> None:
        tree_checks.the_root_is_absolute_and_the_limits_are_the_contracts(make)
        tree_checks.a_read_only_filesystem_stays_as_it_is(make)


class TestMemoryGuarantees:
    """The peaks themselves are measured in `unit/test_fs_memory_bounds.py`."""

    def test_streams_have_no_size_limit_and_convenience_is_capped(self, make: MakeFilesystem) -> None:
        stream_checks.convenience_is_capped(make)


class TestLimits:
    def test_values(self) -> None:
        assert CHUNK_BYTES == 65_536
        assert Limits().max_segments == 16
        assert Limits().max_segment_chars == 80
        assert Limits().max_matches == 1_000
        assert Limits().max_content_bytes == 32 * 1024 * 1024

    def test_chunk_size_is_configurable_per_read(self, fs: Filesystem) -> None:
        fs.write("f", "12345")
        with fs.open_read("f") as reader:
            assert list(reader.chunks(2)) == [b"12", b"34", b"5"]
        with fs.open_read("f", chunk_size=2) as reader:
            assert list(reader) == [b"12", b"34", b"5"]

    @pytest.mark.parametrize("depth", [16, 17])
    def test_path_depth_is_enforced_on_all_paths(self, fs: Filesystem, depth: int) -> None:
        path = "/".join(["d"] * depth)
        calls: list[Callable[[str], Any]] = [fs.mkdir, fs.exists, fs.stat, fs.list, fs.delete]
        for call in calls:
            if depth == 16:
                call(path)
                continue
            with pytest.raises(ValueError, match="16 segments"):
                call(path)

    def test_segment_length(self, fs: Filesystem) -> None:
        fs.write("é" * 80, "")
        with pytest.raises(ValueError, match="80 characters"):
            fs.write("x" * 81, "")

    def test_grep_matches(self, make: MakeFilesystem) -> None:
        fs = make()
        fs.write("f", "x\n" * 1_001)
        assert len(fs.grep("x")) == 1_000
        assert len(fs.grep("x", max_matches=1_001)) == 1_001
        tree_checks.grep_stops_at_the_limit(make)

    def test_32_mb_in_one_piece(self, fs: Filesystem) -> None:
        cap = 32 * 1024 * 1024
        fs.write_bytes("f", bytes(cap))
        assert len(fs.read_bytes("f")) == cap
        with pytest.raises(ValueError, match="33,554,432"):
            fs.write_bytes("g", bytes(cap + 1))
        with fs.open_write("f", "append") as writer:
            writer.write(b"x")
        for read in (fs.read_bytes, fs.read):
            with pytest.raises(ValueError, match="33,554,432"):
                read("f")


class _NobodyAtHome:
    """The door of a workspace whose container is gone."""

    root = "/workspace"
    env: Mapping[str, str] = {}

    def __init__(self, channel: Channel) -> None:
        self.calls = channel

    def enter(self) -> _NobodyAtHome:
        return self

    def leave(self) -> None: ...

    def __enter__(self) -> _NobodyAtHome:
        return self

    def __exit__(self, *_: object) -> None: ...


class TestErrorHandling:
    def test_file_not_found(self, fs: Filesystem) -> None:
        with pytest.raises(FileNotFoundError):
            fs.read("none")

    def test_path_is_directory(self, make: MakeFilesystem) -> None:
        tree_checks.directories_are_no_files(make)

    def test_path_is_file(self, fs: Filesystem) -> None:
        fs.write("f", "")
        with pytest.raises(NotADirectoryError):
            fs.list("f")

    def test_access_denied(self, make: MakeFilesystem) -> None:
        with pytest.raises(PermissionError):
            make(read_only=True).write("f", "")
        path_checks.links_out_are_refused(make)

    def test_access_denied_has_a_number_and_a_path(self, make: MakeFilesystem) -> None:
        path_checks.violations_are_permission_errors_with_a_number_and_a_path(make)

    def test_file_exists(self, fs: Filesystem) -> None:
        fs.write("f", "", "create")
        with pytest.raises(FileExistsError):
            fs.write("f", "", "create")

    def test_invalid_content(self, fs: Filesystem) -> None:
        with pytest.raises(ValueError, match="UTF-8"):
            fs.write("f", "\ud800")
        assert not fs.exists("f")

    def test_backend_unavailable(self, tmp_path: Path) -> None:
        files = RemoteFilesystem(_NobodyAtHome(Channel(str(tmp_path))))
        for call in (files.read, files.list, files.open_read, files.open_write, files.delete):
            with pytest.raises(RuntimeError, match="does not answer"):
                call("f")

    def test_decode_error_with_position(self, make: MakeFilesystem) -> None:
        stream_checks.bytes_that_are_not_text_are_named(make)

    def test_read_and_write_after_close(self, make: MakeFilesystem) -> None:
        stream_checks.closed_streams_say_so(make)

    def test_seek_on_write_only(self, make: MakeFilesystem) -> None:
        stream_checks.writers_only_go_forward(make)


class TestSnapshots:
    @pytest.fixture(params=["memory", "host", "podman", "docker"])
    def make(
        self, request: pytest.FixtureRequest, tmp_path: Path, shared: Callable[[str], SharedWorkspaces]
    ) -> MakeFilesystem:
        if request.param == "memory":
            return MemoryFilesystem
        if request.param in ("podman", "docker"):
            return shared(request.param).make_filesystem
        number = itertools.count()

        def make_host(*, limits: Limits | None = None, read_only: bool = False) -> Filesystem:
            root = tmp_path / str(next(number))
            root.mkdir()
            return HostFilesystem(root, git_dir=tmp_path / "git", limits=limits, read_only=read_only)

        return make_host

    def test_snapshot_and_restore(self, make: MakeFilesystem) -> None:
        assert isinstance(make(), SnapshotableFilesystem)
        tree_checks.snapshots_bring_everything_back(make)

    def test_a_restore_is_all_or_nothing(self, make: MakeFilesystem) -> None:
        fs = make()
        assert isinstance(fs, SnapshotableFilesystem)
        fs.write("f", "now")
        stranger = FilesystemSnapshot("none", datetime.now().astimezone(), "none", fs.root)
        with pytest.raises(ValueError, match="none"):
            fs.restore(stranger)
        assert fs.read("f") == "now"

    def test_on_a_disk_they_are_commits_in_a_git_directory_outside(self, make: MakeFilesystem) -> None:
        fs = make()
        assert isinstance(fs, SnapshotableFilesystem)
        fs.write("f", "content\n")
        taken = fs.snapshot()
        if isinstance(fs, MemoryFilesystem):
            assert taken.git_dir is None
            return
        assert taken.git_dir
        assert not fs.exists(".git")
        git = ["git", f"--git-dir={taken.git_dir}", "show", f"{taken.commit_ref}:data/f"]
        assert subprocess.run(git, check=True, capture_output=True, text=True).stdout == "content\n"

    def test_states_share_their_structure(self) -> None:
        fs = MemoryFilesystem()
        for n in range(100):
            fs.write(f"d{n % 10}/f{n}", "x" * 1_000)
        before = fs.snapshot()
        fs.write("d0/f0", "changed")
        old, new = fs._snapshots[before.snapshot_id], fs._tree
        assert [name for name in old.entries if old.entries[name] is not new.entries[name]] == ["d0"]

    def test_a_host_filesystem_without_a_git_dir_has_no_snapshots(self, tmp_path: Path) -> None:
        fs = HostFilesystem(tmp_path)
        assert fs.git_dir is None
        fs.write("f", "now")
        stranger = FilesystemSnapshot("none", datetime.now().astimezone(), "none", fs.root)
        for call in (fs.snapshot, lambda: fs.restore(stranger)):
            with pytest.raises(OperationNotSupportedError, match="git_dir") as caught:
                call()
            assert "git_dir=" in (caught.value.hint or "")
        assert [entry.name for entry in fs.list()] == ["f"]


class TestLimitations:
    def test_links_are_not_followed_by_default(self, make: MakeFilesystem) -> None:
        assert not Limits().follow_links
        path_checks.links_are_not_followed_by_default(make)

    def test_a_workspace_follows_links_that_stay_inside(self, make: MakeFilesystem) -> None:
        assert WORKSPACE_LIMITS.follow_links
        path_checks.links_are_followed_inside_where_the_limits_say_so(make)
        fs = make(limits=WORKSPACE_LIMITS)
        fs.make_link("out", "/etc")
        with pytest.raises(FsViolationError, match="out"):
            fs.list("out")

    def test_links_are_not_entered_by_walks(self, fs: Filesystem) -> None:
        fs.write("d/f", "needle")
        fs.make_link("l", "d")
        assert [match.path for match in fs.glob("**/f")] == ["d/f"]
        assert [match.path for match in fs.grep("needle")] == ["d/f"]

    def test_utf8_only(self, fs: Filesystem) -> None:
        fs.write("f", "x")
        for call in (fs.open_text, lambda p, e: fs.read(p, 0, None, e)):
            with pytest.raises(ValueError, match="utf-16"):
                call("f", "utf-16")
