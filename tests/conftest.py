"""Real engines for the tests: reached once a session; one that WS_REQUIRE_ENGINES names must be there."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import settings

from cli_stage import warm_home
from engine_images import ensure_busybox, ensure_old_libc
from guest import Guest, NoGuest, lend_guest
from left_processes import end_left_processes
from workspaces import SharedWorkspaces, shared_workspaces
from ws.engine.base import Engine
from ws.engine.choose import open_engine
from ws.engine.images import DEFAULT_IMAGE, build_image
from ws.engine.podman_service import ensure_own_service
from ws.engine.processes import kill_all
from ws.engine.runtimes import choose_runtime
from ws.errors import EngineUnavailable
from ws.layout import EngineName, default_home, open_home
from ws.removing import remove_tree
from ws.testing import EngineBench

# A shell starts what it puts into the background with SIGINT and SIGQUIT ignored, `nohup` does so with SIGHUP, and all
# children inherit that: tests that interrupt a command would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# On a loaded machine any example may take long. CI tries the same examples every time: what it finds is of the change.
settings.register_profile("ws", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("ws")

REQUIRED = {name for name in os.environ.get("WS_REQUIRE_ENGINES", "").replace(" ", "").split(",") if name}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What goes to one process of several: the tests of a file on one engine, for they share what they made."""
    for item in items:
        if "guest" in getattr(item, "fixturenames", ()):  # one lent user for all
            item.add_marker(pytest.mark.xdist_group("guest"))
            continue
        engine = next((name for name in ("podman", "docker", "none") if name in re.split(r"[\[\]-]", item.name)), "")
        item.add_marker(pytest.mark.xdist_group(f"{item.nodeid.partition('::')[0]}@{engine}"))


@pytest.fixture(scope="session", autouse=True)
def nothing_is_left_behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Remove all temporary directories at the end: of a tree 3,000 deep pytest's own clean-up dies, a run later.

    A process that still runs from one of them fails the session; the path of its executable names the test.
    """
    base = tmp_path_factory.getbasetemp()
    yield
    left = end_left_processes(str(base))
    remove_tree(str(base))
    assert not left, "processes were left running:\n" + "\n".join(left)


@pytest.fixture(autouse=True)
def no_process_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that leaves a process running from its temporary directory fails; set up first, so looked at last."""
    yield
    directory = getattr(request.node, "funcargs", {}).get("tmp_path")
    left = end_left_processes(str(directory)) if directory is not None else []
    assert not left, "the test left processes running:\n" + "\n".join(left)


