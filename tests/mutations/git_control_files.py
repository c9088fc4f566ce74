"""What of a git directory comes home unasked."""

from __future__ import annotations

from mutations import Mutation

_INDEX, _NAMES, _CONTENTS, _CONTROL = (
    "store/git_index.py",
    "store/git_names.py",
    "store/git_contents.py",
    "store/git_control_files.py",
)
_PATHS = "unit/test_git_index.py::test_a_path_that_git_does_not_check_out_is_refused"
_DAMAGE = "unit/test_git_index.py::test_a_wrong_checksum_is_refused"
_OTHERS = "unit/test_git_index.py::test_what_means_something_else_to_another_reader_is_refused"
_PADDING = "unit/test_git_index.py::test_padding_is_zero_to_its_end"
_READS = "unit/test_git_control_files.py::test_what_git_only_reads_comes_if_it_is_what_its_name_says"
_OBEYS = "unit/test_git_control_files.py::test_what_git_obeys_stays_unless_it_is_asked_for"
_PROMISE = "nothing that a workspace contains makes git on the host write or run anything"

MUTATIONS = [
    Mutation("an index may name ..", _NAMES, '(b"", b".", b"..")', '(b"", b".")', _PROMISE, (_PATHS,)),
    Mutation("an index may name .git", _NAMES, " or is_dot_git(part) for part", " for part", _PROMISE, (_PATHS,)),
    Mutation(
        "a backslash is a character like any other",
        _NAMES,
        're.split(rb"[/\\\\]", path)',
        're.split(rb"/", path)',
        _PROMISE,
        (_PATHS,),
    ),
    Mutation(
        "only the plain spelling is .git",
        _NAMES,
        "    return _DOT_GIT.fullmatch(folded(name)) is not None\n",
        '    return name == b".git"\n',
        _PROMISE,
        (_PATHS,),
    ),
    Mutation(
        "a wrong checksum of an index is ignored",
        _INDEX,
        "    if checksum not in (",
        "    if not body and checksum not in (",
        _PROMISE,
        (_DAMAGE,),
    ),
    Mutation(
        "an index may have any mode", _INDEX, "    if mode not in _MODES:\n", "    if mode < 0:\n", _PROMISE, (_OTHERS,)
    ),
    Mutation(
        "an index may have unknown extensions",
        _INDEX,
        '            raise IndexRefused(f"it has the extension {signature!r}")\n',
        "            pass\n",
        _PROMISE,
        (_OTHERS,),
    ),
    Mutation(
        "padding may hide an entry",
        _INDEX,
        "        if any(body[end:next_at]) or next_at",
        "        if next_at",
        _PROMISE,
        (_PADDING,),
    ),
    Mutation(
        "an index may be out of order",
        _INDEX,
        "        if (entry.name, entry.stage) <= last:\n",
        "        if not entry.name:\n",
        _PROMISE,
        (_OTHERS,),
    ),
    Mutation(
        "a symbolic reference may lead anywhere",
        _CONTENTS,
        "        if not is_refname(target[1]):\n",
        "        if not target[1]:\n",
        _PROMISE,
        (_READS,),
    ),
    Mutation(
        "an object may have another id than its name says",
        _CONTENTS,
        "    if size != expected or hashing.hexdigest() != wanted:\n",
        "    if size != expected:\n",
        _PROMISE,
        (_READS,),
    ),
    Mutation(
        "the configuration of git comes home",
        _CONTENTS,
        '        (rb"MERGE_HEAD|shallow", _check_ids),\n',
        '        (rb"config", _check_message),\n        (rb"MERGE_HEAD|shallow", _check_ids),\n',
        _PROMISE,
        (_OBEYS,),
    ),
    Mutation(
        "hooks come home",
        _CONTROL,
        "            return _Place(above.git_directory, within)\n        return _Place(withheld=Withheld(directory, _NOT_IN_LIST))\n",
        "            return _Place(above.git_directory, within)\n        return _Place()\n",
        _PROMISE,
        (_OBEYS,),
    ),
    Mutation(
        "a directory may become a git directory",
        _CONTROL,
        "        if self._is_git((there or frozenset()) | (after or frozenset())):\n",
        "        if not directory:\n",
        _PROMISE,
        ("unit/test_git_control_files.py::test_a_git_directory_by_any_other_name_is_none_on_the_host",),
    ),
]
