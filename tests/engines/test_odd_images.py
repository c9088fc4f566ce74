"""A name that is not one of an image is refused before an engine is asked; odd starts are no matter with containers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli_stage import Stage, warm_home
from ws.engine.base import Engine

ODD = [
    ".",
    "..",
    "/",
    "a b",
    os.fsdecode(b"\xff"),
    "-x",
    "UPPER",
    "a:b:c",
    "../x",
    "x@y",
    "a\nb",
    "a?x=1",
    "a%2e",
    "x" * 600,
]


@pytest.fixture
def stage(engine: Engine, default_image: str, session_home: str, tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(warm_home(tmp_path / "home", session_home), engine.name)
    yield stage
    stage.run("rm", "--all", "--yes")
    assert stage.left() == []


@pytest.mark.parametrize("image", ODD, ids=ascii)
def test_what_is_no_image_is_a_typed_error(stage: Stage, image: str) -> None:
    for words in (["create", "--name", "odd", "--image", image], ["run", "--image", image, "--", "true"]):
        done = stage.run(*words)
        assert (done.returncode, done.stdout) == (2, b"")
        assert b"hint: " in done.stderr
        assert b"defect" not in done.stderr
    env = {**stage.env, "WS_IMAGE": image}
    done = subprocess.run([sys.executable, "-m", "ws", "create"], env=env, capture_output=True, check=False)
    assert done.returncode == 2, done.stderr
    assert stage.names() == []


def test_an_image_is_found_by_all_its_names(stage: Stage, default_image: str) -> None:
    image_id = stage.data("create", "--name", "one")["image"]
    assert image_id
    for name in (default_image, default_image.removesuffix(":latest")):
        assert stage.run("create", "--image", name, "--name", "two").returncode == 0
        assert stage.run("rm", "two").returncode == 0


def test_a_container_is_made_used_and_removed_from_a_deleted_directory_with_any_umask(
    stage: Stage, tmp_path: Path
) -> None:
    def begin() -> None:
        os.mkdir(tmp_path / "gone")
        os.chdir(tmp_path / "gone")
        os.rmdir(tmp_path / "gone")
        os.umask(0o777)

    for words in (
        ["create", "--name", "box"],
        ["exec", "box", "--", "sh", "-c", "echo hi > a; cat a; stat -c %a a"],
        ["snapshot", "box", "--tag", "one"],
        ["restore", "box", "one"],
        ["export", "box", "--bundle", str(tmp_path / "bundle")],
        ["import", str(tmp_path / "bundle"), "--name", "again"],
        ["rm", "box", "again"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "ws", *words], env=stage.env, capture_output=True, check=False, preexec_fn=begin
        )
        assert done.returncode == 0, (words, done.stderr)
        if words[0] == "exec":
            assert done.stdout == b"hi\n644\n"
