"""An index is accepted when git wrote it, and refused when a reader could see a path in it that git never writes."""

from __future__ import annotations

import hashlib
import os
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forged_index import EMPTY_BLOB, EXECUTABLE, LINK, make_entry, make_index
from ws.store.git_index import SHA256_BYTES, IndexRefused, parse_index
from ws.store.git_names import is_refname


def git(where: Path, *words: str, check: bool = True) -> str:
    options = ["-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *options, *words], cwd=where, check=check, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    for path in ("a", "b/c/d", "b/c/e", "b-x", "üñï", "x" * 200 + "/" + "y" * 250):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(path)
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "run").chmod(0o755)
    git(tmp_path, "add", ".")
    return tmp_path


def index_of(repository: Path) -> bytes:
    return (repository / ".git" / "index").read_bytes()


@pytest.mark.parametrize("version", ["2", "3", "4"])
@pytest.mark.parametrize("threads", ["1", "3"])
def test_what_git_writes_is_accepted(repository: Path, version: str, threads: str) -> None:
    git(repository, "config", "index.threads", threads)
    (repository / "later").write_text("x")
    git(repository, "add", "--intent-to-add", "later")
    git(repository, "update-index", "--index-version", version)
    assert parse_index(index_of(repository)).entries == 9
    git(repository, "commit", "-qm", "first")
    git(repository, "read-tree", "HEAD")
    assert parse_index(index_of(repository)).hidden == frozenset()
    assert b"TREE" in index_of(repository)


def test_an_index_with_a_table_of_offsets_is_accepted(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "index.threads", "4")
    lines = "".join(f"100644 {'1' * 40} 0\td{n % 7}/f{n}\n" for n in range(40_000))
    subprocess.run(["git", "update-index", "--index-info"], cwd=tmp_path, input=lines, text=True, check=True)
    for version in ("4", "2"):
        git(tmp_path, "update-index", "--index-version", version)
        data = index_of(tmp_path)
        assert b"IEOT" in data
        assert b"EOIE" in data
        assert parse_index(data).entries == 40_000


def test_conflicts_and_their_resolutions_are_accepted(repository: Path) -> None:
    git(repository, "commit", "-qm", "first")
    for branch, text in (("one", "1"), ("two", "2")):
        git(repository, "checkout", "-q", "-b", branch, "master")
        (repository / "a").write_text(text)
        git(repository, "commit", "-qam", branch)
    git(repository, "merge", "one", check=False)
    assert parse_index(index_of(repository)).entries == 10  # three stages of one path
    git(repository, "add", "a")
    assert b"REUC" in index_of(repository)
    parse_index(index_of(repository))


def test_bits_that_hide_changes_are_reported(repository: Path) -> None:
    git(repository, "update-index", "--assume-unchanged", "a")
    git(repository, "update-index", "--skip-worktree", "b/c/d")
    assert parse_index(index_of(repository)).hidden == {b"a", b"b/c/d"}


