"""Bad input is an error at the call, it names the field and the value, and nothing has changed."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from trio_lanes import (
    JobState,
    LaneConfig,
    UnknownLaneError,
    open_lanes,
    resolve_global_lane,
    resolve_session_lane,
)

nan, inf = math.nan, math.inf

BAD_OPTIONS: list[tuple[str, Any]] = [
    *(("session", bad) for bad in ("", "  ", "session:", " session: ", 5, b"alice", [], {})),
    *(("lane", bad) for bad in ("nowhere", "session:alice", "*", 5, b"main", [], {})),
    *(("priority", bad) for bad in (nan, inf, 1.0, 1.5, "1", None, True, [])),
    *(
        (option, bad)
        for option in ("timeout", "queue_timeout", "idle_timeout", "delay")
        for bad in (-1, -0.1, -inf, nan, "1", True, [])
    ),
    *(("warn_after", bad) for bad in (-1, -inf, nan, "1", True, [])),
    *(("on_wait", bad) for bad in (5, "print", [])),
    *(("owner", bad) for bad in ([], {}, {"alice"})),
    *(("cost", bad) for bad in (-1, nan, inf, "1", None, True, [])),
    *(("delay", bad) for bad in (inf, None)),
    *(("name", bad) for bad in (5, b"name", [])),
    ("no_such_option", 1),
]

BAD_FIELDS: list[tuple[str, Any]] = [
    *(
        (field, bad)
        for field in ("concurrency", "max_waiting")
        for bad in (-1, -inf, nan, 1.0, 2.5, "4", None, True, [])
    ),
    *(
        (field, bad)
        for field in ("warn_after", "overdue_after")
        for bad in (-1, -0.5, -inf, nan, "4", None, True, [])
    ),
    *((field, bad) for field in ("paused", "fair") for bad in (0, 1, "yes", None, [])),
    *(("aging", bad) for bad in (0, -1, -inf, nan, "4", None, True, [])),
    *(("weights", bad) for bad in (5, "gold", None, ["gold"])),
    *(("rate", bad) for bad in (5, "60", None, {"requests": 60})),
    *(("wrap", bad) for bad in (5, "retry", [])),
    *(("limiter", bad) for bad in (5, inf, "shared", [])),
]

BAD_LANES: list[tuple[Any, str]] = [
    *(({"main": bad}, f"'main'.*concurrency.*{re.escape(repr(bad))}") for _, bad in BAD_FIELDS[:9]),
    ({"": 1}, "blank.*''"),
    ({" ": 1}, "blank.*' '"),
    ({5: 1}, "5"),
    ({None: 1}, "None"),
    ({"main": 1, " main ": 1}, "'main'.*twice"),
    ([("main", 1)], "lanes.*main"),
    ("main", "lanes.*main"),
    (None, "lanes.*None"),
    (5, "lanes.*5"),
]


def names(field: str, value: object) -> str:
    """A pattern for a message that names both."""
    words = {"session": "session", "lane": "lane"}
    return rf"(?s){words.get(field, field)}.*{re.escape(repr(value))}"


async def nothing() -> None:
    raise AssertionError("it must never be called")


# ---- options of a job


async def test_an_option_that_a_view_has_already_is_refused_by_a_public_name() -> None:
    async with open_lanes({"main": 1}) as lanes:
        views = {"lane": lanes.lane("main"), "session": lanes.session("alice")}
        for option, view in views.items():
            pattern = rf"^trio_lanes\.JobOptions\(\) .*'{option}'"
            options: Any = {option: "main"}
            with pytest.raises(TypeError, match=pattern):
                view.submit_nowait(nothing, **options)


@pytest.mark.parametrize("verb", ["run", "submit", "submit_nowait", "start_soon"])
@pytest.mark.parametrize(("option", "bad"), BAD_OPTIONS, ids=repr)
async def test_a_bad_option_is_an_error_that_names_it_and_submits_nothing(
    autojump_clock: MockClock, verb: str, option: str, bad: Any
) -> None:
    pattern = "no option 'no_such_option'" if option == "no_such_option" else names(option, bad)
    async with open_lanes({"main": 1, "cron": 1}) as lanes:
        lanes.start_soon(trio.sleep, 1, session="bob")
        before = lanes.statistics()
        for submitter in (lanes, lanes.lane("main"), lanes.session("alice")):
            bound = {"lane": "main", "session": "alice"}
            if submitter is not lanes and option in bound:
                continue  # that view has it already
            with pytest.raises((TypeError, ValueError, UnknownLaneError), match=pattern):
                result = getattr(submitter, verb)(nothing, **{option: bad})
                assert inspect.isawaitable(result), "a sync verb must raise at the call"
                await result
            assert lanes.statistics() == before
            assert lanes.sessions() == ["bob"]


TOO_LONG = 10**309  # a whole number above all floats, and so above all times of a clock


@pytest.mark.parametrize(
    "option", ["delay", "timeout", "queue_timeout", "idle_timeout", "warn_after"]
)
async def test_a_job_is_not_given_more_seconds_than_a_clock_can_tell(
    autojump_clock: MockClock, option: str
) -> None:
    async with open_lanes() as lanes:
        with pytest.raises(ValueError, match=names(option, TOO_LONG)):
            lanes.submit_nowait(nothing, **{option: TOO_LONG})
        assert lanes.jobs() == []
        await lanes.run(trio.sleep, 1)


async def test_no_wait_or_pause_is_given_more_seconds_than_a_clock_can_tell(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes() as lanes:
        with pytest.raises(ValueError, match=names("seconds", TOO_LONG)):
            lanes.pause_for("main", TOO_LONG)
        with pytest.raises(ValueError, match=names("timeout", TOO_LONG)):
            await lanes.wait_active(timeout=TOO_LONG)
        with pytest.raises(ValueError, match=names("retry_after", TOO_LONG)):
            lanes.close(retry_after=TOO_LONG)
        with pytest.raises(ValueError, match=names("grace", TOO_LONG)):
            await lanes.drain(grace=TOO_LONG)
        await lanes.wait_room(TOO_LONG)  # which is a number of jobs
        await lanes.run(trio.sleep, 1)


async def test_a_function_that_is_not_awaited_must_not_be_async(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes() as lanes:
        with pytest.raises(TypeError, match=r"on_wait.*synchronous.*nothing"):
            lanes.submit_nowait(trio.sleep, 1, on_wait=nothing)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"session.*synchronous.*nothing"):
            lanes.map(trio.sleep, [1], session=nothing)  # type: ignore[arg-type]
        assert lanes.jobs() == []


async def test_a_view_does_not_take_the_option_that_it_fills_in(
    autojump_clock: MockClock,
) -> None:
    async with open_lanes() as lanes:
        with pytest.raises(TypeError, match="lane"):
            lanes.lane("main").submit_nowait(nothing, lane="cron")
        with pytest.raises(TypeError, match="session"):
            lanes.session("alice").submit_nowait(nothing, session="bob")
        assert lanes.jobs() == []


@pytest.mark.parametrize(
    "options",
    [
        {"session": None},
        {"session": " alice "},
        {"session": "session:alice"},
        {"lane": " cron "},
        {"lane": ""},
        {"lane": None},
        {"priority": -(10**30)},
        {"timeout": inf},
        {"timeout": 5},
        {"queue_timeout": 0},
        {"queue_timeout": inf},
        {"warn_after": 0},
        {"warn_after": inf},
        {"warn_after": None},
        {"on_wait": None},
        {"name": "x"},
        {"meta": "any"},
    ],
    ids=str,
)
async def test_good_options_at_the_edge_are_taken(
    autojump_clock: MockClock, options: dict[str, Any]
) -> None:
    async with open_lanes() as lanes:
        job = lanes.submit_nowait(trio.sleep, 1, **options)
        await job.wait()
        assert job.state is JobState.SUCCEEDED


# ---- the function


def words_of_trio(fn: Any) -> str:
    """Return Trio's message without addresses for an object that is no async function."""
    with pytest.raises(TypeError) as refused:
        trio.lowlevel.spawn_system_task(fn)
    return without_addresses(refused.value)


