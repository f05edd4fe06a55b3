"""A failure belongs to its handle; a failure that is never retrieved is logged."""

import logging
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.bodies import (
    BodyError,
    never_ends,
    raises,
    raises_at_once,
    raises_beside_its_cancellation,
    returns,
)
from trio_lanes import Job, JobState, JobTimeoutError, open_lanes

pytestmark = pytest.mark.both_doors

failing = pytest.mark.parametrize("body", [raises, raises_at_once])


def errors_in(caplog: pytest.LogCaptureFixture) -> list[BaseException | None]:
    """The messages that were logged as errors, in order."""
    return [
        record.exc_info[1] if record.exc_info else None
        for record in caplog.records
        if record.name == "trio_lanes" and record.levelno >= logging.ERROR
    ]


@failing
async def test_an_unretrieved_failure_is_logged_when_the_last_reference_goes(
    body: Callable[[], Awaitable[str]],
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_lanes() as lanes:
        job = lanes.submit_nowait(body, name="the failing one")
        await lanes.wait_idle()
        await trio.sleep(10)
        assert errors_in(caplog) == []
        del job
        assert [type(error) for error in errors_in(caplog)] == [BodyError]
        (record,) = caplog.records
        assert "the failing one" in record.getMessage()
    assert len(errors_in(caplog)) == 1


@failing
async def test_an_unretrieved_failure_is_logged_when_the_lanes_close_if_its_handle_is_kept(
    body: Callable[[], Awaitable[str]],
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_lanes() as lanes:
        job = lanes.submit_nowait(body)
        await lanes.wait_idle()
    assert [type(error) for error in errors_in(caplog)] == [BodyError]
    assert isinstance(job.exception, BodyError)
    del job
    assert len(errors_in(caplog)) == 1


@pytest.mark.parametrize("how", ["an error", "a cancellation"])
async def test_an_unretrieved_failure_is_logged_however_the_lanes_close(
    how: str, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    jobs: list[Job[str]] = []

    async def end_badly() -> None:
        async with open_lanes() as lanes:
            jobs.append(lanes.submit_nowait(raises))
            jobs.append(lanes.submit_nowait(raises_beside_its_cancellation))
            await trio.sleep(3)
            if how == "a cancellation":
                scope.cancel()
                await trio.sleep(1)
            raise OSError

    with trio.CancelScope() as scope:
        if how == "a cancellation":
            await end_badly()
        with pytest.RaisesGroup(OSError):
            await end_badly()
    assert {type(error) for error in errors_in(caplog)} == {BodyError, ExceptionGroup}
    assert len(jobs) == 2


@failing
@pytest.mark.parametrize("look", ["wait", "exception", "a waiter before", "run"])
async def test_a_retrieved_failure_is_not_logged(
    look: str,
    body: Callable[[], Awaitable[str]],
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with open_lanes() as lanes:

        async def wait(job: Job[str]) -> None:
            with pytest.raises(BodyError):
                await job.wait()

        if look == "run":
            with pytest.raises(BodyError):
                await lanes.run(body)
        else:
            job = lanes.submit_nowait(body)
            if look == "a waiter before":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(wait, job)
            else:
                await job.wait_done()
                if look == "wait":
                    await wait(job)
                else:
                    assert isinstance(job.exception, BodyError)
            del job
    assert errors_in(caplog) == []


async def test_to_know_that_a_job_has_ended_is_not_to_have_seen_its_failure(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes() as lanes:
        job = lanes.submit_nowait(raises)
        assert job.exception is None  # not failed yet: nothing was delivered
        with trio.move_on_after(1):
            await job.wait()  # cancelled before there was anything to see
        await job.wait_started()
        await job.wait_done()
        assert job.done
        assert job.state is JobState.FAILED
        repr(job)
        assert len(lanes.jobs()) == 0
        del job
    assert len(errors_in(caplog)) == 1


@pytest.mark.many_seeds(20)
async def test_a_failure_in_the_tick_in_which_its_waiter_is_cancelled_is_delivered_or_logged(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes() as lanes:
        job = lanes.submit_nowait(raises)
        delivered = False
        with trio.move_on_at(2):
            try:
                await job.wait()
            except BodyError:
                delivered = True
        del job
    assert delivered + len(errors_in(caplog)) == 1


async def test_an_unseen_timeout_is_a_failure_and_a_cancellation_is_none(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 2}) as lanes:
        lanes.submit_nowait(never_ends, timeout=1)
        lanes.submit_nowait(never_ends).cancel()
        lanes.submit_nowait(returns, queue_timeout=0)
        lanes.submit_nowait(returns)
        lanes.clear()
        await lanes.wait_idle()
        lanes.submit_nowait(returns)
        await trio.sleep(1)
        lanes.reset()
    assert [type(error) for error in errors_in(caplog)] == [JobTimeoutError]


@pytest.mark.trio_only("asyncio lets a SystemExit out of the loop")
async def test_what_leaves_the_lanes_is_not_logged_too(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def leaves() -> None:
        raise SystemExit

    with pytest.RaisesGroup(BodyError):
        async with open_lanes() as lanes:
            lanes.start_soon(raises)
    with pytest.RaisesGroup(SystemExit):
        async with open_lanes() as lanes:
            lanes.submit_nowait(leaves)
    assert errors_in(caplog) == []


PROBES = [
    {"lane": "auth-probe:models"},
    {"session": "probe-1"},
    {"session": "session:probe-1"},
    {"session": "probe-1", "lane": "auth-probe:models"},
]


@pytest.mark.parametrize("options", PROBES)
async def test_a_probes_failure_is_given_to_its_waiter_and_never_logged(
    options: dict[str, str], autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 1, "auth-probe:models": 1}) as lanes:
        lanes.submit_nowait(raises, **options)  # type: ignore[arg-type]
        kept = lanes.submit_nowait(raises_at_once, **options)  # type: ignore[arg-type]
        late = lanes.submit_nowait(never_ends, timeout=1, **options)  # type: ignore[arg-type]
        await lanes.wait_idle()
        with pytest.raises(BodyError):
            await lanes.run(raises, **options)  # type: ignore[arg-type]
        assert await lanes.run(returns, **options) == "value"  # type: ignore[arg-type]
    with pytest.raises(BodyError):
        await kept.wait()
    assert late.state is JobState.FAILED
    assert errors_in(caplog) == []


async def test_a_session_with_a_name_that_only_looks_like_a_probes_is_none(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 1, "my-auth-probe:x": 1}) as lanes:
        lanes.submit_nowait(raises, session="my-probe-1")
        lanes.submit_nowait(raises, session="auth-probe:1")
        lanes.submit_nowait(raises, lane="my-auth-probe:x")
        await wait_all_tasks_blocked()
    assert len(errors_in(caplog)) == 3
