"""Paths that stay beneath the root."""

from __future__ import annotations

from mutations import Mutation

_FILE = "fs/confine.py"
_TESTS = "unit/test_confine.py"
_LINKS = f"{_TESTS}::test_links_into_proc_are_refused"
_WALK = f"{_TESTS}::test_where_openat2_is_missing_the_walk_does_the_same"
_STAY = "unit/test_confine_directly.py"
_PROMISE = "no path leads out of the workspace"

MUTATIONS = [
    Mutation(
        "opening does not stay beneath the root",
        _FILE,
        "                    self._resolve_flags,\n",
        "                    self._resolve_flags & ~RESOLVE_BENEATH,\n",
        _PROMISE,
        (f"{_STAY}::test_neither_reading_nor_pinning_follows_a_link_out",),
    ),
    Mutation(
        "opening follows magic links",
        _FILE,
        "                    self._resolve_flags,\n",
        "                    0,\n",
        _PROMISE,
        (f"{_STAY}::test_neither_reading_nor_pinning_follows_a_link_out",),
    ),
    Mutation(
        "pinning a parent does not stay beneath the root",
        _FILE,
        "openat2(anchor, above, DIRECTORY, self._resolve_flags)",
        "openat2(anchor, above, DIRECTORY, self._resolve_flags & ~RESOLVE_BENEATH)",
        _PROMISE,
        (f"{_STAY}::test_neither_reading_nor_pinning_follows_a_link_out",),
    ),
    Mutation(
        "the walk goes above the root",
        _FILE,
        "                if not real:\n                    raise self.rules.violation(path, OUTSIDE)\n                real.pop()\n",
        '                if not real:\n                    held.append(os.open("..", DIRECTORY, dir_fd=held[-1]))\n                    continue\n                real.pop()\n',
        _PROMISE,
        (f"{_STAY}::test_the_walk_does_not_go_above_the_root",),
    ),
    Mutation(
        "the walk follows links by itself",
        _FILE,
        "        flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC\n        try:\n            fd = os.open(segment",
        "        flags = os.O_PATH | os.O_CLOEXEC\n        try:\n            fd = os.open(segment",
        _PROMISE,
        (f"{_STAY}::test_the_walk_does_not_go_above_the_root",),
    ),
    Mutation(
        "an absolute link may lead outside",
        _FILE,
        "                        anchor, target = self.rules.parse_target(target)\n",
        '                        anchor, target = "/", target\n',
        _PROMISE,
        (f"{_STAY}::test_the_walk_does_not_go_above_the_root",),
    ),
    Mutation(
        "a restricted path is reached through a link",
        _FILE,
        "            self.rules.check_real(real, path)\n            if real.segments:\n",
        "            if real.segments:\n",
        "restricted paths stay closed",
        (
            f"{_TESTS}::test_links_are_resolved_where_they_stand_not_where_they_are_spelt",
            f"{_STAY}::test_a_restricted_path_is_closed_through_a_link_too",
        ),
    ),
    Mutation(
        "devices are files",
        _FILE,
        "    if stat.S_ISREG(kind):\n        return\n",
        "    if not stat.S_ISDIR(kind):\n        return\n",
        "no device and no FIFO is read as a file",
        (f"{_TESTS}::test_special_files_are_refused_and_never_hang", f"{_TESTS}::test_devices_are_refused"),
    ),
    Mutation(
        "a sibling with the same beginning is inside",
        "fs/paths.py",
        'path.startswith(anchor + "/" if anchor != "/" else "/")',
        "path.startswith(anchor)",
        _PROMISE,
        (f"{_TESTS}::test_a_path_out_of_the_root_is_refused_by_name", f"{_STAY}::test_a_sibling_is_not_inside"),
    ),
    Mutation(
        "a NUL ends a path",
        "fs/paths.py",
        '        if "\\0" in path:\n',
        "        if not path:\n",
        "a path is used exactly as it is written",
        (f"{_TESTS}::test_what_is_no_path_is_refused_whole",),
    ),
    Mutation(
        "directories of the host are opened through links",
        "fs/kernel.py",
        "openat2(top, below, flags, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)",
        "openat2(top, below, flags & ~os.O_NOFOLLOW, 0)",
        "an apply writes nothing outside of its directory",
        (f"{_STAY}::test_a_directory_is_not_opened_through_a_link",),
    ),
    Mutation(
        "a removal follows a link",
        "removing.py",
        "    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC\n    try:\n        return os.open(name, flags, dir_fd=parent)\n",
        "    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC\n    try:\n        return os.open(name, flags, dir_fd=parent)\n",
        "a removal removes nothing else",
        (f"{_STAY}::test_a_directory_that_became_a_link_is_not_emptied",),
    ),
]
