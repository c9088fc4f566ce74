"""What is believed without being read again."""

from __future__ import annotations

from mutations import Mutation

_FILE = "store/statcache.py"
_TESTS = "unit/test_stat_cache.py"
_PROMISE = "a snapshot holds what the files hold"


def _unseen(what: str, old: str, test: str) -> Mutation:
    return Mutation(f"a change of the {what} is not seen", _FILE, old, "", _PROMISE, (f"{_TESTS}::{test}",))


_COLUMN = "test_each_fact_of_a_file_and_a_directory_counts"

MUTATIONS = [
    Mutation(
        "racy entries are believed",
        _FILE,
        "            if flags & RACY and looking",
        "            if flags & 0 and looking",
        _PROMISE,
        (f"{_TESTS}::test_a_racy_entry_is_hashed_before_it_is_believed",),
    ),
    Mutation(
        "no entry is racy",
        "store/gathering.py",
        "        self._racy_from_ns = now_ns - RACY_NS\n",
        "        self._racy_from_ns = now_ns + (1 << 60)\n",
        _PROMISE,
        (f"{_TESTS}::test_what_changed_just_now_is_racy",),
    ),
    Mutation(
        "what was read ahead is believed to the last instant",
        "store/walking.py",
        "row if row[3] < trusted_until_ns else",
        "row if row[3] else",
        _PROMISE,
        (f"{_TESTS}::test_what_changed_while_it_was_read_ahead_is_racy",),
    ),
    _unseen("directory's device", "                    (found, _DEVICE, self._devices),\n", _COLUMN),
    _unseen("directory's inode", "                    (found, _INODE, self._inodes),\n", _COLUMN),
    _unseen("directory's ctime", "                    (found, _CTIME, self._ctimes),\n", _COLUMN),
    _unseen("file's inode", "                    (found, _INODE, self._file_inodes),\n", _COLUMN),
    _unseen("file's ctime", "                    (found, _CTIME, self._file_ctimes),\n", _COLUMN),
    _unseen("file's size", "                    (found, _SIZE, self._file_sizes),\n", _COLUMN),
    Mutation(
        "a damaged cache is believed",
        _FILE,
        "if not data.startswith(_MAGIC) or data[len(_MAGIC) : len(_MAGIC) + 20] != digest:",
        "if not data.startswith(_MAGIC) or not digest:",
        _PROMISE,
        (f"{_TESTS}::test_a_cache_with_a_flipped_bit_is_no_cache",),
    ),
    Mutation(
        "a base of an earlier boot is believed",
        "base_directories.py",
        "    if info is None or (info.boot != boot_id() and not is_synced(home.base(key))):\n",
        "    if info is None:\n",
        "what no sync covered is rebuilt from git after a crash",
        ("unit/test_bases.py::test_a_base_from_before_a_crash_is_rebuilt_from_the_store",),
    ),
    Mutation(
        "a layer of an earlier boot is believed",
        "layers.py",
        "    known = os.path.exists(_boot_mark(directory)) or is_synced(directory)\n",
        "    known = True\n",
        "what no sync covered is rebuilt from git after a crash",
        ("unit/test_recovery_rules.py::test_a_layer_of_an_earlier_boot_counts_only_if_it_was_synced",),
    ),
    Mutation(
        "a source that moves while it is read is taken as it came",
        "bases.py",
        "            if changed is None:\n                finish_copy",
        "            if True:\n                finish_copy",
        "a base is the source at one instant",
        ("unit/test_bases.py::test_a_source_that_keeps_changing_is_refused_and_leaves_nothing",),
    ),
]
