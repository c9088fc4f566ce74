"""Gathering a runtime: the interpreter, the modules the shim can need, their libraries, the loader, rg.

What is needed is found out, not listed: an interpreter like the shim's (`-I -S`) imports all of `ws.shim`,
`ws.tools` and `ws.fs`, and every module that their sources import anywhere, also inside functions; what it
then has loaded goes along. Libraries are those that the loader itself names. Modules are compiled once,
here, into files that are never checked against a source (PEP 552, unchecked): the quickest to import.
"""

from __future__ import annotations

import ast
import encodings
import json
import os
import pkgutil
import py_compile
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from ws.errors import StateUnusable, ToolValidationError
from ws.shim import place
from ws.tools.encodings import check_encoding

PARTS: Final = ("errors.py", "fs", "shim", "tools")  # of the package, what runs in the container
# Imported by C code or by the standard library only when it comes to that.
_ALSO: Final = ("encodings.utf_8_sig", "json.decoder", "locale", "traceback", "warnings")
_TRACE: Final = """
import sys, types
package, names = sys.argv[1], sys.argv[2:]
stub = sys.modules["ws"] = types.ModuleType("ws")
stub.__path__ = [package]
for name in names:
    __import__(name)
import json
found = {}
for module in list(sys.modules.values()):
    spec = getattr(module, "__spec__", None)
    if spec is None or spec.name.partition(".")[0] == "ws" or spec.name.startswith("_frozen_"):
        continue
    origin = spec.origin
    if origin == "frozen":
        origin = getattr(spec.loader_state, "filename", None)
    if origin and origin != "built-in":
        found[spec.name] = [origin, spec.submodule_search_locations is not None]
print(json.dumps(found))
"""


def package_directory() -> str:
    """Where the package `ws` is that runs now."""
    return os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def sources() -> Iterator[str]:
    """The sources that go along, relative to the package, sorted."""
    package = package_directory()
    for part in PARTS:
        if part.endswith(".py"):
            yield part
            continue
        for directory, subdirectories, files in os.walk(os.path.join(package, part)):
            subdirectories.sort()
            for name in sorted(files):
                if name.endswith(".py"):
                    yield os.path.relpath(os.path.join(directory, name), package)


def interpreter() -> str:
    """The real interpreter behind this process, outside of any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def ripgrep() -> str | None:
    """The host's ripgrep, if it has one."""
    found = shutil.which("rg")
    return os.path.realpath(found) if found else None


def gather(destination: str) -> None:
    """Fill an empty directory. Raises StateUnusable when this interpreter cannot be taken along."""
    python = interpreter()
    loader = loader_of(python)
    if loader is None:
        raise StateUnusable(
            f"{python} is linked statically and cannot be taken into a container",
            hint="run ws with a dynamically linked Python, such as the system's",
        )
    standard = os.path.join(destination, sys.platlibdir, "python{}.{}".format(*sys.version_info))
    for directory in ("bin", "lib", os.path.join(standard, "lib-dynload"), os.path.join(standard, "ws")):
        os.makedirs(os.path.join(destination, directory), exist_ok=True)
    _copy(loader, os.path.join(destination, place.LOADER))
    _copy(python, os.path.join(destination, place.PYTHON))
    dynamic = [python, *_place_modules(python, standard)]
    _place_package(standard, os.path.join(destination, place.START))
    rg = ripgrep()
    if rg is not None:
        _copy(rg, os.path.join(destination, place.RG if loader_of(rg) else place.RG_STATIC))
        dynamic += [rg] if loader_of(rg) else []
    for name, library in libraries(loader, dynamic).items():
        _copy(library, os.path.join(destination, place.LIBRARIES, name))


