"""The law: building an image changes nothing of the host, as root and as an ordinary user; its apt least of all.

Root's builds run in a mount namespace where the host's apt directories are covered: a build that does damage does it to
the covers.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from guest import Guest
from ws.engine import debian
from ws.engine.images import DEFAULT_IMAGE

APT = ("/var/lib/apt/lists", "/var/cache/apt", "/var/lib/dpkg")
DEFAULT = "from ws.engine.images import ensure_rootfs; print(ensure_rootfs(sys.argv[1]))"
# What made apt act on the host, and all that a wrong script may do besides.
DAMAGE = """rm -rf "$1"/tmp/* "$1"/run/* "$1"/etc/apt; rm -rf /var/lib/apt/lists/* /var/cache/apt/*; apt-get clean
true"""
WRONG = f"""
from ws.engine import debian
debian.build_rootfs(sys.argv[1], packages=["busybox-static"], sources=debian.read_sources()[:1], variant="essential",
                    customize={DAMAGE!r})
"""

pytestmark = pytest.mark.skipif(shutil.which("mmdebstrap") is None, reason="mmdebstrap is not installed")


def build(script: str, tmp_path: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, list[str]]]:
    """Run Python code with covered apt directories; what it said, and what the covers hold afterwards."""
    if os.geteuid() != 0:
        pytest.skip("mount namespaces take root")
    covers = {}
    steps = ["mount --make-rprivate /"]
    for number, path in enumerate(APT):
        cover = covers[path] = tmp_path / f"cover{number}"
        for name in ("partial", "archives/partial"):
            (cover / name).mkdir(parents=True)
        for name in ("canary_Packages", "archives/canary.deb", "status", "lock"):
            (cover / name).write_text("canary\n")
        steps.append(f"mount --bind {cover} {path}")
    given = tmp_path / "given"
    given.mkdir()
    steps.append('exec "$@"')
    words = ["unshare", "-m", "sh", "-ec", "; ".join(steps), "sh", sys.executable, "-c", f"import sys\n{script}"]
    done = subprocess.run([*words, str(given)], capture_output=True, text=True, timeout=280)
    found = {path: sorted(str(each.relative_to(cover)) for each in cover.rglob("*")) for path, cover in covers.items()}
    return done, found


ALL = ["archives", "archives/canary.deb", "archives/partial", "canary_Packages", "lock", "partial", "status"]


def test_root_builds_the_default_image_and_the_hosts_apt_stays(tmp_path: Path) -> None:
    done, found = build(DEFAULT, tmp_path)
    assert done.returncode == 0, done.stderr
    assert found == dict.fromkeys(APT, ALL)
    rootfs = Path(done.stdout.strip())
    assert sorted(each.name for each in rootfs.parent.iterdir()) == sorted(["lock", rootfs.name])
    listed = subprocess.run(["tar", "-tf", rootfs], capture_output=True, text=True, check=True).stdout.split()
    assert "./home/agent/.bashrc" in listed
    assert not [name for name in listed if name.startswith(("./tmp/", "./etc/resolv.conf")) and name != "./tmp/"]


def test_a_wrong_script_fails_the_build_and_the_hosts_apt_stays(tmp_path: Path) -> None:
    done, found = build(WRONG, tmp_path)
    assert found == dict.fromkeys(APT, ALL)
    assert done.returncode != 0
    assert "ImageBuildFailed: mmdebstrap failed:" in done.stderr
    assert "Read-only file system" in done.stderr, done.stderr


def test_the_script_of_the_default_image_removes_no_file_of_mmdebstraps() -> None:
    script = Path(debian.__file__).with_name("image") / "customize"
    removed = [line for line in script.read_text().splitlines() if line.lstrip().startswith(("rm ", "find "))]
    assert removed
    for line in removed:
        for word in line.split()[1:]:
            name = word.replace('"', "").removeprefix("$1/")
            assert word.startswith("-") or name.startswith(("etc/resolv.conf", "etc/hostname", "var/cache/debconf/"))


def test_an_ordinary_user_builds_the_image_and_works_with_it(built_guest: Guest) -> None:
    images = built_guest.run("podman", "images", "--format", "{{.Repository}}:{{.Tag}}").stdout.split()
    assert DEFAULT_IMAGE in images
    assert sorted(each.suffix for each in (built_guest.state / "images").iterdir()) == ["", ".tar"]
    built_guest.says("create", "--name", "first")
    try:
        done = built_guest.ws("exec", "first", "--", "sh", "-c", "git --version && gcc --version && id -un")
        assert done.returncode == 0, done.stderr
        assert done.stdout.split()[-1] == "agent"
    finally:
        built_guest.ws("rm", "first")


def test_without_the_rights_the_error_says_so(guest: Guest) -> None:
    script = (
        "import sys\nfrom ws.engine import debian\nfrom ws.errors import ImageBuildFailed\n"
        "try:\n    debian.build_rootfs('.', packages=[], sources=[])\n"
        "except ImageBuildFailed as error:\n    print(error.hint)\n"
    )
    assert "ws image build" in guest.run(sys.executable, "-c", script).stdout
