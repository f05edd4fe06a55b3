"""The edges of what runs say, and of what is said to them."""

import pytest
import trio
from trio.testing import MockClock

from trio_lanes import JobCancelledError
from trio_lanes.durable import EventGapError, MemoryStore, current_job, open_durable_lanes
from trio_lanes.durable._rules.history import forgiven
from trio_lanes.durable._rules.tables import INSTANCES
from trio_lanes.durable.acts import runs


async def test_a_job_that_has_its_fill_of_messages_gets_no_more(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async def listen(payload: object) -> list[object]:
        run = current_job()
        assert run is not None
        messages = run.messages()
        heard = [await anext(messages) for _ in range(2)]
        await trio.sleep(1)
        return heard

    monkeypatch.setattr(runs, "MESSAGES_KEPT", 2)
    async with open_durable_lanes(MemoryStore(), {"listen": listen}) as lanes:
        job = await lanes.submit("listen", session="alice")
        await trio.sleep(0.1)
        assert await lanes.send("alice", "one")
        assert await lanes.send(job.id, "two", key="two")
        assert (await lanes.send("alice", "three")).reason == "not_streaming"
        assert await lanes.send("alice", "two", key="two")  # it is the second
        assert await job.wait() == ["one", "two"]


async def test_a_message_that_a_run_did_not_take_is_refused_when_it_ends(
    autojump_clock: MockClock,
) -> None:
    async def deaf(payload: object) -> None:
        await trio.sleep(1)

    async with open_durable_lanes(MemoryStore(), {"deaf": deaf}) as lanes:
        job = await lanes.submit("deaf", session="alice")
        await trio.sleep(0.1)
        result = await lanes.send("alice", "hello")
        assert (bool(result), result.reason) == (False, "stopped")
        await job.wait()


async def test_a_reader_of_events_that_are_not_kept_gets_an_error_and_no_gap(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    async def speak(payload: object) -> None:
        run = current_job()
        assert run is not None
        for n in range(1, 6):
            await run.emit(n)
        await trio.sleep(10)
        for n in range(6, 11):
            await run.emit(n)

    monkeypatch.setattr(runs, "EVENTS_KEPT", 3)
    async with open_durable_lanes(MemoryStore(), {"speak": speak}) as lanes:
        job = await lanes.submit("speak")
        await trio.sleep(1)
        late = job.events()
        for _ in range(2):
            with pytest.raises(
                EventGapError, match=r"number 0 are not all .* first is 3"
            ) as caught:
                await anext(late)
        assert (caught.value.after, caught.value.first) == (0, 3)
        slow = job.events(after=caught.value.first - 1)
        assert [await anext(slow) for _ in range(3)] == [(3, 3), (4, 4), (5, 5)]
        await trio.sleep(20)
        with pytest.raises(EventGapError, match=r"number 5 are not all .* first is 8"):
            await anext(slow)
        assert [number async for number, _ in job.events(after=7)] == [8, 9, 10]
        assert [number async for number, _ in job.events(after=10)] == []


def test_a_run_is_forgiven_by_its_fence() -> None:
    history = '[1,7,"host",1,1.0,2.0,"crashed",null]'
    assert forgiven(history, 8) == history
    assert '"released"' in forgiven(history, 7)


@pytest.mark.parametrize("act", ["take", "emit", "receive"])
async def test_a_lost_run_can_neither_take_jobs_nor_say_nor_hear_anything(
    act: str, autojump_clock: MockClock
) -> None:
    store = MemoryStore()
    lost = trio.Event()

    async def talk_on(payload: object) -> None:
        run = current_job()
        assert run is not None
        (instance,) = store._tables.of(INSTANCES).values()
        for record in store._tables.running(instance.id):
            record.fence += 1000  # as another claim does
        with trio.CancelScope(shield=True):
            with pytest.raises(JobCancelledError, match="the run was lost"):
                if act == "take":
                    await run.take({}, None)
                elif act == "emit":
                    await run.emit("hello")
                else:
                    async for _ in run.messages():
                        raise AssertionError
        lost.set()

    async with open_durable_lanes(store, {"talk": talk_on}, grace=0) as lanes:
        await lanes.submit("talk")
        await lost.wait()
