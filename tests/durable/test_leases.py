"""Instances that lose their leases, on a store that has them, in virtual time."""

import json
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.durable.conformance.bench import Played, opening
from trio_lanes import JobCancelledError
from trio_lanes.durable import (
    DurableState,
    InstanceInfo,
    JobDeadError,
    MemoryStore,
    RetryPolicy,
    SqliteStore,
    StoreUnavailableError,
    SubmittedJob,
    current_job,
    open_durable_lanes,
)
from trio_lanes.durable._rules.tables import INSTANCES
from trio_lanes.durable.acts.inspection import StatusOf
from trio_lanes.durable.acts.runs import Checkpoint


class Cut:
    """A hold on a store that can be cut off from it."""

    def __init__(self, store: MemoryStore) -> None:
        self._inner = store
        self.cut = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


for _name in ("step", "join", "beat", "do"):

    def _make(name: str) -> Any:
        async def call(self: Cut, *args: Any, **options: Any) -> Any:
            if self.cut:
                await trio.lowlevel.checkpoint()
                raise StoreUnavailableError("the network is cut")
            return await getattr(self._inner, name)(*args, **options)

        return call

    setattr(Cut, _name, _make(_name))


async def sleeps(payload: Any) -> str:
    await trio.sleep(payload)
    return f"slept {payload}"


async def test_heartbeats_keep_a_lease_for_ever(autojump_clock: MockClock) -> None:
    async with open_durable_lanes(MemoryStore(), {"sleeps": sleeps}, lease_ttl=7) as lanes:
        (before,) = await lanes.instances()
        assert await (await lanes.submit("sleeps", 1000)).wait() == "slept 1000"
        (after,) = await lanes.instances()
        assert before.id == after.id


def test_a_lease_that_a_call_could_outlast_is_refused() -> None:
    store = MemoryStore()
    for patience, least in ((5.0, "6.25"), (0.4, "0.5")):
        store.patience = patience
        open_durable_lanes(store, {}, lease_ttl=1.25 * patience)
        with pytest.raises(ValueError, match=f"lease_ttl must be at least {least}, "):
            open_durable_lanes(store, {}, lease_ttl=1.24 * patience)
        open_durable_lanes(store, {}, lease_ttl=0.1, worker=False)
    open_durable_lanes(SqliteStore("jobs.db"), {}, lease_ttl=0.1)  # it has no leases


