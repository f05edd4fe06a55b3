"""`PostgresStore` in the conformance suite, over a real server on virtual time."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durable.conformance.suite import durable_store_suite, play
from trio_lanes.durable import PostgresStore

from .clock import StoreClock
from .server import Server

pytestmark = pytest.mark.real_processes
_servers: list[Server] = []
_clocks: list[StoreClock] = []
_prepared: set[str] = set()


@pytest.fixture(autouse=True)
def the_server(server: Server) -> Iterator[None]:
    _servers[:] = [server]
    yield
    while _clocks:
        _clocks.pop().close()


def clock() -> StoreClock:
    _clocks.append(StoreClock(_servers[0].dsn()))
    return _clocks[-1]


def store(folder: Path) -> PostgresStore:
    namespace = folder.name.lower()
    if namespace not in _prepared:
        _clocks[-1].prepare(namespace)
        _prepared.add(namespace)
    return PostgresStore(_servers[0].dsn(), namespace=namespace, patience=2880)


def test_jobs_are_listed_by_the_times_of_their_numbers() -> None:
    name = "test_jobs_are_listed_by_handler_error_and_time"
    assert play(name, store, clock=clock, pause=0.01) == []


# its rules and nearly all of its SQL are those of the store in SQLite, which measures coverage
TestPostgresStore = pytest.mark.no_cover(durable_store_suite(store, clock=clock, pause=0.01))


def test_the_suite_also_runs_in_real_time(server: Server) -> None:
    play(
        "test_the_runs_of_a_crash_go_before_waiting_jobs",
        lambda folder: PostgresStore(server.dsn(), namespace=folder.name.lower()),
    )
