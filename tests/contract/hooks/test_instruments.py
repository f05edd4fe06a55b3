"""Instruments: each hook is told the right thing at the right moment, and what hooks may do."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.track import Track
from trio_lanes import (
    Job,
    JobState,
    Lane,
    LaneConfig,
    LaneFullError,
    LaneGroup,
    LaneInstrument,
    Lanes,
    RateLimit,
    SessionLane,
    UnknownLaneError,
    current_job,
    open_lanes,
)

AnyLane = Lane | SessionLane

mark: ContextVar[str] = ContextVar("mark", default="nobody's")


class Notes(LaneInstrument):
    """Writes down every call of every hook, with the state at that moment."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def of(self, *names: str) -> list[tuple[Any, ...]]:
        return [call for call in self.calls if call[0] in names]

    def job_submitted(self, job: Job[Any]) -> None:
        assert job.state is JobState.WAITING
        self.calls.append(("submitted", job.name))

    def job_forwarded(self, job: Job[Any]) -> None:
        assert job.state is JobState.WAITING
        self.calls.append(("forwarded", job.name))

    def job_started(self, job: Job[Any]) -> None:
        assert job.state is JobState.RUNNING
        assert job.started_at == trio.current_time()
        self.calls.append(("started", job.name))

    def job_finished(self, job: Job[Any]) -> None:
        assert job.done
        assert job.finished_at == trio.current_time()
        self.calls.append(("finished", job.name, job.state))

    def job_waiting_long(self, job: Job[Any], waited: float) -> None:
        assert job.state is JobState.WAITING
        self.calls.append(("waiting long", job.name, waited))

    def lane_idle(self, lane: AnyLane) -> None:
        assert lane.waiting == lane.active == 0
        self.calls.append(("idle", lane.name))

    def lane_empty(self, lane: AnyLane) -> None:
        assert lane.waiting == 0
        self.calls.append(("empty", lane.name))

    def lane_paused(self, lane: AnyLane) -> None:
        assert lane.paused
        self.calls.append(("paused", lane.name))

    def lane_resumed(self, lane: AnyLane) -> None:
        assert not lane.paused
        self.calls.append(("resumed", lane.name))

    def lane_cleared(self, lane: AnyLane, count: int, reason: str | None) -> None:
        self.calls.append(("cleared", lane.name, count, reason))

    def lane_reset(self, lane: AnyLane, abandoned: int) -> None:
        self.calls.append(("reset", lane.name, abandoned))

    def lanes_closing(self, reason: str, retry_after: float | None) -> None:
        self.calls.append(("closing", reason, retry_after))


