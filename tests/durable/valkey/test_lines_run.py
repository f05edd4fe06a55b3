"""Every line of the script is run: by the stories of the suite, and by random lives."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durable.planted import memory
from trio_lanes.durable import ValkeyStore
from trio_lanes.durable._valkey.script import Script
from trio_lanes.testing import compare_stores, durable_store_suite

from . import clock
from .lua_lines import not_run, noting
from .place import Place
from .server import Server, programs

pytestmark = pytest.mark.real_processes
PLACE = Place()


@pytest.fixture
def noted(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server of its own, whose stores note the lines that are run."""
    script = Script(noting().text.replace(clock._REAL, clock._TESTS))
    monkeypatch.setattr(clock, "SCRIPT", script)
    own = Server(programs()["valkey"], appendonly="no")
    try:
        own.start()
        PLACE.server = own
        yield own
    finally:
        PLACE.close()
        own.remove()


def store(folder: Path) -> ValkeyStore:
    return PLACE.store(folder)


def test_every_line_of_the_script_is_run(noted: Server) -> None:
    suite = durable_store_suite(store, clock=PLACE.clock, pause=0.01)()  # type: ignore[arg-type]
    for name in dir(suite):
        if name.startswith("test_"):
            getattr(suite, name)()
    for seed in range(8):
        compare_stores(memory(), PLACE.store, seed=seed, clock=PLACE.clock)  # type: ignore[arg-type]
    assert not_run(noted) == []
