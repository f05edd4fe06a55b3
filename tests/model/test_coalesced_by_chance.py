"""Random submissions under keys, compared with a model: which handle each of them gets, what runs,
when, and what each caller sees.

In the first test the lane is so wide that a session alone holds a job, and no two events fall
together: the model is exact. The second has narrow lanes, rates and room, and callers who give up:
what it checks holds in every order.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Hashable
from contextlib import suppress
from math import inf
from typing import Any

import attrs
import hypothesis
import hypothesis.strategies as st
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.support.chaos import examples
from trio_lanes import (
    Coalesce,
    Job,
    JobState,
    LaneConfig,
    LaneError,
    LaneFullError,
    Lanes,
    RateLimit,
    open_lanes,
)
from trio_lanes.testing import LaneRecorder

SESSIONS = ("a", "b")
KEYS = ("x", "y")


def drawn_coalesce(draw: random.Random) -> Coalesce:
    debounce = draw.choice([0, 0, 1.37, 3.37])
    return Coalesce(
        draw.choice(KEYS),
        keep=draw.choice(["latest", "latest", "first"]),
        debounce=debounce,
        max_wait=draw.choice([inf, debounce, debounce + 2.29]),
        while_running=draw.choice(["wait", "wait", "drop"]),
    )


@attrs.define(eq=False)
class Planned:
    """A job of the model."""

    number: int
    session: str
    key: Hashable
    content: int
    seconds: float
    submitted: float
    due: float
    submissions: int = 1
    started: float = inf
    ended: float = inf


class Model:
    """What is to become of the submissions."""

    def __init__(self) -> None:
        self.jobs: list[Planned] = []

    def submit(
        self, now: float, session: str, content: int, seconds: float, coalesce: Coalesce | None
    ) -> Planned | None:
        """Return the job that the submission is; None if it is refused."""
        if coalesce is None:
            return self._new(now, session, content, seconds, None, now)
        same = [job for job in self.jobs if job.key == coalesce.key and now < job.ended]
        if not same or (same[-1].started <= now and coalesce.while_running == "wait"):
            due = now + coalesce.debounce
            return self._new(now, session, content, seconds, coalesce.key, due)
        job = same[-1]
        if job.session != session:
            return None
        job.submissions += 1
        if job.started > now:
            due = min(now + coalesce.debounce, max(now, job.submitted + coalesce.max_wait))
            job.due = due if max(due, job.due) > now else job.due  # else it stands in line
            if coalesce.keep == "latest":
                job.content, job.seconds = content, seconds
        return job

    def _new(
        self, now: float, session: str, content: int, seconds: float, key: Hashable, due: float
    ) -> Planned:
        job = Planned(len(self.jobs), session, key, content, seconds, now, due)
        self.jobs.append(job)
        return job

    def advance(self, now: float) -> None:
        """Let jobs start up to ``now``: in each session the first that is due."""
        for session in SESSIONS:
            while True:
                mine = [job for job in self.jobs if job.session == session]
                waiting = [job for job in mine if job.started == inf]
                free = max((job.ended for job in mine if job.started < inf), default=0)
                when = max(free, min((job.due for job in waiting), default=inf))
                if not waiting or when > now:
                    break
                job = next(job for job in waiting if job.due <= when)
                job.started, job.ended = when, when + job.seconds


@hypothesis.settings(max_examples=examples(60), deadline=None)
@hypothesis.given(st.integers(0, 2**32), st.random_module())
def test_each_submission_is_the_job_that_the_model_says(seed: int, seeds: object) -> None:
    draw = random.Random(seed)
    model = Model()
    ran: list[tuple[int, float]] = []
    handles: dict[Job[int], Planned] = {}

    async def body(content: int, seconds: float) -> int:
        ran.append((content, trio.current_time()))
        await trio.sleep(seconds)
        return content

    async def story() -> None:
        recorder = LaneRecorder()
        async with open_lanes(
            {"main": inf}, instruments=[recorder], wait_accounting=draw.random() < 0.5
        ) as lanes:
            for content in range(draw.randint(1, 25)):
                now = trio.current_time()
                model.advance(now)
                session, seconds = draw.choice(SESSIONS), draw.randint(0, 4) + 0.013
                coalesce = drawn_coalesce(draw) if draw.random() < 0.7 else None
                planned = model.submit(now, session, content, seconds, coalesce)
                try:
                    job = lanes.submit_nowait(
                        body, content, seconds, session=session, coalesce=coalesce
                    )
                except ValueError:
                    assert planned is None
                else:
                    assert planned is not None
                    assert handles.setdefault(job, planned) is planned
                    assert job.submissions == planned.submissions
                model.advance(now)
                await trio.sleep(draw.choice([0, 0, 0.5, 1, 2]) + 0.0001 * draw.random())
                await wait_all_tasks_blocked()
        recorder.check()
        model.advance(inf)
        for job, planned in handles.items():
            assert await job.wait() == planned.content
            assert job.started_at is not None
            assert job.finished_at is not None
            assert abs(job.started_at - planned.started) < 1e-6
            assert abs(job.finished_at - planned.ended) < 1e-6
            assert abs(job.submitted_at + job.delay - planned.due) < 1e-6
            assert (
                not job.waits
                or abs(sum(job.waits.values()) - (job.started_at - job.submitted_at)) < 1e-6
            )
        assert len(ran) == len(handles) == len(model.jobs)

    trio.run(story, clock=MockClock(autojump_threshold=0))


@hypothesis.settings(max_examples=examples(60), deadline=None)
@hypothesis.given(st.integers(0, 2**32), st.random_module())
def test_nothing_is_lost_whatever_callers_do(seed: int, seeds: object) -> None:
    draw = random.Random(seed)
    ran: list[int] = []
    under: defaultdict[Hashable, set[int]] = defaultdict(set)  # {key: contents of submissions}

    async def body(content: int, seconds: float) -> int:
        ran.append(content)
        await trio.sleep(seconds)
        return content

    def look(lanes: Lanes) -> None:
        waiting = [job for job in lanes.jobs() if job.state is JobState.WAITING]
        keys = [job.meta for job in waiting if job.meta is not None]
        assert len(keys) == len({*keys})

    async def caller(lanes: Lanes, content: int) -> None:
        coalesce = drawn_coalesce(draw) if draw.random() < 0.8 else None
        key = None if coalesce is None else coalesce.key
        options: dict[str, Any] = {
            "session": draw.choice([None, *SESSIONS]) if coalesce is None else f"of {key}",
            "priority": draw.choice([0, 0, 0, 1]),
            "owner": draw.choice(["o", "p"]),
            "cost": draw.choice([1, 1, 2]),
            "queue_timeout": draw.choice([inf, inf, 3.1]),
            "warn_after": draw.choice([2.0, 0.5]),
            "meta": key,
            "coalesce": coalesce,
        }
        if key == "y":
            options["session"] = None
        seconds = draw.choice([0, 0.5, 1])
        under[key].add(content)
        verb: Callable[..., Any] = draw.choice([lanes.run, lanes.submit, lanes.submit_nowait])
        with suppress(LaneError), trio.move_on_after(draw.choice([inf, inf, 0.25, 1.25])):
            if verb == lanes.submit_nowait:
                try:
                    job: Job[int] = verb(body, content, seconds, **options)
                except LaneFullError:
                    return
                result = await job.wait()
            elif verb == lanes.submit:
                result = await (await verb(body, content, seconds, **options)).wait()
            else:
                result = await verb(body, content, seconds, **options)
            assert result in (under[key] if coalesce is not None else {content})
            assert result in ran

    async def story() -> None:
        recorder = LaneRecorder()
        main = LaneConfig(
            concurrency=draw.choice([1, 2]),
            max_waiting=draw.choice([inf, 2, 1]),
            rate=draw.choice([(), RateLimit(2, per=1, algorithm="sliding")]),
            fair=draw.random() < 0.3,
            aging=draw.choice([inf, 0.5]),
        )
        sessions = LaneConfig(max_waiting=draw.choice([inf, 1]))
        async with open_lanes(
            {"main": main},
            sessions=sessions,
            instruments=[recorder],
            wait_accounting=draw.random() < 0.5,
        ) as lanes:
            async with trio.open_nursery() as nursery:
                for content in range(draw.randint(1, 25)):
                    nursery.start_soon(caller, lanes, content)
                    await trio.sleep(draw.choice([0, 0, 0.25, 1]))
                    look(lanes)
                    if draw.random() < 0.05:
                        lanes.pause()
                    elif draw.random() < 0.05:
                        lanes.clear()
                    elif draw.random() < 0.3:
                        lanes.resume()
                lanes.resume()
            await lanes.wait_idle()
        recorder.check()
        assert len(ran) == len({*ran}) == len(recorder.started)

    trio.run(story, clock=MockClock(autojump_threshold=0))
