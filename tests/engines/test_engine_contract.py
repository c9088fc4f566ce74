"""The law of engines: podman, docker and none keep one contract, `ws.testing.ENGINE_CHECKS`, for real."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ws.testing import ENGINE_CHECKS, EngineBench


@pytest.mark.parametrize("check", ENGINE_CHECKS, ids=lambda check: check.__name__)
def test_engine(bench: EngineBench, check: Callable[[EngineBench], None]) -> None:
    check(bench)
