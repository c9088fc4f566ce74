"""The law: a patch made from two texts turns the first into the second, whatever made it and whatever the
texts are; an edit changes the place it names and not one byte besides."""

from __future__ import annotations

import difflib
import re
import subprocess
import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from ws.errors import TextAmbiguousError
from ws.tools.diffs import unified_diff
from ws.tools.editing import insert_lines, replace_once
from ws.tools.encodings import decode_file, is_utf8
from ws.tools.patch_envelope import parse_envelope
from ws.tools.textform import BOM, split_lines
from ws.tools.unified_diff import parse_unified

WORDS = ["a", "b", "c", "", " ", "-- x", "++ y", "@@ -1 +1 @@", "\\ No newline", "é", "x\x0cy", "*** z", "\t"]
LINE = st.builds(str.__add__, st.sampled_from(WORDS), st.sampled_from(["\n", "\n", "\n", "\r\n"]))


@st.composite
def texts(draw: st.DrawFn) -> str:
    text = "".join(draw(st.lists(LINE, max_size=30)))
    return text.rstrip("\r\n") if draw(st.booleans()) else text


@st.composite
def pairs(draw: st.DrawFn) -> tuple[str, str]:
    """Two texts that have something in common."""
    before = draw(texts())
    lines = before.splitlines(keepends=True)
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(lines)))
        lines[at : at + draw(st.integers(0, 3))] = draw(st.lists(LINE, max_size=3))
    return before, draw(st.sampled_from(["".join(lines), draw(texts())]))


def run_diff(before: bytes, after: bytes, *options: str) -> str:
    with tempfile.TemporaryDirectory() as name:
        old, new = Path(name, "old"), Path(name, "new")
        old.write_bytes(before)
        new.write_bytes(after)
        command = ["diff", "-u", "--label", "a/f", "--label", "b/f", *options, str(old), str(new)]
        done = subprocess.run(command, capture_output=True, check=False)
    return done.stdout.decode("utf-8", "surrogateescape")


def apply(patch: str, data: bytes) -> bytes:
    (change,) = parse_unified(patch)
    assert change.edits is not None
    return change.edits.apply(data, "f")


@given(pairs())
@settings(max_examples=150, deadline=None)
def test_what_diff_says_of_two_texts_turns_one_into_the_other(pair: tuple[str, str]) -> None:
    before, after = (text.encode() for text in pair)
    patch = run_diff(before, after)
    if before != after:
        assert apply(patch, before) == after


@given(pairs(), st.sampled_from(["-U1", "-U8", "--minimal"]))
@settings(max_examples=60, deadline=None)
def test_the_amount_of_context_does_not_matter(pair: tuple[str, str], option: str) -> None:
    before, after = (text.encode() for text in pair)
    if before != after:
        assert apply(run_diff(before, after, option), before) == after


@given(st.lists(st.binary(max_size=8), max_size=12), st.lists(st.binary(max_size=8), max_size=12))
@settings(max_examples=100, deadline=None)
def test_bytes_that_are_no_text_survive(old: list[bytes], new: list[bytes]) -> None:
    before, after = b"\n".join(old), b"\n".join(new)
    patch = run_diff(before, after, "--text")
    if before != after:
        assert apply(patch, before) == after


@given(pairs())
@settings(max_examples=300, deadline=None)
def test_what_difflib_says_turns_one_into_the_other(pair: tuple[str, str]) -> None:
    before, after = (text.removesuffix("\n") + "\n" for text in pair)
    lines = difflib.unified_diff(re.findall(r"[^\n]*\n", before), re.findall(r"[^\n]*\n", after), "a/f", "b/f")
    if before != after:
        assert apply("".join(lines), before.encode()) == after.encode()


@given(pairs())
@settings(max_examples=300, deadline=None)
def test_what_a_result_says_turns_one_into_the_other(pair: tuple[str, str]) -> None:
    before, after = pair
    patch = unified_diff("f", before, after)
    if before != after:
        assert apply(patch, before.encode()) == after.encode()
    else:
        assert not patch


@given(pairs())
@settings(max_examples=200, deadline=None)
def test_a_patch_without_carriage_returns_fits_a_file_that_has_them_and_leaves_them_there(
    pair: tuple[str, str],
) -> None:
    before, after = (text.replace("\r", "") for text in pair)
    if before != after and before.count("\n") > 1:
        patch = run_diff(before.encode(), after.encode())
        assert apply(patch, before.replace("\n", "\r\n").encode()) == after.replace("\n", "\r\n").encode()


@given(pairs())
@settings(max_examples=200, deadline=None)
def test_a_byte_order_mark_stays_where_it_is(pair: tuple[str, str]) -> None:
    before, after = (text.encode() for text in pair)
    if before != after and before:
        assert apply(run_diff(before, after), BOM + before) == BOM + after


