"""Random histories of a durable inbox, compared with the model of an inbox after each step.

What differs is on the page: `SUMMARIZE` summarizes when the turn begins, a message that was refused
is not remembered, and a turn takes steers in the order of the queue.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import hypothesis
import hypothesis.strategies as st
import trio
from trio.testing import MockClock

from tests.agents.durable_stage import DurableStage
from tests.agents.inbox_model import Model
from tests.agents.test_inbox_model import Do, Post, Sleep, Step
from tests.support.chaos import examples
from trio_lanes.agents import DurableInbox, DurableReceipt, DurableTurn, Overflow, WhenBusy
from trio_lanes.durable import MemoryStore, NoRetry

OPTIONS = {"debounce": 0.53, "max_wait": 1.31}  # no step of a history ends at such a moment

posts = st.builds(
    Post,
    st.sampled_from([*WhenBusy, WhenBusy.COLLECT, WhenBusy.COLLECT]),
    st.sampled_from("aab"),
    st.sampled_from([None, None, None, 1, 2]),
)
things = st.sampled_from(["return", "return", "raise", "take", "take", "abort"]).map(Do)
sleeps = st.sampled_from([0.125, 0.25, 0.5, 1.0]).map(Sleep)
steps = st.lists(st.one_of(posts, posts, posts, things, sleeps), max_size=30)


class DurableModel(Model):
    """The model; but a message that was refused is not remembered."""

    def post(
        self,
        key: int,
        mode: WhenBusy,
        group: Hashable,
        id: Hashable,
        expected: int | None = None,
    ) -> int:
        meant = super().post(key, mode, group, id, expected)
        if meant == key and self.kinds[key] in ("rejected", "dropped"):
            self.ids.pop(id, None)
        return meant


class History:
    """A real inbox and its model, going through the same steps."""

    def __init__(self, clock: MockClock, cap: int, overflow: Overflow) -> None:
        self.stage = DurableStage(MemoryStore(), clock)
        self.model = DurableModel(
            cap, overflow, OPTIONS["debounce"], OPTIONS["max_wait"], steers_first=False
        )
        self.receipts: dict[int, DurableReceipt] = {}
        self.starts: list[list[int]] = []
        self.turn: DurableTurn | None = None
        self.told: Any = None
        self.tells = trio.Event()

    async def handle(self, turn: DurableTurn) -> None:
        self.starts.append(list(turn.messages))
        self.turn, self.tells = turn, trio.Event()
        try:
            await self.tells.wait()
        finally:
            if self.turn is turn:
                self.turn = None
        if self.told == "raise":
            raise NoRetry("no")

    async def take(self, inbox: DurableInbox, step: Step) -> None:
        model = self.model
        if isinstance(step, Post):
            key = len(self.receipts)
            receipt = await inbox.post(key, when_busy=step.mode, group=step.group, id=str_of(step))
            meant = model.post(key, step.mode, step.group, step.id)
            if meant == key:
                self.receipts[key] = receipt
            else:
                assert receipt.job is not None
                first = self.receipts[meant].job
                assert first is not None
                assert receipt.job.id == first.id
        elif isinstance(step, Sleep):
            model.sleep(step.seconds)
            await self.stage.advance(step.seconds)
        elif self.turn is not None:
            if step.what == "take":
                assert await self.turn.take() == model.take()
            elif step.what == "abort":
                model.abort()
                self.turn.abort()
            else:
                model.end("ran" if step.what == "return" else "failed")
                self.told = step.what
                self.tells.set()
        model.rest()
        await self.stage.settle()
        assert self.starts == [turn for _, _, turn in model.starts]
        assert (self.turn is None) == (model.turn is None)
        waiting = [receipt.id for receipt in await inbox.waiting()]
        assert waiting == [self.receipts[message.key].id for message in model.line]

    async def play(self, history: list[Step]) -> None:
        cap, overflow = self.model.cap, self.model.overflow
        async with self.stage.open(result_ttl=1000.0):
            inbox = self.stage.inbox(cap=cap, overflow=overflow, **OPTIONS)
            for step in history:
                await self.take(inbox, step)
            while self.model.line or self.model.turn:
                for step in (Do("return"), Sleep(1.0)):
                    await self.take(inbox, step)
            for key, receipt in self.receipts.items():
                assert (await receipt.settled()).kind.value == self.model.kinds[key]


def str_of(step: Post) -> str | None:
    return None if step.id is None else str(step.id)


@hypothesis.given(
    st.random_module(),
    steps,
    st.integers(1, 4),
    st.sampled_from([Overflow.DROP_OLDEST, Overflow.DROP_NEWEST]),
)
@hypothesis.settings(max_examples=examples(60))
@hypothesis.example(
    None,
    [
        Post(WhenBusy.FOLLOWUP, "a", None),
        *[Post(WhenBusy.COLLECT, "a", None), Sleep(0.5)] * 2,
        Post(WhenBusy.COLLECT, "a", None),
        Do("return"),
        Sleep(0.5),
    ],
    1,
    Overflow.DROP_OLDEST,
)
def test_a_durable_inbox_does_what_the_model_of_an_inbox_does(
    seed: Any, history: list[Step], cap: int, overflow: Overflow
) -> None:
    clock = MockClock()

    async def main() -> None:
        story = History(clock, cap, overflow)
        story.stage.handler = story.handle  # type: ignore[method-assign]
        await story.play(history)

    trio.run(main, clock=clock)
