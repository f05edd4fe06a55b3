"""Random histories of an inbox, compared with a small model after each step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from random import Random
from typing import Any

import attrs
import hypothesis
import hypothesis.strategies as st
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from tests.agents.inbox_model import Model
from tests.agents.inbox_stage import Stage, kinds
from tests.support.chaos import examples
from trio_lanes import Lanes, LanesClosedError, open_lanes
from trio_lanes.agents import Inbox, Overflow, Receipt, Summary, Turn, WhenBusy
from trio_lanes.testing import LaneRecorder


class Boom(Exception):
    """What a turn raises."""


@attrs.frozen
class Post:
    mode: WhenBusy
    group: str
    id: int | None
    expected: int | None = None  # a turn, counted back from the newest


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
    st.sampled_from([None, None, None, None, 0, 0, 1]),
)
WORDS = (
    ["rest", "return", "take"] * 2
    + ["raise", "raise", "abort-turn", "abort-inbox", "compact", "clear", "reset"]
    + ["release", "release", "hold", "stop run", "stop hold", "stop clear"]
    + ["abort-turn hold", "abort-turn clear", "withdraw first", "withdraw last", "edit"]
)
things = st.sampled_from(WORDS).map(Do)
sleeps = st.sampled_from([0.125, 0.25, 0.5, 1.0, 150.0]).map(Sleep)
steps = st.lists(st.one_of(posts, posts, posts, things, things, sleeps), max_size=60)


class History:
    """A real inbox and its model, going through the same steps."""

    def __init__(
        self, lanes: Lanes, cap: int, overflow: Overflow, holds: bool, first: bool, lends: bool
    ) -> None:
        self.lanes = lanes
        self.stage = Stage()
        self.stage.lends = lends
        self.inbox = Inbox(
            lanes,
            "alice",
            self.stage.handler,
            debounce=0.5,
            max_wait=1.25,
            cap=cap,
            overflow=overflow,
            hold_on_failure=holds,
            steers_first=first,
        )
        self.model = Model(cap, overflow, 0.5, 1.25, holds, first)
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
        expected, turn = None, None
        if step.expected is not None:
            expected = len(self.stage.turns) - 1 - step.expected
            turn = "none" if expected < 0 else self.stage.turns[expected].id
        receipt = self.inbox.post(
            key, when_busy=step.mode, group=step.group, id=step.id, expected_turn=turn
        )
        meant = self.model.post(key, step.mode, step.group, step.id, expected)
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
        elif what == "hold":
            model.hold()
            inbox.hold()
        elif what == "release":
            model.release()
            inbox.release()
        elif what.startswith("stop"):
            then: Any = what.removeprefix("stop ")
            await self.rest()
            model.stop(then)
            model.rest()
            assert await inbox.stop(then)
            await self.rest()
        elif what in ("withdraw first", "withdraw last"):
            if model.line:
                place = 0 if what == "withdraw first" else len(model.line) - 1
                receipt = self.receipts[model.line[place].key]
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
        elif what.startswith("abort-turn"):
            then = what.removeprefix("abort-turn").strip() or "run"
            model.stop(then)
            turn.abort(then=then)
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
        order = [self.receipts[key] for key in model.order]
        assert [receipt.position for receipt in order] == [*range(len(order))]
        held = [receipt for receipt in self.receipts.values() if receipt.is_held]
        assert set(held) == (set(order) if model.held else set())
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

    async def close(self) -> None:
        """Close the lanes while the inbox is held: nothing waits for it."""
        await self.take(Do("rest"))
        await self.take(Do("hold"))
        waiting = self.inbox.waiting
        self.lanes.close()
        self.model.cancel_line()
        self.compare()
        for receipt in waiting:
            assert receipt.outcome is not None
            assert isinstance(receipt.outcome.error, LanesClosedError)
        await self.take(Do("return"))
        await self.take(Do("rest"))

    async def end(self) -> None:
        """Let everything run that is left."""
        await self.take(Do("release"))
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


async def play(
    steps: Iterable[Step],
    *,
    cap: int,
    overflow: Overflow,
    holds: bool,
    first: bool,
    lends: bool,
    closes: bool,
) -> None:
    recorder = LaneRecorder()
    async with open_lanes({"main": 2}, instruments=[recorder]) as lanes:
        history = History(lanes, cap, overflow, holds, first, lends)
        for step in steps:
            await history.take(step)
        before = trio.current_time()
        if closes:
            await history.close()
            await lanes.drain()
            assert trio.current_time() == before
        await history.end()
        assert lanes.sessions() == []
        recorder.check()


@hypothesis.given(
    st.random_module(),
    steps,
    st.integers(1, 4),
    st.sampled_from(Overflow),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
@hypothesis.settings(max_examples=examples(500))
def test_an_inbox_does_what_its_model_does(
    seed: Any,
    steps: list[Step],
    cap: int,
    overflow: Overflow,
    holds: bool,
    first: bool,
    lends: bool,
    closes: bool,
) -> None:
    trio.run(
        partial(
            play,
            steps,
            cap=cap,
            overflow=overflow,
            holds=holds,
            first=first,
            lends=lends,
            closes=closes,
        ),
        clock=MockClock(autojump_threshold=0),
    )


def long_history(random: Random) -> Iterator[Step]:
    """Sixty steps, of which many hold and release, so that much happens while it is held."""
    modes = [*WhenBusy, WhenBusy.COLLECT, WhenBusy.STEER, WhenBusy.STEER]
    for _ in range(60):
        draw = random.random()
        if draw < 0.45:
            id, expected = random.choice([None] * 5 + [1]), random.choice([None] * 5 + [0, 0, 1])
            yield Post(random.choice(modes), random.choice("aab"), id, expected)
        elif draw < 0.55:
            yield Sleep(random.choice([0.125, 0.5, 1.0]))
        else:
            yield Do(random.choice(WORDS))


def check_long_history(seed: object) -> None:
    random = Random(repr(seed))
    yes_or_no = (True, False)
    trio.run(
        partial(
            play,
            long_history(random),
            cap=random.randint(1, 5),
            overflow=random.choice([*Overflow]),
            holds=random.choice(yes_or_no),
            first=random.choice(yes_or_no),
            lends=random.choice(yes_or_no),
            closes=random.choice(yes_or_no),
        ),
        clock=MockClock(autojump_threshold=0),
    )


@pytest.mark.parametrize("seed", range(30))
def test_in_a_long_history_an_inbox_does_what_its_model_does(seed: int) -> None:
    check_long_history(seed)


@pytest.mark.thorough
def test_in_many_long_histories_an_inbox_does_what_its_model_does() -> None:
    fresh = time.time_ns()
    for number in range(1_500):
        seed = number if number < 500 else (fresh, number)
        try:
            check_long_history(seed)
        except BaseException as error:
            error.add_note(f"the seed was {seed!r}")
            raise
