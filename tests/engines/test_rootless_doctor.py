"""The law: `ws doctor` of an ordinary user says whether workspaces can be made, and if not, what is missing."""

from __future__ import annotations

import json
from typing import Any

from guest import Guest


def diagnose(guest: Guest, **env: str) -> tuple[int, dict[tuple[str, str], dict[str, Any]]]:
    done = guest.ws("doctor", "--json", env=env)
    report = json.loads(done.stdout)
    assert report["usable"] is (done.returncode == 0)
    bad = [check for check in report["checks"] if check["verdict"] == "bad"]
    return done.returncode, {(check["area"], check["name"]): check for check in bad}


def test_a_user_with_ids_and_image_is_fine(built_guest: Guest) -> None:
    assert diagnose(built_guest) == (0, {})
    report = json.loads(built_guest.says("doctor", "--json"))["checks"]
    found = {(check["area"], check["name"]): check["detail"] for check in reversed(report)}
    assert "rootless" in found["engine", "podman"]
    assert "uid 54321" in found["kernel", "user namespace"]
    assert "in a user namespace" in found["kernel", "overlay"]


def test_a_user_without_subordinate_ids_is_told_so(guest: Guest) -> None:
    status, bad = diagnose(guest.without_ids)
    assert status == 6
    assert "usermod --add-subuids" in bad["kernel", "user namespace"]["hint"]
    for words in (["create", "--name", "x"], ["ls"], ["image", "build"]):
        done = guest.without_ids.ws(*words)
        assert done.returncode == 6, (words, done.stderr)
        assert "usermod --add-subuids" in done.stderr


def test_a_user_without_the_image_is_told_how_to_build_it(guest: Guest) -> None:
    status, bad = diagnose(guest, WS_IMAGE="localhost/not-there:latest")
    assert status == 6
    assert list(bad) == [("image", "podman")]
    assert "localhost/not-there:latest is not there" in bad["image", "podman"]["detail"]
    assert "ws image build --engine podman" in bad["image", "podman"]["hint"]


def test_a_user_who_cannot_build_the_image_is_told_what_is_missing(guest: Guest) -> None:
    """A PATH with podman and without mmdebstrap."""
    tools = guest.home / "tools"
    tools.mkdir()
    for name in ("podman", "runc", "newuidmap", "newgidmap", "sh", "cat", "setsid"):
        (tools / name).symlink_to(guest.run("sh", "-c", f"command -v {name}").stdout.strip())
    _, bad = diagnose(guest, WS_IMAGE="localhost/not-there:latest", PATH=str(tools))
    assert "apt-get install mmdebstrap" in bad["image", "podman"]["hint"]


def test_a_user_without_podman_is_told_so(guest: Guest) -> None:
    status, bad = diagnose(guest, PATH="/nonexistent")
    assert status == 6
    assert "install podman" in bad["kernel", "mounts"]["hint"]
