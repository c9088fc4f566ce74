"""Which OCI runtime works on this machine.

crun is the faster one, and refuses a hybrid of cgroup v1 controllers with a v2 tree that has controllers of
its own ("cgroups in hybrid mode not supported"); runc takes it. Whoever names a runtime (gVisor's runsc,
kata) gets that one and no other.
"""

from __future__ import annotations

import os
import shutil

from ws.engine import cgroups
from ws.errors import EngineUnavailable

_PREFERRED = ("crun", "runc")


def works_here(runtime: str) -> bool:
    """Whether a runtime, by name or path, gets along with this machine's cgroups."""
    if os.path.basename(runtime) != "crun":
        return True
    mounts = cgroups.read_mounts()
    return not (mounts.layout == "hybrid" and mounts.unified_controllers)


def choose_runtime(asked: str | None) -> str:
    """The runtime to use. Raises EngineUnavailable when there is none that works."""
    if asked:
        if not shutil.which(asked):
            raise EngineUnavailable(f"the runtime {asked} is not installed", hint="give its name or its path")
        return asked
    installed = [name for name in _PREFERRED if shutil.which(name)]
    for name in installed:
        if works_here(name):
            return name
    if installed:
        raise EngineUnavailable(
            f"{installed[0]} refuses this machine's hybrid cgroups", hint="install runc: apt-get install runc"
        )
    raise EngineUnavailable("no container runtime is installed", hint="install crun or runc")