def without_addresses(error: BaseException) -> str:
    return re.sub("0x[0-9a-f]+", "0x", str(error))


@pytest.mark.parametrize("verb", ["run", "submit", "submit_nowait", "start_soon"])
@pytest.mark.parametrize("fn", [None, 5, "name"])
async def test_what_cannot_be_called_is_refused_at_the_call_in_the_words_of_trio(
    autojump_clock: MockClock, verb: str, fn: Any
) -> None:
    async with open_lanes() as lanes:
        with pytest.raises(TypeError) as refused:
            result = getattr(lanes, verb)(fn)
            assert inspect.isawaitable(result), "a sync verb must raise at the call"
            await result
        assert without_addresses(refused.value) == words_of_trio(fn)
        assert lanes.jobs() == []


@pytest.mark.parametrize("verb", ["run", "submit", "submit_nowait", "start_soon"])
async def test_a_coroutine_object_is_refused_at_the_call_in_the_words_of_trio(
    autojump_clock: MockClock, verb: str
) -> None:
    async with open_lanes() as lanes:
        with pytest.raises(TypeError, match="nothing") as refused:
            result = getattr(lanes, verb)(nothing())
            assert inspect.isawaitable(result), "a sync verb must raise at the call"
            await result
        assert without_addresses(refused.value) == words_of_trio(nothing())
        assert lanes.jobs() == []


