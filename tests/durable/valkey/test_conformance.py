"""`ValkeyStore` in the conformance suite, over real servers on virtual time."""

from collections.abc import Iterator

import pytest

from tests.durable.conformance.stores import memory
from tests.durable.conformance.suite import durable_store_suite, play
from tests.durable.conformance.twins import compare_stores
from trio_lanes.durable import ValkeyStore

from .place import Place
from .server import Server

pytestmark = pytest.mark.real_processes
VALKEY, REDIS = Place(), Place()


@pytest.fixture(autouse=True)
def valkey(server: Server) -> Iterator[None]:
    VALKEY.server = server
    yield
    VALKEY.close()


@pytest.fixture(scope="class")
def redis(redis_server: Server) -> Iterator[None]:
    REDIS.server = redis_server
    yield
    REDIS.close()


TestValkeyStore = durable_store_suite(
    VALKEY.store,
    clock=VALKEY.clock,
    pause=0.01,
)
TestValkeyStoreOnRedis = pytest.mark.thorough(
    pytest.mark.usefixtures("redis")(
        durable_store_suite(
            REDIS.store,
            clock=REDIS.clock,
            pause=0.01,
        )
    )
)


def test_the_suite_also_runs_in_real_time(server: Server) -> None:
    play(
        "test_the_runs_of_a_crash_go_before_waiting_jobs",
        lambda folder: ValkeyStore(server.url, namespace=folder.name),
    )


@pytest.mark.seeds(12)
def test_the_script_answers_as_the_engine_over_tables(seed: int) -> None:
    differ = compare_stores(
        memory(),
        VALKEY.store,
        seed=seed,
        clock=VALKEY.clock,
    )
    assert differ == []