@given(pairs(), st.integers(1, 5))
@settings(max_examples=150, deadline=None)
def test_a_patch_never_fits_a_file_that_was_moved_by_some_lines(pair: tuple[str, str], offset: int) -> None:
    before, after = (text.encode() for text in pair)
    if before == after:
        return
    moved = b"something else\n" * offset + before
    try:
        result = apply(run_diff(before, after), moved)
    except ValueError:
        return
    (change,) = parse_unified(run_diff(before, after))
    assert not any(hunk.old for hunk in change.edits.hunks), result  # type: ignore[union-attr]


@given(pairs())
@settings(max_examples=300, deadline=None)
def test_an_envelope_made_from_two_texts_turns_one_into_the_other(pair: tuple[str, str]) -> None:
    """One chunk over the whole file says everything that an envelope can say."""
    before, after = ("top\n" + text.replace("\r", "") + "end\n" for text in pair)
    body = [
        line for line in difflib.ndiff(before.split("\n")[:-1], after.split("\n")[:-1]) if not line.startswith("? ")
    ]
    chunk = "\n".join(line[0] + line[2:] for line in body)
    patch = f"*** Begin Patch\n*** Update File: f\n@@\n{chunk}\n*** End Patch\n"
    (change,) = parse_envelope(patch)
    assert change.edits is not None
    for ending in ("\n", "\r\n"):
        data = before.replace("\n", ending).encode()
        assert change.edits.apply(data, "f") == after.replace("\n", ending).encode()
    assert change.edits.apply(before[:-1].encode(), "f") == after[:-1].encode()


ENCODINGS = st.sampled_from(["utf-8", "utf-8-sig", "latin-1"])
SAFE_LINE = st.text("ab é\t-+", max_size=6)


@st.composite
def files(draw: st.DrawFn) -> bytes:
    ending = draw(st.sampled_from(["\n", "\r\n"]))
    text = ending.join(draw(st.lists(SAFE_LINE, max_size=12)))
    return (text + draw(st.sampled_from(["", ending]))).encode(draw(ENCODINGS))


@given(files(), st.data())
@settings(max_examples=400, deadline=None)
def test_a_replacement_changes_its_place_and_nothing_else(data: bytes, choice: st.DataObject) -> None:
    text = data.removeprefix(BOM)
    start = choice.draw(st.integers(0, len(text)))
    end = choice.draw(st.integers(start, len(text)))
    if any(text[at - 1 : at + 1] == b"\r\n" for at in (start, end) if at):
        return  # no model names half of an ending
    codec = "utf-8" if is_utf8(data) else "latin-1"
    try:
        old = text[start:end].decode(codec).replace("\r\n", "\n")
    except UnicodeDecodeError:
        return  # the cut went through a character
    new = choice.draw(st.sampled_from(["", "new", "two\nlines", "é\n"]))
    if not old or old == new:
        return
    try:
        file = decode_file(data, "f", None if codec == "utf-8" else codec)
        edited, _ = replace_once(file, old, new, path="f")
        result = file.encoded(edited, "f")
    except TextAmbiguousError:
        return
    offset = len(data) - len(text)
    assert result.startswith(data[: offset + start])
    assert result.endswith(data[offset + end :])
    inserted = result[offset + start : len(result) - len(data) + offset + end]
    assert inserted.decode(codec).replace("\r\n", "\n") == new
    if b"\r\n" in data:
        assert b"\n" not in inserted.replace(b"\r\n", b"")


@given(files(), st.integers(-1, 12), st.sampled_from(["new", "new\n", "two\nlines", "é"]))
@example(b"", 0, "new")
@example(BOM, -1, "new")
@settings(max_examples=300, deadline=None)
def test_an_insertion_adds_whole_lines_and_changes_no_other(data: bytes, line: int, text: str) -> None:
    lines = split_lines(data.removeprefix(BOM))
    if line > len(lines):
        return
    file = decode_file(data, "f", None if is_utf8(data) else "latin-1")
    edited, after = insert_lines(file, line, text, path="f")
    result = file.encoded(edited, "f")
    assert after == (len(lines) if line == -1 else line)
    assert result.startswith(BOM) == data.startswith(BOM)
    found = split_lines(result.removeprefix(BOM))
    count = len(text.removesuffix("\n").split("\n"))
    assert [bare_text(one) for one in found[:after]] == [bare_text(one) for one in lines[:after]]
    assert found[after + count :] == lines[after:]
    assert len(found) == len(lines) + count
    if lines:
        assert result.endswith(b"\n") == data.endswith(b"\n")
    if lines and all(one.endswith(b"\r\n") for one in lines):
        assert all(one.endswith(b"\r\n") for one in found)


def bare_text(line: bytes) -> bytes:
    return line.rstrip(b"\r\n")
