"""What every Filesystem must do, whatever holds its files: one suite, run on memory, host and container.

    from ws.testing import check_filesystem
    check_filesystem(make_filesystem)

`make_filesystem(limits=…, read_only=…)` returns a new, empty filesystem each time. With pytest, one test a
check:

    @pytest.mark.parametrize("check", FILESYSTEM_CHECKS, ids=lambda check: check.__name__)
    def test_it_conforms(check): check(make_filesystem)
"""

from __future__ import annotations

from ws.testing import path_checks, stream_checks, tree_checks
from ws.testing.checking import FILESYSTEM_CHECKS, Check, MakeFilesystem

__all__ = ["FILESYSTEM_CHECKS", "Check", "MakeFilesystem", "check_filesystem"]

# A check joins the list when its module is imported.
GROUPS = (stream_checks, tree_checks, path_checks)


def check_filesystem(make_filesystem: MakeFilesystem) -> None:
    """Run every check. Raises what the check raised, AssertionError as a rule, with its name as a note."""
    for check in FILESYSTEM_CHECKS:
        try:
            check(make_filesystem)
        except Exception as error:
            error.add_note(f"in {check.__name__}")
            raise