async def test_arguments_that_do_not_fit_fail_the_job(autojump_clock: MockClock) -> None:
    async with open_lanes() as lanes:
        job = lanes.submit_nowait(trio.sleep, 1, 2, 3)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="argument"):
            await job.wait()
        assert job.state is JobState.FAILED


# ---- configuration


@pytest.mark.parametrize(("field", "bad"), BAD_FIELDS, ids=repr)
def test_a_bad_field_of_a_config_is_an_error_that_names_it(field: str, bad: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=names(field, bad)):
        LaneConfig(**{field: bad})
    with pytest.raises((TypeError, ValueError), match=names(field, bad)):
        attrs.evolve(LaneConfig(), **{field: bad})


@pytest.mark.parametrize("bad", [0, -1, nan, inf, 1e-7, 1e7, 10**400, "4", None, True])
def test_a_weight_is_a_number_in_its_range(bad: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=names(r"weights\['\*'\]", bad)):
        LaneConfig(weights={"gold": 1, "*": bad})


@pytest.mark.parametrize("bad", [5, "", None])
def test_a_weight_is_for_an_owner_that_is_a_string(bad: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=names("weights", bad)):
        LaneConfig(weights={"gold": 1, bad: 2})


@pytest.mark.parametrize("field", ["warn_after", "overdue_after", "aging", "standstill_after"])
def test_a_config_has_no_more_seconds_than_a_clock_can_tell(field: str) -> None:
    with pytest.raises(ValueError, match=names(field, TOO_LONG)):
        LaneConfig(**{field: TOO_LONG})


def test_a_config_has_no_other_fields_is_keyword_only_and_frozen() -> None:
    with pytest.raises(TypeError, match="concurency"):
        LaneConfig(concurency=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        LaneConfig(1)  # type: ignore[misc]
    config = LaneConfig()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        config.concurrency = 2  # type: ignore[misc]
    assert config == LaneConfig(
        concurrency=1, max_waiting=inf, warn_after=2.0, overdue_after=10.0, paused=False
    )


def test_good_fields_at_the_edge_are_taken() -> None:
    config = LaneConfig(
        concurrency=inf, max_waiting=0, warn_after=inf, overdue_after=0, paused=True
    )
    assert (config.concurrency, config.max_waiting) == (inf, 0)
    assert (config.warn_after, config.overdue_after, config.paused) == (inf, 0, True)
    assert LaneConfig(concurrency=0).concurrency == 0


@pytest.mark.parametrize(("bad", "says"), BAD_LANES, ids=str)
def test_bad_lanes_are_an_error_where_open_lanes_is_called(bad: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"(?s){says}"):
        open_lanes(bad)


def test_no_lanes_at_all_are_allowed() -> None:
    async def main() -> None:
        async with open_lanes({}) as lanes:
            with pytest.raises(UnknownLaneError, match=r"'main'.*none"):
                lanes.submit_nowait(nothing)
            lanes.configure({"main": 1})
            await lanes.run(trio.sleep, 0)

    trio.run(main)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("warn_after", 3.0),
        ("overdue_after", 3.0),
        ("aging", 3.0),
        ("fair", True),
        ("weights", {"gold": 2}),
        ("limiter", trio.CapacityLimiter(3)),
    ],
)
def test_session_lanes_do_not_take_every_field(field: str, value: Any) -> None:
    config = LaneConfig(**{field: value})
    with pytest.raises(ValueError, match=rf"sessions.*{field}={re.escape(repr(value))}"):
        open_lanes(sessions=config)
    with pytest.raises(ValueError, match=rf"session:vip.*{field}={re.escape(repr(value))}"):
        open_lanes({"session:vip": config})


@pytest.mark.parametrize("bad", [None, 1, {"concurrency": 1}])
def test_what_sessions_are_like_is_a_config(bad: Any) -> None:
    with pytest.raises(TypeError, match=names("sessions", bad)):
        open_lanes(sessions=bad)


@pytest.mark.parametrize(
    "config",
    [LaneConfig(concurrency=3), LaneConfig(max_waiting=4), LaneConfig(paused=True)],
    ids=repr,
)
def test_session_lanes_take_their_fields(config: LaneConfig) -> None:
    open_lanes(sessions=config)


def test_instruments_are_checked_where_open_lanes_is_called() -> None:
    class Wrong:
        job_started = 5

    class NotSync:
        async def job_started(self, job: object) -> None:
            raise AssertionError("nobody would await it")

    with pytest.raises(TypeError, match=r"job_started.*5"):
        open_lanes(instruments=[Wrong()])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"job_started.*synchronous.*NotSync"):
        open_lanes(instruments=[NotSync()])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        open_lanes(instruments=5)  # type: ignore[arg-type]


