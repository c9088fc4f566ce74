"""The law: what is there is found, whichever engine looks for it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tool_contexts import BACKENDS, make_context

from ws.errors import InvalidRequest, ToolValidationError
from ws.fs.host import HostFilesystem
from ws.fs.memory import MemoryFilesystem
from ws.fs.protocol import WORKSPACE_LIMITS, GrepQuery, GrepReport
from ws.tools.context import ToolContext
from ws.tools.reading import list_dir, tree
from ws.tools.searching import glob, grep
from ws.tools.trash import Backups


@pytest.fixture(params=BACKENDS)
def context(request: pytest.FixtureRequest, tmp_path: Path) -> ToolContext:
    return make_context(request.param, tmp_path)


def test_glob_has_the_newest_first_and_no_directories(context: ToolContext) -> None:
    fs = context.filesystem
    for age, path in enumerate(("new.py", "d/middle.py", "old.py")):
        fs.write(path, "")
        fs.set_modified(path, 1_700_000_000_000_000_000 - age * 1_000_000_000)
    fs.mkdir("dir.py")
    assert glob(context, pattern="**/*.py").output == "new.py\nd/middle.py\nold.py"
    some = glob(context, pattern="**/*.py", max_results=2)
    assert (some.data["paths"], some.data["total"], some.truncated) == (["new.py", "d/middle.py"], 3, True)
    assert glob(context, pattern="*.py", path="d").data["paths"] == ["d/middle.py"]


def test_glob_leaves_out_what_is_excluded_and_all_below_it(context: ToolContext) -> None:
    for path in ("a.py", "node_modules/x/b.py", "src/c.py", "src/c_test.py"):
        context.filesystem.write(path, "")
    found = glob(context, pattern="**/*.py", exclude=["node_modules", "*_test.py"]).data["paths"]
    assert sorted(found) == ["a.py", "src/c.py"]
    for root in ("./", context.filesystem.root):
        same = glob(context, pattern="**/*.py", path=root, exclude=["node_modules", "*_test.py"]).data["paths"]
        assert sorted(same) == ["a.py", "src/c.py"], root
    inside = glob(context, pattern="**/*.py", path="node_modules", exclude=["node_modules"])
    assert inside.data["paths"] == ["node_modules/x/b.py"]


def test_grep_prints_as_grep_does(context: ToolContext) -> None:
    context.filesystem.write("a.txt", "one\ntwo\nthree\nfour\nfive\nsix\nseven\ntwo\n")
    context.filesystem.write("b.txt", "two\n")
    assert grep(context, pattern="two").output == "a.txt:2:two\na.txt:8:two\nb.txt:1:two"
    around = grep(context, pattern="two|three", context_before=1, context_after=1, path="a.txt")
    assert around.output.split("\n") == [
        "a.txt-1-one",
        "a.txt:2:two",
        "a.txt:3:three",
        "a.txt-4-four",
        "--",
        "a.txt-7-seven",
        "a.txt:8:two",
    ]
    assert grep(context, pattern="TWO", ignore_case=True, output_mode="count").output == "a.txt:2\nb.txt:1"
    assert grep(context, pattern="two", output_mode="files_with_matches").output == "a.txt\nb.txt"
    assert grep(context, pattern="two", glob="b*").output == "b.txt:1:two"
    cut = grep(context, pattern="two", max_matches=1)
    assert (cut.output, cut.truncated) == ("a.txt:2:two", True)
    assert "max_matches=1" in cut.message


def test_binary_files_are_skipped_and_said_so(context: ToolContext) -> None:
    context.filesystem.write_bytes("bin", b"needle\0\n")
    context.filesystem.write("text", "needle\n")
    result = grep(context, pattern="needle")
    assert result.output == "text:1:needle"
    assert "binary files are skipped" in result.message
    asked = grep(context, pattern="needle", path="bin")
    assert (asked.output, asked.data["binary_files"]) == ("", ["bin"])
    assert "bin is binary and was skipped" in asked.message


def test_the_match_is_in_the_part_of_a_long_line_that_is_shown(context: ToolContext) -> None:
    context.filesystem.write("f", "x" * 5_000 + "needle" + "y" * 5_000)
    output = grep(context, pattern="needle").output
    assert "needle" in output
    assert len(output) < 500


def test_a_long_line_is_cut_in_the_data_too_and_the_match_is_found_in_it(context: ToolContext) -> None:
    context.filesystem.write("f", ("x" * 5_000 + "needle" + "y" * 500_000 + "\n") * 3)
    context.filesystem.write("g", "\ufeffa needle\n")
    matches = grep(context, pattern="needle", context_before=1).data["matches"]
    assert [match["text"][match["start"] : match["end"]] for match in matches] == ["needle"] * 4
    assert len(str(matches)) < 3_000
    assert matches[3]["text"] == "a needle"


def test_bad_requests_are_refused(context: ToolContext) -> None:
    with pytest.raises(InvalidRequest):
        grep(context, pattern="(")
    with pytest.raises(ToolValidationError):
        grep(context, pattern="x", output_mode="xml")
    with pytest.raises(ToolValidationError):
        glob(context, pattern="*", max_results=0)


# ripgrep and Python


@pytest.fixture
def both(tmp_path: Path) -> tuple[HostFilesystem, HostFilesystem]:
    """A tree with everything that could make a difference, searched by ripgrep and by Python."""
    root = tmp_path / "tree"
    files = {
        "plain.py": b"import os\nprint('needle')\n",
        "crlf.txt": b"needle\r\nhay needle\r\nneedle",
        "empty": b"",
        "no-newline": b"the needle",
        "latin.txt": "aéneedleé\n".encode("latin-1"),
        "utf8.txt": "ärger über needle ünd needle\n".encode(),
        "utf16.txt": "needle\n".encode("utf-16"),
        "bom.txt": b"\xef\xbb\xbfneedle\n",
        "binary.bin": b"\0\1\2needle\n",
        "half-binary.bin": b"needle\n\0\1\2needle\n",
        "only-late.txt": b"x" * 9_000 + b"\0needle\n",
        "late-in-line.txt": b"x\n" * 9_000 + b"needle one\nneedle \0 two\nneedle three\n",
        "late-binary.txt": b"needle\n" + b"x" * 9_000 + b"\0needle\n",
        "very-late.txt": b"needle\n" + b"x\n" * 90_000 + b"needle \0 needle\nneedle",
        ".hidden/file": b"needle\n",
        ".gitignore": b"ignored\n",
        ".ignore": b"also-ignored\n",
        "ignored": b"needle\n",
        "also-ignored": b"needle\n",
        ".git/config": b"needle\n",
        "a.b/c": b"needle\n",
        "a/b": b"needle\n",
        "a-b": b"needle\n",
        "odd name\n.txt": b"needle\n",
        "[x]{y}!.txt": b"needle\n",
        "src/deep/er/x.py": b"NEEDLE\n  needle  \n\n",
        "src/x.c": b"needle" * 10 + b"\n" + b"line\n" * 50 + b"needle\n",
        "odd.txt": "a\rb\nA1_ \tz~é\n[:x]\nü-_.\r\n\nend".encode(),
        "long": b"x" * 100_000 + b"needle" + b"y" * 100_000 + b"\n",
    }
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (root / os.fsdecode(b"caf\xe9")).write_bytes(b"needle\n")
    (root / "link").symlink_to("plain.py")
    (root / "linked-dir").symlink_to("src")
    os.mkfifo(root / "fifo")
    rg = shutil.which("rg") or pytest.fail("ripgrep is not installed")
    return (
        HostFilesystem(str(root), limits=WORKSPACE_LIMITS, rg=(rg,)),
        HostFilesystem(str(root), limits=WORKSPACE_LIMITS),
    )


QUERIES = [
    GrepQuery("needle"),
    GrepQuery("^needle$"),
    GrepQuery("needle$"),
    GrepQuery("needle", ignore_case=True),
    GrepQuery("n[a-e]+dle", context_before=2, context_after=2),
    GrepQuery("needle", max_matches=7),
    GrepQuery("needle", count_only=True),
    GrepQuery("NEEDLE", count_only=True, ignore_case=True, max_matches=3),
    GrepQuery("needle", max_matches=10**30),
    GrepQuery("needle", glob="*.txt"),
    GrepQuery("needle", glob="src/**/*.py"),
    GrepQuery("needle", glob="[x]{y}!.txt"),
    GrepQuery("needle", glob="?????.py"),
    GrepQuery("needle", path="src"),
    GrepQuery("needle", path="src/x.c", context_after=1),
    GrepQuery("needle", path="binary.bin"),
    GrepQuery("needle", path="half-binary.bin"),
    GrepQuery("needle", path="late-in-line.txt", context_after=2),
    GrepQuery(r"\bneedle\b"),
    GrepQuery("ü\\w+"),
    GrepQuery("x*"),
    GrepQuery("-e"),
    GrepQuery("nothing at all"),
    GrepQuery("(?<=hay )needle"),
    GrepQuery(r"(needle)\1"),
]
PATTERNS = [
    "a.b", "(?s)a.b", r"a\sb", r"a\Wb", r"a\Db", r"a\Sb", "a[^x]b", r"a[\s\d]b", r"a[\r\t]b", r"a[\t-z]b",
    r"[^\n]b", r"\r", r"[\r]", "a$", "^b", r"_\.$", r"end\z", r"b\z", r"\.\z", r"\AA1", r"\Ab", r"\\z", r"\<A", r"_\>",
    r"\x{41}", r"\u{e9}", r"[\x{41}\x{e9}]", "[]:]", "[^]a]", "[a||b]", "[-_.]+", "(?i)É", "[:x]+",
    "[[:alpha:]]+", "[[:digit:]]+", "[[:^alpha:]]+", "[^[:alpha:]]+", "[^[:^alpha:]]+", "[[:alnum:]_]+",
    "[[:word:]]+", "[[:space:]]+", "[[:punct:]]+", "[[:upper:][:digit:]]+", "[[:cntrl:]]", "[[:blank:]]",
    "[[:graph:]]+", "[[:print:]]+", "[[:lower:]]+", "[[:xdigit:]]+", "[[:ascii:]]+", "[[:^ascii:]]",
]  # fmt: skip
ONLY_RIPGREP = [r"\pL+", r"\p{Greek}", r"[\PL]", "[a-z&&b]", "[a-z--b]", "[a-z~~b]", "[[ab]c]", "[[:foo:]]"]


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: f"{query.pattern} {query.glob} {query.path}")
def test_ripgrep_and_python_find_the_same(both: tuple[HostFilesystem, HostFilesystem], query: GrepQuery) -> None:
    with_rg, pure = both
    found, expected = with_rg.search(query), pure.search(query)
    assert found == expected
    if query.pattern == "needle" and query.path == "." and query.max_matches is None:
        assert found != GrepReport()


@pytest.mark.parametrize("ignore_case", [False, True])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_means_the_same_to_both(
    both: tuple[HostFilesystem, HostFilesystem], pattern: str, ignore_case: bool
) -> None:
    with_rg, pure = both
    query = GrepQuery(pattern, path="odd.txt", ignore_case=ignore_case)
    assert with_rg.search(query) == pure.search(query)


@pytest.mark.parametrize("pattern", ONLY_RIPGREP)
def test_what_python_cannot_say_is_refused_and_not_taken_for_something_else(
    both: tuple[HostFilesystem, HostFilesystem], pattern: str
) -> None:
    with_rg, pure = both
    with_rg.search(GrepQuery(pattern))
    with pytest.raises(InvalidRequest, match="only ripgrep knows"):
        pure.search(GrepQuery(pattern))


@pytest.mark.parametrize("pattern", ["[", "[a", "a\\", "[^", "[z-a]", "(", r"\x{110000}", "[[:alpha:]"])
def test_what_is_no_pattern_is_refused_by_both(both: tuple[HostFilesystem, HostFilesystem], pattern: str) -> None:
    for fs in both:
        with pytest.raises(InvalidRequest):
            fs.search(GrepQuery(pattern))


def test_a_directory_that_is_one_huge_line_does_not_take_the_memory(tmp_path: Path) -> None:
    rg = shutil.which("rg") or pytest.fail("ripgrep is not installed")
    (tmp_path / "huge").write_bytes(b"needle" + b"x" * (8 << 20))
    (tmp_path / "small").write_bytes(b"needle\n")
    for fs in (HostFilesystem(str(tmp_path), rg=(rg,)), HostFilesystem(str(tmp_path))):
        found = fs.grep("needle")
        assert [(match.path, match.match_start) for match in found] == [("huge", 0), ("small", 0)]
        assert all(len(match.line_content) < 2 << 20 for match in found)


def test_restricted_names_are_seen_in_no_listing_nor_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "d/private").mkdir(parents=True)
    for name in ("d/open", "d/secret", "d/private/key"):
        (tmp_path / name).write_text("x")
    (tmp_path / "link").symlink_to("d")
    fs = HostFilesystem(str(tmp_path), limits=WORKSPACE_LIMITS, restricted_paths=["d/private", "d/secret"])
    context = ToolContext(fs, Backups(fs, MemoryFilesystem()))
    for top in ("d", "link"):
        assert [entry.name for entry in fs.list(top)] == ["open"]
        assert [status.path for status in fs.scan(top)] == [f"{top}/open"]
        assert [match.path for match in fs.glob("**", top)] == [f"{top}/open"]
        assert list_dir(context, path=top).output == "open"
        assert [child["name"] for child in tree(context, path=top).data["children"]] == ["open"]


def test_restricted_files_are_found_by_neither(tmp_path: Path) -> None:
    rg = shutil.which("rg") or pytest.fail("ripgrep is not installed")
    (tmp_path / "secret" / "open").mkdir(parents=True)
    (tmp_path / "secret" / "key").write_text("needle")
    (tmp_path / "secret" / "open" / "doc").write_text("needle")
    (tmp_path / "file").write_text("needle")
    for command in ((rg,), None):
        fs = HostFilesystem(str(tmp_path), restricted_paths=["secret"], allowed_paths=["secret/open"], rg=command)
        assert [match.path for match in fs.grep("needle")] == ["file", "secret/open/doc"]
        assert [match.path for match in fs.glob("**") if match.is_file] == ["file", "secret/open/doc"]
