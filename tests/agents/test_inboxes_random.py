"""A table of inboxes beside other features, in random histories of several sessions.

Lanes with a rate, with bounds and with pauses; turns that lend their slot for an approval; clears
and resets; and people who hold, stop and release at any moment, also in the midst of an act.
"""

from __future__ import annotations

import math
import time
from functools import partial
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from trio_lanes import (
    Job,
    LaneConfig,
    LaneError,
    LaneInstrument,
    RateLimit,
    open_lanes,
)
from trio_lanes.agents import Inboxes, Overflow, Receipt, SettledKind, Turn, WhenBusy
from trio_lanes.testing import LaneRecorder

SESSIONS = ("ann", "ben", "cleo")
STEPS = 120


class People(LaneInstrument):
    """What they do, and what must be so whatever they do."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.held: dict[str, Turn | None] = {}  # and the turn that was active then
        self.receipts: list[tuple[Receipt, str | None]] = []  # and the turn that it is for
        self.turns: list[str] = []
        self.begun_while_held: list[Turn] = []
        self.acting = False
        self.inboxes: Inboxes

    async def handler(self, turn: Turn) -> int:
        if self.held.get(turn.session, turn) is not turn:
            self.begun_while_held.append(turn)
        self.turns.append(turn.id)
        random = self.random
        for _ in range(random.randint(0, 3)):
            draw = random.random()
            if draw < 0.3:
                async with turn.job.yield_slot(reason="an approval"):
                    await trio.sleep(random.choice([0.1, 0.7]))
            elif draw < 0.4:
                with turn.compacting():
                    await trio.sleep(0.1)
            elif draw < 0.45:
                self.act(turn.session, "stop hold")
            else:
                await trio.sleep(random.choice([0, 0.1, 0.4]))
            turn.take()
        if random.random() < 0.2:
            raise ValueError("no")
        return len(turn.messages)

    def job_submitted(self, job: Job[Any]) -> None:
        """In the midst of an act, once in a while."""
        if not self.acting and self.random.random() < 0.15:
            self.acting = True
            try:
                self.act(
                    self.random.choice(SESSIONS), self.random.choice(["hold", "release", "post"])
                )
            finally:
                self.acting = False

    def act(self, session: str, what: str) -> None:
        """Do it in one step."""
        inboxes, random = self.inboxes, self.random
        turn = inboxes.turn(session)
        if what == "post":
            expected = random.choice([None, None, None, *self.turns[-2:]])
            try:
                receipt = inboxes.post(
                    session,
                    len(self.receipts),
                    when_busy=random.choice([*WhenBusy]),
                    group=random.choice("aab"),
                    expected_turn=expected,
                )
            except LaneError:
                return
            self.receipts.append((receipt, expected))
        elif what == "hold":
            self.held.setdefault(session, turn)
            inboxes.hold(session)
        elif what == "release":
            was_held = session in self.held
            self.held.pop(session, None)
            try:
                inboxes.release(session)
            except LaneError:
                if was_held:  # and not by a failure alone
                    self.held.setdefault(session, inboxes.turn(session))
        elif what.startswith("stop") and turn is not None:
            then: Any = what.removeprefix("stop ")
            if then == "hold":
                self.held.setdefault(session, turn)
            turn.abort(then=then)

    def check(self) -> None:
        assert self.begun_while_held == []
        assert {*self.inboxes.held} >= {*self.held}  # a failure may hold, too
        seen = self.inboxes.statistics()
        assert seen.offered == seen.waiting + seen.in_turn + sum(seen.settled.values())


WHAT = ["post"] * 8 + ["hold", "release", "release", "stop run", "stop hold", "stop clear"]


async def live(random: Random) -> None:
    people, recorder = People(random), LaneRecorder()
    lanes_of = {
        "main": LaneConfig(
            concurrency=2,
            max_waiting=random.choice([3, math.inf]),
            rate=RateLimit(20, per=2.0) if random.random() < 0.5 else (),
        )
    }
    each = LaneConfig(max_waiting=random.choice([1, 2, math.inf]))
    async with open_lanes(lanes_of, sessions=each, instruments=[recorder, people]) as lanes:
        people.acting = True
        people.inboxes = Inboxes(
            lanes,
            people.handler,
            max_wait=1.0,
            cap=random.choice([2, 4]),
            overflow=random.choice([*Overflow]),
            hold_on_failure=random.random() < 0.3,
            steers_first=random.random() < 0.7,
        )
        people.acting = False
        for _ in range(STEPS):
            session, draw = random.choice(SESSIONS), random.random()
            if draw < 0.7:
                people.act(session, random.choice(WHAT))
            elif draw < 0.72:
                lanes.clear(f"session:{session}")
            elif draw < 0.74:
                lanes.reset(f"session:{session}")
            elif draw < 0.77:
                with trio.move_on_after(random.choice([0, 0.2])):
                    people.held.setdefault(session, people.inboxes.turn(session))
                    await people.inboxes.stop(session, "hold", timeout=random.choice([0.1, 5]))
            elif draw < 0.8:
                lanes.session(session).pause_for(0.5)
            else:
                await trio.sleep(random.choice([0, 0.1, 0.6]))
            people.check()
        people.acting = True  # no hook acts any more
        if random.random() < 0.5:
            for session in [*people.inboxes.held]:
                people.act(session, "release")
        before, held = trio.current_time(), people.inboxes.held
        waiting = [receipt for session in held for receipt in people.inboxes.waiting(session)]
        await lanes.drain()
        assert trio.current_time() - before < 600, "it has waited for no hold"
        for receipt in waiting:
            assert receipt.outcome is not None
            if receipt.outcome.kind is not SettledKind.STEERED:
                assert receipt.outcome.kind is SettledKind.CANCELLED
                assert isinstance(receipt.outcome.error, LaneError)
    recorder.check()
    for receipt, expected in people.receipts:
        outcome = receipt.outcome
        assert outcome is not None
        if outcome.kind is SettledKind.REJECTED and outcome.error is not None:
            assert f"for the turn {expected!r}" in str(outcome.error)
    for session in [*people.inboxes.held]:
        people.inboxes.release(session)
    # an overflow may have left a summary for the next turn
    assert all(not people.inboxes.waiting(session) for session in SESSIONS)


def check_life(seed: object) -> None:
    trio.run(partial(live, Random(repr(seed))), clock=MockClock(autojump_threshold=0))


@pytest.mark.parametrize("seed", range(15))
def test_whatever_people_do_no_turn_begins_while_its_session_is_held(seed: int) -> None:
    check_life(seed)


@pytest.mark.thorough
def test_in_many_lives_no_turn_begins_while_its_session_is_held() -> None:
    fresh = time.time_ns()
    for number in range(600):
        seed = number if number < 200 else (fresh, number)
        try:
            check_life(seed)
        except BaseException as error:
            error.add_note(f"the seed was {seed!r}")
            raise
