"""What `trio_lanes.aio` refuses: at the call, with a clear error, and with nothing changed."""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.lowlevel

import trio_lanes
from trio_lanes import LanesClosedError, aio
from trio_lanes.aio import Lanes, open_lanes

pytestmark = pytest.mark.asyncio_only


async def nothing() -> None:
    pass


async def test_the_door_of_trio_names_the_one_of_asyncio() -> None:
    with pytest.raises(RuntimeError, match=r"use trio_lanes\.aio\.open_lanes"):
        await trio_lanes.open_lanes().__aenter__()


def test_the_door_of_asyncio_names_the_one_of_trio_and_asyncio_run() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match=r"asyncio\.run\(\).*use trio_lanes\.open_lanes"):
            await open_lanes().__aenter__()

    trio.run(main)


def test_a_loop_inside_of_trio_is_refused() -> None:
    async def inner() -> None:
        with pytest.raises(RuntimeError, match=r"runs Trio already.*use trio_lanes\.open_lanes"):
            await open_lanes().__aenter__()

    async def main() -> None:
        asyncio.run(inner())

    trio.run(main)


def test_a_task_of_trio_in_the_guest_run_is_refused() -> None:
    async def refused() -> None:
        with pytest.raises(RuntimeError, match=r"asyncio\.run\(\)"):
            await open_lanes().__aenter__()

    async def main() -> None:
        async with open_lanes() as lanes:
            job = lanes.trio.submit_nowait(refused)
            await lanes.wait_idle()
            assert job.exception is None

    asyncio.run(main())


@pytest.mark.parametrize(
    "verb",
    [
        lambda lanes: lanes.submit_nowait(nothing),
        lambda lanes: lanes.pause(),
        lambda lanes: asyncio.run(lanes.run(nothing)),
        lambda lanes: asyncio.run(lanes.submit(nothing)),
        lambda lanes: asyncio.run(lanes.wait_idle()),
        lambda lanes: asyncio.run(lanes.submit_nowait(nothing).wait()),
    ],
)
async def test_another_thread_is_refused_and_hears_of_the_portal(
    verb: Callable[[Lanes], object],
) -> None:
    async with open_lanes() as lanes:
        with pytest.raises(RuntimeError, match=r"use Lanes\.portal\(\)"):
            await asyncio.to_thread(verb, lanes)
        assert lanes.jobs() == []


async def test_another_thread_cannot_wait_for_a_job() -> None:
    async with open_lanes() as lanes:
        job = lanes.submit_nowait(asyncio.sleep, 1)
        with pytest.raises(RuntimeError, match=r"use Lanes\.portal\(\)"):
            await asyncio.to_thread(lambda: asyncio.run(job.wait_started()))


@pytest.mark.parametrize(
    "verb",
    [
        lambda lanes, job: lanes.run(nothing),
        lambda lanes, job: lanes.submit(nothing),
        lambda lanes, job: lanes.wait_idle(),
        lambda lanes, job: job.wait(),
        lambda lanes, job: job.wait_started(),
        lambda lanes, job: lanes.map(nothing, []).__aenter__(),
        lambda lanes, job: lanes.open_nursery().__aenter__(),
    ],
)
def test_another_loop_is_refused_and_hears_of_the_portal(
    verb: Callable[[Lanes, Any], Awaitable[Any]],
) -> None:
    async def elsewhere() -> None:
        with pytest.raises(RuntimeError, match=r"use Lanes\.portal\(\)"):
            await verb(lanes, job)

    manager = open_lanes()
    with asyncio.Runner() as runner:
        lanes = runner.run(manager.__aenter__())
        job = lanes.submit_nowait(asyncio.sleep, 0)
        asyncio.run(elsewhere())
        assert lanes.jobs() == [job]
        runner.run(manager.__aexit__(None, None, None))


