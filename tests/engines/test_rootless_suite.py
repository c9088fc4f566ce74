"""The law: what holds for root holds for an ordinary user: the demonstration, and the tests that are marked `rootless`.

They run as the lent user, with the image that this user built. The inner run has its own report; its end is shown when
something failed.
"""

from __future__ import annotations

import sys

import pytest

from guest import REPOSITORY, Guest

DEADLINE_S = 290.0


def test_the_demonstration_runs_as_an_ordinary_user(built_guest: Guest) -> None:
    done = built_guest.run("scripts/demo", cwd=REPOSITORY, deadline_s=DEADLINE_S)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
    assert "without any isolation" not in done.stdout
    assert built_guest.data("ls") == []


PARTS = ("engines/test_workspaces.py", "engines/test_restores.py", "faults/test_interrupts.py",
         "faults/test_create_and_remove.py")  # fmt: skip


@pytest.mark.parametrize("part", PARTS)
def test_marked_tests_pass_as_an_ordinary_user(built_guest: Guest, part: str) -> None:
    scratch = built_guest.home / "scratch"
    done = built_guest.run(
        sys.executable, "-B", "tests/rootless_run.py", "-q", "-p", "no:cacheprovider", f"--basetemp={scratch}",
        "-m", "rootless", "-k", "podman", f"tests/{part}",
        cwd=REPOSITORY, env={"WS_REQUIRE_ENGINES": "podman", "CI": "true"}, deadline_s=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert " passed" in done.stdout.splitlines()[-1]
