"""Tests of what runs do besides: events and messages, the queue of their session, jobs taken."""

from __future__ import annotations

import json
from typing import Any

import attrs
import trio
import trio.testing

from trio_lanes import JobCancelledError
from trio_lanes.durable import (
    DurableLanes,
    DurableState,
    Failed,
    JobTakenError,
    JobTexts,
    PayloadError,
    Postponed,
    Released,
    ResultGoneError,
    Retry,
    RetryPolicy,
    Submission,
    SubmittedJob,
    Succeeded,
)
from trio_lanes.durable.acts.inspection import StatusOf
from trio_lanes.durable.acts.orders import Cancel
from trio_lanes.durable.acts.runs import Checkpoint, EmitEvent, Send, Take
from trio_lanes.durable.store import EVENT_BYTES, EVENTS_KEPT, NAMES_LISTED, STEP_BYTES

from .bench import LEASE, Bench, new_job, this_run

TAKEN = json.dumps({"by": 1, "reason": "collected"})
WAITING, PARKED, RUNNING = DurableState.WAITING, DurableState.PARKED, DurableState.RUNNING


def one(payload: str = "1", session: str = "s", **options: Any) -> Submission:
    return Submission(name="echo", payload=payload, session=session, **options)


class TalkStories(Bench):
    async def test_events_reach_readers_on_any_instance_until_the_job_has_ended(self) -> None:
        async def speak(payload: Any) -> None:
            run = this_run()
            for word in ("one", {"two": 2}):
                self.log.append(await run.emit(word))
            await self.gate("more").wait()
            await run.emit("three")

        async def read(lanes: DurableLanes, after: int, seen: list[Any]) -> None:
            async for number, event in lanes.job(job.id).events(after=after):
                seen.append((number, event))
            seen.append("ended")

        here: list[Any] = []
        there: list[Any] = []
        late: list[Any] = []
        async with (
            self.instance(handlers={"speak": speak}) as lanes,
            self.instance(worker=False) as elsewhere,
            trio.open_nursery() as nursery,
        ):
            job = await lanes.submit("speak")
            nursery.start_soon(read, lanes, 0, here)
            nursery.start_soon(read, elsewhere, 1, there)
            for _ in range(3):
                await self.advance(0.5)
            assert self.log == [1, 2]
            assert here == [(1, "one"), (2, {"two": 2})]
            assert there == [(2, {"two": 2})]
            self.gate("more").set()
            for _ in range(3):
                await self.advance(0.5)
            assert here[2:] == there[1:] == [(3, "three"), "ended"]
            await read(elsewhere, 0, late)
            assert late == here
            late.clear()
            await read(elsewhere, 3, late)
            assert late == ["ended"]
            with self.raises(TypeError):
                lanes.job(job.id).events(after="1")  # type: ignore[arg-type]
            with self.raises(ResultGoneError):
                await anext(lanes.job(10**9).events())

    async def test_what_is_no_event_is_refused_at_the_call(self) -> None:
        async def speak(payload: Any) -> None:
            run = this_run()
            for event in (object(), "x" * EVENT_BYTES):
                with self.raises(PayloadError):
                    await run.emit(event)
            self.log.append(await run.emit("x" * (EVENT_BYTES - 2)))

        async with self.instance(handlers={"speak": speak}) as lanes:
            await (await lanes.submit("speak")).wait()
            assert self.log == [1]

    async def test_events_are_counted_over_all_attempts_and_need_the_fence(self) -> None:
        async with self.playing() as store:
            (first,) = await store.begin(new_job())
            id = first.id
            assert await store.twice(EmitEvent(id, first.fence, '"a"')) == 1
            (second,) = (await store.end(first, Released(), 1)).claims
            assert await store.do(EmitEvent(id, first.fence, '"lost"')) is None
            assert await store.do(EmitEvent(id, second.fence, '"b"')) == 2
            assert list(await store.events(id, 0) or ()) == [(1, '"a"'), (2, '"b"')]
            assert list(await store.events(id, 1) or ()) == [(2, '"b"')]
            await store.end(second)
            assert list(await store.events(id, 2) or ()) == []
            assert await store.events(10**9, 0) is None

    async def test_the_last_events_are_kept_as_long_as_the_job(self) -> None:
        async with self.playing() as store:
            (claim,) = await store.begin(new_job())

            async def emit(n: int) -> None:
                await store.do(EmitEvent(claim.id, claim.fence, str(n)))

            async with trio.open_nursery() as nursery:
                for n in range(EVENTS_KEPT + 5):
                    nursery.start_soon(emit, n)
            await store.end(claim)
            numbers: list[int] = [0]
            while found := await store.store.events(claim.id, numbers[-1]):
                numbers += [number for number, _ in found]
            assert numbers[1:] == list(range(6, EVENTS_KEPT + 6))

    async def test_a_message_is_taken_by_the_run_of_a_session_on_any_instance(self) -> None:
        async def listen(payload: Any) -> list[Any]:
            run = this_run()
            messages = run.messages()
            while self.log[-1:] != ["stop"]:
                self.log.append(await anext(messages))
            return self.log

        results: dict[Any, Any] = {}

        async def send(lanes: DurableLanes, to: Any, message: Any, key: str | None) -> None:
            results[message, key] = (await lanes.send(to, message, key=key)).reason

        async with (
            self.instance(handlers={"listen": listen}) as lanes,
            self.instance(worker=False) as elsewhere,
            trio.open_nursery() as nursery,
        ):
            assert (await elsewhere.send("alice", 1)).reason == "no_active_run"
            job = await self.submitted("listen", session="alice")
            for to, message, key in (
                *(("alice", "a", None), (job.id, "b", "k"), ("session:alice", "b", "k")),
                ("alice", "c", None),
            ):
                nursery.start_soon(send, elsewhere, to, message, key)
                while (message, key) not in results:  # a store elsewhere may take its time
                    await self.advance(1)
            await self.settle()
            assert self.log == ["a", "b", "c"]
            assert results == {("a", None): None, ("b", "k"): None, ("c", None): None}
            assert not results["a", None]
            assert await lanes.send(job.id, "stop")
            assert await job.wait() == ["a", "b", "c", "stop"]
            assert (await lanes.send(job.id, "late")).reason == "no_active_run"
            assert (await lanes.send(10**400, "nobody")).reason == "no_active_run"
            for bad in ({"message": object()}, {"message": "x" * EVENT_BYTES}):
                with self.raises(PayloadError):
                    await lanes.send("alice", **bad)
            with self.raises(ValueError):
                await lanes.send("alice", 1, key="")

    async def test_a_status_has_what_the_job_carries_if_it_is_asked_for(self) -> None:
        async with self.playing() as store:
            ids = await store.enqueue([SubmittedJob(name="echo", payload=f"[{n}]") for n in "123"])

            async def texts_of(id: int) -> JobTexts:
                status = await store.store.look(StatusOf(id, True))
                assert status is not None
                assert status.texts is not None
                return status.texts

            for n, id in enumerate(ids, 1):
                assert (await store.look(StatusOf(id))).texts is None
                assert await texts_of(id) == JobTexts(f"[{n}]", None, None, (), ())
            claims = await store.claim(2)
            for claim in claims:
                for n in range(NAMES_LISTED + 5):
                    await store.do(EmitEvent(claim.id, claim.fence, str(n)))
                    await store.do(Send(None, claim.id, f'"{n}"', None))
                for n in range(2):
                    assert await store.receive(claim.id, claim.fence, NAMES_LISTED + n) is not None
                await store.do(Checkpoint(claim.id, claim.fence, '"half"'))
            texts, error = await texts_of(ids[0]), '{"type": "E", "message": "no", "traceback": ""}'
            assert (texts.payload, texts.checkpoint, texts.outcome) == ("[1]", '"half"', None)
            assert texts.events == tuple((n + 1, str(n)) for n in range(5, NAMES_LISTED + 5))
            assert texts.messages == tuple(
                (n + 1, n in (NAMES_LISTED, NAMES_LISTED + 1), f'"{n}"')
                for n in range(5, NAMES_LISTED + 5)
            )
            well, failed = claims
            await store.end(well, Succeeded('"well"'))
            await store.end(failed, Failed(error))
            assert await store.do(Cancel(ids[2], '{"reason": "late"}'))
            taken = tuple((n + 1, True, f'"{n}"') for n in (NAMES_LISTED, NAMES_LISTED + 1))
            events = texts.events
            assert await texts_of(ids[0]) == JobTexts(None, None, '"well"', events, taken)
            assert await texts_of(ids[1]) == JobTexts("[2]", '"half"', error, events, taken)
            assert await texts_of(ids[2]) == JobTexts(None, None, '{"reason": "late"}', (), ())
            assert await store.look(StatusOf(10**9, True)) is None

    async def test_one_task_of_a_run_takes_messages_at_a_time(self) -> None:
        async def listen(payload: Any) -> str:
            run = this_run()

            async def take() -> None:
                await anext(run.messages())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(take)
                await trio.testing.wait_all_tasks_blocked()
                with self.raises(trio.BusyResourceError):
                    await anext(run.messages())
                nursery.cancel_scope.cancel()
            return str(await anext(run.messages()))

        async with self.instance(handlers={"listen": listen}) as lanes:
            job = await self.submitted("listen")
            assert await lanes.send(job.id, "hello")
            assert await job.wait() == "hello"

    async def test_a_sender_knows_that_its_message_was_taken_while_the_run_goes_on(self) -> None:
        async def listen(payload: Any) -> str:
            run = this_run()
            message = str(await anext(run.messages()))
            # nothing else happens that could wake the sender
            await self.gate("known").wait()
            return message

        async with self.instance(handlers={"listen": listen}) as lanes:
            job = await self.submitted("listen")
            assert await lanes.send(job.id, "hello")
            self.gate("known").set()
            assert await job.wait() == "hello"

    async def test_a_message_to_a_run_whose_process_has_died_is_refused(self) -> None:
        told: list[Any] = []

        async def send(lanes: DurableLanes) -> None:
            told.append((await lanes.send("alice", "x")).reason)

        async with self.instance(worker=False) as asker, trio.open_nursery() as nursery:
            async with self.playing(dies=True) as dead:
                (run,) = await dead.begin(new_job(session="alice"))
            nursery.start_soon(send, asker)
            await self.advance(0.1 * LEASE)
            if self.virtual and self.leased:
                assert told == []  # it may live
            while not told:  # no instance gives the job back meanwhile
                await self.advance(0.5 * LEASE)
            assert told == ["stopped"]
            assert (await asker.job(run.id).status()).state is DurableState.RUNNING

    async def test_what_a_run_took_the_next_run_takes_again_and_the_rest_is_refused(self) -> None:
        async with self.playing() as store:
            (id,) = await store.enqueue([new_job(session="s")])
            assert await store.do(Send(None, id, "1", None)) == "no_active_run"
            (first,) = await store.claim()
            assert await store.twice(Send("s", None, '"a"', None)) == (id, 1)
            assert await store.do(Send(None, id, '"b"', "k")) == (id, 2)
            assert await store.do(Send(None, id, '"b"', "k")) == (id, 2)
            assert await store.do(Send(None, id, '"c"', None)) == (id, 3)
            assert await store.receive(id, first.fence + 1, 0) is None
            assert await store.receive(id, first.fence, 0) == (1, '"a"')
            assert await store.receive(id, first.fence, 0) == (1, '"a"')
            assert await store.receive(id, first.fence, 1) == (2, '"b"')
            (second,) = (await store.end(first, Released(), 1)).claims
            assert [await store.sent(id, n) for n in (1, 2, 3)] == [True, True, False]
            assert await store.do(Send(None, id, '"d"', None)) == (id, 4)
            assert await store.receive(id, first.fence, 0) is None
            assert await store.receive(id, second.fence, 0) == (1, '"a"')
            assert await store.receive(id, second.fence, 1) == (2, '"b"')
            assert await store.receive(id, second.fence, 2) == (4, '"d"')
            assert await store.do(Send(None, id, '"e"', None)) == (id, 5)
            await store.end(second)
            assert await store.sent(id, 4)
            assert not await store.sent(id, 5)
            assert not await store.sent(10**9, 1)

    async def test_the_queue_of_a_session_has_its_jobs_with_their_payloads(self) -> None:
        jobs = [new_job("a"), new_job("b", key="k"), new_job("c", delay=9.0)]
        of_s = [attrs.evolve(job, session="s") for job in jobs]
        async with self.doomed(*of_s[:2], new_job("x", session="t"), of_s[2]) as claims:
            assert [claim.payload for claim in claims] == ['"a"', '"x"']
            async with self.instance(worker=False) as lanes:
                queue = await lanes.queue("session:s")
                seen = [(job.name, job.payload, job.key) for job in queue]
                assert seen == [("echo", job.payload, job.key) for job in jobs]
                assert [job.state for job in queue] == [RUNNING, WAITING, PARKED]
                assert all(0 <= job.age < 60 for job in queue)
                assert [job.payload for job in await lanes.queue("s", limit=2)] == ['"a"', '"b"']
                assert await lanes.queue("s", limit=0) == []
                assert await lanes.queue("unknown") == []

    async def test_a_queue_has_at_most_the_bytes_of_a_step(self) -> None:
        text = "x" * (STEP_BYTES // 5)
        async with self.instance(worker=False) as lanes:
            await lanes.submit_many([one(text) for _ in range(6)])
            assert len(await lanes.queue("s")) == 4

    async def test_a_job_of_a_queue_has_begun_if_an_attempt_or_a_crash_was_counted(self) -> None:
        async with self.instance(worker=False) as lanes:
            async with self.playing() as store:
                claims = await store.begin(*(new_job(session=session) for session in "abcd"))
                await store.do(Checkpoint(claims[0].id, claims[0].fence, "1"))
                for n in range(3):  # and the last run counts a crash
                    await store.end(claims[n], Postponed(9.0, n == 1, False))
            begun = [[job.begun for job in await lanes.queue(session)] for session in "abcd"]
            assert begun == [[True], [True], [False], [True]]

    async def test_a_run_takes_jobs_of_its_session_and_keeps_data_in_one_act(self) -> None:
        async def taker(payload: Any) -> Any:
            run = this_run()
            if run.checkpoint_data is None:
                queue = await run.queue()
                assert queue[0].id == run.id
                assert await run.take(
                    {job.id: "collected" for job in queue[1:3]},
                    [json.loads(job.payload) for job in queue[1:3]],
                )
                assert run.checkpoint_data == ["b", "c"]
                raise ValueError("again")
            return run.checkpoint_data

        async with self.instance(handlers={"taker": taker}, lanes={"main": 1}) as lanes:
            await lanes.pause("main")
            first = await lanes.submit("taker", session="s", retry=RetryPolicy(backoff=(0.0, 0.0)))
            others = await lanes.submit_many([one("b"), one("c", delay=60.0), one("d")])
            await lanes.resume("main")
            assert await first.wait() == ["b", "c"]
            for other in others[:2]:
                error = await self.fails(other, JobTakenError)
                assert (error.by, error.reason) == (first.id, "collected")
                assert isinstance(error, JobCancelledError)
                assert str(error) == (f"job {first.id} of the same session has taken it: collected")
            assert await others[2].wait() == "d"
            assert (await lanes.check()).problems == ()

    async def test_a_run_takes_all_jobs_or_none(self) -> None:
        async with self.playing() as store, self.instance(worker=False) as lanes:
            ids = await store.enqueue([new_job(session=session) for session in "ssstt"])
            run, other = await store.claim(9)
            assert (run.id, other.id) == (ids[0], ids[3])
            await lanes.cancel(ids[2])
            for wrong in (ids[0], *ids[2:], 10**15):
                taken = {ids[1]: TAKEN, wrong: TAKEN}
                assert await store.do(Take(run.id, run.fence, "1", taken)) is False
            assert await self.state(ids[1]) is WAITING
            assert not (await lanes.queue("s"))[0].begun
            assert await store.twice(Take(run.id, run.fence, "2", {ids[1]: TAKEN}))
            assert await self.state(ids[1]) is DurableState.CANCELLED
            assert (await lanes.queue("s"))[0].begun
            assert (await store.end(run, room=9)).claims == ()
            assert await store.do(Take(run.id, run.fence, "3", {})) is None

    async def test_jobs_without_a_session_are_not_taken(self) -> None:
        seen: list[Any] = []

        async def taker(payload: Any) -> None:
            run = this_run()
            seen.append(await run.queue())
            seen.append(await run.take({payload: "mine"}, None))
            with self.raises(PayloadError):
                await run.take({}, object())
            with self.raises(TypeError):
                await run.take({"1": "mine"}, None)  # type: ignore[dict-item]

        async with self.instance(handlers={"taker": taker}, lanes={"main": 4, "cron": 1}) as lanes:
            await lanes.pause("cron")
            waiting = await lanes.submit("echo", lane="cron")
            await (await lanes.submit("taker", waiting.id)).wait()
            assert seen == [[], False]
            assert await self.state(waiting.id) is WAITING

    async def test_a_cancel_that_spares_running_jobs_ends_only_jobs_that_wait(self) -> None:
        async with self.instance() as lanes:
            running = await lanes.submit("gate", "a", session="s")
            waiting = await self.submitted("echo", session="s")
            assert not await lanes.cancel(running.id, running=False)
            assert await lanes.cancel(waiting.id, running=False)
            assert not await lanes.cancel(waiting.id, running=False)
            self.gate("a").set()
            assert await running.wait() == "a"

    async def test_a_retry_says_whether_its_job_keeps_its_place(self) -> None:
        async def turns(payload: Any) -> None:
            self.log.append(payload)
            if self.log.count(payload) == 1 and payload in failures:
                raise failures[payload]

        failures = {
            "tail": Retry(0, counts=False, order="requeue"),
            "place": Retry(0, order="keep"),
            "policy": ValueError("no"),
        }

        async with self.instance(handlers={"turns": turns}, lanes={"main": 1}) as lanes:
            await lanes.pause("main")
            policy = RetryPolicy(backoff=(0.0, 0.0), order="requeue")
            jobs = [
                await lanes.submit("turns", payload, session="s", retry=policy)
                for payload in (*failures, "last")
            ]
            await lanes.resume("main")
            for job in jobs:
                await job.wait()
            assert self.log == ["tail", "place", "place", "policy", "last", "tail", "policy"]
            assert [(await job.status()).attempt for job in jobs] == [1, 2, 2, 1]
        with self.raises(ValueError):
            Retry(0, order="first")  # type: ignore[arg-type]
