"""The support bot of the docs, killed before and after each transaction of its store."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from examples.agents_support_bot import Shop, SupportBot
from trio_lanes.agents import (
    Conversation,
    DurableInbox,
    DurableReceipt,
    SharedRunRegistry,
    SharedTranscripts,
    WhenBusy,
)
from trio_lanes.durable import DurableJob, MemoryStore, StoreUnavailableError, open_durable_lanes


class Mortal(MemoryStore):
    """The connection of a process that is killed at one of its transactions.

    Nothing that it sends from then on arrives, and its tasks are cancelled.
    """

    def __init__(self, shared: MemoryStore) -> None:
        super().__init__()
        self._tables, self._open = shared._tables, shared._open
        self.life = trio.CancelScope()
        self.left = math.inf  # transactions until the kill
        self.after = False  # whether the last one of them is done, and its answer is lost

    async def _transact(self, *args: Any, **kwargs: Any) -> Any:
        self.left -= 1
        if self.left < 0 or (self.left == 0 and not self.after):
            self._die()
        answer = await super()._transact(*args, **kwargs)
        if self.left <= 0:
            self._die()
        return answer

    async def _read(self, *args: Any, **kwargs: Any) -> Any:
        if self.left <= 0:
            self._die()
        return await super()._read(*args, **kwargs)

    def _die(self) -> None:
        self.life.cancel()
        raise StoreUnavailableError("this process is dead")


class Story:
    """Users, a person who approves, and a bot whose first process is killed."""

    def __init__(self, dies_at: int, *, after: bool) -> None:
        self.dies_at = dies_at
        self.store = MemoryStore()
        self.first = Mortal(self.store)
        self.first.after = after
        self.shop = Shop()
        self.approved = Counter[str]()  # by call
        self.messages: list[tuple[str, Any]] = []

    async def keep_alive(self, *, task_status: trio.TaskStatus[None]) -> None:
        with self.first.life:
            try:
                async with SupportBot(self.shop).run(self.first):
                    task_status.started()
                    self.first.left = self.dies_at
                    await trio.sleep_forever()
            except* StoreUnavailableError:
                pass  # it was killed in the middle of a call
        async with SupportBot(self.shop).run(self.store.another()):
            await trio.sleep_forever()

    async def approve(self, registry: SharedRunRegistry, job: DurableJob) -> None:
        """Approve each call once: what a process has taken is not sent again."""
        async for _, event in job.events():
            call = event["approve"]
            while not self.approved[call]:
                if await registry.submit(job.id, {call: "yes"}):
                    self.approved[call] += 1
                else:
                    await trio.sleep(0.1)

    async def play(
        self, talk: Callable[[DurableInbox], Awaitable[list[DurableReceipt]]]
    ) -> list[str]:
        """Return how the messages have settled."""
        async with (
            trio.open_nursery() as nursery,
            open_durable_lanes(self.store.another(), {}) as client,
        ):
            await nursery.start(self.keep_alive)
            receipts = await talk(DurableInbox(client, "acme-17", "answer"))
            registry = SharedRunRegistry(client)
            for receipt in receipts:
                assert receipt.job is not None
                nursery.start_soon(self.approve, registry, receipt.job)
            kinds = [(await receipt.settled()).kind.value for receipt in receipts]
            conversation = Conversation("acme-17", SharedTranscripts(client))
            self.messages = [(m.role, m.content) for m in await conversation.messages()]
            assert (await client.check()).problems == ()
            nursery.cancel_scope.cancel()
        return kinds


async def with_a_steer(inbox: DurableInbox) -> list[DurableReceipt]:
    question = await inbox.post("Refund order 5, please.")
    assert question.job is not None
    await anext(question.job.events())  # a person is asked
    return [question, await inbox.post("It was broken.")]


async def with_an_edit(inbox: DurableInbox) -> list[DurableReceipt]:
    question = await inbox.post("Refund order 4, please.")
    assert question.job is not None
    await anext(question.job.events())
    edited = await inbox.post("Refund order 5, please.", when_busy=WhenBusy.ROLLBACK)
    return [question, edited]


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_bot_that_is_killed_at_each_transaction_loses_and_doubles_nothing(
    after: bool, autojump_clock: MockClock
) -> None:
    for dies_at in itertools.count(1):
        story = Story(dies_at, after=after)
        assert await story.play(with_a_steer) == ["ran", "steered"]
        # a decision that was taken counts, whatever was killed then: no call was asked for twice
        assert list(story.approved.values()) == [1]
        assert list(story.shop.refunds.values()) == [5]
        said = [content for role, content in story.messages if role == "user"]
        assert said == ["Refund order 5, please.", "It was broken."]
        answers = [content for role, content in story.messages if role == "assistant" and content]
        assert answers == ["order 5 is refunded (you wrote: It was broken.)"]
        if story.first.left > 0:
            break
    assert dies_at > 40


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_an_edited_message_leaves_the_conversation_wherever_the_bot_is_killed(
    after: bool, autojump_clock: MockClock
) -> None:
    for dies_at in itertools.count(1):
        story = Story(dies_at, after=after)
        kinds = await story.play(with_an_edit)
        said = [content for role, content in story.messages if role == "user"]
        assert kinds == ["cancelled", "ran"]
        assert said == ["Refund order 5, please."]
        assert len(story.shop.refunds) <= 2
        if story.first.left > 0:
            break
    assert dies_at > 40
