"""What a durable job costs, in counts that do not depend on the machine: a guard, not a benchmark.

A figure here is the count at the time of writing, and a little more.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import trio

import trio_lanes
from trio_lanes.durable import MemoryStore, SqliteStore, Store, open_durable_lanes

LIBRARY = str(Path(trio_lanes.__file__).parent)


async def returns(payload: object) -> object:
    return payload


async def modules_of_a_job(store: Store) -> list[str]:
    """Return the module of each call in this thread, from the submission of a job to its result.

    It is the second job of its session.
    """
    modules: list[str] = []

    def count(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(LIBRARY):
            modules.append(frame.f_code.co_filename)

    async with open_durable_lanes(store, {"returns": returns}, {"main": 4}) as lanes:
        await (await lanes.submit("returns", {"a": 1}, session="alice")).wait()
        await trio.sleep(0.3)  # the step that ends the first is over
        sys.setprofile(count)
        try:
            job = await lanes.submit("returns", {"a": 1}, session="alice")
            assert await job.wait() == {"a": 1}
        finally:
            sys.setprofile(None)
    return modules


@pytest.mark.many_seeds(20)
@pytest.mark.parametrize(
    ("make", "most_calls", "most_modules"),
    [
        # some 30 of them are comprehensions, which Python 3.12 does not call; 10 choose few of many
        # lanes, 2 ask whether a lane keeps jobs from a start
        pytest.param(lambda _: MemoryStore(), 428, 43, id="memory"),
        # without the calls in its own threads; one of the modules is what SQL stores share
        pytest.param(lambda folder: SqliteStore(folder / "jobs.db"), 220, 32, id="sqlite"),
    ],
)
async def test_the_way_of_a_durable_job_takes_no_more_calls_and_modules_than_it_did(
    make: Callable[[Path], Store], most_calls: int, most_modules: int, tmp_path: Path
) -> None:
    modules = await modules_of_a_job(make(tmp_path))
    assert len(modules) <= most_calls
    assert len(set(modules)) <= most_modules
