"""The default workspace image, made once for each engine.

Without a registry, Debian's packages become a root filesystem that every engine imports: it is kept under
WS_HOME/images, so that the second engine takes seconds. With one, the engine builds our Containerfile.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import tempfile
from typing import Literal

from ws import durable
from ws.engine import debian
from ws.engine.base import Engine, ImageFacts, Progress
from ws.engine.imaging import IMAGE_DIRECTORY, read_containerfile, read_packages
from ws.errors import ImageNotFound
from ws.removing import remove_tree

DEFAULT_IMAGE = "localhost/ws-base:latest"

Source = Literal["debian", "registry"]


def build_image(
    engine: Engine,
    *,
    home: str,
    reference: str = DEFAULT_IMAGE,
    source: Source | None = None,
    base: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> ImageFacts:
    """The default image under `reference`; what is there already is kept unless `force`.

    `source` None takes Debian's packages where mmdebstrap is installed; `base` names an image to build from.
    Raises ImageBuildFailed. Commit point: the engine's own, when it gives the image its name.
    """
    if not force:
        try:
            return engine.image(reference)
        except ImageNotFound:
            pass
    if source is None:
        source = "debian" if base is None and shutil.which("mmdebstrap") else "registry"
    if source == "registry":
        args = {"BASE": base} if base else {}
        return engine.build_image(read_containerfile(), reference, build_args=args, progress=progress)
    rootfs = ensure_rootfs(home, force=force, progress=progress)
    return engine.import_image(rootfs, reference, progress=progress)


def ensure_rootfs(home: str, *, force: bool = False, progress: Progress | None = None) -> str:
    """The tar of the default image's root filesystem, built if it is not there.

    Commit point: its rename to the name that its recipe's hash gives it.
    """
    with open(os.path.join(IMAGE_DIRECTORY, "customize"), encoding="utf-8") as file:
        customize = file.read()
    sources = debian.read_sources()
    packages = read_packages()
    recipe = repr((debian.SUITE, packages, sources, platform.machine(), customize)).encode()
    directory = os.path.join(home, "images")
    os.makedirs(directory, mode=0o700, exist_ok=True)
    path = os.path.join(directory, f"{hashlib.sha256(recipe).hexdigest()[:16]}.tar")
    lock = os.path.join(directory, "lock")
    durable.create_lock_file(lock)
    with durable.locked(lock, timeout_s=1800, what="the build of an image"):
        for name in os.listdir(directory):
            if name not in (os.path.basename(lock), os.path.basename(path)):
                remove_tree(os.path.join(directory, name))  # of an older recipe, or of a builder that died
        if force or not os.path.exists(path):
            scratch = tempfile.mkdtemp(dir=directory, prefix="build-")
            try:
                built = debian.build_rootfs(
                    scratch, packages=packages, sources=sources, customize=customize, progress=progress
                )
                durable.rename(built, path)
            finally:
                remove_tree(scratch)
    return path
