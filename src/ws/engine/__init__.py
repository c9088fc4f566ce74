"""Container engines behind one small contract (`base.Engine`); one adapter each, one owner per SDK.

Here stands only where things are inside a container, because `ws exec` needs to know and must not pay for the rest:
importing `base` makes six dataclasses, 5 ms.
"""

WORKSPACE = "/workspace"  # where the overlay is attached; a small tmpfs until then
RUNTIME = "/.ws/runtime"  # read-only: interpreter, shim, rg
RUN = "/.ws/run"  # the container's run directory: the shim's socket
HOME = "/home/agent"  # a writable tmpfs in every image