async def test_what_an_instance_runs_is_cancelled_before_its_lease_can_be_over(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    times: list[tuple[str, float]] = []

    async def notes(payload: Any) -> int:
        run = current_job()
        assert run is not None
        times.append((f"begins {run.crashes}", trio.current_time()))
        try:
            await trio.sleep(20)
        except trio.Cancelled:
            times.append(("cancelled", trio.current_time()))
            raise
        return run.crashes

    memory = MemoryStore()
    store = Cut(memory.another())
    async with (
        open_durable_lanes(memory, {"notes": notes}, {"main": 1}, lease_ttl=10) as other,
        open_durable_lanes(store, {"notes": notes}, {"main": 1}, lease_ttl=10) as lanes,
    ):
        await other.pause("main")
        job = await other.submit("notes")
        other._worker.claiming = False  # type: ignore[union-attr]
        await other.resume("main")
        await wait_all_tasks_blocked()
        assert times == [("begins 0", 0.0)]
        store.cut = True
        await trio.sleep(7.9)
        assert len(times) == 1
        await trio.sleep(0.2)
        assert times[1] == ("cancelled", 8.0)
        assert "has lost its lease" in caplog.text
        await trio.sleep(7)
        assert (await other.job(job.id).status()).crashes == 1
        store.cut = False
        assert await other.job(job.id).wait() == 0  # it was no crash, it says when it is back
        assert [what for what, _ in times] == ["begins 0", "cancelled", "begins 0"]
        assert len(await lanes.instances()) == 2


async def test_a_job_does_not_run_again_while_its_body_ends_within_the_rest_of_the_lease(
    autojump_clock: MockClock,
) -> None:
    class NoBeats(Cut):
        async def beat(self) -> bool:
            await trio.lowlevel.checkpoint()
            raise StoreUnavailableError("the network is cut")

    times: list[tuple[str, float]] = []

    async def tidies_up(payload: Any) -> None:
        times.append(("begins", trio.current_time()))
        if len(times) > 1:
            return
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            times.append(("ends", trio.current_time()))

    store: Any = NoBeats(MemoryStore())
    async with open_durable_lanes(store, {"tidies up": tidies_up}, lease_ttl=10) as lanes:
        await (await lanes.submit("tidies up")).wait()
    assert times == [("begins", 0.0), ("ends", 9.0), ("begins", 9.0)]


@pytest.mark.parametrize(("slow", "sent"), [("join", 0.0), ("beat", 3.0)])
async def test_a_lease_counts_from_the_sending_and_not_from_the_answer(
    slow: str, sent: float, autojump_clock: MockClock
) -> None:
    class SlowAnswer(Cut):
        async def answer(self, name: str, *args: Any) -> Any:
            answer = await getattr(self._inner, name)(*args)
            if name == slow and not self.cut:
                await trio.sleep(2)
                self.cut = True  # it is the last answer that comes
            return answer

        async def join(self, *args: Any) -> Any:
            return await self.answer("join", *args)

        async def beat(self) -> Any:
            if self.cut:
                raise StoreUnavailableError("the network is cut")
            return await self.answer("beat")

    ends: list[float] = []

    async def until_cancelled(payload: Any) -> None:
        try:
            await trio.sleep_forever()
        finally:
            ends.append(trio.current_time())

    memory = MemoryStore()
    store: Any = SlowAnswer(memory.another())
    handlers = {"until cancelled": until_cancelled}
    async with open_durable_lanes(memory, {}, worker=False) as asking:
        await asking.submit("until cancelled")
        async with open_durable_lanes(store, handlers, lease_ttl=9, grace=0) as lanes:
            if slow == "join":
                store.cut = False
                await trio.sleep(0.9)  # a step is taken
                store.cut = True
            await trio.sleep(20)
            assert ends == [sent + 0.8 * 9]
            store.cut = False
            lanes.close()


async def test_an_instance_whose_lease_was_ended_by_others_finds_out_at_its_next_beat(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_durable_lanes(store, {"sleeps": sleeps}, lease_ttl=9) as lanes:
        job = await lanes.submit("sleeps", 10)
        await wait_all_tasks_blocked()
        (before,) = await lanes.instances()
        store._tables.put(INSTANCES, before.id, None)
        assert await job.wait() == "slept 10"
        (after,) = await lanes.instances()
        assert after.id != before.id
        assert (await job.status()).crashes == 0


async def test_a_lost_run_can_neither_finish_nor_checkpoint_nor_lend(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    heard: list[object] = []

    async def shielded(payload: Any) -> str:
        run = current_job()
        assert run is not None
        if payload == "lends":
            with pytest.raises(trio.Cancelled):
                async with run.yield_slot():
                    raise AssertionError
            heard.append(payload)
            return "too late"
        with trio.CancelScope(shield=True):
            with pytest.raises(JobCancelledError, match="the run was lost"):
                await run.checkpoint(1)
        heard.append(payload)
        return "too late"

    async def first_lost(payload: Any) -> str:
        run = current_job()
        assert run is not None
        if len(heard) < 2:
            (instance,) = store._tables.of(INSTANCES).values()
            for record in store._tables.running(instance.id):
                record.fence += 1000  # as another claim does
        return await shielded(payload)

    async with open_durable_lanes(store, {"job": first_lost}, grace=0) as lanes:
        await lanes.submit("job", "checkpoints")
        await wait_all_tasks_blocked()
        await lanes.submit("job", "lends")
        await wait_all_tasks_blocked()
        await trio.sleep(0.1)
        assert heard == ["checkpoints", "lends"]
        assert "was not recorded: it came after the lease" in caplog.text


async def test_a_run_that_was_found_lost_is_forgiven_when_its_process_is_back() -> None:
    store = Played(MemoryStore())
    async with store.open(opening(max_crashes=1, hold=True)):
        await store.join()
        (id,) = await store.enqueue([SubmittedJob(name="echo", payload="1", session="a")])
        (claim,) = (await store.step([], 2)).claims
        other = Played(store.another())
        async with other.open(opening(max_crashes=1, hold=True)):
            (info,) = store._tables.of(INSTANCES).values()
            store._tables.put(INSTANCES, info.id, _with_lease(info, trio.current_time()))
            await other.join()  # finds out
            status = await store.look(StatusOf(id))
            assert status is not None
            assert (status.state, status.crashes) == (DurableState.DEAD, 1)
            purged = claim.id + 1000
            await store.join([(claim.id, claim.fence), (purged, claim.fence)])
            record = store._tables.get(id)
            assert record is not None
            assert (record.state, record.crashes) == (DurableState.WAITING, 0)
            assert (record.crashes_alone, record.crashed_with) == (0, 0)
            await other.leave()
        await store.leave()


def _with_lease(info: InstanceInfo, until: float) -> InstanceInfo:
    return attrs.evolve(info, lease_until=until)


async def test_a_lease_that_is_over_is_never_prolonged(mock_clock: MockClock) -> None:
    store = Played(MemoryStore())
    async with store.open(opening()):
        await store.join()
        (id,) = await store.enqueue([SubmittedJob(name="echo", payload="1")])
        (claim,) = (await store.step([], 1)).claims
        assert await store.beat()
        mock_clock.jump(5)
        assert not await store.beat()
        assert (await store.step([], 1)).claims == ()
        assert not await store.do(Checkpoint(id, claim.fence, "1"))
        await store.join([(claim.id, claim.fence)])
        assert await store.beat()
        status = await store.look(StatusOf(id))
        assert status is not None
        assert status.crashes == 0
        await store.leave()


async def test_two_instances_share_limits_sessions_and_results(
    autojump_clock: MockClock,
) -> None:
    memory = MemoryStore()
    seen: dict[str, set[str]] = {"one": set(), "two": set()}
    most = 0
    now = 0

    def handler(who: str) -> Any:
        async def run(payload: Any) -> Any:
            nonlocal now, most
            now += 1
            most = max(most, now)
            seen[who].add(json.dumps(payload))
            await trio.sleep(1)
            now -= 1
            return who

        return run

    async with open_durable_lanes(memory, {"job": handler("one")}, {"main": 4}, capacity=2) as one:
        async with open_durable_lanes(
            memory.another(), {"job": handler("two")}, {"main": 4}, capacity=3
        ) as two:
            jobs = [await one.submit("job", n, session=str(n % 7)) for n in range(40)]
            for job in jobs:
                assert await two.job(job.id).wait() == await job.wait()
            assert most == 4
            assert seen["one"]
            assert seen["two"]
            assert seen["one"] | seen["two"] == {str(n) for n in range(40)}
            assert len(await one.instances()) == 2


async def test_the_cause_of_a_failure_is_of_the_run_that_failed_last(
    autojump_clock: MockClock,
) -> None:
    async def here(payload: Any) -> None:
        raise ValueError("here")

    async def there(payload: Any) -> None:
        raise KeyError("there")

    once = RetryPolicy(max_attempts=1)
    store = MemoryStore()
    async with open_durable_lanes(store, {"bad": here}, retry=once) as lanes:
        job = await lanes.submit("bad")
        with pytest.raises(JobDeadError) as caught:
            await job.wait()
        assert isinstance(caught.value.__cause__, ValueError)
        await lanes.drain()
        async with open_durable_lanes(store.another(), {"bad": there}, retry=once) as others:
            await others.requeue(job.id)
            await trio.sleep(1)
            with pytest.raises(JobDeadError, match="there") as caught:
                await job.wait()
            assert caught.value.__cause__ is None
            with pytest.raises(JobDeadError, match="there"):
                await others.job(job.id).wait()


async def test_what_no_live_instance_handles_is_unhandled_and_others_are_left_to_theirs(
    autojump_clock: MockClock,
) -> None:
    async def one(payload: Any) -> str:
        return "one"

    async def two(payload: Any) -> str:
        return "two"

    memory = MemoryStore()
    async with open_durable_lanes(memory, {"one": one}) as first:
        asking = open_durable_lanes(memory.another(), {}, worker=False)
        async with asking as lanes:
            await first.pause("main")
            jobs = [await lanes.submit(name) for name in ("two", "one", "unknown", "one")]
            assert (await lanes.statistics()).unhandled == 2
            async with open_durable_lanes(memory.another(), {"two": two}):
                await first.resume("main")
                assert [await jobs[n].wait() for n in (0, 1, 3)] == ["two", "one", "one"]
                assert (await lanes.statistics()).unhandled == 1
                assert (await jobs[2].status()).state is DurableState.WAITING


async def test_a_poison_job_is_dead_and_the_others_of_its_instance_lose_nothing(
    autojump_clock: MockClock,
) -> None:
    memory = Played(MemoryStore())
    async with memory.open(opening(max_crashes=1)):
        await memory.join()
        both = [SubmittedJob(name="sleeps", payload="1", session=session) for session in "ab"]
        ids = await memory.enqueue(both)
    doomed = Played(memory.another())
    async with doomed.open(opening(names=["sleeps"])):
        await doomed.join()
        claims = (await doomed.step([], 1)).claims
    await trio.sleep(2)
    async with open_durable_lanes(memory.another(), {"sleeps": sleeps}, max_crashes=1) as lanes:
        with pytest.raises(JobDeadError, match="while it ran this job alone, once"):
            await lanes.job(claims[0].id).wait()
        (dead,) = await lanes.dead()
        assert dead.session == "a"
        assert await lanes.job(ids[1]).wait() == "slept 1"


async def test_a_heartbeat_that_comes_back_too_late_says_nothing_of_the_new_term(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Slow(Cut):
        async def beat(self) -> bool:
            await trio.sleep(12)
            return False

    store = Slow(MemoryStore())
    async with open_durable_lanes(store, {"sleeps": sleeps}, lease_ttl=9, grace=0) as lanes:
        await trio.sleep(16)  # two terms of 7.2 s are over, and it says no to the first
        assert caplog.text.count("has lost its lease") == 2
        assert len(await lanes.instances()) >= 1


async def test_a_cancellation_of_a_run_that_has_just_ended_is_too_late() -> None:
    class Late(Cut):
        async def step(self, *args: Any) -> Any:
            step = await self._inner.step(*args)
            return attrs.evolve(step, cancels=(*step.cancels, (99, 99)))

    async with open_durable_lanes(Late(MemoryStore()), {"sleeps": sleeps}) as lanes:
        assert await (await lanes.submit("sleeps", 0)).wait() == "slept 0"