@pytest.fixture(autouse=True)
def no_errors_in_the_log(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """A hook that fails an assertion is only logged, so look there."""
    yield
    if "broken" not in request.fixturenames:
        found = [record for record in caplog.get_records("call") if record.levelname == "ERROR"]
        assert found == []


# ---- what each is told


async def test_the_way_of_a_job_through_both_layers_is_told_step_by_step(
    autojump_clock: MockClock,
) -> None:
    notes = Notes()
    async with open_lanes({"main": 1}, instruments=[notes]) as lanes:
        lanes.start_soon(trio.sleep, 1, name="a", session="alice")
        lanes.start_soon(trio.sleep, 1, name="b", session="alice")
        assert notes.calls == [
            ("submitted", "a"),
            ("forwarded", "a"),
            ("started", "a"),
            ("submitted", "b"),
        ]
        notes.calls.clear()
        await lanes.wait_idle()
    jobs = notes.of("submitted", "forwarded", "started", "finished")
    assert jobs == [
        ("finished", "a", JobState.SUCCEEDED),
        ("forwarded", "b"),
        ("started", "b"),
        ("finished", "b", JobState.SUCCEEDED),
    ]


async def test_a_job_without_a_session_is_not_forwarded(autojump_clock: MockClock) -> None:
    notes = Notes()
    async with open_lanes({"main": 1}, instruments=[notes]) as lanes:
        lanes.start_soon(trio.sleep, 1, name="a")
    assert notes.of("submitted", "forwarded", "started", "finished") == [
        ("submitted", "a"),
        ("started", "a"),
        ("finished", "a", JobState.SUCCEEDED),
    ]


@pytest.mark.parametrize("change", ["the dear job is raised", "the cheap job is lowered"])
async def test_a_job_that_the_rate_of_its_session_stops_is_not_told_as_forwarded(
    change: str, autojump_clock: MockClock
) -> None:
    notes = Notes()
    rate = RateLimit(10, 100.0, unit="tokens", algorithm="sliding")
    sessions = LaneConfig(concurrency=3, rate=rate)
    async with open_lanes({"main": 1}, sessions=sessions, instruments=[notes]) as lanes:
        alice = lanes.session("alice")
        await alice.run(trio.sleep, 0, cost={"tokens": 8})
        lanes.pause("main")
        cheap = alice.submit_nowait(trio.sleep, 0, name="cheap", cost={"tokens": 1})
        dear = alice.submit_nowait(trio.sleep, 0, name="dear", cost={"tokens": 9}, priority=-1)
        notes.calls.clear()
        if change == "the dear job is raised":
            dear.priority = 1
        else:
            cheap.priority = -2
        assert notes.calls == []
        assert lanes.lane("main").statistics().waiting_in_lane == 0
        assert [blocker.kind for blocker in dear.blocked_by()] == ["rate"]
        lanes.resume("main")
        await cheap.wait()
        assert notes.of("forwarded") == [("forwarded", "dear"), ("forwarded", "cheap")]


async def test_a_job_that_is_taken_back_and_forwarded_again_is_told_again(
    autojump_clock: MockClock,
) -> None:
    notes = Notes()
    async with open_lanes({"main": 1}, instruments=[notes]) as lanes:
        lanes.start_soon(trio.sleep, 1, name="blocker")
        lanes.start_soon(trio.sleep, 1, name="a", session="alice")
        lanes.start_soon(trio.sleep, 1, name="better", session="alice", priority=1)
    assert notes.of("forwarded") == [
        ("forwarded", "a"),
        ("forwarded", "better"),
        ("forwarded", "a"),
    ]


async def test_every_submitted_job_is_told_to_finish_exactly_once(
    autojump_clock: MockClock,
) -> None:
    async def fail() -> None:
        raise ValueError

    notes = Notes()
    with trio.move_on_after(20):
        async with open_lanes({"main": 3, "cron": 0}, instruments=[notes]) as lanes:
            jobs = [
                lanes.submit_nowait(trio.sleep, 1, name="returned"),
                lanes.submit_nowait(fail, name="failed"),
                lanes.submit_nowait(trio.sleep, 9, name="timed out", timeout=1),
                lanes.submit_nowait(trio.sleep, 9, name="withdrawn"),
                lanes.submit_nowait(trio.sleep, 9, name="cleared", lane="cron"),
                lanes.submit_nowait(trio.sleep, 9, name="too late", queue_timeout=0),
                lanes.submit_nowait(trio.sleep, 9, name="late", lane="cron", queue_timeout=1),
            ]
            jobs[3].cancel()
            lanes.clear("cron")
            jobs.append(lanes.submit_nowait(trio.sleep, 9, name="out of time", queue_timeout=0))
            await lanes.wait_idle()
            assert jobs[1].exception is not None
            assert jobs[2].exception is not None
            jobs += [
                lanes.submit_nowait(trio.sleep, 9, name="cancelled"),
                lanes.submit_nowait(trio.sleep, 9, name="reset"),
            ]
            await wait_all_tasks_blocked()
            jobs[-2].cancel()
            await wait_all_tasks_blocked()
            lanes.reset()
            jobs += [
                lanes.submit_nowait(trio.sleep_forever, name="running at the end"),
                lanes.submit_nowait(trio.sleep, 9, name="waiting at the end", lane="cron"),
            ]
            await trio.sleep_forever()
    finished = [call[1] for call in notes.of("finished")]
    assert sorted(finished) == sorted(job.name for job in jobs)
    assert {call[1]: call[2] for call in notes.of("finished")} == {
        job.name: job.state for job in jobs
    }
    assert [call[1] for call in notes.of("submitted")] == [job.name for job in jobs]


@pytest.mark.many_seeds(5)
async def test_a_lane_is_told_to_be_empty_when_its_last_job_starts_and_idle_when_that_ends(
    autojump_clock: MockClock,
) -> None:
    notes = Notes()
    times: dict[tuple[str, str], list[float]] = {}

    class Times:
        def lane_empty(self, lane: AnyLane) -> None:
            times.setdefault(("empty", lane.name), []).append(trio.current_time())

        def lane_idle(self, lane: AnyLane) -> None:
            times.setdefault(("idle", lane.name), []).append(trio.current_time())

    async with open_lanes({"main": 1, "cron": 1}, instruments=[notes, Times()]) as lanes:
        lanes.start_soon(trio.sleep, 5, session="bob")
        lanes.start_soon(trio.sleep, 1, session="alice")
        await lanes.wait_idle()
    assert times == {
        ("empty", "main"): [5.0],
        ("empty", "session:alice"): [5.0],
        ("idle", "session:bob"): [5.0],
        ("idle", "main"): [6.0],
        ("idle", "session:alice"): [6.0],
    }


async def test_a_job_that_starts_at_once_leaves_no_lane_empty_and_its_end_leaves_it_idle(
    autojump_clock: MockClock,
) -> None:
    notes = Notes()
    async with open_lanes({"main": 1}, instruments=[notes]) as lanes:
        lanes.start_soon(trio.sleep, 1, session="alice")
        lanes.start_soon(trio.sleep, 1, session="alice", queue_timeout=math.inf)
        await lanes.wait_idle()
        notes.calls.clear()
        lanes.start_soon(trio.sleep, 1, session="alice")
        await lanes.wait_idle()
    assert sorted(notes.of("empty", "idle")) == [("idle", "main"), ("idle", "session:alice")]


async def test_a_lane_in_which_the_next_job_starts_at_once_was_never_idle(
    autojump_clock: MockClock,
) -> None:
    notes = Notes()
    async with open_lanes({"main": 1}, instruments=[notes]) as lanes:
        for i in range(3):
            lanes.start_soon(trio.sleep, 1, session="alice" if i % 2 else "bob")
        await lanes.wait_idle()
    assert notes.of("idle").count(("idle", "main")) == 1
    assert notes.of("empty").count(("empty", "main")) == 1


async def test_a_clear_that_leaves_nothing_waiting_is_told_with_its_count_and_reason(
    autojump_clock: MockClock,
) -> None:
    notes = Notes()
    async with open_lanes({"main": 1, "cron": 1}, instruments=[notes]) as lanes:
        for _ in range(3):
            lanes.submit_nowait(trio.sleep, 1, name="job", session="alice")
        notes.calls.clear()
        assert lanes.clear("session:alice", reason="enough") == 2
        assert notes.of("cleared") == [("cleared", "session:alice", 2, "enough")]
        assert notes.of("finished") == [("finished", "job", JobState.CANCELLED)] * 2
        assert sorted(notes.of("empty")) == [("empty", "main"), ("empty", "session:alice")]
        assert notes.calls.index(("cleared", "session:alice", 2, "enough")) > 1
        notes.calls.clear()
        lanes.submit_nowait(trio.sleep, 1, name="job")
        assert lanes.clear() == 1
        assert notes.of("cleared") == [
            ("cleared", "main", 1, None),
            ("cleared", "cron", 0, None),
        ]


async def test_a_reset_is_told_with_the_number_of_jobs_given_up(
    autojump_clock: MockClock,
) -> None:
    notes = Notes()
    async with open_lanes({"main": 2}, instruments=[notes]) as lanes:
        for name in "abc":
            lanes.submit_nowait(trio.sleep, 1, name=name)
        await wait_all_tasks_blocked()
        notes.calls.clear()
        lanes.reset("main")
        assert notes.calls[:3] == [
            ("finished", "a", JobState.CANCELLED),
            ("finished", "b", JobState.CANCELLED),
            ("reset", "main", 2),
        ] or notes.calls[:3] == [
            ("finished", "b", JobState.CANCELLED),
            ("finished", "a", JobState.CANCELLED),
            ("reset", "main", 2),
        ]
        assert notes.calls[3] == ("started", "c")


async def test_pausing_and_resuming_are_told_once_of_each_lane_that_changes(
    autojump_clock: MockClock,
) -> None:
    notes = Notes()
    async with open_lanes(
        {"main": 1, "cron": LaneConfig(paused=True)}, instruments=[notes]
    ) as lanes:
        lanes.resume("main")
        assert notes.calls == []
        lanes.pause()
        lanes.pause("main")
        assert notes.calls == [("paused", "main")]
        lanes.session("alice").pause()
        lanes.session("alice").pause()
        lanes.resume()
        lanes.resume("session:alice")
        lanes.resume("session:alice")
        lanes.configure({"main": LaneConfig(paused=True)})
        lanes.configure({"main": LaneConfig()})
        assert notes.calls[1:] == [
            ("paused", "session:alice"),
            ("resumed", "main"),
            ("resumed", "cron"),
            ("resumed", "session:alice"),
            ("paused", "main"),
            ("resumed", "main"),
        ]


async def test_starts_by_a_resume_are_told_after_the_resume(
    autojump_clock: MockClock,
) -> None:
    notes = Notes()
    async with open_lanes({"main": LaneConfig(paused=True)}, instruments=[notes]) as lanes:
        lanes.start_soon(trio.sleep, 1, name="a")
        lanes.resume()
        assert notes.calls == [
            ("submitted", "a"),
            ("resumed", "main"),
            ("started", "a"),
            ("empty", "main"),
        ]


@pytest.mark.parametrize("whose", ["lane", "session", "group"])
async def test_a_head_that_waits_for_a_rate_is_told_once_whosever_rate_it_is(
    autojump_clock: MockClock, whose: str
) -> None:
    told: list[tuple[str, float]] = []

    class Limited:
        def lane_rate_limited(self, lane: AnyLane, until: float) -> None:
            told.append((lane.name, until))

    rated = LaneConfig(concurrency=9, rate=RateLimit(1, 10, algorithm="sliding"))
    plain = LaneConfig(concurrency=9)
    async with open_lanes(
        {"main": rated if whose == "lane" else plain, "cron": plain},
        sessions=rated if whose == "session" else plain,
        groups={"key": LaneGroup(["main", "cron"], rate=rated.rate if whose == "group" else ())},
        instruments=[Limited()],
    ) as lanes:
        for _ in range(3):
            lanes.submit_nowait(trio.sleep, 1, session="alice")
        await trio.sleep(5)
        lanes.submit_nowait(trio.sleep, 1, lane="cron", session="bob")
        await trio.sleep(25)
    lane = "session:alice" if whose == "session" else "main"
    assert told == [(lane, 10.0), (lane, 20.0)] + [("cron", 30.0)] * (whose == "group")


async def test_closing_is_told_once_with_its_reason(autojump_clock: MockClock) -> None:
    notes = Notes()
    async with open_lanes(instruments=[notes]) as lanes:
        lanes.close("maintenance", retry_after=5)
        lanes.close("again")
        await lanes.drain()
    assert notes.of("closing") == [("closing", "maintenance", 5)]


async def test_leaving_the_block_is_told_as_closing(autojump_clock: MockClock) -> None:
    notes = Notes()
    async with open_lanes(instruments=[notes]):
        pass
    assert len(notes.of("closing")) == 1


async def test_lanes_are_told_as_views_that_can_be_used(autojump_clock: MockClock) -> None:
    seen: list[AnyLane] = []

    class Keep:
        def lane_idle(self, lane: AnyLane) -> None:
            seen.append(lane)

    track = Track()
    async with open_lanes({"main": 1}, instruments=[Keep()]) as lanes:
        await lanes.run(track.sleep, "a", session="alice")
        session, lane = sorted(seen, key=lambda lane: isinstance(lane, Lane))
        assert isinstance(session, SessionLane)
        assert isinstance(lane, Lane)
        assert (session.name, lane.name) == ("session:alice", "main")
        session.submit_nowait(track.sleep, "b")
        lane.submit_nowait(track.sleep, "c")
    assert track.ended == ["a", "b", "c"]


@pytest.mark.parametrize("verb", ["run", "clear"])
async def test_a_hook_can_read_a_lane_that_another_hook_has_just_removed(
    autojump_clock: MockClock, verb: str
) -> None:
    told: list[tuple[str, str, int, int]] = []

    class Remove:
        def job_finished(self, job: Job[Any]) -> None:
            lanes.configure({"cron": None})

    class Read:
        def lane_idle(self, lane: Lane) -> None:
            told.append(("idle", lane.label, lane.waiting, lane.statistics().finished))

        def lane_cleared(self, lane: Lane, count: int, reason: str | None) -> None:
            told.append(("cleared", lane.label, lane.waiting, count))
            with pytest.raises(UnknownLaneError):
                lane.submit_nowait(trio.sleep, 1)

    async with open_lanes({"cron": 1}, instruments=[Remove(), Read()]) as lanes:
        if verb == "run":
            await lanes.run(trio.sleep, 1, lane="cron")
            assert told == [("idle", "cron", 0, 1)]
        else:
            lanes.pause("cron")
            lanes.submit_nowait(trio.sleep, 1, lane="cron")
            lanes.clear("cron")
            assert told == [("cleared", "cron", 0, 1), ("idle", "cron", 0, 0)]
        assert lanes.statistics().lanes == {}


async def test_several_instruments_are_told_in_their_order(autojump_clock: MockClock) -> None:
    order: list[str] = []

    class Named:
        def __init__(self, name: str) -> None:
            self.name = name

        def job_started(self, job: Job[Any]) -> None:
            order.append(self.name)

    async with open_lanes(instruments=[Named("first"), Named("second")]) as lanes:
        lanes.start_soon(trio.sleep, 0)
    assert order == ["first", "second"]


# ---- in which context


@pytest.mark.parametrize("blocks", [False, True])
async def test_job_started_and_finished_are_called_in_the_context_of_their_job(
    autojump_clock: MockClock, blocks: bool
) -> None:
    seen: list[tuple[str, str, str]] = []

    class Contexts:
        def job_submitted(self, job: Job[Any]) -> None:
            seen.append(("submitted", job.name, mark.get()))

        def job_started(self, job: Job[Any]) -> None:
            seen.append(("started", job.name, mark.get()))
            mark.set(f"{job.name}, started")

        def job_finished(self, job: Job[Any]) -> None:
            seen.append(("finished", job.name, mark.get()))

    async def body(name: str) -> str:
        before = mark.get()
        if blocks:
            await trio.sleep(1)
            assert mark.get() == before
        mark.set(f"{name}, ended")
        return before

    async with open_lanes({"main": 1}, instruments=[Contexts()]) as lanes:
        jobs = {}
        for name in "ab":
            mark.set(f"{name}, submitted")
            jobs[name] = lanes.submit_nowait(body, name, name=name)
        mark.set("the block's")
        for name, job in jobs.items():
            assert await job.wait() == f"{name}, started"
        assert mark.get() == "the block's"
    assert [each for each in seen if each[1] == "a"] == [
        ("submitted", "a", "a, submitted"),
        ("started", "a", "a, submitted"),
        ("finished", "a", "a, ended"),
    ]
    assert [each for each in seen if each[1] == "b"] == [
        ("submitted", "b", "b, submitted"),
        ("started", "b", "b, submitted"),
        ("finished", "b", "b, ended"),
    ]


@pytest.mark.parametrize("how", ["cancel", "clear", "reset", "queue_timeout", "by itself"])
async def test_however_a_job_ends_its_end_is_told_in_its_own_context(
    autojump_clock: MockClock, how: str
) -> None:
    seen: list[str] = []

    class Contexts:
        def job_finished(self, job: Job[Any]) -> None:
            seen.append(mark.get())

    async def reset_myself() -> None:
        mark.set("the job's own")
        lanes.reset()

    async with open_lanes({"main": 1}, instruments=[Contexts()]) as lanes:
        if how in ("cancel", "clear", "queue_timeout"):
            lanes.pause()
        mark.set("the job's own")
        job = lanes.submit_nowait(
            reset_myself if how == "by itself" else trio.sleep_forever, queue_timeout=5
        )
        mark.set("another's")
        if how == "cancel":
            job.cancel()
        elif how == "clear":
            lanes.clear()
        elif how == "reset":
            await wait_all_tasks_blocked()
            lanes.reset()
        await job.wait_done()
        assert mark.get() == "another's"
    assert seen == ["the job's own"]


async def test_current_job_is_not_that_of_a_hook(autojump_clock: MockClock) -> None:
    seen: list[Any] = []

    class Current:
        def job_started(self, job: Job[Any]) -> None:
            seen.append(current_job())

    async with open_lanes(instruments=[Current()]) as lanes:
        lanes.start_soon(trio.sleep, 0)
    assert seen == [None]


# ---- hooks that raise


def every_hook(act: Callable[[str], None]) -> tuple[type, list[str]]:
    """A class whose every hook calls ``act`` with its own name, and these names."""
    names = [name for name in vars(LaneInstrument) if name.startswith(("job_", "lane"))]

    def make(name: str) -> Callable[..., None]:
        def hook(self: object, *args: object) -> None:
            act(name)

        return hook

    return type("Every", (), {name: make(name) for name in names}), names


async def everything(lanes: Lanes, track: Track) -> None:
    """A story in which nearly every hook is called."""
    for i in range(3):
        lanes.start_soon(track.sleep, i, 3, session="alice")
    lanes.pause("cron")
    lanes.submit_nowait(track.sleep, "cleared", lane="cron")
    await trio.sleep(2.5)
    lanes.clear("cron")
    lanes.resume("cron")
    lanes.reset("cron")
    await lanes.wait_idle()
    lanes.close()


HOOKS_OF_THE_STORY = [
    "lanes_opened",
    "job_submitted",
    "job_forwarded",
    "job_started",
    "job_finished",
    "job_waiting_long",
    "lane_idle",
    "lane_empty",
    "lane_paused",
    "lane_resumed",
    "lane_cleared",
    "lane_reset",
    "lanes_closing",
]


@pytest.mark.parametrize("broken", HOOKS_OF_THE_STORY)
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
async def test_an_instrument_whose_hook_raises_is_logged_and_removed_and_nothing_else_happens(
    autojump_clock: MockClock,
    caplog: pytest.LogCaptureFixture,
    broken: str,
    error: type[BaseException],
) -> None:
    calls: list[str] = []

    def act(name: str) -> None:
        calls.append(name)
        if name == broken:
            raise error("broken")

    cls, _ = every_hook(act)
    notes = Notes()
    track = Track()
    async with open_lanes({"main": 2, "cron": 1}, instruments=[cls(), notes]) as lanes:
        await everything(lanes, track)
    assert calls.count(broken) == 1
    assert calls[-1] == broken  # nothing of it is called any more
    assert track.ended == [0, 1, 2]
    assert len(notes.of("finished")) == 4  # the other instrument is still told
    (record,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert record.name == "trio_lanes"
    assert "Every" in record.getMessage()
    assert record.exc_info is not None
    assert isinstance(record.exc_info[1], error)


@pytest.mark.parametrize("broken", ["job_submitted", "job_started", "job_finished", "lane_idle"])
async def test_an_instrument_whose_failure_cannot_even_be_logged_is_removed_all_the_same(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def refuse(*_: object) -> bool:
        raise ZeroDivisionError

    def fail(*_: object) -> None:
        calls.append(broken)
        raise ValueError

    class Broken:
        def __getattr__(self, name: str) -> Any:
            if name == broken:
                return fail
            raise AttributeError(name)

    calls: list[str] = []
    notes = Notes()
    monkeypatch.setattr(logging.getLogger("trio_lanes"), "filters", [refuse])
    with trio.fail_after(100):
        async with open_lanes({"main": 1}, instruments=[Broken(), notes]) as lanes:
            await lanes.run(trio.sleep, 1)
            await lanes.run(trio.sleep, 1)
    assert calls == [broken]
    assert len(notes.of("finished")) == 2


async def test_the_story_calls_every_hook_it_should(autojump_clock: MockClock) -> None:
    calls: list[str] = []
    cls, names = every_hook(calls.append)
    async with open_lanes({"main": 2, "cron": 1}, instruments=[cls()]) as lanes:
        await everything(lanes, Track())
    assert set(calls) == set(HOOKS_OF_THE_STORY)
    assert set(names) - set(calls) == {
        "job_overdue",
        "lane_rate_limited",
        "job_lent",
        "job_readmitted",
        "job_regained",
        "job_cancel_called",
        "job_rejected",
        "lane_configured",
    }


# ---- hooks that act


class Acts:
    """An instrument that acts the first time that one of its hooks is called."""

    def __init__(self, hook: str, act: Callable[[Any], object]) -> None:
        self.acted = 0

        def once(*args: Any) -> None:
            if not self.acted:
                self.acted += 1
                act(*args[:1])

        setattr(self, hook, once)


JOB_HOOKS = ["job_submitted", "job_forwarded", "job_started", "job_finished"]
LANE_HOOKS = ["lane_idle", "lane_empty"]


@pytest.mark.many_seeds(3)
@pytest.mark.parametrize("session", [None, "alice", "bob"])
@pytest.mark.parametrize("hook", [*JOB_HOOKS, *LANE_HOOKS])
async def test_a_hook_may_submit_and_no_limit_is_exceeded(
    autojump_clock: MockClock, hook: str, session: str | None
) -> None:
    track = Track()
    submitted: list[Job[Any]] = []

    def act(subject: Any) -> None:
        for i in range(3):
            job = lanes.submit_nowait(track.sleep, f"hook{i}", session=session, name="hook's")
            assert job.state is JobState.WAITING  # nothing is started in the middle of it
            submitted.append(job)

    async with open_lanes({"main": 1}, instruments=[Acts(hook, act)]) as lanes:
        for i in range(2):
            lanes.start_soon(track.sleep, i, session="alice")
        await lanes.wait_idle()
        await lanes.wait_idle()
    assert len(submitted) == 3
    assert track.peak == 1
    assert sorted(track.ended, key=str) == [0, 1, "hook0", "hook1", "hook2"]
    assert [label for label in track.started if label in (0, 1)] == [0, 1]
    mine = [label for label in track.started if label not in (0, 1)]
    assert mine == ["hook0", "hook1", "hook2"]


@pytest.mark.parametrize("hook", JOB_HOOKS)
async def test_a_hook_may_cancel_the_job_that_it_is_told_of(
    autojump_clock: MockClock, hook: str
) -> None:
    track = Track()
    async with open_lanes(
        {"main": 1}, instruments=[Acts(hook, lambda job: job.cancel("by a hook"))]
    ) as lanes:
        first = lanes.submit_nowait(track.sleep, "first", session="alice")
        second = lanes.submit_nowait(track.sleep, "second", session="alice")
        await second.wait()
        expected = {
            "job_submitted": (JobState.CANCELLED, ["second"]),
            "job_forwarded": (JobState.CANCELLED, ["second"]),
            "job_started": (JobState.CANCELLED, ["first", "second"]),
            "job_finished": (JobState.SUCCEEDED, ["first", "second"]),
        }[hook]
        assert (first.state, track.started) == expected
        assert lanes.jobs() == []
        assert lanes.sessions() == []
        assert lanes.lane("main").limiter.borrowed_tokens == 0


@pytest.mark.parametrize("hook", JOB_HOOKS)
@pytest.mark.parametrize("name", ["main", "session:alice"])
async def test_a_hook_may_pause_and_nothing_starts_after_that(
    autojump_clock: MockClock, hook: str, name: str
) -> None:
    track = Track()
    async with open_lanes(
        {"main": 1}, instruments=[Acts(hook, lambda job: lanes.pause(name))]
    ) as lanes:
        for i in range(3):
            lanes.submit_nowait(track.sleep, i, session="alice")
        await trio.sleep(10)
        already = {"job_submitted": 0, "job_forwarded": 0, "job_started": 1, "job_finished": 1}
        assert len(track.started) == already[hook]
        lanes.resume(name)
        await lanes.wait_idle()
    assert track.ended == [0, 1, 2]


@pytest.mark.parametrize("hook", [*JOB_HOOKS, *LANE_HOOKS])
@pytest.mark.parametrize("verb", ["clear", "reset"])
async def test_a_hook_may_clear_or_reset_everything(
    autojump_clock: MockClock, hook: str, verb: str
) -> None:
    track = Track()
    async with open_lanes(
        {"main": 1}, instruments=[Acts(hook, lambda subject: getattr(lanes, verb)())]
    ) as lanes:
        jobs = [lanes.submit_nowait(track.sleep, i, session="alice") for i in range(3)]
        jobs += [lanes.submit_nowait(track.sleep, 10 + i) for i in range(2)]
        with trio.fail_after(100):
            await lanes.wait_idle()
        assert all(job.done for job in jobs)
        statistics = lanes.statistics()
        assert (statistics.waiting, statistics.active, statistics.sessions) == (0, 0, 0)
        assert lanes.lane("main").limiter.borrowed_tokens == 0
        await lanes.run(track.sleep, "after", session="alice")
    assert track.peak == 1


async def test_a_lane_into_which_the_hook_for_its_emptiness_submits_is_not_idle(
    autojump_clock: MockClock,
) -> None:
    track = Track()
    notes = Notes()

    def act(lane: AnyLane) -> None:
        lanes.submit_nowait(track.sleep, "by the hook", 5)

    async with open_lanes({"main": 1}, instruments=[notes, Acts("lane_empty", act)]) as lanes:
        lanes.pause()
        job = lanes.submit_nowait(track.sleep, "cancelled")
        job.cancel()
        lanes.resume()
        await lanes.wait_idle()
        assert track.ended == ["by the hook"]
        assert notes.of("idle") == [("idle", "main")]
        assert trio.current_time() == 5.0


async def test_a_hook_may_close_the_lanes(autojump_clock: MockClock) -> None:
    track = Track()
    async with open_lanes(
        {"main": 1}, instruments=[Acts("job_finished", lambda job: lanes.close("by a hook"))]
    ) as lanes:
        for i in range(3):
            lanes.submit_nowait(track.sleep, i)
        await lanes.wait_idle()
        assert "closed" in repr(lanes)
    assert track.ended == [0, 1, 2]


async def test_a_hook_that_submits_to_a_full_lane_is_refused(autojump_clock: MockClock) -> None:
    refused: list[LaneFullError] = []

    class SubmitMore:
        def job_submitted(self, job: Job[Any]) -> None:
            try:
                lanes.submit_nowait(trio.sleep, 1)
            except LaneFullError as error:
                refused.append(error)

    async with open_lanes({"main": LaneConfig(max_waiting=2)}, instruments=[SubmitMore()]) as lanes:
        lanes.submit_nowait(trio.sleep, 1)
        assert len(refused) == 1
        assert lanes.lane("main").waiting == 1
        await lanes.wait_idle()


async def test_a_hook_sees_other_jobs_settled_that_it_cancels(autojump_clock: MockClock) -> None:
    notes = Notes()

    def act(job: Job[Any]) -> None:
        for other in lanes.jobs():
            if other is not job:
                assert other.cancel()
                assert other.done

    async with open_lanes({"main": 1}, instruments=[Acts("job_finished", act), notes]) as lanes:
        for name in "abcd":
            lanes.submit_nowait(trio.sleep, 1, name=name)
        await lanes.wait_idle()
    assert {call[1]: call[2] for call in notes.of("finished")} == {
        "a": JobState.SUCCEEDED,
        "b": JobState.CANCELLED,
        "c": JobState.CANCELLED,
        "d": JobState.CANCELLED,
    }


# ---- no recursion


@pytest.mark.parametrize("hook", ["job_finished", "lane_idle", "job_started", "job_submitted"])
async def test_a_chain_of_many_jobs_that_hooks_submit_is_no_recursion(
    autojump_clock: MockClock, hook: str
) -> None:
    n = 2_000 if hook != "job_submitted" else 20  # that hook is called inside the call itself
    ran = 0

    async def body() -> None:
        nonlocal ran
        ran += 1

    submitted = 1

    def submit(self: object, subject: object) -> None:
        nonlocal submitted
        if submitted < n:
            submitted += 1
            lanes.start_soon(body)

    chain = type("Chain", (), {hook: submit})
    async with open_lanes({"main": 1}, instruments=[chain()]) as lanes:
        lanes.start_soon(body)
        while ran < n:
            await lanes.wait_idle()
            await trio.lowlevel.checkpoint()
    assert ran == n


async def test_cancelling_many_jobs_from_the_hooks_of_one_another_is_no_recursion(
    autojump_clock: MockClock,
) -> None:
    """Each job that settles cancels the next: as deep as hooks call lanes, and no deeper."""
    jobs: list[Job[Any]] = []

    class CancelNext:
        def job_finished(self, job: Job[Any]) -> None:
            if job.meta % 50 and job.meta + 1 < len(jobs):
                jobs[job.meta + 1].cancel()

    async with open_lanes({"main": 0}, instruments=[CancelNext()]) as lanes:
        jobs += [lanes.submit_nowait(trio.sleep, 1, meta=i) for i in range(1000)]
        for i in range(1, 1000, 50):
            jobs[i].cancel()
        lanes.clear()
        assert all(job.done for job in jobs)
