"""Backups and trash in a container: within a budget, whatever the workspace holds, and gone with the workspace."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from lived_in import shell
from ws.engine import RUN
from ws.engine.base import Engine
from ws.errors import LimitExceeded
from ws.manager import Manager
from ws.tools.trash import Retention
from ws.workspace import Workspace

MIB = 1 << 20


@pytest.fixture(scope="module")
def manager(engine: Engine, default_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    with Manager(home=str(tmp_path_factory.mktemp("home")), engine=engine.name) as opened:
        yield opened


@pytest.fixture
def box(manager: Manager) -> Iterator[Workspace]:
    with manager.create(remove_on_exit=True) as made:
        yield made


def test_a_file_larger_than_the_budget_is_written_over_without_a_backup(box: Workspace) -> None:
    shell(box, f"head -c {Retention().max_bytes + MIB} /dev/zero > large")
    done = box.tools.call("write_file", path="large", content="small now", mode="overwrite")
    assert done.data["not_kept"] == ["large"]
    assert shell(box, "cat large") == "small now"
    assert int(shell(box, f"du -sm {RUN}/kept").split()[0]) < 10


def test_trees_that_are_too_large_or_too_deep_are_not_moved_to_the_trash(box: Workspace) -> None:
    shell(box, f"mkdir wide && head -c {Retention().max_bytes + MIB} /dev/zero > wide/large")
    dig = "import os\nfor _ in range(400):\n os.mkdir('d'); os.chdir('d')\nopen('x', 'wb').truncate(300 << 20)"
    shell(box, f'mkdir deep && cd deep && python3 -c "{dig}"')
    for name in ("wide", "deep"):
        with pytest.raises(LimitExceeded, match="too large"):
            box.tools.call("delete", path=name, recursive=True)
        assert shell(box, f"test -d {name} && echo there") == "there\n"
        assert box.tools.call("delete", path=name, recursive=True, permanent=True).status == "ok"


def test_what_a_command_puts_there_itself_goes_with_the_workspace(manager: Manager) -> None:
    box = manager.create()
    dig = "import os\nfor _ in range(400):\n os.mkdir('d', 0o700); os.chdir('d')\nopen('x', 'wb').write(b'x')"
    shell(box, f'cd {RUN}/kept && head -c 20M /dev/zero > junk && python3 -c "{dig}"')
    box.fs.write("a", "1")
    assert box.tools.call("str_replace", path="a", old_str="1", new_str="2").status == "ok"
    assert box.tools.call("undo", path="a").status == "ok"
    directory = manager.home.workspace(box.id)
    box.remove()
    assert not os.path.exists(directory)
    assert os.listdir(manager.home.at("staging")) == []
