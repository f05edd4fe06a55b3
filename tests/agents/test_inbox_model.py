"""Random histories of an inbox, compared with a small model after each step."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from typing import Any

import attrs
import hypothesis
import hypothesis.strategies as st
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.agents.inbox_model import Model
from tests.agents.inbox_stage import Stage, kinds
from trio_lanes import Lanes, open_lanes
from trio_lanes.agents import Inbox, Overflow, Receipt, Summary, Turn, WhenBusy
from trio_lanes.testing import LaneRecorder


class Boom(Exception):
    """What a turn raises."""


@attrs.frozen
class Post:
    mode: WhenBusy
    group: str
    id: int | None


@attrs.frozen
class Do:
    what: str


@attrs.frozen
class Sleep:
    seconds: float


Step = Post | Do | Sleep

posts = st.builds(
    Post,
    st.sampled_from([*WhenBusy, WhenBusy.COLLECT, WhenBusy.COLLECT]),
    st.sampled_from("aab"),
    st.sampled_from([None, None, None, 1, 2]),
)
things = st.sampled_from(
    ["rest", "return", "take"] * 2
    + ["raise", "raise", "abort-turn", "abort-inbox", "compact", "clear", "reset"]
    + ["release", "withdraw first", "withdraw last", "edit"]
).map(Do)
sleeps = st.sampled_from([0.125, 0.25, 0.5, 1.0, 150.0]).map(Sleep)
steps = st.lists(st.one_of(posts, posts, posts, things, things, sleeps), max_size=60)


class History:
    """A real inbox and its model, going through the same steps."""

    def __init__(self, lanes: Lanes, cap: int, overflow: Overflow, holds: bool) -> None:
        self.lanes = lanes
        self.stage = Stage()
        self.inbox = Inbox(
            lanes,
            "alice",
            self.stage.handler,
            debounce=0.5,
            max_wait=1.25,
            cap=cap,
            overflow=overflow,
            hold_on_failure=holds,
        )
        self.model = Model(cap, overflow, 0.5, 1.25, holds)
        self.receipts: dict[int, Receipt] = {}
        self.steered: list[int] = []
        self.compacting: dict[Turn, AbstractContextManager[None]] = {}

    async def take(self, step: Step) -> None:
        if isinstance(step, Post):
            self.post(step)
        elif isinstance(step, Sleep):
            await self.rest()
            self.model.sleep(step.seconds)
            await trio.sleep(step.seconds)
            await self.rest()
        else:
            await self.do(step.what)
        self.compare()

    def post(self, step: Post) -> None:
        key = len(self.receipts)
        receipt = self.inbox.post(key, when_busy=step.mode, group=step.group, id=step.id)
        meant = self.model.post(key, step.mode, step.group, step.id)
        if meant == key:
            self.receipts[key] = receipt
        else:
            first = self.receipts[meant]
            one, other = receipt.outcome, first.outcome
            if receipt is not first:  # the first has settled, and its outcome alone is known
                assert one is not None
                assert other is not None
                assert (one.kind, one.result, one.error) == (other.kind, other.result, other.error)

    async def rest(self) -> None:
        self.model.rest()
        await wait_all_tasks_blocked()

    async def do(self, what: str) -> None:
        inbox, model, stage, turn = self.inbox, self.model, self.stage, self.inbox.turn
        if what == "rest":
            await self.rest()
        elif what == "clear":
            model.clear()
            self.lanes.clear("session:alice")
        elif what == "reset":
            model.reset()
            self.lanes.reset("session:alice")
        elif what == "abort-inbox":
            await self.rest()
            model.abort()
            model.cancel_line()
            model.rest()
            assert await inbox.abort()
            await self.rest()
        elif what == "release":
            model.release()
            inbox.release()
        elif what in ("withdraw first", "withdraw last"):
            if model.line:
                place = 0 if what == "withdraw first" else len(model.line) - 1
                receipt = self.receipts[model.line[place].key]
                assert receipt.position == place
                model.withdraw(place)
                assert receipt.cancel()
                assert receipt.position is None
                assert not receipt.cancel()
        elif what == "edit":
            for key, receipt in self.receipts.items():
                assert receipt.edit(key) is (key in [message.key for message in model.line])
        elif turn is None:
            return
        elif what == "take":
            taken = turn.take()
            assert taken == model.take()
            self.steered += taken
        elif what == "compact":
            model.compacting = not model.compacting
            if model.compacting:
                self.compacting[turn] = turn.compacting()
                self.compacting[turn].__enter__()
            else:
                self.compacting.pop(turn).__exit__(None, None, None)
            assert turn.is_compacting is model.compacting
        elif what == "abort-turn":
            model.abort()
            turn.abort()
        elif what == "return":
            model.end("ran")
            stage.tell(None)
        else:
            model.end("failed")
            stage.tell(Boom())

    def compare(self) -> None:
        inbox, model = self.inbox, self.model
        real: dict[str, Any] = {
            "line": [receipt.message for receipt in inbox.waiting],
            "turn": None if inbox.turn is None else self.split(inbox.turn.messages)[1],
            "kinds": dict(zip(self.receipts, kinds(self.receipts.values()), strict=True)),
            "starts": [
                (time, *self.split(turn.messages))
                for time, turn in zip(self.stage.times, self.stage.turns, strict=True)
            ],
        }
        assert real == model.seen()
        assert inbox.is_held is model.held
        assert inbox.turn is None or inbox.turn.rollback_called is model.rolled_back
        assert self.lanes.session("alice").waiting == bool(model.line and not model.granted)
        seen = inbox.statistics()
        assert seen.offered == len(self.receipts)
        assert seen.offered == seen.waiting + seen.in_turn + sum(seen.settled.values())
        counted = Counter(real["kinds"].values())
        assert all(counted[kind] == number for kind, number in seen.settled.items())
        model.check(seen.offered)

    def split(self, messages: list[Any]) -> tuple[list[int], list[int]]:
        """What was summarized, and the rest."""
        if messages and isinstance(messages[0], Summary):
            return [int(line) for line in messages[0].splitlines()], messages[1:]
        return [], messages

    async def end(self) -> None:
        """Let everything run that is left."""
        while self.inbox.is_busy:
            await self.take(Do("release"))
            await self.take(Do("return"))
            await self.take(Do("rest"))
            await self.take(Sleep(1.0))
        await self.rest()
        heard = Counter(self.steered)
        for _, summarized, started in self.model.starts:
            heard.update(summarized)
            heard.update(started)
        assert set(heard.values()) <= {1}
        for key, kind in self.model.kinds.items():
            if kind in ("ran", "failed", "steered", "merged"):
                assert heard[key] == 1
            if kind in ("dropped", "rejected", "replaced"):
                assert heard[key] == 0


@hypothesis.given(
    st.random_module(), steps, st.integers(1, 4), st.sampled_from(Overflow), st.booleans()
)
@hypothesis.settings(max_examples=400)
def test_an_inbox_does_what_its_model_does(
    seed: Any, steps: list[Step], cap: int, overflow: Overflow, holds: bool
) -> None:
    async def main() -> None:
        recorder = LaneRecorder()
        async with open_lanes({"main": 2}, instruments=[recorder]) as lanes:
            history = History(lanes, cap, overflow, holds)
            for step in steps:
                await history.take(step)
            await history.end()
            assert lanes.sessions() == []
            recorder.check()

    trio.run(main, clock=MockClock(autojump_threshold=0))
