"""Tests of further submissions: what becomes of one whose key another job has."""

from __future__ import annotations

from typing import Any

from .. import DurableState, JobDeadError, KeyConflictError, Submission
from ..acts.jobs import Enqueue
from ..acts.orders import Cancel
from ._bench import ONCE, STOP, Bench, new_job, ticket


class KeyStories(Bench):
    """Tests of further submissions under a key."""

    async def test_a_key_after_a_failure_begins_anew_if_that_is_asked_for(self) -> None:
        async with self.instance(retry=ONCE) as lanes:

            async def again(name: str, payload: object = 1) -> int:
                options: dict[str, Any] = {"session": "s", "key": name, "key_after": "failure"}
                return (await lanes.submit(name, payload, **options)).id

            dead = await again("bad")
            await self.settle()
            assert await self.state(dead) is DurableState.DEAD
            assert (await lanes.submit("bad", 1, session="s", key="bad")).id == dead
            anew = await again("bad", 2)
            assert anew != dead
            await self.settle()
            assert self.log == [1, 2]
            await self.fails(lanes.job(dead), JobDeadError)
            assert (await lanes.job(dead).status()).key is None
            assert [one.id for one in await lanes.dead()] == [dead, anew]
            assert await lanes.requeue(dead) == 1  # the key is not its own any more
            await self.settle()
            assert (await lanes.submit("bad", 2, session="s", key="bad")).id == anew

            done = await again("echo")
            await lanes.job(done).wait()
            assert await again("echo") == done
            gate = await again("gate", "a")
            await self.settle()
            assert await again("gate", "a") == gate  # it runs
            with self.raises(KeyConflictError):
                await again("gate", "b")
            assert await lanes.cancel(gate)
            await self.settle()
            assert await self.state(gate) is DurableState.CANCELLED
            assert await again("gate", "b") != gate

    async def test_a_bad_key_after_is_refused_with_its_value(self) -> None:
        async with self.instance() as lanes:
            for value, key, said in (
                ("success", "k", "not 'success'"),
                ([], "k", "not []"),
                ("failure", None, "key=None"),
            ):
                with self.raises(ValueError) as caught:
                    await lanes.submit("echo", key=key, key_after=value)  # type: ignore[arg-type]
                assert "key_after" in str(caught[0])
                assert said in str(caught[0])
            with self.raises(ValueError):
                await lanes.submit_many([Submission(name="echo", key_after="failure")])
            assert await lanes.jobs() == []

    async def test_one_ticket_begins_anew_once_and_one_batch_too(self) -> None:
        async with self.playing() as store:
            job = new_job(key="k", key_after="failure")
            (first,) = await store.enqueue([job])
            assert await store.do(Cancel(first, STOP))
            mine = ticket()
            two = await store.do(Enqueue([job, job]), mine)
            assert two[0] == two[1] != first
            assert await store.do(Cancel(two[0], STOP))
            assert await store.do(Enqueue([job, job]), mine) == two
            assert await store.enqueue([job]) != [two[0]]