def test_lanes_of_another_loop_of_the_thread_are_refused_by_the_true_cause() -> None:
    """As a fixture of a module and tests with loops of their own, in turns."""

    async def elsewhere() -> str:
        async with open_lanes() as lanes:
            return await lanes.run(asyncio.sleep, 0, "value")

    manager = open_lanes()
    with asyncio.Runner() as runner:
        lanes = runner.run(manager.__aenter__())
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"another asyncio loop.*one run of Trio's"):
                asyncio.run(elsewhere())
        assert runner.run(lanes.run(asyncio.sleep, 0, 5)) == 5
        assert runner.run(elsewhere()) == "value"
        runner.run(manager.__aexit__(None, None, None))
    assert asyncio.run(elsewhere()) == "value"


async def test_a_portal_refuses_a_number_or_a_coroutine_in_asyncios_words_in_all_threads() -> None:
    async with open_lanes() as lanes:
        portal = lanes.portal()
        bad: Any
        for bad, message in ((5, "not callable"), (nothing(), "not a coroutine")):
            with pytest.raises(TypeError, match=message):
                portal.submit(bad)
            with pytest.raises(TypeError, match=message):
                await asyncio.to_thread(portal.submit, bad)


async def test_a_portal_to_lanes_that_have_ended_refuses() -> None:
    async with open_lanes() as lanes:
        pass
    with pytest.raises(LanesClosedError):
        lanes.portal().submit(nothing)


async def test_a_callback_of_a_job_of_lanes_that_have_ended_may_add_one() -> None:
    async with open_lanes() as lanes:
        job = lanes.submit_nowait(nothing)
    called: list[object] = []
    job.on_settled(lambda job: job.on_settled(called.append))
    assert called == [job]


@pytest.mark.parametrize("submit", ["submit_nowait", "start_soon", "run", "submit", "map"])
@pytest.mark.parametrize("what", ["a number", "a coroutine"])
async def test_a_number_or_a_coroutine_is_refused_at_the_call(what: str, submit: str) -> None:
    fn: Any = 5 if what == "a number" else nothing()
    async with open_lanes() as lanes:
        arguments: tuple[object, ...] = ([],) if submit == "map" else ()
        message = "not callable" if fn == 5 else "pass the async function and its arguments"
        with pytest.raises(TypeError, match=message):
            await getattr(lanes, submit)(fn, *arguments)
        assert lanes.jobs() == []


async def test_a_bad_configuration_is_refused_at_the_call() -> None:
    with pytest.raises(ValueError, match="concurrency"):
        open_lanes({"main": -1})


def returns_a_number() -> Any:
    return 5


async def checkpoints() -> None:
    await trio.lowlevel.cancel_shielded_checkpoint()


async def raises_an_error_of_its_own() -> None:
    raise RuntimeError("of its own")


@pytest.mark.parametrize(
    ("fn", "message"),
    [
        (returns_a_number, "returned 5"),
        (checkpoints, "no async function of asyncio's"),
        (partial(trio.lowlevel.checkpoint), "no async function of asyncio's"),
        (partial(trio.sleep, 1), "no async function of asyncio's"),
    ],
)
async def test_a_function_that_is_none_of_asyncios_fails_and_hears_of_the_lanes_of_trio(
    fn: Callable[[], Awaitable[None]], message: str
) -> None:
    async with open_lanes() as lanes:
        with pytest.raises(TypeError, match=rf"{message}.*lanes\.trio"):
            await lanes.run(fn)


async def test_another_error_of_a_body_is_left_as_it_is() -> None:
    async with open_lanes() as lanes:
        with pytest.raises(RuntimeError, match="of its own"):
            await lanes.run(raises_an_error_of_its_own)


async def test_the_lanes_of_trio_run_async_functions_of_trios() -> None:
    async with open_lanes() as lanes:
        job = lanes.trio.submit_nowait(trio.sleep, 1)
        order = [lanes.submit_nowait(asyncio.sleep, 1, session="alice"), job]
        await lanes.wait_idle()
        assert [type(job) for job in order] == [aio.Job, trio_lanes.Job]
        assert [job.finished_at for job in order] == [1, 1]