def test_an_index_of_a_repository_with_longer_ids(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--object-format=sha256")
    (tmp_path / "a").write_text("x")
    git(tmp_path, "add", "a")
    assert parse_index(index_of(tmp_path), SHA256_BYTES).entries == 1
    with pytest.raises(IndexRefused):
        parse_index(index_of(tmp_path))


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize(
    "name",
    [
        b".git/hooks/post-checkout",
        b".git/config",
        b".git",
        b"sub/.git/config",
        b".GIT/config",
        b"git~1/config",
        b".git./config",
        b".git::$INDEX_ALLOCATION/config",
        ".g\u200cit/config".encode(),
        b"a\\.git\\config",
        b"..\\x",
        b"../x",
        b"a/../../x",
        b"./x",
        b"a//x",
        b"/abs/x",
        b"x/",
        b"",
    ],
)
def test_a_path_that_git_does_not_check_out_is_refused(name: bytes, version: int) -> None:
    with pytest.raises(IndexRefused):
        parse_index(make_index([name], version=version))


TREE = b"\0-1 0\n"


@pytest.mark.parametrize(
    "data",
    [
        make_index([b"a"], mode=0o40000),
        make_index([b"a"], mode=0o100666),
        make_index([b"a"], version=5),
        make_index([b"a"], more_flags=0),  # in version 2
        make_index([b"a"], version=3, more_flags=0x8000),
        make_index([b"a"], version=3, more_flags=1),
        make_index([b"b", b"a"]),
        make_index([b"a", b"a"]),
        make_index([b"a", b"a/b"], mode=LINK),
        make_index([b".gitmodules"], mode=LINK),
        make_index([b"a"])[:-1] + b"x",
        make_index([b"a"], extensions=[(b"link", bytes(20))]),
        make_index([b"a"], extensions=[(b"UNTR", b"")]),
        make_index([b"a"], extensions=[(b"FSMN", b"")]),
        make_index([b"a"], extensions=[(b"sdir", b"")]),
        make_index([b"a"], extensions=[(b"XXXX", b"")]),
        make_index([b"a"], extensions=[(b"TREE", TREE), (b"TREE", TREE)]),
        make_index([b"a"], extensions=[(b"TREE", b"\0-1 1\n.git\x000 0\n" + bytes(20))]),
        make_index([b"a"], extensions=[(b"TREE", b"\0-1 9\n")]),
        make_index([b"a"], extensions=[(b"TREE", TREE + b"x")]),
        make_index([b"a"], extensions=[(b"REUC", b"../x\x00100644\0" + b"0\0" + b"0\0" + bytes(20))]),
        make_index([b"a"], extensions=[(b"EOIE", struct.pack(">I", 12) + bytes(20))]),
        make_index([b"a"], extensions=[(b"IEOT", struct.pack(">III", 1, 20, 1))]),
        make_index([b"a"], extensions=[(b"IEOT", struct.pack(">III", 1, 12, 2))]),
        make_index([b"a"], extensions=[(b"IEOT", struct.pack(">I", 1))]),
        b"",
        b"DIRC",
    ],
)
def test_what_means_something_else_to_another_reader_is_refused(data: bytes) -> None:
    parse_index(make_index([b"a"], mode=EXECUTABLE, extensions=[(b"TREE", TREE)]))
    with pytest.raises(IndexRefused):
        parse_index(data)


def test_padding_and_lengths_hide_nothing() -> None:
    """Git takes the length of a path from the flags, or from its end, depending on the reader."""
    body = bytearray(make_index([b"a"])[:-20])
    for position, value in ((len(body) - 1, b"x"), (12 + 61, b"\x05"), (12 + 61, b"\x00")):
        changed = bytearray(body)
        changed[position : position + 1] = value
        with pytest.raises(IndexRefused):
            parse_index(bytes(changed) + hashlib.sha1(changed).digest())


def test_padding_is_zero_to_its_end() -> None:
    body = bytearray(make_index([b"abc"])[:-20])
    assert body[-7:] == bytes(7)
    for position in range(1, 7):  # the first zero ends the path
        changed = bytearray(body)
        changed[-position] = ord("x")
        with pytest.raises(IndexRefused, match="padded"):
            parse_index(bytes(changed) + hashlib.sha1(changed).digest())


def test_a_wrong_checksum_is_refused() -> None:
    whole = make_index([b"a"])
    parse_index(whole)
    with pytest.raises(IndexRefused, match="checksum"):
        parse_index(whole[:-1] + bytes([whole[-1] ^ 1]))


def test_paths_that_are_said_in_few_bytes_take_no_memory() -> None:
    """In version 4 an entry of 70 bytes may have a path of thousands."""
    tail = make_entry(b"x", 4, 0o100644, EMPTY_BLOB, 0xFFF - 1, None, b"")[:62]
    body = [b"", make_entry(b"a" * 4000, 4, 0o100644, EMPTY_BLOB, 0, None, b"")]
    count = 40_000
    for number in range(count):
        suffix = b"%08d" % number
        strip = 0 if number == 0 else 8
        flags = (4008).to_bytes(2, "big") if 4008 < 0xFFF else b"\x0f\xff"
        body.append(tail[:60] + flags + bytes([strip]) + suffix + b"\0")
    body[0] = struct.pack(">4sII", b"DIRC", 4, count + 1)
    data = b"".join(body)
    assert len(data) < 4 << 20
    with pytest.raises(IndexRefused, match="too long together"):
        parse_index(data + hashlib.sha1(data).digest())


@pytest.mark.parametrize("name", [b"a/" * 256 + b"a", b"a" * 4097])
def test_a_path_that_no_file_can_have_is_refused(name: bytes) -> None:
    with pytest.raises(IndexRefused, match="too long"):
        parse_index(make_index([name]))


@given(st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_damage_is_refused_and_never_a_crash(data: st.DataObject) -> None:
    """With the checksum made right again: every byte may be chosen by the workspace."""
    whole = make_index([b"a", b"b/c"], version=data.draw(st.sampled_from([2, 4])), extensions=[(b"TREE", TREE)])
    body = bytearray(whole[:-20])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    body = body[: data.draw(st.integers(0, len(body)))]
    try:
        parse_index(bytes(body) + hashlib.sha1(body).digest())
    except IndexRefused:
        pass


@given(st.binary(max_size=12))
@settings(max_examples=300, deadline=None)
def test_a_reference_name_that_is_accepted_is_one_to_git(name: bytes) -> None:
    if b"\0" in name or not is_refname(b"refs/heads/" + name):
        return
    done = subprocess.run(["git", "check-ref-format", b"refs/heads/" + name], check=False, env={**os.environ})
    assert done.returncode == 0
