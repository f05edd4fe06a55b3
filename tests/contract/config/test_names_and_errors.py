"""Names of lanes and of jobs, and the texts of the errors."""

import functools
import pickle
import re
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

import trio_lanes
from tests.support.bodies import returns, returns_at_once
from trio_lanes import (
    JobCancelledError,
    JobState,
    JobTimeoutError,
    LaneClearedError,
    LaneDeadlockError,
    LaneError,
    LaneFullError,
    LaneResetError,
    LanesClosedError,
    QueueTimeoutError,
    UnknownLaneError,
    is_probe_lane,
    open_lanes,
    resolve_global_lane,
    resolve_session_lane,
)

# ---- names


@pytest.mark.parametrize(
    ("key", "name"),
    [
        ("alice", "session:alice"),
        ("  alice \n", "session:alice"),
        ("session:alice", "session:alice"),
        (" session: alice ", "session:alice"),
        ("", "session:main"),
        ("   ", "session:main"),
        ("session:", "session:main"),
        ("session:  ", "session:main"),
        ("Session:alice", "session:Session:alice"),
        ("a b:c", "session:a b:c"),
    ],
)
def test_a_session_key_becomes_the_name_of_its_lane(key: str, name: str) -> None:
    assert resolve_session_lane(key) == name
    assert resolve_session_lane(name) == name


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("cron", "cron"),
        ("  cron\t", "cron"),
        ("", "main"),
        ("   ", "main"),
        (None, "main"),
        ("main", "main"),
        ("auth-probe:x", "auth-probe:x"),
    ],
)
def test_a_word_becomes_the_name_of_a_global_lane(given: str | None, name: str) -> None:
    assert resolve_global_lane(given) == name


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("auth-probe:models", True),
        ("auth-probe:", True),
        ("session:probe-1", True),
        ("session:probe-", True),
        ("auth-probe", False),
        ("session:probe", False),
        ("session:my-probe-1", False),
        ("probe-1", False),
        ("my-auth-probe:x", False),
        ("session:auth-probe:x", False),
        ("main", False),
    ],
)
def test_a_probe_lane_is_known_by_the_beginning_of_its_name(name: str, is_one: bool) -> None:
    assert is_probe_lane(name) is is_one


async def test_spellings_of_one_session_are_one_session(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 4}) as lanes:
        jobs = [
            lanes.submit_nowait(returns, session=key)
            for key in ("alice", " alice ", "session:alice", " session: alice ")
        ]
        assert lanes.sessions() == ["alice"]
        assert {job.session for job in jobs} == {"alice"}
        assert [job.state for job in jobs] == [JobState.RUNNING] + 3 * [JobState.WAITING]
        assert lanes.session(" session:alice").waiting == 3
        assert lanes.session("alice").name == "session:alice"
        assert lanes.clear(" session:alice ") == 3


