"""Conformance: streams, and the convenience methods that stand on them."""

from __future__ import annotations

from collections.abc import Callable

from ws.fs.protocol import CHUNK_BYTES, Limits, WriteResult
from ws.testing.checking import MakeFilesystem, check, paths_of, raises

# streams


@check
def bytes_written_are_bytes_read(make: MakeFilesystem) -> None:
    fs = make()
    data = bytes(range(256)) * 1_000
    with fs.open_write("a/b.bin") as writer:
        assert writer.path == "a/b.bin"
        assert writer.write(data[:10]) == 10
        assert writer.write(memoryview(data)[10:20]) == 10
        assert writer.write_all([data[20:100], data[100:]]) == len(data) - 20
        assert writer.bytes_written == len(data)
    assert writer.closed
    with fs.open_read("a/b.bin") as reader:
        assert (reader.path, reader.size, reader.position) == ("a/b.bin", len(data), 0)
        assert reader.read() == data
        assert reader.position == len(data)
        assert reader.read() == b""


@check
def iteration_goes_in_chunks_of_64_kb(make: MakeFilesystem) -> None:
    fs = make()
    fs.write_bytes("f", b"x" * (2 * CHUNK_BYTES + 5))
    with fs.open_read("f") as reader:
        assert [len(chunk) for chunk in reader] == [CHUNK_BYTES, CHUNK_BYTES, 5]
    with fs.open_read("f") as reader:
        assert {len(chunk) for chunk in reader.chunks(CHUNK_BYTES * 2)} == {CHUNK_BYTES * 2, 5}
    with fs.open_read("f") as reader:
        reader.seek(CHUNK_BYTES * 2)
        assert list(reader) == [b"x" * 5]


