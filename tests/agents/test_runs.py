"""RunRegistry: one active run a session; sending to it, aborting it, waiting for its end."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import trio
from trio.testing import MockClock, assert_checkpoints, wait_all_tasks_blocked

from trio_lanes.agents import Registered, RunRegistry, SendRefused

pytestmark = pytest.mark.both_doors


class Turn:
    """A run that hears everything; what it does otherwise is set by the test."""

    def __init__(
        self,
        *,
        is_streaming: bool = True,
        is_compacting: bool = False,
        accepts: bool | BaseException = True,
    ) -> None:
        self.is_streaming = is_streaming
        self.is_compacting = is_compacting
        self.accepts = accepts
        self.messages: list[object] = []
        self.aborts: list[str | None] = []
        self.on_abort: Callable[[], object] = lambda: None

    def queue_message(self, message: object) -> bool:
        if isinstance(self.accepts, BaseException):
            raise self.accepts
        if self.accepts:
            self.messages.append(message)
        return self.accepts

    def abort(self, reason: str | None = None) -> None:
        self.aborts.append(reason)
        self.on_abort()


@pytest.fixture
def registry() -> RunRegistry:
    return RunRegistry()


def test_a_second_run_replaces_the_first(registry: RunRegistry) -> None:
    first, second = Turn(), Turn()
    assert registry.register("alice", first) is Registered.STARTED
    assert registry.register("alice", second) is Registered.REPLACED
    assert registry.get("alice") is second
    assert registry.active() == {"alice": second}


def test_clearing_with_the_old_handle_removes_nothing(registry: RunRegistry) -> None:
    first, second = Turn(), Turn()
    registry.register("alice", first)
    registry.register("alice", second)
    assert registry.clear("alice", first) is False
    assert registry.get("alice") is second


def test_a_run_that_equals_the_active_one_does_not_clear_it(registry: RunRegistry) -> None:
    class Equal(Turn):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    run = Equal()
    registry.register("alice", run)
    assert registry.clear("alice", Equal()) is False
    assert registry.clear("alice", run) is True


def test_clear_says_whether_it_removed_the_run(registry: RunRegistry) -> None:
    run = Turn()
    assert registry.clear("alice", run) is False
    registry.register("alice", run)
    assert registry.clear("alice", run) is True
    assert registry.clear("alice", run) is False
    assert registry.get("alice") is None
    assert registry.active() == {}


def test_sessions_have_runs_of_their_own(registry: RunRegistry) -> None:
    alice, bob = Turn(), Turn()
    assert registry.register("alice", alice) is Registered.STARTED
    assert registry.register("bob", bob) is Registered.STARTED
    registry.clear("alice", alice)
    assert registry.active() == {"bob": bob}


def test_a_session_has_the_names_that_its_lane_has(registry: RunRegistry) -> None:
    run = Turn()
    registry.register(" alice ", run)
    assert registry.get("session:alice") is run
    assert registry.active() == {" alice ": run}
    assert registry.send("alice", "hello")
    assert registry.clear("alice", run)


def test_registering_the_active_run_again_changes_nothing(
    registry: RunRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    run = Turn()
    registry.register("alice", run)
    caplog.clear()
    assert registry.register("alice", run) is Registered.STARTED
    assert not caplog.records
    assert registry.clear("alice", run) is True


async def test_who_waits_for_a_run_that_is_registered_again_waits_on(
    registry: RunRegistry, autojump_clock: MockClock
) -> None:
    run = Turn()
    registry.register("alice", run)
    async with trio.open_nursery() as nursery:
        ended: list[bool] = []

        async def wait() -> None:
            ended.append(await registry.wait_ended("alice"))

        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        registry.register("alice", run)
        await wait_all_tasks_blocked()
        assert ended == []
        registry.clear("alice", run)
    assert ended == [True]


def test_starting_and_replacing_are_logged(
    registry: RunRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trio_lanes.agents")
    registry.register("alice", Turn())
    registry.register("alice", Turn())
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("run_started: session 'alice'")
    assert second.startswith("run_replaced: session 'alice'")


def test_active_is_a_copy(registry: RunRegistry) -> None:
    registry.register("alice", Turn())
    registry.active().clear()
    assert registry.get("alice") is not None


def test_repr_says_how_many_are_active(registry: RunRegistry) -> None:
    registry.register("alice", Turn())
    assert "trio_lanes.agents.RunRegistry" in repr(registry)
    assert "1 active" in repr(registry)


# ---- running


def test_running_registers_and_clears(registry: RunRegistry) -> None:
    run = Turn()
    with registry.running("alice", run) as registered:
        assert registered is Registered.STARTED
        assert registry.get("alice") is run
    assert registry.get("alice") is None


def test_running_clears_when_the_run_fails(registry: RunRegistry) -> None:
    with pytest.raises(KeyError), registry.running("alice", Turn()):
        raise KeyError
    assert registry.active() == {}


def test_running_leaves_the_run_alone_that_replaced_it(registry: RunRegistry) -> None:
    successor = Turn()
    with registry.running("alice", Turn()):
        assert registry.register("alice", successor) is Registered.REPLACED
    assert registry.get("alice") is successor


# ---- send


def test_a_streaming_run_is_given_the_message(registry: RunRegistry) -> None:
    run = Turn()
    registry.register("alice", run)
    sent = registry.send("alice", "hello")
    assert sent
    assert sent.reason is None
    assert run.messages == ["hello"]


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (None, SendRefused.NO_ACTIVE_RUN),
        (Turn(is_streaming=False), SendRefused.NOT_STREAMING),
        (Turn(is_streaming=False, is_compacting=True, accepts=False), SendRefused.NOT_STREAMING),
        (Turn(is_compacting=True), SendRefused.COMPACTING),
        (Turn(is_compacting=True, accepts=False), SendRefused.COMPACTING),
        (Turn(accepts=False), SendRefused.STOPPED),
    ],
)
def test_a_message_is_refused_with_the_first_reason_that_there_is(
    registry: RunRegistry, run: Turn | None, reason: SendRefused
) -> None:
    if run is not None:
        registry.register("alice", run)
    sent = registry.send("alice", "hello")
    assert not sent
    assert sent.reason is reason
    assert run is None or run.messages == []


def test_a_run_that_raises_refuses_and_the_error_is_logged(
    registry: RunRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    registry.register("alice", Turn(accepts=RuntimeError("no more")))
    assert registry.send("alice", "hello").reason is SendRefused.STOPPED
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "session 'alice'" in record.getMessage()
    assert record.exc_info is not None
    assert "no more" in str(record.exc_info[1])


def test_a_run_that_raises_when_it_is_looked_at_refuses(
    registry: RunRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Turn):
        @property
        def is_streaming(self) -> bool:
            raise RuntimeError

        @is_streaming.setter
        def is_streaming(self, value: bool) -> None: ...

    registry.register("alice", Broken())
    assert registry.send("alice", "hello").reason is SendRefused.STOPPED
    assert len(caplog.records) == 1


def test_a_ctrl_c_while_sending_is_not_swallowed(registry: RunRegistry) -> None:
    registry.register("alice", Turn(accepts=KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        registry.send("alice", "hello")


# ---- the end


async def test_wait_ended_is_true_at_once_when_there_is_no_run(
    registry: RunRegistry, mock_clock: MockClock
) -> None:
    with assert_checkpoints():
        assert await registry.wait_ended("alice") is True
    assert trio.current_time() == 0


async def test_wait_ended_is_true_when_the_run_ends(
    registry: RunRegistry, autojump_clock: MockClock
) -> None:
    run = Turn()

    async def work() -> None:
        with registry.running("alice", run):
            await trio.sleep(10)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await wait_all_tasks_blocked()
        with assert_checkpoints():
            assert await registry.wait_ended("alice") is True
        assert trio.current_time() == 10


@pytest.mark.parametrize(
    ("timeout", "seconds"), [(None, 15), (3, 3), (0.1, 0.1), (0.05, 0.1), (0, 0.1), (-1, 0.1)]
)
async def test_wait_ended_is_false_at_the_timeout(
    registry: RunRegistry, autojump_clock: MockClock, timeout: float | None, seconds: float
) -> None:
    registry.register("alice", Turn())
    if timeout is None:
        assert await registry.wait_ended("alice") is False
    else:
        assert await registry.wait_ended("alice", timeout) is False
    assert trio.current_time() == pytest.approx(seconds)


@pytest.mark.trio_only("in asyncio an answer comes a turn of the loop later")
@pytest.mark.many_seeds(10)
async def test_a_run_that_ends_at_the_very_timeout_has_ended(
    registry: RunRegistry, autojump_clock: MockClock
) -> None:
    run = Turn()
    registry.register("alice", run)

    async def end() -> None:
        await trio.sleep(1)
        registry.clear("alice", run)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(end)
        ended = await registry.wait_ended("alice", 1)
        assert ended is (registry.get("alice") is None)


async def test_who_waits_for_a_run_is_told_at_its_replacement(
    registry: RunRegistry, autojump_clock: MockClock
) -> None:
    first, second = Turn(), Turn()
    registry.register("alice", first)
    told: list[tuple[bool, float]] = []

    async def wait() -> None:
        told.append((await registry.wait_ended("alice"), trio.current_time()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(2)
        registry.register("alice", second)
        await wait_all_tasks_blocked()
        assert told == [(True, 2)]
        registry.clear("alice", first)  # the old run ends, late
        assert registry.get("alice") is second


async def test_cancelling_who_waits_leaves_the_run_alone(
    registry: RunRegistry, autojump_clock: MockClock
) -> None:
    run = Turn()
    registry.register("alice", run)
    with trio.move_on_after(1) as scope:
        await registry.wait_ended("alice")
    assert scope.cancelled_caught
    assert registry.get("alice") is run
    assert run.aborts == []


def test_abort_asks_the_run_and_leaves_it_registered(registry: RunRegistry) -> None:
    run = Turn()
    assert registry.abort("alice") is False
    registry.register("alice", run)
    assert registry.abort("alice", "enough") is True
    assert registry.abort("alice") is True
    assert run.aborts == ["enough", None]
    assert registry.get("alice") is run


async def test_abort_and_wait_returns_when_the_run_has_ended(
    registry: RunRegistry, autojump_clock: MockClock
) -> None:
    run = Turn()

    async def work() -> None:
        stop = trio.Event()
        run.on_abort = stop.set
        with registry.running("alice", run):
            await stop.wait()
            await trio.sleep(4)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(work)
        await wait_all_tasks_blocked()
        with assert_checkpoints():
            assert await registry.abort_and_wait("alice", "enough") is True
        assert trio.current_time() == 4
        assert run.aborts == ["enough"]


async def test_abort_and_wait_waits_for_that_run_and_not_for_its_successor(
    registry: RunRegistry, autojump_clock: MockClock
) -> None:
    run = Turn()
    registry.register("alice", run)

    def end_at_once() -> None:
        registry.clear("alice", run)
        registry.register("alice", Turn())

    run.on_abort = end_at_once
    assert await registry.abort_and_wait("alice") is True
    assert trio.current_time() == 0


async def test_abort_and_wait_is_false_when_the_run_outlives_the_timeout(
    registry: RunRegistry, autojump_clock: MockClock
) -> None:
    registry.register("alice", Turn())
    assert await registry.abort_and_wait("alice", timeout=2) is False
    assert trio.current_time() == 2


async def test_abort_and_wait_is_true_at_once_when_there_is_no_run(registry: RunRegistry) -> None:
    with assert_checkpoints():
        assert await registry.abort_and_wait("alice") is True


async def test_what_the_run_raises_from_abort_is_raised(registry: RunRegistry) -> None:
    run = Turn()

    def fail() -> None:
        raise BrokenPipeError

    run.on_abort = fail
    registry.register("alice", run)
    with pytest.raises(BrokenPipeError):
        registry.abort("alice")
    with pytest.raises(BrokenPipeError):
        await registry.abort_and_wait("alice")
    assert registry.get("alice") is run