def _place_modules(python: str, standard: str) -> list[str]:
    """Put the standard library's part in place; returns the extensions."""
    names = [*_ALSO, *_encodings(), *sorted(_imported())]
    command = [python, "-I", "-S", "-B", "-c", _TRACE, package_directory(), *names]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)
    extensions = []
    for name, (origin, is_package) in found.items():
        if origin.endswith(".py"):
            stem = name.replace(".", "/") + ("/__init__" if is_package else "")
            _compile(origin, os.path.join(standard, stem + ".pyc"), stem + ".py")
        else:
            _copy(origin, os.path.join(standard, "lib-dynload", os.path.basename(origin)))
            extensions.append(origin)
    # The file by which the interpreter knows its library; frozen or not, it must be there.
    _compile(os.path.join(os.path.dirname(os.__file__), "os.py"), os.path.join(standard, "os.pyc"), "os.py")
    return extensions


def _encodings() -> list[str]:
    """The modules of the encodings in which tools edit files."""
    modules = [found.name for found in pkgutil.iter_modules(encodings.__path__)]
    return [f"encodings.{name}" for name in modules if _is_character_set(name)]


def _is_character_set(name: str) -> bool:
    try:
        check_encoding(name)
    except ToolValidationError:
        return False
    return True


def _place_package(standard: str, start: str) -> None:
    package = package_directory()
    bare = os.path.join(package, "shim", "__init__.py")  # a docstring and nothing more
    _compile(bare, os.path.join(standard, "ws", "__init__.pyc"), "ws/__init__.py")
    for source in sources():
        target = os.path.join(standard, "ws", source) + "c"
        _compile(os.path.join(package, source), target, f"ws/{source}")
    _compile(os.path.join(package, "shim", "__main__.py"), start, "ws/shim/__main__.py")


def _compile(source: str, target: str, shown: str) -> None:
    os.makedirs(os.path.dirname(target), exist_ok=True)
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(source, target, shown, doraise=True, invalidation_mode=mode)


def _copy(source: str, target: str) -> None:
    shutil.copyfile(source, target)
    executable = os.stat(source).st_mode & 0o111
    os.chmod(target, 0o555 if executable else 0o444)


def _imported() -> set[str]:
    """Every module that the sources import anywhere, but for what only type checkers see; and themselves."""
    package = package_directory()
    names = set()
    for source in sources():
        names.add("ws." + source.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
        with open(os.path.join(package, source), encoding="utf-8") as file:
            names |= set(_imports(ast.parse(file.read())))
    return names - {"ws", "__future__"}


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
        return
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module
    for child in ast.iter_child_nodes(node):
        yield from _imports(child)


def loader_of(program: str) -> str | None:
    """The dynamic loader that an ELF program names, or None for one that has none."""
    with open(program, "rb") as file:
        identity = file.read(64)
        if identity[:5] != b"\x7fELF\x02":
            raise StateUnusable(f"{program} is no program for a 64-bit machine")
        order = "<" if identity[5] == 1 else ">"
        table_at, entry_size, count = struct.unpack(order + "32xQ14xHH", identity[:58])
        file.seek(table_at)
        table = file.read(entry_size * count)
        for number in range(count):
            kind, _flags, at, _virtual, _physical, size = struct.unpack_from(
                order + "IIQQQQ", table, number * entry_size
            )
            if kind == 3:  # PT_INTERP
                file.seek(at)
                return os.path.realpath(file.read(size).rstrip(b"\0").decode())
    return None


def libraries(loader: str, programs: list[str]) -> dict[str, str]:
    """The shared libraries that programs and extensions need: name → file, as the loader finds them."""
    found: dict[str, str] = {}
    for program in programs:
        listing = subprocess.run([loader, "--list", program], capture_output=True, text=True, timeout=30)
        if listing.returncode != 0:
            continue  # "not a dynamic executable" in the words of some loaders; an extension may need nothing
        for line in listing.stdout.splitlines():
            name, arrow, rest = line.strip().partition(" => ")
            path = rest.rpartition(" (")[0] or rest
            if arrow and path == "not found":
                raise StateUnusable(f"{program} needs {name}, which is not on this machine")
            if arrow and os.path.isabs(path) and os.path.realpath(path) != loader:
                found.setdefault(os.path.basename(name), os.path.realpath(path))
    return found