@pytest.fixture(scope="session")
def session_home(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A WS_HOME for the whole session: the podman service of it is started once."""
    return open_home(str(tmp_path_factory.mktemp("home"))).root


@pytest.fixture(scope="session")
def one_podman_service(session_home: str) -> Iterator[None]:
    """All homes of a session share one service: it is the user's podman in any case, and 40 MB each."""
    if shutil.which("podman") is None or "CONTAINER_HOST" in os.environ:
        yield
        return
    runtime = choose_runtime(None)
    service = ensure_own_service(session_home, runtime)
    os.environ["CONTAINER_HOST"] = f"unix://{service.socket}"
    over = threading.Event()

    def keep_awake() -> None:
        """It ends when idle for five minutes, which the tests on docker take; a request now and then prevents that."""
        while not over.wait(30):
            with contextlib.suppress(EngineUnavailable, OSError), socket.socket(socket.AF_UNIX) as client:
                client.settimeout(5)
                client.connect(ensure_own_service(session_home, runtime).socket)
                client.sendall(b"GET /_ping HTTP/1.1\r\nHost: d\r\nConnection: close\r\n\r\n")
                client.recv(64)

    thread = threading.Thread(target=keep_awake, daemon=True)
    thread.start()
    yield
    over.set()
    thread.join()
    del os.environ["CONTAINER_HOST"]
    kill_all(ensure_own_service(session_home, runtime).peer.pid)


class Engines:
    """The engines of this machine, each opened once; why not, where not."""

    def __init__(self, home: str) -> None:
        self.home = home
        self._opened: dict[str, Engine | EngineUnavailable] = {}

    def get(self, name: str) -> Engine:
        if name not in self._opened:
            engine = open_engine(name, home=self.home)
            try:
                engine.check()
                self._opened[name] = engine
            except EngineUnavailable as error:
                self._opened[name] = error
        found = self._opened[name]
        if isinstance(found, EngineUnavailable):
            if name in REQUIRED:
                pytest.fail(f"WS_REQUIRE_ENGINES names {name}, and it does not work: {found}", pytrace=False)
            pytest.skip(f"{name} does not work here: {found}")
        return found

    def close(self) -> None:
        for engine in self._opened.values():
            if not isinstance(engine, EngineUnavailable):
                engine.close()


@pytest.fixture(scope="session")
def engines(session_home: str, one_podman_service: None) -> Iterator[Engines]:
    opened = Engines(session_home)
    yield opened
    opened.close()


@pytest.fixture(scope="session")
def guest() -> Iterator[Guest]:
    """An ordinary user with rootless podman. Where there can be none: skipped, or failed if it is required."""
    try:
        with lend_guest() as lent:
            yield lent
    except NoGuest as reason:
        if "rootless" in REQUIRED:
            pytest.fail(f"WS_REQUIRE_ENGINES names rootless: {reason}", pytrace=False)
        pytest.skip(f"no rootless podman here: {reason}")


@pytest.fixture(scope="session")
def built_guest(guest: Guest) -> Guest:
    """The same, with the default image, built by the user: for real, it takes half a minute."""
    done = guest.ws("image", "build", "--engine", "podman", deadline_s=280)
    assert done.returncode == 0, done.stderr
    return guest


@pytest.fixture(scope="session")
def shared(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], SharedWorkspaces]]:
    """Workspaces of an engine that tests share; see `workspaces`. In a home of their own: others sweep theirs."""
    home = warm_home(tmp_path_factory.mktemp("shared") / "home", engines.home)
    with contextlib.ExitStack() as stack:
        made: dict[str, SharedWorkspaces] = {}

        def of(name: str) -> SharedWorkspaces:
            if name not in made:
                engine = engines.get(name)
                build_image(engine, home=default_home(), reference=DEFAULT_IMAGE)
                made[name] = stack.enter_context(shared_workspaces(str(home), engine.name))
            return made[name]

        yield of


@pytest.fixture(scope="session", params=["podman", "docker", "none"])
def any_engine(request: pytest.FixtureRequest, engines: Engines) -> Engine:
    return engines.get(request.param)


@pytest.fixture(scope="session", params=["podman", "docker"])
def engine(request: pytest.FixtureRequest, engines: Engines) -> Engine:
    """Each engine that makes containers."""
    return engines.get(request.param)


@pytest.fixture(scope="session")
def bench(any_engine: Engine, session_home: str) -> EngineBench:
    """Every engine with the smallest image there is."""
    image = ensure_busybox(any_engine) if any_engine.name != "none" else ""
    return EngineBench(any_engine, session_home, image)


@pytest.fixture(scope="session")
def busybox_image(engine: Engine) -> str:
    return ensure_busybox(engine)


@pytest.fixture(scope="session")
def old_libc_image(engine: Engine) -> str:
    return ensure_old_libc(engine)


@pytest.fixture(scope="session")
def default_image(engine: Engine) -> str:
    """The image of `ws image build`; built into the user's own WS_HOME cache if it is not there yet."""
    build_image(engine, home=default_home(), reference=DEFAULT_IMAGE)
    return DEFAULT_IMAGE


@pytest.fixture
def engine_name(engine: Engine, default_image: str) -> EngineName:
    """Each engine that makes containers, by its name, with the default image there."""
    return engine.name
