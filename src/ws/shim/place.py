"""Where things are in a runtime directory, and the commands that start them.

    bin/loader                  the dynamic loader that everything dynamic is started through
    bin/python3                 the interpreter
    bin/rg                      ripgrep, if the host has it; bin/rg-static for one that needs no loader
    lib/                        shared libraries of all of these
    lib/python3.X/              modules, compiled; lib-dynload/ for extensions
    shim                        the compiled file that starts the shim
    manifest.json               what must be here, with sha256

The loader is named explicitly, with the directory of libraries: no variable is set that a child could
inherit, and nothing of the image is used, whichever libc it has or has not. The host writes these commands,
the shim reads where its own ripgrep is.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final

LOADER: Final = "bin/loader"
PYTHON: Final = "bin/python3"
RG: Final = "bin/rg"
RG_STATIC: Final = "bin/rg-static"
LIBRARIES: Final = "lib"
START: Final = "shim"


def _through_loader(runtime_root: str, program: str) -> tuple[str, ...]:
    at = f"{runtime_root}/".__add__
    # Without the cache, a library that is missing here is missing, instead of the image's own being taken.
    options = ("--inhibit-cache",) if _is_glibc() else ()  # the loader of musl has neither
    return at(LOADER), *options, "--library-path", at(LIBRARIES), at(program)


def _is_glibc() -> bool:
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (OSError, ValueError):
        return False


def python_command(runtime_root: str) -> tuple[str, ...]:
    """The command that starts the interpreter, for a place where the runtime is seen at `runtime_root`.

    -I, -S and -B keep it to its own modules; -X utf8 makes names mean the same under any locale.
    """
    return (*_through_loader(runtime_root, PYTHON), "-I", "-S", "-B", "-X", "utf8")


def shim_command(runtime_root: str, *, socket: str, root: str) -> tuple[str, ...]:
    """The command that starts the shim."""
    return (*python_command(runtime_root), f"{runtime_root}/{START}", "--socket", socket, "--root", root)


def keeper_command(runtime_root: str) -> tuple[str, ...]:
    """The command that starts a keeper; a working directory and a command follow."""
    return (*python_command(runtime_root), "-c", "from ws.shim.keeper import main; main()")


def rg_command(runtime_root: str) -> tuple[str, ...] | None:
    """The command that starts ripgrep from a runtime that is here, or None where the host had none.

    For the shim, `runtime_root` is `sys.prefix`.
    """
    if os.path.exists(f"{runtime_root}/{RG}"):
        return _through_loader(runtime_root, RG)
    if os.path.exists(f"{runtime_root}/{RG_STATIC}"):
        return (f"{runtime_root}/{RG_STATIC}",)
    return None
