"""What holds in each history of each model."""

from collections.abc import Iterator

import pytest

from tests.support.timers import watched_timers


@pytest.fixture(autouse=True, scope="module")
def timers() -> Iterator[None]:
    """No timer polls, in all histories of a module."""
    with watched_timers():
        yield
