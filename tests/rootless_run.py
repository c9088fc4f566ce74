"""pytest as root of podman's user namespace, entered as `ws` enters it: `python tests/rootless_run.py ARG…`"""

from __future__ import annotations

import shutil
import sys

import pytest

from ws.engine.podman_userns import enter

if __name__ == "__main__":
    enter(shutil.which("podman") or "podman")
    sys.exit(pytest.main(sys.argv[1:]))
