"""Calls whose answers are lost: the store has done them, and the caller does not know it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from tests.durable.conformance.bench import Played, opening
from trio_lanes import JobCancelledError
from trio_lanes.durable import (
    MemoryStore,
    StoreUnavailableError,
    SubmittedJob,
    current_job,
    open_durable_lanes,
)
from trio_lanes.durable._rules.answers import RemembersAnswers
from trio_lanes.durable._rules.tables import LastStep
from trio_lanes.durable.acts.inspection import AllInstances


class Lossy:
    """A hold on a store whose answers are lost while ``loses`` says so."""

    def __init__(self, store: MemoryStore) -> None:
        self._inner = store
        self.loses: Callable[[str, Any], bool] = lambda name, answer: False
        self.calls: list[tuple[str, tuple[Any, ...], float]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def _call(self, name: str, *args: Any) -> Any:
        self.calls.append((name, args, trio.current_time()))
        me = self._inner.instance
        answer = await getattr(self._inner, name)(*args)
        if self.loses(name, answer):
            self._inner.instance = me  # which only an answer changes
            error = StoreUnavailableError("the answer was lost")
            error.unknown = True
            raise error
        return answer

    async def step(self, *args: Any) -> Any:
        return await self._call("step", *args)

    async def join(self, *args: Any) -> Any:
        return await self._call("join", *args)

    async def beat(self) -> Any:
        return await self._call("beat")


async def echo(payload: Any) -> Any:
    return payload


async def test_the_claims_of_a_step_whose_answer_was_lost_run(autojump_clock: MockClock) -> None:
    store: Any = Lossy(MemoryStore())
    lost = 0

    def loses(name: str, answer: Any) -> bool:
        nonlocal lost
        lost += name == "step" and lost < 3
        return name == "step" and lost < 3

    async with open_durable_lanes(store, {"echo": echo}) as lanes:
        store.loses = loses
        job = await lanes.submit("echo", "x", session="s")
        assert await job.wait() == "x"
        assert (await job.status()).crashes == 0
    steps = [args for name, args, _ in store.calls if name == "step"]
    assert max(map(steps.count, steps)) == 3  # asked again, unchanged


async def test_an_end_whose_report_had_no_answer_is_recorded_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store: Any = Lossy(MemoryStore())
    lost = 0

    def loses(name: str, answer: Any) -> bool:
        nonlocal lost
        reports = name == "step" and bool(store.calls[-1][1][1])
        lost += reports
        return reports and lost == 1

    async with open_durable_lanes(store, {"echo": echo}) as lanes:
        store.loses = loses
        assert await (await lanes.submit("echo", "x")).wait() == "x"
        await lanes.wait_idle()
    assert lost == 2
    assert "was not recorded" not in caplog.text


async def test_ends_are_reported_in_their_order_though_a_report_of_one_was_refused(
    autojump_clock: MockClock,
) -> None:
    class Refuses(Lossy):
        async def step(self, number: int, finished: Any, room: int) -> Any:
            reports.append([one.id for one in finished])
            if finished and len([ends for ends in reports if ends]) == 1:
                await trio.sleep(0.15)  # another run ends meanwhile
                raise StoreUnavailableError("the store is away")
            return await self._inner.step(number, finished, room)

    async def sleeps(seconds: Any) -> None:
        await trio.sleep(seconds)

    reports: list[list[int]] = []
    store: Any = Refuses(MemoryStore())
    async with open_durable_lanes(store, {"sleeps": sleeps}) as lanes:
        jobs = [await lanes.submit("sleeps", n / 10) for n in range(1, 4)]
        for job in jobs:
            await job.wait()
    assert [ends for ends in reports if ends] == [[jobs[0].id], [job.id for job in jobs]]


async def test_a_step_without_an_answer_is_dropped_with_its_incarnation(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    runs = 0

    async def counted(payload: Any) -> str:
        nonlocal runs
        runs += 1
        return "done"

    store: Any = Lossy(MemoryStore())
    async with open_durable_lanes(store, {"counted": counted}, max_crashes=1, lease_ttl=9) as lanes:
        store.loses = lambda name, answer: name in ("step", "beat")
        job = await lanes.submit("counted")
        await trio.sleep(8)  # the lease is over at 7.2
        store.loses = lambda name, answer: False
        assert await job.wait() == "done"
        assert runs == 1
        assert (await job.status()).crashes == 0
        assert len(await lanes.instances()) == 1
    assert "was not recorded" not in caplog.text


@pytest.mark.parametrize("recorded", [True, False])
async def test_an_answer_to_the_former_incarnation_counts_for_the_ends_that_it_recorded(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, recorded: bool
) -> None:
    class Slow(Lossy):
        async def step(self, number: int, finished: Any, room: int) -> Any:
            if finished and not held:
                held.append(finished)
                if recorded:
                    answer = await self._inner.step(number, finished, room)
                    await trio.sleep(10)  # the lease is over meanwhile
                    return answer
                me = self._inner.instance
                await trio.sleep(10)
                self._inner.instance, now = me, self._inner.instance
                answer = await self._inner.step(number, finished, room)
                self._inner.instance = now
                return answer
            return await self._inner.step(number, finished, room)

    runs: list[Any] = []

    async def note(payload: Any) -> str:
        runs.append(payload)
        return "done"

    held: list[Any] = []
    store: Any = Slow(MemoryStore())
    async with open_durable_lanes(store, {"note": note}, lease_ttl=9) as lanes:
        store.loses = lambda name, answer: name == "beat" and not runs[1:]
        job = await lanes.submit("note", 1)
        assert await job.wait() == "done"
        await trio.sleep(10)  # the lease is lost, and the late answer has come
        store.loses = lambda name, answer: False
        assert await (await lanes.submit("note", 2)).wait() == "done"
        assert (await job.status()).crashes == 0
    assert runs == [1, 2]
    assert "could not be reported" not in caplog.text


async def test_a_join_without_an_answer_is_asked_again_with_its_ticket(
    autojump_clock: MockClock,
) -> None:
    store: Any = Lossy(MemoryStore())
    async with open_durable_lanes(store, {"echo": echo}, lease_ttl=9) as lanes:
        answers = iter([True, True, False])
        store.loses = lambda name, answer: name == "beat" or (name == "join" and next(answers))
        await trio.sleep(9)
        store.loses = lambda name, answer: False
        assert await (await lanes.submit("echo", "x")).wait() == "x"
        joins = [args[0] for name, args, _ in store.calls if name == "join"]
        assert joins[1:] == [joins[1]] * 3
        (instance,) = await lanes.instances()
        assert instance.id == joins[1]


async def test_a_heartbeat_that_failed_is_sent_again_after_a_second(
    autojump_clock: MockClock,
) -> None:
    store: Any = Lossy(MemoryStore())
    async with open_durable_lanes(store, {"echo": echo}, lease_ttl=30) as lanes:
        store.loses = lambda name, answer: name == "beat" and trio.current_time() < 12
        await trio.sleep(25)
        beats = [time for name, _, time in store.calls if name == "beat"]
        assert beats == pytest.approx([10, 11, 12, 22])
        lanes.close()


async def test_the_end_waits_for_a_step_that_may_have_claimed(autojump_clock: MockClock) -> None:
    store: Any = Lossy(MemoryStore())
    async with open_durable_lanes(store, {"echo": echo}) as lanes:
        store.loses = lambda name, answer: name == "step" and trio.current_time() < 2
        job = await lanes.submit("echo", "x")
        await trio.sleep(0.1)
    assert trio.current_time() >= 2
    async with open_durable_lanes(store.another(), {}, worker=False) as asking:
        assert await asking.job(job.id).wait() == "x"


async def test_the_end_does_not_wait_for_ever_for_a_step_that_may_have_claimed(
    autojump_clock: MockClock,
) -> None:
    store: Any = Lossy(MemoryStore())
    async with open_durable_lanes(store, {"echo": echo}) as lanes:
        store.loses = lambda name, answer: name == "step"
        job = await lanes.submit("echo", "x")
        await trio.sleep(0.1)
    async with open_durable_lanes(store.another(), {"echo": echo}) as others:
        assert await others.job(job.id).wait() == "x"


async def test_a_join_that_comes_late_brings_no_incarnation_back(mock_clock: MockClock) -> None:
    store = Played(MemoryStore())
    async with store.open(opening()):
        await store.store.join("first")
        await store.enqueue([SubmittedJob(name="echo")])
        mock_clock.jump(5)
        await store.store.join("second")
        await store.store.join("first")
        (instance,) = await store.look(AllInstances())
        assert instance.id == "second"
        await store.leave()


def test_answers_are_remembered_for_five_minutes_or_until_they_are_too_many() -> None:
    answers = RemembersAnswers()
    answers._most_answers = 2
    answers.put_answer("a", [1], 0.0)
    assert answers.answer("a", 299.0) == ([1],)
    assert answers.answer("a", 300.0) is None
    answers.put_answer("b", None, 1.0)
    answers.put_answer("c", 3, 2.0)
    answers.commit_answers()
    assert answers.answer("a", 2.0) is None
    assert answers.answer("b", 2.0) == (None,)
    answers.put_answer("d", 4, 302.0)
    answers.commit_answers()
    assert [answers.answer(ticket, 302.0) for ticket in "bcd"] == [None, None, (4,)]
    assert [*answers._old_answers] == ["d"]


def test_answers_and_steps_of_an_undone_transaction_are_forgotten() -> None:
    answers = RemembersAnswers()
    first, second = LastStep(1, 10, ()), LastStep(2, 20, ())
    answers.put_answer("kept", 1, 0.0)
    answers.put_last_step("me", first)
    answers.commit_answers()
    answers.put_answer("undone", 2, 0.0)
    answers.put_last_step("me", second)
    answers.put_last_step("you", first)
    assert (answers.last_step("me"), answers.last_step("you")) == (second, first)
    answers.put_last_step("me", None)
    assert answers.last_step("me") is None
    answers.undo_answers()
    assert answers.answer("kept", 0.0) == (1,)
    assert answers.answer("undone", 0.0) is None
    assert (answers.last_step("me"), answers.last_step("you")) == (first, None)


@pytest.mark.parametrize("name", ["receive", "served"])
async def test_a_run_that_waits_after_an_answer_was_lost_ends_when_it_is_cancelled(
    name: str, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    waits, asked = getattr(MemoryStore, name), list[float]()

    async def once_lost(*args: Any) -> Any:
        asked.append(trio.current_time())
        if len(asked) == 1:
            await trio.lowlevel.checkpoint()
            error = StoreUnavailableError("the answer was lost")
            error.unknown = True
            raise error
        return await waits(*args)

    async def wait(payload: Any) -> None:
        run = current_job()
        assert run is not None
        if name == "receive":
            async for _ in run.messages():
                raise AssertionError
        async with lanes.lock("k"):
            raise AssertionError

    monkeypatch.setattr(MemoryStore, name, once_lost)
    async with open_durable_lanes(MemoryStore(), {"wait": wait}) as lanes, lanes.lock("k"):
        job = await lanes.submit("wait")
        await trio.sleep(5)
        assert len(asked) == 2
        await lanes.cancel(job.id)
        with pytest.raises(JobCancelledError):
            await job.wait()
        assert trio.current_time() < 6
