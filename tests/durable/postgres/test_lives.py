"""Simulated lives over a real server, and the same life in PostgreSQL and in memory."""

from pathlib import Path

import pytest

from tests.durable.conformance.stores import memory
from tests.durable.conformance.twins import compare_stores
from trio_lanes.durable import PostgresStore
from trio_lanes.durable.testing import Life, simulate

from . import in_loop
from .clock import StoreClock
from .server import Server

pytestmark = pytest.mark.real_processes


@pytest.mark.seeds(2)
def test_nothing_is_wrong_in_a_life_on_postgresql(lives: in_loop.Life, seed: int) -> None:
    with lives.in_loop():
        assert simulate(Life(seed), lives.open) == []


@pytest.mark.seeds(3)
def test_the_store_in_memory_and_postgresql_answer_the_same(server: Server, seed: int) -> None:
    clocks: list[StoreClock] = []

    def clock() -> StoreClock:
        clocks.append(StoreClock(server.dsn()))
        return clocks[0]

    def store(folder: Path) -> PostgresStore:
        namespace = f"twin_{seed}"
        clocks[0].prepare(namespace)
        return PostgresStore(server.dsn(), namespace=namespace)

    try:
        assert compare_stores(memory(), store, seed=seed, clock=clock) == []
    finally:
        clocks[0].close()
