"""The law: a patch in either format is applied as it says or not at all; a refusal names the line, or the
file, the hunk, what was expected and what was found, and what to try."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ws.errors import FsViolationError, PatchApplyError, PatchParseError
from ws.fs.host import HostFilesystem
from ws.fs.memory import MemoryFilesystem
from ws.fs.protocol import WORKSPACE_LIMITS, ByteWriter, Filesystem, WriteMode
from ws.tools.context import ToolContext, ToolResult
from ws.tools.patching import apply_patch, parse_patch
from ws.tools.trash import Backups


class Tree:
    """A filesystem with files in it, and patches for them."""

    def __init__(self, filesystem: Filesystem) -> None:
        self.filesystem = filesystem
        self.backups = Backups(filesystem, MemoryFilesystem("/backups"))
        self.context = ToolContext(filesystem, self.backups)

    def put(self, **files: str | bytes) -> None:
        for name, content in files.items():
            data = content.encode() if isinstance(content, str) else content
            self.filesystem.write_bytes(name.replace("__", "/").replace("_", "."), data)

    def patch(self, text: str, **options: Any) -> ToolResult:
        return apply_patch(self.context, patch=text, **options)

    def envelope(self, text: str, **options: Any) -> ToolResult:
        return self.patch(f"*** Begin Patch\n{text}*** End Patch\n", **options)

    def files(self) -> dict[str, bytes]:
        found = self.filesystem.glob("**")
        return {match.path: self.filesystem.read_bytes(match.path) for match in found if match.is_file}

    def paths(self) -> set[str]:
        return {match.path for match in self.filesystem.glob("**")}


@pytest.fixture(params=["memory", "host"])
def tree(request: pytest.FixtureRequest, tmp_path: Path) -> Tree:
    (tmp_path / "root").mkdir()
    return Tree(
        MemoryFilesystem(limits=WORKSPACE_LIMITS)
        if request.param == "memory"
        else HostFilesystem(str(tmp_path / "root"), limits=WORKSPACE_LIMITS)
    )


MODIFY = "--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+TWO\n three\n"


# unified diffs


def test_a_hunk_replaces_lines_where_its_header_says(tree: Tree) -> None:
    tree.put(a_txt="one\ntwo\nthree\n")
    result = tree.patch(MODIFY)
    assert tree.files() == {"a.txt": b"one\nTWO\nthree\n"}
    assert result.status == "ok"
    assert result.data["files"] == [
        {"path": "a.txt", "change": "modified", "from": None, "added": 1, "removed": 1, "bytes": 14}
    ]
    assert result.summary is not None
    assert result.summary.files_touched == ("a.txt",)
    assert result.summary.bytes_written == 14
    assert "-two\n+TWO\n" in result.summary.diff
    assert result.output == "M a.txt +1 -1"


def test_several_hunks_and_several_files_are_applied_together(tree: Tree) -> None:
    tree.put(a_txt="".join(f"{n}\n" for n in range(1, 31)), d__b_txt="x\n")
    tree.patch(
        "--- a/a.txt\n+++ b/a.txt\n"
        "@@ -1,3 +1,4 @@\n 1\n+1.5\n 2\n 3\n"
        "@@ -28,3 +29,2 @@ section\n 28\n-29\n 30\n"
        "--- a/d/b.txt\n+++ b/d/b.txt\n@@ -1 +1 @@\n-x\n+y\n"
    )
    lines = tree.files()["a.txt"].decode().split()
    assert lines[:3] == ["1", "1.5", "2"]
    assert lines[-2:] == ["28", "30"]
    assert tree.files()["d/b.txt"] == b"y\n"


def test_a_file_is_created_with_the_directories_above_it(tree: Tree) -> None:
    tree.patch("--- /dev/null\n+++ b/new/deep/n.txt\n@@ -0,0 +1,2 @@\n+one\n+two\n")
    assert tree.files() == {"new/deep/n.txt": b"one\ntwo\n"}


def test_a_file_is_deleted(tree: Tree) -> None:
    tree.put(a_txt="one\n")
    result = tree.patch("--- a/a.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n")
    assert tree.files() == {}
    assert result.output == "D a.txt +0 -1"


def test_deleting_a_file_that_has_more_than_the_patch_knows_is_refused(tree: Tree) -> None:
    tree.put(a_txt="one\ntwo\n")
    with pytest.raises(PatchApplyError, match="4 bytes would be left"):
        tree.patch("--- a/a.txt\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n")
    assert tree.files() == {"a.txt": b"one\ntwo\n"}


def test_a_file_is_renamed_with_and_without_changes(tree: Tree) -> None:
    tree.put(a_txt="one\n", b_txt="two\n")
    tree.filesystem.set_mode("a.txt", 0o755)
    result = tree.patch(
        "diff --git a/a.txt b/d/c.txt\nsimilarity index 100%\nrename from a.txt\nrename to d/c.txt\n"
        "diff --git a/b.txt b/e.txt\nsimilarity index 50%\nrename from b.txt\nrename to e.txt\n"
        "--- a/b.txt\n+++ b/e.txt\n@@ -1 +1 @@\n-two\n+TWO\n"
    )
    assert tree.files() == {"d/c.txt": b"one\n", "e.txt": b"TWO\n"}
    assert tree.filesystem.stat("d/c.txt").mode == 0o755
    assert result.output.splitlines() == ["R a.txt → d/c.txt +0 -0", "R b.txt → e.txt +1 -1"]
    assert [file["change"] for file in result.data["files"]] == ["renamed", "renamed"]


def test_two_names_mean_the_file_that_is_there(tree: Tree) -> None:
    hunk = "@@ -1 +1 @@\n-one\n+ONE\n"
    tree.put(a_txt="one\n")
    tree.patch(f"--- a.txt.orig\n+++ a.txt\n{hunk}")
    assert tree.files() == {"a.txt": b"ONE\n"}
    tree.put(a_txt="one\n")
    tree.patch(f"--- a.txt\n+++ b.txt\n{hunk}")
    assert tree.files() == {"b.txt": b"ONE\n"}
    tree.put(a_txt="one\n")
    with pytest.raises(PatchApplyError, match="both exist"):
        tree.patch(f"--- a.txt\n+++ b.txt\n{hunk}")


def test_a_file_is_copied(tree: Tree) -> None:
    tree.put(a_txt="one\n")
    tree.patch("diff --git a/a.txt b/b.txt\nsimilarity index 100%\ncopy from a.txt\ncopy to b.txt\n")
    assert tree.files() == {"a.txt": b"one\n", "b.txt": b"one\n"}


def test_a_missing_newline_at_the_end_is_kept_added_and_taken_away(tree: Tree) -> None:
    mark = "\\ No newline at end of file\n"
    tree.put(a_txt="one")
    tree.patch(f"--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n{mark}+two\n{mark}")
    assert tree.files()["a.txt"] == b"two"
    tree.patch(f"--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-two\n{mark}+two\n")
    assert tree.files()["a.txt"] == b"two\n"
    tree.patch(f"--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-two\n+two\n{mark}")
    assert tree.files()["a.txt"] == b"two"


def test_a_newline_that_is_not_there_is_not_imagined(tree: Tree) -> None:
    tree.put(a_txt="one\ntwo\nthree")
    with pytest.raises(PatchApplyError, match="line 3: the file's line ends with no newline") as caught:
        tree.patch(MODIFY)
    assert "No newline at end of file" in (caught.value.hint or "")


def test_carriage_returns_in_the_file_are_kept(tree: Tree) -> None:
    tree.put(a_txt="one\r\ntwo\r\nthree\r\n")
    tree.patch(MODIFY)
    assert tree.files()["a.txt"] == b"one\r\nTWO\r\nthree\r\n"
    tree.patch("--- a/a.txt\n+++ b/a.txt\n@@ -2 +2 @@\n-TWO\r\n+two\n")
    assert tree.files()["a.txt"] == b"one\r\ntwo\nthree\r\n"


def test_a_patch_that_was_sent_with_carriage_returns_throughout_fits_a_file_without(tree: Tree) -> None:
    tree.put(a_txt="one\ntwo\nthree\n")
    tree.patch(MODIFY.replace("\n", "\r\n"))
    assert tree.files()["a.txt"] == b"one\nTWO\nthree\n"


def test_the_executable_bit_is_set_and_taken_away(tree: Tree) -> None:
    tree.put(a_txt="one\n")
    tree.filesystem.set_mode("a.txt", 0o644)
    tree.patch("diff --git a/a.txt b/a.txt\nold mode 100644\nnew mode 100755\n")
    assert tree.filesystem.stat("a.txt").mode == 0o755
    tree.patch("diff --git a/s b/s\nnew file mode 100755\n--- /dev/null\n+++ b/s\n@@ -0,0 +1 @@\n+x\n")
    assert tree.filesystem.stat("s").mode & 0o111 == 0o111
    assert tree.files()["s"] == b"x\n"


def test_an_empty_file_is_created_and_deleted(tree: Tree) -> None:
    tree.patch("diff --git a/e b/e\nnew file mode 100644\nindex 0000000..e69de29\n")
    assert tree.files() == {"e": b""}
    tree.patch("diff --git a/e b/e\ndeleted file mode 100644\nindex e69de29..0000000\n")
    assert tree.files() == {}


def test_what_git_says_of_a_change_is_understood(tmp_path: Path) -> None:
    """A real `git diff` with odd names, spaces, a rename, a mode and an empty file."""
    root = tmp_path / "root"
    root.mkdir()

    def git(*words: str) -> bytes:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(root), *words]
        return subprocess.run(command, check=True, capture_output=True).stdout

    git("init", "-q")
    (root / "ä ö.txt").write_text("one\ntwo\n")
    (root / 'q"uote').write_text("x\n")
    (root / "old.py").write_text("".join(f"line {n}\n" for n in range(20)))
    (root / "gone").write_text("bye\n")
    git("add", "-A")
    git("commit", "-qm", "a")
    (root / "ä ö.txt").write_text("one\nzwei\n")
    (root / 'q"uote').write_text("y")
    (root / "old.py").rename(root / "new name.py")
    (root / "new name.py").write_text("".join(f"line {n}\n" for n in range(1, 20)))
    (root / "new name.py").chmod(0o755)
    (root / "gone").unlink()
    (root / "empty").touch()
    git("add", "-A")
    expected = {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()}
    patch = git("diff", "--cached", "-M", "HEAD").decode()
    git("reset", "-q", "--hard")

    tree = Tree(HostFilesystem(str(root), limits=WORKSPACE_LIMITS))
    tree.patch(patch)
    assert {path.name: path.read_bytes() for path in root.iterdir() if path.is_file()} == expected
    assert (root / "new name.py").stat().st_mode & 0o111


def test_prefixes_are_taken_off_only_where_git_put_them(tree: Tree) -> None:
    tree.put(a__x="1\n")
    tree.patch("--- a/x\n+++ a/x\n@@ -1 +1 @@\n-1\n+2\n")
    assert tree.files() == {"a/x": b"2\n"}
    tree.patch("diff --git a/x a/x\n--- a/x\n+++ a/x\n@@ -1 +1 @@\n-2\n+3\n")
    assert tree.files() == {"a/x": b"3\n"}


def test_words_around_a_diff_are_passed_over(tree: Tree) -> None:
    tree.put(a_txt="one\ntwo\nthree\n")
    tree.patch(f"From: somebody\n\nA message.\n---\n a.txt | 2 +-\n\n{MODIFY}-- \n2.39.0\n")
    assert tree.files()["a.txt"] == b"one\nTWO\nthree\n"


def test_a_context_line_that_lost_its_space_is_an_empty_line(tree: Tree) -> None:
    tree.put(a_txt="one\n\nthree\n")
    tree.patch("--- a/a.txt\n+++ b/a.txt\n@@ -1,3 +1,3 @@\n one\n\n-three\n+THREE\n")
    assert tree.files()["a.txt"] == b"one\n\nTHREE\n"


def test_a_hunk_that_stands_elsewhere_is_refused_and_the_place_is_named(tree: Tree) -> None:
    tree.put(a_txt="zero\none\ntwo\nthree\n")
    with pytest.raises(PatchApplyError) as caught:
        tree.patch(MODIFY)
    assert "a.txt: hunk 1 does not fit at line 1: expected 'one', found 'zero'" in str(caught.value)
    assert "stand at line 2" in (caught.value.hint or "")
    assert tree.files()["a.txt"] == b"zero\none\ntwo\nthree\n"


def test_no_line_of_context_is_passed_over(tree: Tree) -> None:
    tree.put(a_txt="one\ntwo\nthree!\n")
    with pytest.raises(PatchApplyError, match="line 3: expected 'three', found 'three!'"):
        tree.patch(MODIFY)
    tree.put(a_txt="one\ntwo\n")
    with pytest.raises(PatchApplyError, match="line 3: expected 'three', found the end of the file"):
        tree.patch(MODIFY)


def test_hunks_that_overlap_are_refused(tree: Tree) -> None:
    tree.put(a_txt="one\ntwo\nthree\n")
    with pytest.raises(PatchApplyError, match="hunk 2 begins at line 3, inside or before"):
        tree.patch(MODIFY + "@@ -3 +3 @@\n-three\n+THREE\n")


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("", "line 1: this is no patch"),
        ("hello\n", "line 1: this is no patch"),
        ("--- a/x\n@@ -1 +1 @@\n-a\n+b\n", r"line 1: `--- FILE` is not followed by `\+\+\+ FILE`"),
        ("@@ -1 +1 @@\n-a\n+b\n", "line 1: a hunk without the names"),
        ("--- a/x\n+++ b/x\n@@ nonsense @@\n-a\n", "line 3: '@@ nonsense @@' is no hunk header"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n", "line 4: hunk 1 ends too early"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n c\n", "line 6: hunk 1 has more lines"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-a\n+b\n+c\n", "line 6: hunk 1 does not have the lines"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n a\n*b\n", "line 5: hunk 1 does not have the lines"),
        ("--- a/x\n+++ b/x\n@@ -0,1 +1 @@\n-a\n+b\n", "line 3: line 0 does not exist"),
        ("--- a/x\n+++ b/x\n", "line 1: nothing is said of what changes in x"),
        ("diff --git a/x b/x\nGIT binary patch\nliteral 3\n", "line 2: binary files"),
        ("diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+t\n",
        "line 2: mode"), ("*** a.txt\n--- b.txt\n***************\n", "line 1: this is a context diff"),
        ("--- /dev/null\n+++ /dev/null\n@@ -1 +1 @@\n-a\n+b\n", "line 1: the name of the file is missing"),
    ],
)  # fmt: skip
def test_what_is_no_diff_is_refused_with_the_line(tree: Tree, patch: str, message: str) -> None:
    with pytest.raises(PatchParseError, match=message) as caught:
        tree.patch(patch)
    assert caught.value.hint


# envelopes


def test_an_envelope_adds_updates_moves_and_deletes(tree: Tree) -> None:
    tree.put(a_txt="one\ntwo\nthree\n", b_txt="bye\n", c_txt="x\ny\n")
    result = tree.envelope(
        "*** Add File: new/n.txt\n+hello\n+\n+world\n"
        "*** Update File: a.txt\n@@\n one\n-two\n+TWO\n three\n"
        "*** Update File: c.txt\n*** Move to: d/e.txt\n@@\n-x\n+X\n"
        "*** Delete File: b.txt\n"
    )
    assert tree.files() == {
        "a.txt": b"one\nTWO\nthree\n",
        "d/e.txt": b"X\ny\n",
        "new/n.txt": b"hello\n\nworld\n",
    }
    assert result.output.splitlines() == [
        "A new/n.txt +3 -0",
        "M a.txt +1 -1",
        "R c.txt → d/e.txt +1 -1",
        "D b.txt +0 -1",
    ]


@pytest.mark.parametrize("copied", ["", "\ufeff"], ids=["as it is shown", "with the mark"])
def test_an_envelope_fits_a_file_with_a_byte_order_mark_which_stays(tree: Tree, copied: str) -> None:
    tree.put(a_txt="\ufeffone\ntwo\n")
    tree.envelope(f"*** Update File: a.txt\n@@\n-{copied}one\n+1\n two\n")
    assert tree.files() == {"a.txt": "\ufeff1\ntwo\n".encode()}


def test_a_move_needs_no_chunks(tree: Tree) -> None:
    tree.put(a_txt="one\n")
    tree.envelope("*** Update File: a.txt\n*** Move to: b.txt\n")
    assert tree.files() == {"b.txt": b"one\n"}


def test_the_line_behind_the_marker_says_where_to_look(tree: Tree) -> None:
    tree.put(a_py="def f():\n    x = 1\n\ndef g():\n    x = 1\n\ndef h():\n    x = 1\n")
    tree.envelope("*** Update File: a.py\n@@ def g():\n-    x = 1\n+    x = 2\n")
    assert tree.files()["a.py"].decode().split("\n\n") == [
        "def f():\n    x = 1",
        "def g():\n    x = 2",
        "def h():\n    x = 1\n",
    ]


def test_several_markers_narrow_down(tree: Tree) -> None:
    tree.put(a_py="class A:\n  def f():\n    1\nclass B:\n  def f():\n    1\n")
    tree.envelope("*** Update File: a.py\n@@ class B:\n@@   def f():\n-    1\n+    2\n")
    assert tree.files()["a.py"] == b"class A:\n  def f():\n    1\nclass B:\n  def f():\n    2\n"


def test_chunks_follow_one_another_through_the_file(tree: Tree) -> None:
    tree.put(a_txt="x\na\nx\nb\nx\n")
    tree.envelope("*** Update File: a.txt\n@@\n-x\n+1\n@@\n-x\n+2\n@@\n b\n-x\n+3\n")
    assert tree.files()["a.txt"] == b"1\na\n2\nb\n3\n"


def test_the_first_chunk_needs_no_marker(tree: Tree) -> None:
    tree.put(a_txt="one\ntwo\n")
    tree.envelope("*** Update File: a.txt\n one\n-two\n+TWO\n")
    assert tree.files()["a.txt"] == b"one\nTWO\n"


def test_end_of_file_binds_a_chunk_to_the_end(tree: Tree) -> None:
    tree.put(a_txt="x\ny\nx\n")
    tree.envelope("*** Update File: a.txt\n@@\n-x\n+end\n*** End of File\n")
    assert tree.files()["a.txt"] == b"x\ny\nend\n"
    with pytest.raises(PatchApplyError, match="is not found at the end of the file") as caught:
        tree.envelope("*** Update File: a.txt\n@@\n-x\n+end\n*** End of File\n")
    assert "End of File" in (caught.value.hint or "")


def test_a_chunk_without_old_lines_appends(tree: Tree) -> None:
    tree.put(a_txt="one\n", b_txt="one", e_txt="")
    for name, line in (("a.txt", "two"), ("b.txt", "two"), ("e.txt", "x")):
        tree.envelope(f"*** Update File: {name}\n@@\n+{line}\n")
    assert tree.files() == {"a.txt": b"one\ntwo\n", "b.txt": b"one\ntwo", "e.txt": b"x\n"}


@pytest.mark.parametrize(
    "wrapper",
    ["<<'EOF'\n{}EOF\n", "apply_patch <<EOF\n{}EOF", 'cat <<"X" | apply_patch\n{}X\n', "\n\n{}\n\n"],
)
def test_a_here_document_around_the_envelope_is_taken_off(tree: Tree, wrapper: str) -> None:
    tree.put(a_txt="one\n")
    tree.patch(wrapper.format("*** Begin Patch\n*** Update File: a.txt\n@@\n-one\n+1\n*** End Patch\n"))
    assert tree.files()["a.txt"] == b"1\n"


def test_a_unified_diff_in_an_envelope_is_a_unified_diff(tree: Tree) -> None:
    tree.put(a_txt="one\ntwo\nthree\n")
    tree.envelope(MODIFY)
    assert tree.files()["a.txt"] == b"one\nTWO\nthree\n"


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ("  value = 1   ", "  value = 1"),
        ("  value = 1", "value = 1"),
        ("  print(“it’s – fine”)", '  print("it\'s - fine")'),
        ("a\u00a0b", "a b"),
    ],
    ids=["trailing space", "surrounding space", "punctuation", "no-break space"],
)
def test_lines_are_found_in_spite_of_space_and_punctuation(tree: Tree, there: str, said: str) -> None:
    tree.put(a_txt=f"top\n{there}\nold\n")
    tree.envelope(f"*** Update File: a.txt\n@@\n {said}\n-old\n+new\n")
    assert tree.files()["a.txt"].decode() == f"top\n{there}\nnew\n", "context keeps the bytes of the file"


def test_an_exact_match_further_down_comes_before_a_loose_one(tree: Tree) -> None:
    tree.put(a_txt="x \nx\n")
    tree.envelope("*** Update File: a.txt\n@@\n-x\n+y\n")
    assert tree.files()["a.txt"] == b"x \ny\n"


def test_an_envelope_keeps_line_endings_byte_order_mark_and_final_newline(tree: Tree) -> None:
    tree.put(a_txt=b"\xef\xbb\xbfone\r\ntwo\r\nthree")
    tree.envelope("*** Update File: a.txt\n@@\n-one\n+1\n@@\n-three\n+3\n+4\n")
    assert tree.files()["a.txt"] == b"\xef\xbb\xbf1\r\ntwo\r\n3\r\n4"


def test_an_envelope_that_was_sent_with_carriage_returns_is_read(tree: Tree) -> None:
    tree.put(a_txt="one\n")
    tree.patch("*** Begin Patch\r\n*** Update File: a.txt\r\n@@\r\n-one\r\n+1\r\n*** End Patch\r\n")
    assert tree.files()["a.txt"] == b"1\n"


def test_context_that_is_missing_is_refused_with_the_best_place(tree: Tree) -> None:
    tree.put(a_txt="one\ntwo\nthree\n")
    with pytest.raises(PatchApplyError) as caught:
        tree.envelope("*** Update File: a.txt\n@@\n one\n two\n-four\n+4\n")
    said = str(caught.value)
    assert "a.txt: chunk 1 (3 old lines) is not found" in said
    assert "best place is line 1, but at line 3 expected 'four', found 'three'" in said
    with pytest.raises(PatchApplyError, match="its `@@` line 'def f' is not in the file"):
        tree.envelope("*** Update File: a.txt\n@@ def f\n-one\n+1\n")
    with pytest.raises(PatchApplyError) as caught:
        tree.envelope("*** Update File: a.txt\n@@\n-two\n+2\n@@\n-one\n+1\n")
    assert "order the chunks" in (caught.value.hint or "")


@pytest.mark.parametrize(
    ("patch", "message"),
    [
        ("*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n", "line 5: the patch does not end"),
        ("*** Begin Patch\n*** End Patch\n", "line 1: the patch names no file"),
        ("*** Begin Patch\n*** Update File: a\n*** End Patch\n",
        "line 2: nothing is said of what changes in a"), ("*** Begin Patch\n*** Update File: a\n@@\n*** "
        "End Patch\n", "line 3: chunk 1 of a has no lines"),
        ("*** Begin Patch\n*** Frobnicate: a\n*** End Patch\n", "line 2: '.*' opens no file"),
        ("*** Begin Patch\n*** Add File: a\nx\n*** End Patch\n", "line 3: a line of the new file a"),
        ("*** Begin Patch\n*** Add File:\n*** End Patch\n", "line 2: `.*` without a path"),
        ("*** Begin Patch\n*** Update File: a\n@@\n-x\n*y\n*** End Patch\n",
        "line 5: a line of chunk 1 of a"), ("*** Begin Patch\n*** Update File: a\n@@x\n-x\n*** End "
        "Patch\n", "line 3: '@@x' opens no chunk"),
        ("*** Begin Patch\n*** Delete File: a\n*** End Patch\n*** Delete File: b\n", "line 4: a line of a patch"),
        ("*** Update File: a\n@@\n-x\n+y\n*** End Patch\n", "line 1: the patch does not begin"),
        ("\n*** Add File: a\n+x\n*** End Patch\n", r"the patch does not begin with `\*\*\* Begin Patch`"),
    ],
)  # fmt: skip
def test_what_is_no_envelope_is_refused_with_the_line(tree: Tree, patch: str, message: str) -> None:
    with pytest.raises(PatchParseError, match=message) as caught:
        tree.patch(patch)
    assert caught.value.hint


# all or nothing


@pytest.mark.parametrize(
    "last",
    [
        "*** Update File: z.txt\n@@\n-not there\n+x\n",
        "*** Update File: missing.txt\n@@\n-a\n+b\n",
        "*** Delete File: missing.txt\n",
        "*** Update File: d\n@@\n-a\n+b\n",
        "*** Add File: z.txt/under\n+x\n",
    ],
)
def test_a_patch_that_fails_in_its_last_file_changes_nothing(tree: Tree, last: str) -> None:
    tree.put(a_txt="one\n", z_txt="z\n", g_txt="gone\n", d__f="f\n")
    before = tree.files()
    with pytest.raises(PatchApplyError):
        tree.envelope(
            "*** Update File: a.txt\n@@\n-one\n+1\n*** Delete File: g.txt\n*** Add File: new/n.txt\n+n\n" + last
        )
    assert tree.files() == before
    assert tree.paths() == {"a.txt", "z.txt", "g.txt", "d", "d/f"}
    assert tree.backups.records() == []


@pytest.mark.parametrize(
    "path", ["../out.txt", "/etc/passwd", "d/../../out.txt", "/workspace-evil/x", "link/x", "link"]
)
@pytest.mark.parametrize("form", ["add", "update", "delete", "move", "unified"])
def test_paths_that_lead_out_are_refused_and_nothing_changes(tmp_path: Path, path: str, form: str) -> None:
    root, outside = tmp_path / "root", tmp_path / "outside"
    (root / "d").mkdir(parents=True)
    outside.mkdir()
    (outside / "x").write_text("secret\n")
    (root / "a.txt").write_text("one\n")
    (root / "link").symlink_to(outside / "x" if path == "link" else outside)
    tree = Tree(HostFilesystem(str(root), limits=WORKSPACE_LIMITS))
    last = {
        "add": f"*** Add File: {path}\n+x\n",
        "update": f"*** Update File: {path}\n@@\n-secret\n+x\n",
        "delete": f"*** Delete File: {path}\n",
        "move": f"*** Update File: b.txt\n*** Move to: {path}\n",
        "unified": f"--- /dev/null\n+++ {path}\n@@ -0,0 +1 @@\n+x\n",
    }[form]
    first = "*** Add File: b.txt\n+b\n*** Update File: a.txt\n@@\n-one\n+1\n"
    patch = f"*** Begin Patch\n{first}{last}*** End Patch\n"
    if form == "unified":
        patch = f"--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-one\n+1\n{last}"
    with pytest.raises(FsViolationError):
        tree.patch(patch)
    assert (root / "a.txt").read_text() == "one\n"
    assert not (root / "b.txt").exists()
    assert [path.name for path in outside.iterdir()] == ["x"]
    assert (outside / "x").read_text() == "secret\n"


def test_an_absolute_path_inside_the_root_is_as_good_as_a_relative_one(tree: Tree) -> None:
    tree.put(a_txt="one\n")
    tree.envelope(f"*** Update File: {tree.filesystem.root}/a.txt\n@@\n-one\n+1\n")
    assert tree.files() == {"a.txt": b"1\n"}


def test_a_file_that_is_named_twice_is_changed_twice(tree: Tree) -> None:
    tree.put(a_txt="one\ntwo\n")
    tree.envelope("*** Update File: a.txt\n@@\n-one\n+1\n*** Update File: ./a.txt\n@@\n 1\n-two\n+2\n")
    assert tree.files() == {"a.txt": b"1\n2\n"}


def test_a_file_may_be_deleted_and_made_anew_in_one_patch(tree: Tree) -> None:
    tree.put(a_txt="one\n")
    tree.envelope("*** Delete File: a.txt\n*** Add File: a.txt\n+new\n")
    assert tree.files() == {"a.txt": b"new\n"}


def test_a_link_and_its_target_are_one_file(tree: Tree) -> None:
    tree.put(real="1\n2\n")
    tree.filesystem.make_link("ln", "real")
    tree.envelope("*** Update File: ln\n@@\n-1\n+one\n*** Update File: real\n@@\n-2\n+two\n")
    assert tree.files()["real"] == b"one\ntwo\n"
    assert tree.filesystem.read_link("ln") == "real"
    tree.backups.undo("ln")
    assert tree.files()["real"] == b"1\n2\n"
    tree.backups.redo("real")
    assert tree.files()["real"] == b"one\ntwo\n"


def test_a_link_that_is_deleted_comes_back_as_a_link(tree: Tree) -> None:
    tree.put(real="1\n")
    tree.filesystem.make_link("ln", "real")
    tree.envelope("*** Delete File: ln\n*** Update File: real\n@@\n-1\n+one\n")
    assert tree.files() == {"real": b"one\n"}
    tree.backups.undo("ln")
    assert tree.filesystem.read_link("ln") == "real"
    with pytest.raises(PatchApplyError, match="a link stands there"):
        tree.envelope("*** Delete File: ln\n*** Add File: ln\n+new\n")
    assert tree.files() == {"real": b"one\n", "ln": b"one\n"}


@pytest.mark.parametrize("path", ["a.txt", "b.txt"])
@pytest.mark.parametrize("edit", ["", "@@\n-one\n+two\n"])
def test_a_rename_is_undone_as_one_change(tree: Tree, path: str, edit: str) -> None:
    tree.put(a_txt="one\n", c_txt="other\n")
    tree.filesystem.set_mode("a.txt", 0o755)
    before = tree.files()
    tree.envelope(f"*** Update File: a.txt\n*** Move to: b.txt\n{edit}*** Update File: c.txt\n@@\n-other\n+new\n")
    after = tree.files()
    assert not any(record.is_trash for record in tree.backups.records())
    tree.backups.undo("c.txt")
    for _ in range(2):
        tree.backups.undo(path)
        assert tree.files() == before
        assert tree.filesystem.stat("a.txt").mode == 0o755
        tree.backups.redo(path)
        assert tree.files() == after | {"c.txt": b"other\n"}


def test_a_chain_of_renames_is_undone_path_by_path(tree: Tree) -> None:
    tree.put(a_txt="one\n", b_txt="two\n", c_txt="three\n")
    before = tree.files()
    tree.patch(
        "diff --git a/b.txt b/d.txt\nrename from b.txt\nrename to d.txt\n"
        "diff --git a/a.txt b/b.txt\nrename from a.txt\nrename to b.txt\n"
        "diff --git a/c.txt b/a.txt\nrename from c.txt\nrename to a.txt\n"
    )
    assert tree.files() == {"a.txt": b"three\n", "b.txt": b"one\n", "d.txt": b"two\n"}
    assert not any(record.is_trash for record in tree.backups.records())
    for path in ("a.txt", "c.txt", "d.txt"):
        tree.backups.undo(path)
    assert tree.files() == before


class FailingAt(MemoryFilesystem):
    """A filesystem whose n-th change fails as a full disk does."""

    def __init__(self) -> None:
        super().__init__(limits=WORKSPACE_LIMITS)
        self.countdown = -1

    def _tick(self) -> None:
        if self.countdown == 0:
            self.countdown = -1
            raise OSError(errno.ENOSPC, "No space left on device")
        self.countdown -= 1

    def open_write(self, path: str, mode: WriteMode = "overwrite", create_parents: bool = True) -> ByteWriter:
        self._tick()
        writer = super().open_write(path, mode, create_parents)
        close = writer.close

        def failing_close() -> None:
            self._tick()
            close()

        return _Wrapped(writer, failing_close)  # type: ignore[return-value]

    def delete(self, path: str, recursive: bool = False) -> None:
        self._tick()
        super().delete(path, recursive)

    def mkdir(self, path: str, parents: bool = True, exist_ok: bool = True) -> None:
        self._tick()
        super().mkdir(path, parents, exist_ok)

    def set_mode(self, path: str, mode: int) -> None:
        self._tick()
        super().set_mode(path, mode)


class _Wrapped:
    def __init__(self, writer: ByteWriter, close: Any) -> None:
        self._writer = writer
        self.path, self.write, self.discard, self.close = writer.path, writer.write, writer.discard, close

    def __enter__(self) -> _Wrapped:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        (self.close if kind is None else self.discard)()


def test_wherever_the_disk_is_full_everything_is_as_it_was() -> None:
    patch = (
        "*** Update File: a.txt\n@@\n-one\n+1\n*** Update File: s\n*** Move to: new/s\n@@\n-x\n+y\n"
        "*** Add File: new/deep/n\n+n\n*** Delete File: g\n*** Delete File: ln\n"
    )
    for n in range(100):
        filesystem = FailingAt()
        tree = Tree(filesystem)
        tree.put(a_txt="one\n", s="x\n", g="gone\n")
        filesystem.set_mode("s", 0o755)
        filesystem.make_link("ln", "a.txt")
        before, paths = tree.files(), tree.paths()
        filesystem.countdown = n
        try:
            tree.envelope(patch)
        except OSError:
            assert tree.files() == before, n
            assert tree.paths() == paths, n
            assert filesystem.stat("s").mode == 0o755
            assert filesystem.read_link("ln") == "a.txt"
        else:
            assert n > 8
            assert tree.files() == {"a.txt": b"1\n", "new/s": b"y\n", "new/deep/n": b"n\n"}
            assert filesystem.stat("new/s").mode == 0o755
            return
    raise AssertionError("it never came to an end")


# dry run, backups


def test_a_dry_run_shows_everything_and_changes_nothing(tree: Tree) -> None:
    tree.put(a_txt="one\n")
    text = "*** Update File: a.txt\n@@\n-one\n+1\n*** Add File: b.txt\n+b\n"
    preview = tree.envelope(text, dry_run=True)
    assert tree.files() == {"a.txt": b"one\n"}
    assert tree.backups.records() == []
    done = tree.envelope(text)
    assert preview.output == done.output
    assert preview.summary is not None
    assert done.summary is not None
    assert preview.summary.diff == done.summary.diff
    assert preview.message == "would change 2 files"
    assert done.message == "changed 2 files"


def test_a_dry_run_fails_where_the_patch_would(tree: Tree) -> None:
    tree.put(a_txt="two\n")
    with pytest.raises(PatchApplyError):
        tree.envelope("*** Update File: a.txt\n@@\n-one\n+1\n", dry_run=True)


def test_every_file_of_a_patch_can_be_undone(tree: Tree) -> None:
    tree.put(a_txt="one\n", g_txt="gone\n")
    tree.envelope("*** Update File: a.txt\n@@\n-one\n+1\n*** Delete File: g.txt\n*** Add File: n.txt\n+n\n")
    for path in ("a.txt", "g.txt", "n.txt"):
        tree.backups.undo(path)
    assert tree.files() == {"a.txt": b"one\n", "g.txt": b"gone\n"}


def test_the_formats_are_told_apart_by_their_first_line() -> None:
    (unified,) = parse_patch(MODIFY)
    (envelope,) = parse_patch("\n*** Begin Patch\n*** Delete File: x\n*** End Patch")
    assert (unified.kind, envelope.kind) == ("update", "delete")
