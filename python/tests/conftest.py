"""Connections for tests. One that hangs says where, every few minutes: a traceback of every thread."""

from __future__ import annotations

import faulthandler
from collections.abc import Iterator

import pytest

import onehop

PATIENCE_SECONDS = 120


@pytest.fixture(autouse=True)
def _hangs_say_where() -> Iterator[None]:
    faulthandler.dump_traceback_later(PATIENCE_SECONDS, repeat=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture
def con() -> Iterator[onehop.Connection]:
    with onehop.connect(config={"threads": 2}) as connection:
        yield connection
