"""A base whose record is damaged is made again; a running container keeps the directory that it has mounted."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from lived_in import remove_all, shell
from ws.bases import find_base, info_path
from ws.engine.base import Engine
from ws.manager import Manager

FILES = 50


@pytest.fixture
def manager(engine: Engine, default_image: str, tmp_path: Path) -> Iterator[Manager]:
    with Manager(home=str(tmp_path / "home"), engine=engine.name) as manager:
        yield manager
        remove_all(manager)


def test_a_container_keeps_the_base_that_it_has_mounted(manager: Manager, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(FILES):
        (source / f"{number}").write_text(f"{number}\n")
    home = manager.home
    with manager.create(source, name="first") as first:
        key = first.record().base
        Path(info_path(home, key)).write_text("damaged")
        with manager.create(source, name="second") as second:
            assert shell(second, "cat *") == shell(first, "cat *")
            assert second.record().base == key
        assert find_base(home, key) is not None
        aside = sorted(os.listdir(home.at("bases")))
        assert len(aside) == 2
        assert aside[0] == key
        assert manager.gc().bases_in_use == 1
        assert shell(first, "cat * | wc -l") == f"{FILES}\n"
        shell(first, "echo changed > 0")
        first.snapshot("one")
        assert shell(first, "cat 0 1") == "changed\n1\n"
        first.remove()
        manager.remove("second")
    manager.gc()
    assert [name for name in os.listdir(home.at("bases")) if name != key] == []


def test_without_a_container_the_damaged_directory_goes_at_once(manager: Manager, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "file").write_text("content\n")
    manager.create(source, name="first").remove()
    (key,) = os.listdir(manager.home.at("bases"))
    Path(info_path(manager.home, key)).write_text("damaged")
    manager.create(source, name="second").remove()
    assert os.listdir(manager.home.at("bases")) == [key]
