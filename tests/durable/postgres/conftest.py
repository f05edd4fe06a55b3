"""One server for all tests of PostgreSQL; each test has a namespace of its own."""

import itertools
from collections.abc import Iterator

import pytest

from tests.support.needs import need

from . import in_loop
from .server import Server, programs

_namespaces = itertools.count(1)


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    need("PostgreSQL")
    found = programs()
    assert found is not None
    server = Server(found)
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def namespace() -> str:
    return f"test_{next(_namespaces)}"


@pytest.fixture
def dsn(server: Server) -> str:
    return server.dsn()


@pytest.fixture
def lives(server: Server) -> Iterator[in_loop.Life]:
    lives = in_loop.Life(server.dsn())
    yield lives
    lives.close()


@pytest.fixture(scope="module")
def own_server(server: Server) -> Iterator[Server]:
    """A server that the tests of one module end and start again."""
    found = programs()
    assert found is not None
    own = Server(found)
    try:
        own.start()
        yield own
    finally:
        own.remove()
