"""`log_health`: a line when a problem comes, and a line when it has gone."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_lanes import open_lanes
from trio_lanes.durable import MemoryStore, StoreUnavailableError, open_durable_lanes
from trio_lanes.instruments.logging import log_health


@pytest.fixture(autouse=True)
def heard(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    with caplog.at_level(logging.INFO, "trio_lanes.health"):
        yield


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """The level and the first words of each line, which are heard once."""
    lines = [
        (one.levelname, one.getMessage())
        for one in caplog.records
        if one.name == "trio_lanes.health"
    ]
    caplog.clear()
    return lines


async def wait(payload: Any) -> None:
    await trio.sleep_forever()


async def test_a_problem_is_told_when_it_comes_and_when_it_has_gone(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with open_lanes({"main": 1}) as lanes, trio.open_nursery() as nursery:
        nursery.start_soon(log_health, lanes)
        await trio.sleep(100)
        assert told(caplog) == []
        lanes.pause("main")
        lanes.submit_nowait(trio.sleep, 1)
        await trio.sleep(200)
        (record,) = [one for one in caplog.records if one.name == "trio_lanes.health"]
        fields = record.__dict__
        assert (fields["event"], fields["kind"], fields["lane"]) == ("problem", "pause", "main")
        ((level, line),) = told(caplog)
        assert level == "WARNING"
        assert line.endswith(', until it is resumed: resume "main"')
        lanes.resume("main")
        await trio.sleep(200)
        ((level, line),) = told(caplog)
        assert level == "INFO"
        assert line.startswith("it has gone: job 1 of 'main' has waited for ")
        nursery.cancel_scope.cancel()


async def test_of_core_and_store_each_problem_is_told_once_and_no_session_is_named_in_fields(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        open_durable_lanes(MemoryStore(), {"wait": wait}, {"main": 1}, on_dead="hold") as durable,
        open_lanes({"main": 1}) as lanes,
        trio.open_nursery() as nursery,
    ):
        for pause in (durable.pause("main"), durable.submit("wait")):
            await pause
        lanes.pause("main")
        lanes.submit_nowait(trio.sleep, 1)
        await trio.sleep(20)
        nursery.start_soon(lambda: log_health(lanes, durable, every=1))
        await trio.sleep(5)
        assert [level for level, _ in told(caplog)] == ["WARNING"]
        await durable.resume("main")
        await trio.sleep(5)
        assert told(caplog) == []  # the other stays
        lanes.resume("main")
        await trio.sleep(5)
        assert [level for level, _ in told(caplog)] == ["INFO"]
        nursery.cancel_scope.cancel()


async def test_what_is_wrong_in_a_store_has_not_gone_while_the_store_has(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        open_durable_lanes(MemoryStore(), {"wait": wait}, {"main": 1}) as durable,
        trio.open_nursery() as nursery,
    ):
        await durable.pause("main")
        await durable.submit("wait")
        await trio.sleep(20)
        nursery.start_soon(lambda: log_health(durable, every=1))
        await trio.sleep(5)
        assert [level for level, _ in told(caplog)] == ["WARNING"]
        with monkeypatch.context() as patch:

            async def away() -> Any:
                raise StoreUnavailableError("it is gone")

            patch.setattr(durable, "statistics", away)
            await trio.sleep(5)
            ((level, line),) = told(caplog)
            assert level == "WARNING"
            assert line.startswith("the store cannot be reached: it is gone: ")
        await trio.sleep(5)
        assert told(caplog) == [("INFO", "it has gone: the store cannot be reached: it is gone")]
        nursery.cancel_scope.cancel()


async def test_a_look_that_fails_ends_nothing(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_lanes({"main": 1}) as lanes, trio.open_nursery() as nursery:
        with monkeypatch.context() as patch:

            def fails(self: Any) -> Any:
                raise ZeroDivisionError

            patch.setattr(type(lanes), "health", fails)
            nursery.start_soon(log_health, lanes)
            await trio.sleep(1)
        ((level, line),) = told(caplog)
        assert level == "ERROR"
        assert line.endswith(" could not be looked at")
        nursery.cancel_scope.cancel()


async def test_a_session_is_no_field(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(payload: Any) -> None:
        raise ValueError

    async with (
        open_durable_lanes(MemoryStore(), {"fail": fail}, {"main": 1}, on_dead="hold") as durable,
        trio.open_nursery() as nursery,
    ):
        for _ in range(2):
            await durable.submit("fail", session="ann")
        await trio.sleep(1000)
        nursery.start_soon(log_health, durable)
        await trio.sleep(1)
        lanes = [one.__dict__["lane"] for one in caplog.records if hasattr(one, "kind")]
        assert sorted(lanes) == ["main", "session:*"]
        nursery.cancel_scope.cancel()


async def test_it_wants_lanes_and_a_time() -> None:
    wrong: Any = object()
    async with open_lanes() as lanes:
        with pytest.raises(TypeError, match="lanes must be Lanes or DurableLanes"):
            await log_health(wrong)
        with pytest.raises(ValueError, match="lanes must be given"):
            await log_health()
        for every in (0, float("inf")):
            with pytest.raises(ValueError, match="every"):
                await log_health(lanes, every=every)
