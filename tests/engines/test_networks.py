"""The law: a workspace with a network takes all of it along when it goes (HARDENING H15).

podman's clean-up of a container that has a user namespace needs /run/netns to be a shared mount. Whether it is depends
on what ran on the machine before; so here it is not, in a mount namespace of the test's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import Engines
from ws.engine.images import DEFAULT_IMAGE, build_image
from ws.layout import default_home

FRESH = "mkdir -p /run/netns && mount --make-rprivate / && mount -t tmpfs none /run/netns && exec"
STORY = """
import json, os, sys, time
from ws.engine.podman_service import ensure_own_service
from ws.engine.processes import kill_all
from ws.manager import Manager

def reservations(ids):
    found = []
    for directory, _, names in os.walk("/var/lib/cni"):
        for name in names:
            path = os.path.join(directory, name)
            with open(path, errors="replace") as file:
                found += [path for each in ids if each in name or each in file.read()]
    return found

with Manager(engine="podman") as manager:
    boxes = [manager.create(network="bridge") for _ in range(3)]
    ids = [box.record().container.id for box in boxes]
    assert len(os.listdir("/run/netns")) == 3
    for box in boxes:
        box.remove()
    deadline = time.monotonic() + 10
    while (left := os.listdir("/run/netns") + reservations(ids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    kill_all(ensure_own_service(manager.home.root, sys.argv[1]).peer.pid)
print(json.dumps(left))
"""


def test_a_network_goes_with_its_workspace_on_a_machine_that_had_none(engines: Engines, tmp_path: Path) -> None:
    engine = engines.get("podman")
    facts = engine.check()
    if facts.rootless:
        pytest.skip("a rootless podman keeps networks in a namespace of its own")
    build_image(engine, home=default_home(), reference=DEFAULT_IMAGE)
    env = {name: value for name, value in os.environ.items() if name != "CONTAINER_HOST"}
    command = ["unshare", "-m", "sh", "-c", f'{FRESH} "$@"', "sh", sys.executable, "-c", STORY, facts.runtime]
    done = subprocess.run(
        command, env={**env, "WS_HOME": str(tmp_path / "home")}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
