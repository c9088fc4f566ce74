"""The law of images: the same default image from Debian's packages and from a Containerfile; any image runs."""

from __future__ import annotations

import pytest

from engine_images import BUSYBOX
from ws.engine.base import Engine
from ws.engine.images import build_image
from ws.errors import ImageBuildFailed
from ws.testing import EngineBench


def test_the_default_image_has_its_user_and_tools(engine: Engine, default_image: str, session_home: str) -> None:
    facts = engine.image(default_image)
    assert facts.user == "1000:1000"
    assert facts.env["LANG"] == "C.UTF-8"
    assert facts.size_bytes > 100 << 20
    bench = EngineBench(engine, session_home, default_image)
    script = "id; for each in git rg python3 make gcc ps curl; do command -v $each || echo missing $each; done"
    with bench.container("/bin/sleep", "600") as state:
        done = engine.exec(state.id, ["sh", "-c", script], user="agent", workdir="/home/agent", timeout_s=30)
        assert done.exit_code == 0, done.stderr
        assert b"uid=1000(agent) gid=1000(agent)" in done.stdout
        assert b"missing" not in done.stdout


def test_an_image_that_is_there_is_not_built_again(engine: Engine, default_image: str, tmp_path: object) -> None:
    reports: list[object] = []
    facts = build_image(
        engine, home=str(tmp_path), reference=default_image, progress=lambda *report: reports.append(report)
    )
    assert facts == engine.image(default_image)
    assert reports == []


def test_the_containerfile_builds_the_same_config(engine: Engine, default_image: str, tmp_path: object) -> None:
    """Its base here is the image itself, whose packages are all there: no registry is asked."""
    reports: list[tuple[str, int, int]] = []
    facts = build_image(
        engine,
        home=str(tmp_path),
        reference="localhost/ws-test-built:latest",
        source="registry",
        base=default_image,
        force=True,
        progress=lambda *report: reports.append(report),
    )
    assert (facts.user, facts.env) == (engine.image(default_image).user, engine.image(default_image).env)
    assert reports[-1][1] == reports[-1][2] > 5


def test_a_build_that_fails_says_why(engine: Engine, busybox_image: str) -> None:
    text = f'FROM {BUSYBOX}\nRUN ["/bin/busybox", "sh", "-c", "echo because; exit 9"]\n'
    with pytest.raises(ImageBuildFailed, match="because"):
        engine.build_image(text, "localhost/ws-test-failed:latest", build_args={})


def test_an_image_with_an_old_libc_runs(engine: Engine, old_libc_image: str, session_home: str) -> None:
    bench = EngineBench(engine, session_home, old_libc_image)
    with bench.container("/bin/busybox", "sleep", "600") as state:
        done = engine.exec(
            state.id,
            ["/bin/dash", "-c", "exec /lib/*-linux-gnu/libc.so.6"],
            user="1000:1000",
            workdir="/",
            timeout_s=30,
        )
        assert b"release version 2.31" in done.stdout