async def test_a_session_key_with_or_without_its_prefix_is_one_session(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        for key in ("session:session:bob", "bob", "session:bob", "session: session: bob"):
            job = lanes.submit_nowait(returns, session=key)
            assert job.session == lanes.session(key).key == "bob"
            assert resolve_session_lane(key) == lanes.session(key).name == "session:bob"
        assert lanes.sessions() == ["bob"]


async def test_spellings_of_one_lane_are_one_lane(autojump_clock: MockClock) -> None:
    async with open_lanes({" main ": 1, "cron": 1}) as lanes:
        jobs = [lanes.submit_nowait(returns, lane=name) for name in ("main", "  main", "")]
        assert {job.lane for job in jobs} == {"main"}
        assert lanes.lane(" main ").waiting == 2
        assert lanes.clear(" main") == 2
        assert list(lanes.statistics().lanes) == ["main", "cron"]


async def test_a_session_is_not_a_lane_of_the_same_name(autojump_clock: MockClock) -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.submit_nowait(returns, session="cron")
        lanes.submit_nowait(returns, session="cron")
        lanes.submit_nowait(returns, lane="cron")
        lanes.submit_nowait(returns, lane="cron")
        assert lanes.clear("session:cron") == 1
        assert lanes.clear("cron") == 1


@pytest.mark.parametrize("bad", ["", "  ", "session:", "session:  \n"])
async def test_a_blank_session_is_a_value_error_and_none_is_no_session(bad: str) -> None:
    async with open_lanes() as lanes:
        with pytest.raises(ValueError, match=f"session.*{re.escape(repr(bad))}"):
            lanes.submit_nowait(returns_at_once, session=bad)
        with pytest.raises(ValueError, match="session"):
            await lanes.run(returns_at_once, session=bad)
        with pytest.raises(ValueError, match="session"):
            lanes.session(bad)
        job = lanes.submit_nowait(returns_at_once, session=None)
        assert job.session is None
        assert lanes.sessions() == []


async def test_an_unknown_lane_is_an_error_that_names_the_existing_lanes() -> None:
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        calls: list[Callable[[], object]] = [
            lambda: lanes.submit_nowait(returns_at_once, lane="corn"),
            lambda: lanes.start_soon(returns_at_once, lane="corn"),
            lambda: lanes.lane("corn"),
            lambda: lanes.clear("corn"),
            lambda: lanes.reset("corn"),
            lambda: lanes.pause("corn"),
            lambda: lanes.resume("corn"),
        ]
        for call in calls:
            with pytest.raises(UnknownLaneError) as caught:
                call()
            assert (caught.value.name, caught.value.lanes) == ("corn", ("main", "cron"))
            assert str(caught.value) == "there is no lane 'corn'; the lanes are: 'main', 'cron'"
        with pytest.raises(UnknownLaneError, match=r"; a session is named by session=$"):
            lanes.submit_nowait(returns_at_once, lane="session:alice")
        waits: list[Callable[[], Awaitable[object]]] = [
            lambda: lanes.run(returns_at_once, lane="corn"),
            lambda: lanes.submit(returns_at_once, lane="corn"),
            lambda: lanes.wait_active("corn"),
            lambda: lanes.wait_idle("corn"),
            lambda: lanes.wait_empty("corn"),
            lambda: lanes.wait_room(1, "corn"),
        ]
        for wait in waits:
            with pytest.raises(UnknownLaneError):
                await wait()
        assert lanes.jobs() == []
    async with open_lanes({}) as lanes:
        with pytest.raises(UnknownLaneError, match="none"):
            lanes.lane("main")


# ---- errors


ERRORS = [
    (UnknownLaneError("corn", ["main"]), LookupError),
    (LaneFullError("main", 5), trio.WouldBlock),
    (LanesClosedError("restarting", 30.0), trio.ClosedResourceError),
    (LanesClosedError(), trio.ClosedResourceError),
    (LaneDeadlockError("a waits for b"), LaneError),
    (JobCancelledError("why"), LaneError),
    (JobCancelledError(), LaneError),
    (LaneClearedError("main", "why"), JobCancelledError),
    (LaneClearedError("main"), JobCancelledError),
    (LaneResetError("main"), JobCancelledError),
    (JobTimeoutError("timeout", 5), trio.TooSlowError),
    (QueueTimeoutError(5), trio.TooSlowError),
]


@pytest.mark.parametrize(("error", "kin"), ERRORS, ids=lambda value: getattr(value, "args", None))
def test_every_error_is_a_lane_error_and_kin_of_what_trio_would_raise(
    error: LaneError, kin: type[Exception]
) -> None:
    assert isinstance(error, LaneError)
    assert isinstance(error, kin)
    assert type(error).__module__ == "trio_lanes"
    assert getattr(trio_lanes, type(error).__name__) is type(error)


@pytest.mark.parametrize("error", [error for error, _ in ERRORS], ids=repr)
def test_an_error_survives_a_journey_to_another_process(error: LaneError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (LaneFullError("main", 5), ["main", "5"]),
        (LanesClosedError("restarting", 30.0), ["restarting", "30.0 s"]),
        (LanesClosedError("restarting"), ["restarting"]),
        (JobCancelledError("why"), ["cancelled", "why"]),
        (LaneClearedError("main", "why"), ["main", "cleared", "why"]),
        (LaneResetError("main"), ["main", "reset"]),
        (JobTimeoutError("timeout", 5), ["timeout", "5 s"]),
        (QueueTimeoutError(5), ["queue_timeout", "5 s"]),
    ],
    ids=repr,
)
def test_the_text_of_an_error_has_its_attributes(error: LaneError, words: list[str]) -> None:
    for word in words:
        assert word in str(error)
    assert "None" not in str(error)