# ---- names and numbers of the other verbs


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        ("nowhere", "'nowhere'"),
        (5, "lane name.*5"),
        (["main"], "lane name.*main"),
        ("session:", "session.*'session:'"),
        ("session:  ", "session"),
    ],
    ids=str,
)
async def test_a_bad_name_is_an_error_of_every_verb_and_changes_nothing(
    autojump_clock: MockClock, bad: Any, says: str
) -> None:
    async with open_lanes({"main": 1}) as lanes:
        running = lanes.submit_nowait(trio.sleep, 1)
        waiting = lanes.submit_nowait(trio.sleep, 1)
        before = lanes.statistics()
        sync: list[Callable[[Any], Any]] = [lanes.clear, lanes.reset, lanes.pause, lanes.resume]
        for verb in sync:
            with pytest.raises((TypeError, ValueError, UnknownLaneError), match=says):
                verb(bad)
        waits: list[Callable[[Any], Any]] = [
            lanes.wait_active,
            lanes.wait_idle,
            lanes.wait_empty,
            partial(lanes.wait_room, 1),
        ]
        for wait in waits:
            with pytest.raises((TypeError, ValueError, UnknownLaneError), match=says):
                await wait(bad)
        with pytest.raises((TypeError, UnknownLaneError)):
            lanes.lane(bad)
        assert lanes.statistics() == before
        assert lanes.sessions() == []
        assert (running.state, waiting.state) == (JobState.RUNNING, JobState.WAITING)
        assert lanes.lane("main").generation == 0


@pytest.mark.parametrize("bad", ["", "  ", "session:", 5, None, []])
async def test_a_bad_session_key_is_an_error_and_wakes_no_lane(bad: Any) -> None:
    async with open_lanes() as lanes:
        with pytest.raises((TypeError, ValueError), match=names("session", bad)):
            lanes.session(bad)
        assert lanes.sessions() == []


@pytest.mark.parametrize("bad", [0, -1, 1.5, nan, -inf, "1", None, True])
async def test_a_bad_number_of_jobs_to_wait_for_is_an_error(bad: Any) -> None:
    async with open_lanes({"main": 1}) as lanes:
        for wait in (lanes.wait_room, lanes.lane("main").wait_room):
            with pytest.raises((TypeError, ValueError), match=names("n", bad)):
                await wait(bad)


@pytest.mark.parametrize("bad", [-1, nan, -inf, "1", None, True])
async def test_a_bad_timeout_of_a_wait_is_an_error(bad: Any) -> None:
    async with open_lanes({"main": 1}) as lanes:
        for wait in (lanes.wait_active, lanes.lane("main").wait_active):
            with pytest.raises((TypeError, ValueError), match=names("timeout", bad)):
                await wait(timeout=bad)


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        *(("grace", bad) for bad in (-1, nan, "1", None, True)),
        *(("cancel_grace", bad) for bad in (-1, nan, "1", None, True)),
        *(("waiting", bad) for bad in ("drop", None, True, 5)),
    ],
    ids=repr,
)
async def test_a_bad_drain_closes_nothing(autojump_clock: MockClock, field: str, bad: Any) -> None:
    async with open_lanes({"main": 1}) as lanes:
        lanes.start_soon(trio.sleep, 1)
        lanes.start_soon(trio.sleep, 1)
        before = lanes.statistics()
        with pytest.raises((TypeError, ValueError), match=names(field, bad)):
            await lanes.drain(**{field: bad})
        assert lanes.statistics() == before
        lanes.start_soon(trio.sleep, 1)


@pytest.mark.parametrize("bad", [-1, nan, inf, "soon", True])
async def test_a_bad_retry_after_closes_nothing(autojump_clock: MockClock, bad: Any) -> None:
    async with open_lanes({"main": 1}) as lanes:
        with pytest.raises((TypeError, ValueError), match=names("retry_after", bad)):
            lanes.close("later", retry_after=bad)
        await lanes.run(trio.sleep, 1)


@pytest.mark.parametrize("bad", [5, None, b"alice", []])
def test_a_session_key_that_is_no_string_has_no_lane(bad: Any) -> None:
    with pytest.raises(TypeError, match=names("session", bad)):
        resolve_session_lane(bad)


@pytest.mark.parametrize("bad", [5, b"main", []])
def test_a_lane_name_that_is_no_string_means_no_lane(bad: Any) -> None:
    with pytest.raises(TypeError, match=names("lane", bad)):
        resolve_global_lane(bad)