@check
def the_chunk_size_is_chosen_when_a_file_is_opened(make: MakeFilesystem) -> None:
    fs = make()
    fs.write_bytes("f", b"x" * (2 * CHUNK_BYTES + 5))
    for size in (1_000, CHUNK_BYTES, 2 * CHUNK_BYTES, 1 << 30):
        with fs.open_read("f", chunk_size=size) as reader:
            sizes = [len(chunk) for chunk in reader]
        assert sum(sizes) == 2 * CHUNK_BYTES + 5
        assert {*sizes[:-1]} <= {size}
        assert len(sizes) == -(-(2 * CHUNK_BYTES + 5) // size)
    with fs.open_read("f", chunk_size=3) as reader:
        reader.seek(-5, 2)
        assert list(reader) == [b"xxx", b"xx"]
    for size in (0, -1):
        with raises(ValueError, str(size)):
            fs.open_read("f", chunk_size=size)


@check
def readers_seek_and_tell(make: MakeFilesystem) -> None:
    fs = make()
    fs.write_bytes("f", b"0123456789")
    with fs.open_read("f") as reader:
        assert reader.seek(4) == 4
        assert reader.read(2) == b"45"
        assert reader.seek(-1, 1) == 5
        assert reader.position == 5
        assert reader.seek(-2, 2) == 8
        assert reader.read(100) == b"89"
        assert reader.seek(50) == 50
        assert reader.read() == b""
        with raises(ValueError):
            reader.seek(-1)
        with raises(ValueError):
            reader.seek(0, 7)


@check
def closed_streams_say_so(make: MakeFilesystem) -> None:
    fs = make()
    fs.write("f", "text\n")
    closed = "I/O operation on closed file"
    reader = fs.open_read("f")
    reader.close()
    reader.close()
    assert reader.closed
    used: list[Callable[[], object]] = [
        reader.read,
        lambda: reader.seek(0),
        lambda: list(reader),
        lambda: reader.position,
    ]
    text = fs.open_text("f")
    text.close()
    used += [text.readline, text.read, lambda: list(text), lambda: list(text.lines())]
    writer = fs.open_write("g")
    writer.close()
    used.append(lambda: writer.write(b"late"))
    for call in used:
        with raises(ValueError, closed):
            call()


@check
def writers_only_go_forward(make: MakeFilesystem) -> None:
    fs = make()
    with fs.open_write("f") as writer, raises(OSError, "Illegal seek"):
        writer.seek(0)


@check
def a_write_that_fails_leaves_what_was_there(make: MakeFilesystem) -> None:
    fs = make()
    fs.write("old", "before")
    for path in ("old", "new"):
        with raises(KeyError), fs.open_write(path) as writer:
            writer.write(b"half of it")
            raise KeyError(path)
    writer = fs.open_write("old")
    writer.write(b"never mind")
    writer.discard()
    assert fs.read("old") == "before"
    assert not fs.exists("new")
    assert paths_of(fs.list()) == ["old"]


@check
def a_write_that_fails_takes_its_directories_with_it(make: MakeFilesystem) -> None:
    fs = make()
    fs.mkdir("there")
    writer = fs.open_write("there/a/b/f")
    writer.write(b"never mind")
    writer.discard()
    with raises(KeyError), fs.open_write("c/d/f"):
        raise KeyError
    assert paths_of(fs.glob("**")) == ["there"]
    writer = fs.open_write("used/new/f")
    fs.write("used/g", "by someone else")
    writer.discard()
    assert paths_of(fs.glob("**")) == ["there", "used", "used/g"]


@check
def nothing_is_seen_before_the_stream_is_closed(make: MakeFilesystem) -> None:
    fs = make()
    fs.write("f", "old")
    with fs.open_write("f") as writer:
        writer.write(b"new")
        assert fs.read("f") == "old"
    assert fs.read("f") == "new"


@check
def text_is_decoded_line_by_line(make: MakeFilesystem) -> None:
    fs = make()
    fs.write("f", "één\r\ntwo\n\nlast")
    with fs.open_text("f") as text:
        assert text.encoding == "utf-8"
        assert text.readline() == "één\r\n"
        assert text.line_number == 1
        assert list(text) == ["two\n", "\n", "last"]
        assert text.readline() == ""
    with fs.open_text("f") as text:
        assert list(text.lines()) == ["één\r\n", "two\n", "\n", "last"]
        assert text.line_number == 4
    with fs.open_text("f") as text:
        text.readline()
        assert list(text.lines(strip=True)) == ["two", "", "last"]
    fs.write("long", "é" * CHUNK_BYTES + "\nend")
    with fs.open_text("long") as text:
        assert [len(line) for line in text] == [CHUNK_BYTES + 1, 3]
    with raises(ValueError, "latin-1"):
        fs.open_text("f", "latin-1")


@check
def bytes_that_are_not_text_are_named(make: MakeFilesystem) -> None:
    fs = make()
    fs.write_bytes("f", b"good\nbad \xff byte\n")
    with fs.open_text("f") as text:
        assert text.readline() == "good\n"
        with raises(UnicodeDecodeError, "position 4", "byte 9", "line 2"):
            text.readline()
    with raises(UnicodeDecodeError):
        fs.read("f")
    assert fs.read("f", 0, 1) == "good\n"


# convenience


@check
def parts_of_files_are_read(make: MakeFilesystem) -> None:
    fs = make()
    fs.write("f", "".join(f"line {n}\n" for n in range(10)))
    assert fs.read("f", 3, 2) == "line 3\nline 4\n"
    assert fs.read("f", offset=9) == "line 9\n"
    assert fs.read("f", offset=50) == ""
    assert fs.read("f", limit=0) == ""
    assert fs.read_bytes("f", 5, 4) == b"0\nli"
    assert fs.read_bytes("f", 1_000) == b""
    with raises(ValueError):
        fs.read_bytes("f", -1)
    with raises(ValueError):
        fs.read("f", 0, -1)


@check
def write_modes_do_what_they_say(make: MakeFilesystem) -> None:
    fs = make()
    assert fs.write("f", "één", "create") == WriteResult("f", 5, "create")
    with raises(FileExistsError):
        fs.write("f", "two", "create")
    assert fs.read("f") == "één"
    assert fs.write("f", "+", "append") == WriteResult("f", 1, "append")
    assert fs.read("f") == "één+"
    assert fs.write_bytes("f", b"new", "overwrite").bytes_written == 3
    assert fs.read("f") == "new"
    fs.write("g", "made", "append")
    assert fs.read("g") == "made"
    with raises(ValueError):
        fs.write("f", "x", "truncate")  # type: ignore[arg-type]


@check
def content_of_another_type_is_refused(make: MakeFilesystem) -> None:
    fs = make()
    for text in (b"bytes", None, 5):
        with raises(ValueError, "new/f", type(text).__name__):
            fs.write("new/f", text)  # type: ignore[arg-type]
    for data in ("text", None, 5):
        with raises(ValueError, "new/f", type(data).__name__):
            fs.write_bytes("new/f", data)  # type: ignore[arg-type]
    assert not fs.exists("new")


@check
def parents_are_made_when_asked(make: MakeFilesystem) -> None:
    fs = make()
    fs.write("a/b/c", "x")
    assert fs.stat("a/b").is_directory
    with raises(FileNotFoundError):
        fs.write("d/e", "x", "overwrite", False)
    assert not fs.exists("d")
    with raises(NotADirectoryError):
        fs.write("a/b/c/d", "x")


@check
def convenience_is_capped(make: MakeFilesystem) -> None:
    fs = make(limits=Limits(max_content_bytes=100))
    with raises(ValueError, "100"):
        fs.write_bytes("f", b"x" * 101)
    with raises(ValueError):
        fs.write("f", "é" * 51)
    assert not fs.exists("f")
    with fs.open_write("f") as writer:
        writer.write(b"line\n" * 50)
    for read in (fs.read, fs.read_bytes):
        with raises(ValueError, "100"):
            read("f")
    assert len(fs.read_bytes("f", 0, 100)) == 100
    assert fs.read("f", 40, 20) == "line\n" * 10
    with fs.open_read("f") as reader:
        assert sum(map(len, reader)) == 250


@check
def a_part_is_capped_in_bytes(make: MakeFilesystem) -> None:
    fs = make(limits=Limits(max_content_bytes=100))
    with fs.open_write("f") as writer:
        writer.write(("x\n" + "€€€€€€€€€€€\n" * 8 + "é" * 500 + "\nend\n").encode())
    assert fs.read("f", 1, 2) == "€€€€€€€€€€€\n" * 2
    with raises(ValueError, "100"):
        fs.read("f", 1, 3)
    with raises(ValueError, "100"):
        fs.read("f", 9, 1)
    assert fs.read("f", 10, 5) == "end\n"