# ---- functions that are submitted


def not_async() -> str:
    return "value"


async def generator() -> AsyncGenerator[int, None]:
    yield 1


def without_addresses(words: str) -> str:
    return re.sub("0x[0-9a-f]+", "", words)


async def trios_own_words(fn: Any) -> str:
    with pytest.raises(BaseException) as caught:  # noqa: PT011
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fn)
    error = caught.value
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    assert type(error) is TypeError
    return str(error)


class ReturnsNoCoroutine:
    def __call__(self) -> object:
        return 5


@pytest.mark.parametrize("fn", [not_async, generator, ReturnsNoCoroutine(), lambda: None])
async def test_a_function_that_is_not_async_fails_as_a_job_with_trios_own_type_error(
    fn: Any, autojump_clock: MockClock
) -> None:
    expected = await trios_own_words(fn)
    async with open_lanes({"main": 1}) as lanes:
        job = lanes.submit_nowait(fn)
        with pytest.raises(TypeError) as caught:
            await job.wait()
        assert without_addresses(str(caught.value)) == without_addresses(expected)
        assert job.state is JobState.FAILED
        with pytest.raises(TypeError):
            await lanes.run(fn)
        assert await lanes.run(returns) == "value"


async def test_a_function_is_first_called_when_its_job_starts(autojump_clock: MockClock) -> None:
    called: list[float] = []

    def fn(argument: str) -> Awaitable[str]:
        called.append(trio.current_time())
        return returns()

    async with open_lanes({"main": 1}) as lanes:
        lanes.submit_nowait(trio.sleep, 5)
        job = lanes.submit_nowait(fn, "argument")
        cancelled = lanes.submit_nowait(fn, "argument")
        cancelled.cancel()
        await trio.sleep(3)
        assert called == []
        assert await job.wait() == "value"
        assert called == [5]


async def test_any_callable_that_returns_a_coroutine_is_accepted(autojump_clock: MockClock) -> None:
    class Agent:
        async def __call__(self, text: str) -> str:
            return f"called with {text}"

        async def method(self, text: str) -> str:
            return f"method with {text}"

    async def two(one: str, other: str) -> str:
        return one + other

    async with open_lanes() as lanes:
        agent = Agent()
        assert await lanes.run(agent, "hi") == "called with hi"
        assert await lanes.run(agent.method, "hi") == "method with hi"
        assert await lanes.run(functools.partial(two, "a"), "b") == "ab"
        assert await lanes.run(lambda: two("c", "d")) == "cd"
        assert await lanes.run(functools.partial(two, other="f"), "e") == "ef"


async def test_a_job_is_named_for_its_function_unless_it_has_a_name_of_its_own(
    autojump_clock: MockClock,
) -> None:
    class Agent:
        async def __call__(self, *args: str) -> None: ...

        async def method(self) -> None: ...

        def __repr__(self) -> str:
            return "<an agent>"

    async with open_lanes() as lanes:
        names = [
            lanes.submit_nowait(fn).name
            for fn in (returns, functools.partial(returns), Agent().method, Agent())
        ]
        assert names[:2] == ["returns", "returns"]
        assert names[2].endswith("Agent.method")
        assert names[3] == "<an agent>"
        held = functools.partial(functools.partial(Agent(), "a secret"), "another")
        assert lanes.submit_nowait(held).name == "<an agent>"
        job = lanes.submit_nowait(returns, name="reply", meta={"turn": 5})
        assert (job.name, job.meta) == ("reply", {"turn": 5})
        assert "'reply'" in repr(job)
