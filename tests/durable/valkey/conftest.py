"""One server of each kind for all tests; each test has a namespace of its own."""

import itertools
from collections.abc import Iterator

import pytest

from tests.support.needs import need

from .server import Server, programs

_namespaces = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    need("Valkey")
    server = Server(programs()["valkey"])
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    need("Redis")
    server = Server(programs()["redis"])
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def namespace() -> str:
    return f"test {next(_namespaces)}".replace(" ", "-")


def _started(**settings: str) -> Iterator[Server]:
    server = Server(programs()["valkey"], **settings)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def own_server(server: Server) -> Iterator[Server]:
    """A server that one test ends, stops or configures."""
    yield from _started()


@pytest.fixture(scope="module")
def always_server(server: Server) -> Iterator[Server]:
    """A server that writes each act to its file, for tests that end it and start it again."""
    yield from _started(appendfsync="always")
