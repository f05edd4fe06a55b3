"""The door stays a door."""

from pathlib import Path

from tests.support.lines import lines_of_code
from trio_lanes import aio


def test_the_door_of_asyncio_has_at_most_900_lines_of_code() -> None:
    files = Path(aio.__file__).parent.glob("*.py")
    assert sum(map(lines_of_code, files)) <= 900
