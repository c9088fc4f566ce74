"""Images that tests need beside the default one: next to nothing, and an old libc.

Both are made here from what Debian's packages hold, imported like any root filesystem, and kept in the engine
between runs.
"""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import tempfile

from ws.engine import debian
from ws.engine.base import Engine
from ws.errors import ImageBuildFailed, ImageNotFound

BUSYBOX = "localhost/ws-test-busybox:latest"
OLD_LIBC = "localhost/ws-test-old-libc:latest"  # Debian 11: glibc 2.31


def ensure_busybox(engine: Engine) -> str:
    """An image with a static /bin/busybox, a link /bin/sh to it, and nothing else."""
    return _ensure(engine, BUSYBOX, pack_busybox)


def ensure_old_libc(engine: Engine) -> str:
    """An image with glibc 2.31, dash and coreutils: extracted packages, nothing configured."""
    return _ensure(engine, OLD_LIBC, _pack_old_libc)


def _ensure(engine: Engine, reference: str, pack) -> str:  # type: ignore[no-untyped-def]
    try:
        engine.image(reference)
    except ImageNotFound:
        with tempfile.TemporaryDirectory() as scratch:
            rootfs = os.path.join(scratch, "rootfs.tar")
            pack(rootfs)
            engine.import_image(rootfs, reference)
    return reference


def pack_busybox(path: str) -> None:
    busybox = shutil.which("busybox")
    assert busybox, "install busybox-static"
    with tarfile.open(path, "w") as tar:
        for name in ("bin", "etc"):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(directory)
        with open(busybox, "rb") as file:
            data = file.read()
        program = tarfile.TarInfo("bin/busybox")
        program.size, program.mode = len(data), 0o755
        tar.addfile(program, io.BytesIO(data))
        shell = tarfile.TarInfo("bin/sh")
        shell.type, shell.linkname = tarfile.SYMTYPE, "busybox"
        tar.addfile(shell)


def _pack_old_libc(path: str) -> None:
    packages = ["libc6", "dash", "coreutils", "busybox-static"]
    tried = []
    for sources in (
        [debian.read_sources("bullseye")[0]],
        ["deb [check-valid-until=no] http://archive.debian.org/debian bullseye main"],
    ):
        try:
            with tempfile.TemporaryDirectory() as scratch:
                built = debian.build_rootfs(
                    scratch, packages=packages, sources=sources, suite="bullseye", variant="extract"
                )
                shutil.move(built, path)
            return
        except ImageBuildFailed as error:
            tried.append(str(error))
    raise AssertionError("no mirror has Debian 11: " + "; ".join(tried))
